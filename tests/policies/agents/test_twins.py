"""Every agent against a naive twin and against TorchRL.

The twin looks at one sample, one quantile, one atom at a time.
"""

from __future__ import annotations

import copy
from itertools import cycle
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import DistributionalQValueActor, TanhNormal
from torchrl.objectives import DistributionalDQNLoss, HardUpdate, SACLoss, SoftUpdate

from tests.policies.agents import naive
from tests.policies.navigation_spaces import CONTINUOUS, DISCRETE, make, spec_for, states, transitions
from tests.tolerances import assert_near
from torchrl_gpu.policies import SAC, Agent, PolicyWrapper, Rainbow

# Number of transitions.
NUM = 24


def target_copy(agent: Any, name: str, like: torch.nn.Module) -> torch.nn.Module:
    made = copy.deepcopy(like)
    with torch.no_grad():
        getattr(agent.objective, f"target_{name}_network_params").data.to_module(made)
    return made


def naive_losses(agent: Any, batch: TensorDict, seed: int, **changes: Any) -> list[tuple[float, ...]]:
    """Return losses and error of each transition.

    Random numbers come from `seed`, in the agent's order.
    """
    torch.manual_seed(seed)
    num = len(batch)
    if agent.name == "DQN":
        target = target_copy(agent, "value", agent.policy)[0].module  # type: ignore[index]
        return [naive.dqn(agent, target, sample, **changes) for sample in batch]
    if agent.name == "Rainbow":
        with set_exploration_type(ExplorationType.RANDOM):
            return [naive.rainbow(agent, sample, **changes) for sample in batch]
    if agent.name == "DDPG":
        actor, critic = (
            target_copy(agent, "actor", agent.policy),
            target_copy(agent, "value", agent.objective.value_network),
        )
        return [naive.ddpg(agent, (actor.module, critic.module), sample) for sample in batch]
    if agent.name == "SAC":
        draws = [torch.randn(num, 2) for _ in range(2)]
        return [naive.sac(agent, *row) for row in zip(batch, *draws, strict=True)]
    draws = [torch.rand(num, agent.num_taus) for _ in range(2 if agent.name == "IQN" else 3)]
    twin = naive.iqn if agent.name == "IQN" else naive.ac_iqn
    return [twin(agent, *row, **changes) for row in zip(batch, *draws, strict=True)]


def assert_same_losses(agent: Agent, batch: TensorDict, **changes: Any) -> None:
    batch["priority_weight"] = torch.linspace(0, 1, len(batch))
    with torch.no_grad():
        expected = torch.tensor(naive_losses(agent, batch, 5, **changes), dtype=torch.float64)
    torch.manual_seed(5)
    losses = agent.losses(batch)
    weight = batch["priority_weight"].double() / batch["priority_weight"].sum()
    assert list(losses) == list(agent.parameter_groups)
    for name, wanted in zip(losses, (expected[:, :-1] * weight[:, None]).sum(0), strict=True):
        assert losses[name].item() == pytest.approx(wanted.item(), rel=2e-4, abs=2e-5), name
    assert batch["td_error"].flatten().tolist() == pytest.approx(expected[:, -1].tolist(), rel=2e-4, abs=2e-4)


@pytest.mark.parametrize(("name", "version"), [*zip([*DISCRETE, *CONTINUOUS], cycle(["v2", "v3"]), strict=False)])
def test_losses_are_those_of_naive_twins(name: str, version: str) -> None:
    agent = make(name, spec=spec_for(name, version=version), gamma=0.9)
    assert_same_losses(agent, transitions(name, NUM, version=version))


# Of the agent, and of its twin.
OTHERWISE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("DDPG", {"squash": "tanh", "saturation_penalty": 0.5}, {}),
    ("SAC", {"squash": "atan"}, {}),
    ("ACIQN", {"squash": "tanh", "saturation_penalty": 0.5}, {}),
    *((name, {"double": False}, {"double": False}) for name in DISCRETE),
    ("IQN", {"cvar": 0.1}, {"level": 0.1}),
    ("ACIQN", {"cvar": 0.3}, {"level": 0.3}),
    ("ACIQN", {"cvar": "adaptive", "cvar_distance": 8.0}, {"level": 0.25}),
]


@pytest.mark.parametrize(("name", "changes", "twin"), OTHERWISE, ids=str)
def test_losses_with_options_are_those_of_naive_twins(name: str, changes: dict[str, Any], twin: dict[str, Any]) -> None:
    agent, batch = make(name, **changes), transitions(name, NUM, clearance=torch.full((NUM, 1), 2.0))
    assert ("clearance" in agent.observations) == ("cvar_distance" in changes)
    assert_same_losses(agent, batch, **twin)


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("name", DISCRETE)
def test_greedy_choices_are_those_of_naive_twins(name: str, version: str) -> None:
    agent = make(name, spec=spec_for(name, version=version))
    seen = states(NUM, version=version)
    chosen = PolicyWrapper(agent, flat=True).eval()(seen.clone())["action"]
    for state, action in zip(seen, chosen.tolist(), strict=True):
        assert_best(action, naive.scores(agent, state), state["action_mask"])


def assert_best(action: int, scores: list[float], mask: Tensor) -> None:
    """Assert that choices are legal and best.

    No legal action's score may be larger by more than adding up in another order makes.
    """
    assert mask[action]
    assert scores[action] == pytest.approx(scores[naive.best(scores, mask)], abs=1e-5)


