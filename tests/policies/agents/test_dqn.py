"""Double DQN with masks: the loss by hand, over Q-values that are tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.policies.navigation_spaces import make, spec_for, states, transitions
from tests.tolerances import assert_near
from torchrl_gpu.policies import DQN, AgentSpace, PeriodicTargets, PolicyWrapper, SoftTargets
from torchrl_gpu.policies.risk import RiskLevel, midpoints
from torchrl_gpu.policies.targets import TargetUpdate


class Table(nn.Module):
    in_keys = ("state",)

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, state: Tensor) -> Tensor:
        return self.values[state]


SPACE = AgentSpace("Somewhere", (), {"state": ((), "int64"), "action_mask": ((3,), "bool")}, num_actions=3)
ONLINE = [[1.5, 5.0, 0.0], [5.0, 9.0, 7.0], [4.0, 1.0, 0.0]]
TARGET = [[0.0, 0.0, 0.0], [10.0, 100.0, 2.0], [8.0, 50.0, 50.0]]


def tables() -> DQN:
    """An agent whose online and target Q-values are the tables above, gamma 1/2."""
    made = DQN(SPACE, network=lambda space: Table(TARGET), gamma=0.5)
    with torch.no_grad():
        made.policy[0].module.values.copy_(torch.tensor(ONLINE))
    return made


def batch_by_hand() -> TensorDict:
    """Three transitions: one that goes on, one that terminates, one that is cut off."""
    after = TensorDict(batch_size=[3])
    after["state"] = torch.tensor([1, 1, 2])
    after["action_mask"] = torch.tensor([[True, False, True], [True, True, True], [True, True, True]])
    after["reward"] = torch.tensor([[1.0], [3.0], [0.0]])
    after["done"] = torch.tensor([[False], [True], [True]])
    after["terminated"] = torch.tensor([[False], [True], [False]])
    steps = TensorDict(batch_size=[3])
    steps["state"] = torch.tensor([0, 0, 2])
    steps["action"] = torch.tensor([0, 1, 0])
    steps["action_mask"] = torch.ones(3, 3, dtype=torch.bool)
    steps["steps_to_next_obs"] = torch.tensor([[1], [2], [3]])
    steps["next"] = after
    return steps


# -- the loss --
#
# Huber: e²/2 up to e = 1, then e − 1/2.
#   0: in state 1 the online network prefers, of actions 0 and 2, action 2 (7 > 5; the 9 of action 1 is not legal). The
#      target network gives it 2, so y = 1 + 1/2 · 2 = 2; Q = 1.5, e = 0.5, loss 0.125.
#   1: terminated, so y = 3; Q = 5, e = 2, loss 1.5.
#   2: cut off, not terminated, so it bootstraps over three steps: the online network prefers action 0, the target
#      network gives it 8, y = 0 + (1/2)³ · 8 = 1; Q = 4, e = 3, loss 2.5.
ERRORS = [0.5, 2.0, 3.0]
LOSSES = [0.125, 1.5, 2.5]


def test_loss_and_gradients_by_hand() -> None:
    # The slope of the Huber loss is the error up to 1, then its sign: Q − y is −0.5, 2, 3. Nothing flows through
    # targets or through the choice of the next action.
    agent, batch = tables(), batch_by_hand()
    loss = agent.loss(batch)["loss"]
    assert loss.item() == pytest.approx(sum(LOSSES) / 3)
    assert batch["td_error"].shape == (3, 1)
    assert batch["td_error"].flatten().tolist() == pytest.approx(ERRORS)
    loss.backward()
    (weights,) = agent.parameters_to_train
    assert_near(weights.grad, torch.tensor([[-0.5, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]) / 3)


def noise(network: Any) -> list[Tensor]:
    return [value.clone() for name, value in network.named_buffers() if name.endswith("epsilon")]


def redrawn(before: list[Tensor], network: Any) -> list[bool]:
    return [not torch.equal(then, now) for then, now in zip(before, noise(network), strict=True)]


@pytest.mark.parametrize("targets", [SoftTargets(0.1), PeriodicTargets(1000)], ids=["soft", "periodic"])
def test_noise_is_drawn_anew_after_every_update(targets: TargetUpdate) -> None:
    agent: Any = make("Rainbow", targets=targets)
    online, target = noise(agent.online), noise(agent.target)
    agent.update_targets(1)
    assert all(redrawn(target, agent.target))
    assert all(redrawn(online, agent.online))
    assert not [a for a, b in zip(noise(agent.online), noise(agent.target), strict=True) if torch.equal(a, b)]


def test_noise_is_in_the_loss_and_its_size_is_learnt() -> None:
    agent: Any = make("Rainbow")
    first = agent.losses(transitions("Rainbow", 16))["value"]
    agent.update_targets(1)
    second = agent.losses(transitions("Rainbow", 16))["value"]
    assert first != second
    second.backward()
    sizes = [weight.grad for name, weight in agent.online.named_parameters() if "sigma" in name]
    assert len(sizes) == 12
    assert all(slope.any() for slope in sizes)


def test_exploring_is_by_noise_alone_unless_told_otherwise() -> None:
    agent: Any = make("Rainbow")
    assert agent.exploration is None
    seen = transitions("Rainbow", 60).exclude("next", "action")
    with set_exploration_type(ExplorationType.RANDOM):
        one = PolicyWrapper(agent, flat=True)(seen.clone())["action"]
        again = PolicyWrapper(agent, flat=True)(seen.clone())["action"]
        agent.update_targets(1)
        other = PolicyWrapper(agent, flat=True)(seen.clone())["action"]
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_atoms_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"Rainbow: v_max .*\b3; got 3\.0"):
        make("Rainbow", v_min=3.0, v_max=3.0)


def test_the_price_of_entropy_is_fixed_or_learnt() -> None:
    fixed: Any = make("SAC", alpha=0.5)
    assert list(fixed.parameter_groups) == ["critic", "actor"]
    assert fixed.log_alpha.exp().item() == pytest.approx(0.5)
    assert "log_alpha" not in fixed.state_dict(), "it is set, not learned"
    learnt: Any = make("SAC", target_entropy=-2.0)
    assert list(learnt.parameter_groups) == ["critic", "actor", "alpha"]
    assert learnt.parameter_groups["alpha"] == [learnt.log_alpha]


@pytest.mark.parametrize(("wanted", "rises"), [(50.0, True), (-50.0, False)])
def test_the_price_rises_where_there_is_too_little_entropy(wanted: float, rises: bool) -> None:
    agent: Any = make("SAC", target_entropy=wanted)
    losses = agent.losses(transitions("SAC", 32))
    # These losses are summed with it.
    for name in ("actor", "critic"):
        losses[name].backward(retain_graph=True)
    assert agent.log_alpha.grad is None
    losses["alpha"].backward()
    # Descent moves against the slope.
    assert (agent.log_alpha.grad < 0).item() is rises


def test_actions_are_drawn_anew_for_every_robot() -> None:
    agent, seen = make("SAC"), states(1, num_actions=None).expand(4, 3).clone()
    with set_exploration_type(ExplorationType.RANDOM):
        action = PolicyWrapper(agent, flat=True)(seen.clone())["action"]
    assert len(action.reshape(-1, 2).unique(dim=0)) == 12
    greedy = agent.policy(seen)["action"]
    assert_near(greedy, greedy[:1, :1].expand(4, 3, 2))


SEEN = TensorDict({"clearance": torch.tensor([[0.0], [2.5], [10.0], [15.0], [-0.4]], dtype=torch.float64)}, [5])


def test_levels_by_hand() -> None:
    adaptive, fixed = RiskLevel("adaptive", 10.0), RiskLevel(0.5)
    assert (adaptive.in_keys, fixed.in_keys) == (["clearance"], [])
    assert_near(adaptive(SEEN), torch.tensor([[0.0], [0.25], [1.0], [1.0], [0.0]]))
    assert fixed(SEEN).tolist() == 0.5
    # The temperature is set, and not learned.
    assert dict(fixed.state_dict()) == {}
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize("wrong", [1.5, None])
def test_a_level_that_is_none(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"RiskLevel: cvar .*above 0"):
        RiskLevel(wrong)


@pytest.mark.parametrize("name", ["IQN", "ACIQN"])
def test_a_level_by_a_clearance_that_is_not_observed(name: str) -> None:
    spec = spec_for(name, flat=True)
    del spec.observation_spec["clearance"]
    with pytest.raises(ValueError, match=f"^{name}: .*cvar .*clearance.*NavigationSpec"):
        make(name, spec=spec, cvar="adaptive")


def test_the_score_at_a_level_is_the_mean_of_the_quantiles_below_it() -> None:
    agent: Any = make("IQN", cvar=0.25, acting_taus=64)
    seen = states(5)
    taus = 0.25 * (torch.arange(64) + 0.5) / 64
    quantiles = agent.scores.network(seen["observation"], seen["object_mask"], taus)
    assert_near(agent.scores(seen)["action_value"], quantiles.mean(-2))


class TwoOutcomes(torch.nn.Module):
    """Quantiles of a gamble.

    Action a > 0 stakes a, won by the upper half of all τ at 3 to 1 and lost by the lower.
    """

    in_keys = ("observation",)

    def __init__(self, env: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, observation: torch.Tensor, action: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
        return action.mean(-1, keepdim=True) * torch.where(taus < 0.5, -1.0, 3.0) + self.weight


@pytest.mark.parametrize(("cvar", "gambles"), [(1.0, True), (0.4, False)])
def test_a_careful_actor_learns_not_to_gamble(cvar: float, gambles: bool) -> None:
    # The gamble is worth +1 times the stake in the mean, −1 times it in the worst 40 %.
    agent, batch = make("ACIQN", critic=TwoOutcomes, cvar=cvar, num_taus=32), transitions("ACIQN", 32)
    optimizer = torch.optim.Adam(agent.parameter_groups["actor"], lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        agent.losses(batch)["actor"].backward()
        optimizer.step()
    action = agent.policy(batch.exclude("action"))["action"]
    assert (action > 0.3).all() if gambles else (action < -0.3).all()
