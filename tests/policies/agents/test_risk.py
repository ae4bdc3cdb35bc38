"""Levels of risk: by hand, when IQN decides, and when the actor of AC-IQN learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.policies.navigation_spaces import make, spec_for, states, transitions
from tests.tolerances import assert_near
from torchrl_gpu.policies.risk import RiskLevel, midpoints

SEEN = TensorDict({"clearance": torch.tensor([[0.0], [2.5], [10.0], [15.0], [-0.4]], dtype=torch.float64)}, [5])


def test_levels_by_hand() -> None:
    adaptive, fixed = RiskLevel("adaptive", 10.0), RiskLevel(0.5)
    assert (adaptive.in_keys, fixed.in_keys) == (["clearance"], [])
    assert_near(adaptive(SEEN), torch.tensor([[0.0], [0.25], [1.0], [1.0], [0.0]]))
    assert fixed(SEEN).tolist() == 0.5
    assert dict(fixed.state_dict()) == {}  # it is set, and not learned
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize("wrong", [1.5, None])
def test_a_level_that_is_none(wrong: Any) -> None:
    with pytest.raises(ValueError, match="RiskLevel: cvar must be above 0"):
        RiskLevel(wrong)


@pytest.mark.parametrize("name", ["IQN", "ACIQN"])
def test_a_level_by_a_clearance_that_is_not_observed(name: str) -> None:
    spec = spec_for(name, flat=True)
    del spec.observation_spec["clearance"]
    with pytest.raises(ValueError, match=f"^{name}: an adaptive cvar wants clearance to observe; NavigationSpec gives"):
        make(name, spec=spec, cvar="adaptive")


def test_the_score_at_a_level_is_the_mean_of_the_quantiles_below_it() -> None:
    agent: Any = make("IQN", cvar=0.25, acting_taus=64)
    seen = states(5)
    taus = 0.25 * (torch.arange(64) + 0.5) / 64
    quantiles = agent.scores.network(seen["observation"], seen["object_mask"], taus)
    assert_near(agent.scores(seen)["action_value"], quantiles.mean(-2))


class TwoOutcomes(torch.nn.Module):
    """Quantiles of a gamble: action a > 0 stakes a, won by the upper half of all τ at 3 to 1 and lost by the lower."""

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