@pytest.mark.parametrize(("squash", "version"), [("tanh", "v2"), ("atan", "v3")])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_greedy_actions_are_those_of_naive_twins(name: str, squash: str, version: str) -> None:
    agent = make(name, spec=spec_for(name, version=version), squash=squash)
    seen = states(NUM, version=version, num_actions=None).exclude("active")
    chosen = PolicyWrapper(agent, flat=True).eval()(seen.clone())["action"]
    for state, action in zip(seen, chosen.tolist(), strict=True):
        assert action == pytest.approx(naive.decided(agent, state), abs=1e-5)


@pytest.mark.parametrize("cvar", [0.25, "adaptive"])
def test_greedy_indices_at_risk(cvar: Any) -> None:
    agent, seen = make("IQN"), states(NUM)
    # Clearances are up to 2.5 m.
    seen["clearance"] = seen["clearance"] / 8
    careful = PolicyWrapper(agent, flat=True, cvar=cvar).eval()(seen.clone())["action"]
    neutral = PolicyWrapper(agent, flat=True).eval()(seen.clone())["action"]
    assert not torch.equal(careful, neutral)
    for state, action in zip(seen, careful.tolist(), strict=True):
        level = min(1.0, state["clearance"].item() / 10) if cvar == "adaptive" else cvar
        assert_best(action, naive.scores(agent, state, level), state["action_mask"])


KEYS = ["observation", "object_mask"]


class AtomsFirst(nn.Module):
    """Logarithms of chances (…, Z, A), as TorchRL wants them, of logits (…, A, Z)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *observed: torch.Tensor) -> torch.Tensor:
        return self.network(*observed).log_softmax(-1).transpose(-1, -2)


class Expanded(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *observed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.network(*observed)
        return mean, log_std.exp()


def distributional_loss(agent: Rainbow) -> DistributionalDQNLoss:
    online = DistributionalQValueActor(
        TensorDictModule(AtomsFirst(agent.online.network), in_keys=KEYS, out_keys=["action_value"]),
        in_keys=KEYS,
        support=agent.online.support.clone(),
        action_space="categorical",
    )
    target = DistributionalQValueActor(
        TensorDictModule(AtomsFirst(agent.target.network), in_keys=KEYS, out_keys=["action_value"]),
        in_keys=KEYS,
        support=agent.online.support.clone(),
        action_space="categorical",
    )
    theirs = DistributionalDQNLoss(online, gamma=agent.gamma, delay_value=True)
    # TorchRL warns where there is no updater.
    HardUpdate(theirs, value_network_update_interval=1)
    # Otherwise TorchRL switches the noise off.
    theirs.deterministic_sampling_mode = ExplorationType.RANDOM
    theirs.target_value_network_params.data.update_(TensorDict.from_module(target).detach())
    return theirs


def test_rainbow_loss_is_that_of_torchrl() -> None:
    agent, batch = make("Rainbow", gamma=0.9), transitions("Rainbow", 32)
    for part in (batch, batch["next"]):
        # TorchRL's loss knows no mask.
        part["action_mask"] = torch.ones_like(part["action_mask"])
    assert isinstance(agent, Rainbow)
    same = batch.clone()
    theirs = distributional_loss(agent)(same)["loss"]
    ours = agent.losses(batch)["value"]
    assert_near(ours, theirs)
    assert_near(batch["td_error"].flatten(), same["td_error"].flatten())


def soft_loss(agent: SAC) -> SACLoss:
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(Expanded(agent.policy.network), in_keys=KEYS, out_keys=["loc", "scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"], ["action"], distribution_class=TanhNormal, return_log_prob=True
        ),
    )
    critics = [
        TensorDictModule(critic, in_keys=[*KEYS, "action"], out_keys=["state_action_value"]) for critic in agent.critics
    ]
    learnt = agent.target_entropy is not None
    theirs = SACLoss(
        actor,
        critics,
        loss_function="l2",
        alpha_init=agent.log_alpha.exp().item(),
        fixed_alpha=not learnt,
        target_entropy=agent.target_entropy if learnt else 0.0,
    )
    theirs.set_keys(terminated="terminated")
    theirs.make_value_estimator(gamma=agent.gamma)
    SoftUpdate(theirs, tau=0.1)
    targets = [TensorDict.from_module(critic).detach() for critic in agent.target_critics]
    theirs.target_qvalue_network_params["module"].data.update_(torch.stack(targets))
    return theirs


@pytest.mark.parametrize("target_entropy", [None, -2.0])
@pytest.mark.parametrize("weights", [False, True])
def test_sac_loss_is_that_of_torchrl(target_entropy: float | None, weights: bool) -> None:
    agent, batch = make("SAC", gamma=0.9, target_entropy=target_entropy), transitions("SAC", 32)
    assert isinstance(agent, SAC)
    if weights:
        batch["priority_weight"] = torch.linspace(0, 1, 32)
    # TorchRL draws for the target first, ours for the actor: one draw of zeros makes the order not matter.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn_like", lambda like: torch.full_like(like, 0.7))
        patch.setattr(
            torch.distributions.normal, "_standard_normal", lambda shape, dtype, device: torch.full(shape, 0.7)
        )
        same = batch.clone()
        theirs = soft_loss(agent)(same)
        ours = agent.losses(batch)
    assert_near(ours["critic"], theirs["loss_qvalue"])
    assert_near(ours["actor"], theirs["loss_actor"])
    assert_near(batch["td_error"].flatten(), same["td_error"].flatten())
    if target_entropy is not None:
        assert_near(ours["alpha"], theirs["loss_alpha"])
