"""What is AC-IQN's own: the level of risk that its actor learns."""

from __future__ import annotations

import pytest
import torch

from tests.policies.navigation_spaces import make, transitions


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
