"""One wrapper for every agent.

Any batch, in a group or at the root, greedy or exploring, saved, compiled.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.policies.navigation_spaces import AGENTS, CONTINUOUS, DISCRETE, grouped, make, networks_for, spec_for, states
from tests.tolerances import assert_near
from torchrl_gpu.policies import EpsilonGreedy, PolicyWrapper

each_agent = pytest.mark.parametrize("name", AGENTS)
EXPLORE, GREEDY = ExplorationType.RANDOM, ExplorationType.DETERMINISTIC


def seen_by(name: str, *batch: int, **changes: Any) -> TensorDict:
    return states(*batch, num_actions=25 if name in DISCRETE else None, **changes)


def actions(wrapper: PolicyWrapper, seen: TensorDict, mode: ExplorationType = GREEDY) -> Tensor:
    with set_exploration_type(mode):
        return wrapper(grouped(seen.clone()))["robots", "action"]


# -- batches and groups --


@each_agent
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_wrapper_decides_for_all_robots_in_one_pass(name: str, version: str) -> None:
    agent = make(name, spec=spec_for(name, version=version))
    wrapper, seen = PolicyWrapper(agent).eval(), seen_by(name, 4, 3, version=version)
    came = actions(wrapper, seen)
    assert came.shape == ((4, 3) if name in DISCRETE else (4, 3, 2))
    for n in range(4):
        for r in range(3):
            alone = wrapper(TensorDict({"robots": seen[n, r]}, []))["robots", "action"]
            assert_near(alone.float(), came[n, r].float())


@each_agent
@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3, 4)])
def test_wrapper_takes_any_batch_at_the_root(name: str, batch: tuple[int, ...]) -> None:
    wrapper, seen = PolicyWrapper(make(name, spec=spec_for(name, flat=True))).eval(), seen_by(name, *batch)
    action = wrapper(seen.clone())["action"]
    assert action.shape == (batch if name in DISCRETE else (*batch, 2))
    assert torch.equal(action, PolicyWrapper(make(name), flat=True).eval()(seen.clone())["action"])


@each_agent
def test_a_batch_that_a_cpu_takes_in_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper, seen = PolicyWrapper(make(name)).eval(), seen_by(name, 50, 3)
    expected = actions(wrapper, seen)
    monkeypatch.setattr("torchrl_gpu.policies.wrapper._BLOCK", 16)
    came = actions(wrapper, seen)
    with set_exploration_type(EXPLORE):
        written = wrapper(grouped(seen.clone()))
    assert all(written[key].shape[:2] == (50, 3) for key in wrapper.out_keys)
    assert came.shape == expected.shape
    assert_near(came.float(), expected.float())
    explored = actions(wrapper.train(), seen, EXPLORE)
    assert explored.shape == expected.shape
    if name in DISCRETE:
        assert seen["action_mask"].gather(-1, explored[..., None]).all()


WRITTEN = {
    "DQN": {"action", "action_value"},
    "Rainbow": {"action", "action_value", "chosen_action_value"},
    "IQN": {"action", "action_value"},
    "DDPG": {"action"},
    "SAC": {"action", "action_log_prob"},
    "ACIQN": {"action"},
}


@each_agent
@pytest.mark.parametrize("mode", [EXPLORE, GREEDY])
def test_wrapper_writes_all_outputs_of_the_agent(name: str, mode: ExplorationType) -> None:
    agent, seen = make(name), seen_by(name, 4, 3)
    wrapper, written = PolicyWrapper(agent), grouped(seen.clone())
    before = set(written.keys(True, True))
    with set_exploration_type(mode):
        wrapper(written)
    assert set(written.keys(True, True)) - before == {("robots", key) for key in WRITTEN[name]}
    assert set(wrapper.out_keys) == {("robots", key) for key in WRITTEN[name]}
    assert written.batch_size == (4,)
    if name in DISCRETE:
        with set_exploration_type(mode):
            values = agent.policy(seen.clone())["action_value"]
        assert_near(written["robots", "action_value"], values)


def test_keys_and_what_an_agent_that_explores_leaves_out() -> None:
    wrapper = PolicyWrapper(make("IQN", cvar="adaptive"))
    read = ("observation", "object_mask", "clearance", "action_mask")
    assert set(wrapper.in_keys) == {("robots", key) for key in read}
    assert PolicyWrapper(make("DDPG"), flat=True).in_keys == ["observation", "object_mask"]
    for name, left in (("Rainbow", {"action", "action_value"}), ("SAC", {"action"})):
        wrapper = PolicyWrapper(make(name, exploration=EpsilonGreedy(0.5)), flat=True)
        # Nothing of the replaced action is left.
        assert set(wrapper.out_keys) == left


def test_a_group_with_the_batch_of_the_environments() -> None:
    seen = seen_by("DQN", 4, 3)
    narrow = TensorDict({"robots": TensorDict(seen.to_dict(), [4])}, [4])
    wrapper = PolicyWrapper(make("DQN")).eval()
    assert torch.equal(wrapper(narrow)["robots", "action"], actions(wrapper, seen))


# -- masks --


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("mode", [EXPLORE, GREEDY])
def test_robots_that_take_no_part_do_nothing(name: str, mode: ExplorationType) -> None:
    wrapper, seen = PolicyWrapper(make(name, exploration=EpsilonGreedy(0.5, 0.0))), seen_by(name, 10, 5)
    chosen, active = actions(wrapper, seen, mode), seen["active"][..., 0]
    assert (chosen[~active] == 0).all()
    assert (chosen[active] != 0).all()


# -- exploring --


@each_agent
def test_wrapper_in_evaluation_mode_is_greedy_whatever_the_exploration_type(name: str) -> None:
    wrapper, seen = PolicyWrapper(make(name, exploration=EpsilonGreedy(1.0))), seen_by(name, 10, 5)
    greedy = actions(wrapper, seen)
    assert torch.equal(actions(wrapper.eval(), seen, EXPLORE), greedy)
    assert not torch.equal(actions(wrapper.train(), seen, EXPLORE), greedy)


@each_agent
def test_without_exploration_the_policy_draws_what_it_draws_itself(name: str) -> None:
    agent, seen = make(name, exploration=None), seen_by(name, 10, 5)
    wrapper = PolicyWrapper(agent)
    assert agent.metrics == {}
    agent.anneal(10)
    state = torch.get_rng_state()
    explored = actions(wrapper, seen, EXPLORE)
    assert torch.equal(explored, actions(wrapper, seen)) is (name not in ("Rainbow", "SAC"))
    # Rainbow's noise is drawn at updates.
    assert torch.equal(torch.get_rng_state(), state) is (name != "SAC")


def test_epsilon_is_shared_with_the_agent() -> None:
    agent = make("DQN", exploration=EpsilonGreedy(1.0, 0.0, 10))
    wrapper, seen = PolicyWrapper(agent), seen_by("DQN", 10, 5)
    agent.anneal(10)
    assert torch.equal(actions(wrapper, seen, EXPLORE), actions(wrapper, seen))


# -- risk --


def test_a_level_of_risk_is_for_an_iqn() -> None:
    with pytest.raises(ValueError, match=r"ACIQN: cvar \S+ .*IQN"):
        PolicyWrapper(make("ACIQN"), cvar=0.5)


def test_the_adaptive_level_is_that_of_each_robot() -> None:
    agent, seen = make("IQN"), seen_by("IQN", 20, 3)
    seen["clearance"] = torch.where(torch.arange(60).view(20, 3, 1) % 2 == 0, 15.0, 1.0)
    adaptive = actions(PolicyWrapper(agent, cvar="adaptive").eval(), seen)
    neutral = actions(PolicyWrapper(agent, cvar=1.0).eval(), seen)
    careful = actions(PolicyWrapper(agent, cvar=0.1).eval(), seen)
    far = seen["clearance"][..., 0] > 10
    assert torch.equal(adaptive, torch.where(far, neutral, careful))
    assert not torch.equal(neutral, careful)
    # This one is the agent's own.
    assert torch.equal(actions(PolicyWrapper(make("IQN", cvar=0.1)).eval(), seen), careful)


def test_alternatives() -> None:
    agent, seen = make("IQN"), seen_by("IQN", 20, 3)
    ((name, policy),) = agent.alternatives().items()
    assert name == "adaptive IQN"
    wanted = actions(PolicyWrapper(agent, cvar="adaptive").eval(), seen)
    assert torch.equal(policy(grouped(seen.clone()))["robots", "action"], wanted)
    assert not torch.equal(wanted, actions(PolicyWrapper(agent).eval(), seen))
    assert all(make(other).alternatives() == {} for other in AGENTS if other != "IQN")
    spec = spec_for("IQN", flat=True)
    del spec.observation_spec["clearance"]
    assert make("IQN", spec=spec).alternatives() == {}


class OnlyForward(torch.nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network, self.in_keys = network, network.in_keys
        self.num_atoms = getattr(network, "num_atoms", None)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.network(*inputs)


@pytest.mark.parametrize("name", ["Rainbow", "IQN"])
def test_a_network_without_means_decides_alike(name: str) -> None:
    seen = seen_by(name, 40, 5)
    plain = make(name, network=lambda env: OnlyForward(networks_for(name)["network"](env)))
    scores = [agent.policy(seen.clone())["action_value"] for agent in (make(name), plain)]
    assert_near(*scores)


# -- compiled --


def compiled(wrapper: PolicyWrapper) -> Any:
    torch.compiler.reset()
    return torch.compile(wrapper, fullgraph=True, dynamic=False, backend="eager")


@pytest.mark.parametrize(
    "name", [name if name in ("IQN", "SAC") else pytest.param(name, marks=pytest.mark.soak) for name in AGENTS]
)
def test_wrapper_compiles_to_one_graph(name: str) -> None:
    cvar = "adaptive" if name == "IQN" else None
    wrapper, seen = PolicyWrapper(make(name), cvar=cvar).eval(), seen_by(name, 4, 3)
    came = compiled(wrapper)(grouped(seen.clone()))["robots", "action"]
    assert torch.equal(came, actions(wrapper, seen))
    # These two explore as IQN and DDPG do.
    if name not in ("DQN", "ACIQN"):
        with set_exploration_type(EXPLORE):
            compiled(wrapper.train())(grouped(seen.clone()))
