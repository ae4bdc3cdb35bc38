"""Environments without a mask, and states without a legal action.

Networks that do not fit are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.policies.agents.corridor import ACTIONS, NETWORKS, PLACES, Atoms, Corridor, Scores
from tests.policies.navigation_spaces import AGENTS, networks_for, spec_for
from torchrl_gpu import policies
from torchrl_gpu.policies import Agent, EpsilonGreedy, PolicyWrapper
from torchrl_gpu.policies.agents.shapes import check_network
from torchrl_gpu.policies.spaces import AgentSpace, end_without_actions, legal_values

each_agent = pytest.mark.parametrize("name", NETWORKS)
BATCHES = [(), (6,), (2, 3)]


def agent_for(name: str, env: Corridor, seed: int = 0, **changes: Any) -> Agent:
    torch.manual_seed(seed)
    support: dict[str, Any] = {"v_min": -2.0, "v_max": 2.0, "exploration": EpsilonGreedy()} if name == "Rainbow" else {}
    return getattr(policies, name)(
        AgentSpace.of(env), network=NETWORKS[name], gamma=0.5, n_steps=1, **support | changes
    )


def weights_of(agent: Agent) -> torch.Tensor:
    """Of the network that learns, (places, …)."""
    (weight,) = agent.parameter_groups["value"]
    return weight


# -- no mask -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES)
@each_agent
def test_without_a_mask_every_action_is_legal_when_acting(name: str, batch: tuple[int, ...]) -> None:
    env, masked = Corridor(*batch), Corridor(*batch, masked=True)
    agent, twin = agent_for(name, env), agent_for(name, masked)
    policy = PolicyWrapper(agent)
    assert policy.in_keys == ["observation"]
    seen = TensorDict({"observation": torch.eye(PLACES)}, [PLACES])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        greedy = policy(seen.clone())["action"]
        wanted = PolicyWrapper(twin)(seen.clone().set("action_mask", torch.ones(PLACES, ACTIONS, dtype=torch.bool)))
    assert torch.equal(greedy, wanted["action"])
    agent.exploration.epsilon.fill_(1.0)
    with set_exploration_type(ExplorationType.RANDOM):
        data = env.rollout(60, policy, break_when_any_done=False)
    assert data["action"].shape == (*batch, 60)
    assert data["action"].unique().tolist() == [0, 1, 2]


@each_agent
def test_without_a_mask_every_action_is_bootstrapped(name: str) -> None:
    env, masked = Corridor(5), Corridor(5, masked=True)
    agent = agent_for(name, env)
    twin = agent_for(name, masked)
    torch.manual_seed(1)
    batch = masked.rollout(20, break_when_any_done=False).reshape(-1)
    assert agent.observations == ["observation"]
    torch.manual_seed(2)
    bare = batch.select("observation", "action", "next").exclude(("next", "action_mask"))
    loss = agent.loss(bare)["loss"]
    torch.manual_seed(2)
    assert loss == twin.loss(batch)["loss"]
    assert torch.equal(bare["td_error"], batch["td_error"])
    loss.backward()
    assert weights_of(agent).grad is not None


# -- a state without a legal action ------------------------------------------------------------------------------------


def stuck(reward: float = 1.0) -> TensorDict:
    """Return one transition to a place without a legal action.

    It is not terminated.
    """
    first, second = torch.eye(PLACES)[:2]
    after = {
        "observation": second[None],
        "action_mask": torch.zeros(1, ACTIONS, dtype=torch.bool),
        "reward": torch.tensor([[reward]]),
        "done": torch.tensor([[False]]),
        "terminated": torch.tensor([[False]]),
    }
    step = {
        "observation": first[None],
        "action": torch.tensor([2]),
        "action_mask": torch.ones(1, ACTIONS, dtype=torch.bool),
        "next": after,
    }
    return TensorDict(step, [1])


@pytest.mark.parametrize("double", [False, True])
def test_dqn_bootstraps_0_where_nothing_is_legal(double: bool) -> None:
    # Q(first, right) = 3, and whatever the second place is worth: the target is 1, the error 2, its Huber loss 1.5.
    agent = agent_for("DQN", Corridor(1, masked=True), double=double)
    with torch.no_grad():
        weights_of(agent).copy_(torch.tensor([[0.0, 0.0, 3.0], [7.0, 8.0, 9.0], [0.0] * 3, [0.0] * 3]))
    batch = stuck()
    assert agent.loss(batch)["loss"].item() == pytest.approx(1.5)
    assert batch["td_error"].item() == pytest.approx(2.0)


@pytest.mark.parametrize("double", [False, True])
def test_rainbow_bootstraps_0_where_nothing_is_legal(double: bool) -> None:
    # The return is 1, one of the atoms −2, −1, 0, 1, 2, and has all the probability; the logits are 0, 0, 0, ln 2, 0,
    # so that its share was 2/6: the cross entropy is ln 3.
    agent = agent_for("Rainbow", Corridor(1, masked=True), double=double)
    with torch.no_grad():
        weights_of(agent).zero_()
        weights_of(agent)[0, 2 * 5 + 3] = math.log(2)
    batch = stuck()
    assert agent.loss(batch)["loss"].item() == pytest.approx(math.log(3), rel=1e-6)
    assert batch["td_error"].item() == pytest.approx(math.log(3), rel=1e-6)


@pytest.mark.parametrize("changes", [{}, {"double": False}, {"cvar": 0.3}], ids=str)
def test_iqn_bootstraps_0_where_nothing_is_legal(changes: dict[str, Any]) -> None:
    # Quantiles of (first, right) are −3 + τ, and each of them is compared with the return of 1: the mean distance is
    # 4 − the mean of the τ that were drawn; each τ costs τ · (4 − τ − 1/2), of which the loss is the sum.
    agent = agent_for("IQN", Corridor(1, masked=True), num_taus=4, **changes)
    with torch.no_grad():
        weights_of(agent).copy_(torch.tensor([[0.0, 0.0, -3.0], [7.0, 8.0, 9.0], [0.0] * 3, [0.0] * 3]))
    torch.manual_seed(5)
    taus = torch.rand(1, 4)
    torch.manual_seed(5)
    batch = stuck()
    loss = agent.loss(batch)["loss"]
    assert batch["td_error"].item() == pytest.approx(4 - taus.mean().item())
    assert loss.item() == pytest.approx((taus * (4 - taus - 0.5)).sum().item())


@each_agent
def test_a_batch_stays_as_it_is_but_for_its_error(name: str) -> None:
    agent, batch = agent_for(name, Corridor(1, masked=True)), stuck()
    before = batch.clone()
    agent.loss(batch)
    assert (batch.exclude("td_error") == before).all()
    assert set(batch.keys(True, True)) == {*before.keys(True, True), "td_error"}


@each_agent
def test_where_something_is_legal_nothing_changes(name: str) -> None:
    # The same transition with a legal action bootstraps: its target is another one.
    agent = agent_for(name, Corridor(1, masked=True))
    with torch.no_grad():
        for network in agent.modules():
            for weight in network.parameters(recurse=False):
                weight.fill_(1.0)
                weight[..., 2::3] = 2.0
    errors = []
    for legal in (False, True):
        batch = stuck()
        batch["next", "action_mask"][0, 1] = legal
        torch.manual_seed(0)
        agent.loss(batch)
        errors.append(batch["td_error"].item())
    assert abs(errors[0] - errors[1]) > 0.01


def test_a_next_state_without_a_legal_action_is_done_too() -> None:
    space = AgentSpace.of(Corridor(2, masked=True))
    mask = torch.tensor([[True] + [False] * (ACTIONS - 1), [False] * ACTIONS])
    flags = {name: torch.zeros(2, 1, dtype=torch.bool) for name in ("done", "terminated")}
    rows = TensorDict({"next": TensorDict({"action_mask": mask, **flags}, [2])}, [2])
    ended = end_without_actions(rows, space)["next"]
    assert ended["done"].flatten().tolist() == ended["terminated"].flatten().tolist() == [False, True]
    assert not rows["next", "done"].any()


def test_of_bad_actions_a_legal_one_is_chosen() -> None:
    state = TensorDict({"action_mask": torch.tensor([[False, True, True], [True, False, False]])}, [2])
    space = AgentSpace("Somewhere", (), {"action_mask": ((3,), "bool")}, num_actions=3)
    values = legal_values(torch.tensor([[5.0, -2.0, -1.0], [-9.0, -1.0, 0.0]]), state, space)
    assert values.argmax(-1).tolist() == [2, 0]
    assert values.isinf().tolist() == (~state["action_mask"]).tolist()


class Wrong(nn.Module):
    def __init__(self, network: nn.Module, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.network, self.change = network, change
        self.in_keys = network.in_keys
        self.num_atoms = getattr(network, "num_atoms", None)

    def forward(self, *inputs: Tensor) -> Any:
        return self.change(self.network(*inputs))


def cut(out: Any) -> Any:
    return tuple(map(cut, out)) if isinstance(out, tuple) else out[..., :-1]


def made(name: str, change: Callable[[Any], Any], argument: str) -> None:
    networks = networks_for(name)
    inner = networks[argument]
    getattr(policies, name)(
        AgentSpace.of(spec_for(name)), **{**networks, argument: lambda env: Wrong(inner(env), change)}
    )


EACH: list[tuple[str, str]] = []
for agent_name in AGENTS:
    EACH += [(agent_name, argument) for argument in networks_for(agent_name)]


@pytest.mark.parametrize(("name", "argument"), EACH)
def test_a_wrong_width_is_refused(name: str, argument: str) -> None:
    # The wrapped network gives the same.
    made(name, lambda out: out, argument)
    with pytest.raises(ValueError, match=rf"^{name}: Wrong .*\(…, .*\) for observation \(…, .*\), not \(…"):
        made(name, cut, argument)


@pytest.mark.parametrize(("name", "argument"), EACH)
def test_another_number_of_outputs_or_rows_is_refused(name: str, argument: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: Wrong .*, not "):
        made(name, lambda out: out[0] if isinstance(out, tuple) else (out, out), argument)
    with pytest.raises(ValueError, match=rf"^{name}: Wrong .*batch shape$"):
        made(name, lambda out: tuple(o[:1] for o in out) if isinstance(out, tuple) else out[:1], argument)
    with pytest.raises(ValueError, match=rf"^{name}: Wrong .*\bstr$"):
        made(name, lambda out: ["scores"], argument)


@pytest.mark.parametrize(("name", "argument"), EACH)
def test_a_network_without_in_keys_is_refused(name: str, argument: str) -> None:
    networks = {**networks_for(name), argument: lambda env: nn.Linear(32, 25)}
    with pytest.raises(ValueError, match=rf"^{name}: Linear .*in_keys"):
        getattr(policies, name)(AgentSpace.of(spec_for(name)), **networks)


def test_in_keys_of_a_network_are_a_list_of_names() -> None:
    class OneName(Scores):
        in_keys = "observation"  # type: ignore[assignment]

    with pytest.raises(ValueError, match=r"^DQN: OneName has 'observation' .*in_keys"):
        policies.DQN(AgentSpace.of(Corridor(2)), network=OneName)


@pytest.mark.parametrize(("atoms", "shown"), [(None, "None"), (1, "1"), (5.0, "5.0")])
def test_rainbow_wants_the_number_of_atoms(atoms: Any, shown: str) -> None:
    class Some(Atoms):
        num_atoms = atoms

    with pytest.raises(ValueError, match=rf"^Rainbow: num_atoms of Some .*{shown}$"):
        policies.Rainbow(AgentSpace.of(Corridor(2)), network=Some)
    if atoms is None:
        with pytest.raises(ValueError, match=r"^Rainbow: num_atoms of Scores .*None$"):
            policies.Rainbow(AgentSpace.of(Corridor(2)), network=Scores)


def test_rainbow_wants_as_many_atoms_as_it_is_told() -> None:
    class Fewer(Atoms):
        num_atoms = 7

    wanted = r"Fewer .*\(…, 3, 7\) for observation \(…, 4\), not \(…, 3, 5\)"
    with pytest.raises(ValueError, match=wanted):
        policies.Rainbow(AgentSpace.of(Corridor(2)), network=Fewer)


def test_error_of_a_network_is_named() -> None:
    class Broken(Scores):
        def forward(self, observation: Tensor) -> Tensor:
            return super().forward(observation[..., :2])

    with pytest.raises(ValueError, match=r"^DQN: Broken .*\(…, 3\) .*RuntimeError: ") as raised:
        policies.DQN(AgentSpace.of(Corridor(2)), network=Broken)
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_layers_that_behave_otherwise_in_training_are_left_alone() -> None:
    class Noisy(Scores):
        def __init__(self, env: Any = None) -> None:
            super().__init__(env)
            self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.5).eval()

        def forward(self, observation: Tensor) -> Tensor:
            return self.drop(self.norm(super().forward(observation)))

    net = Noisy()
    state = torch.get_rng_state()
    check_network("Some", AgentSpace.of(Corridor(2)), net, gives=[(3,)])
    assert net.norm.num_batches_tracked == 0
    assert (net.training, net.norm.training, net.drop.training) == (True, True, False)
    assert torch.equal(torch.get_rng_state(), state)
