"""What is SAC's own: the price of entropy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.policies.navigation_spaces import make, states, transitions
from tests.tolerances import assert_near
from torchrl_gpu.policies import PolicyWrapper


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
    agent.losses(transitions("SAC", 32))["alpha"].backward()
    assert (agent.log_alpha.grad < 0).item() is rises  # descent moves against the slope


def test_the_price_learns_from_its_own_loss_alone() -> None:
    """Losses are summed before they are descended: what the actor's did to the price would count as well."""
    agent: Any = make("SAC", target_entropy=-2.0)
    losses = agent.losses(transitions("SAC", 32))
    for name in ("actor", "critic"):
        losses[name].backward(retain_graph=True)
    assert agent.log_alpha.grad is None
    losses["alpha"].backward()
    assert agent.log_alpha.grad.abs().item() > 0


def test_a_higher_price_makes_the_actor_more_random() -> None:
    spread = []
    for alpha in (1e-3, 3.0):
        agent, batch = make("SAC", alpha=alpha), transitions("SAC", 64)
        optimizer = torch.optim.Adam(agent.parameter_groups["actor"], lr=3e-3)
        for _ in range(60):
            optimizer.zero_grad()
            agent.losses(batch)["actor"].backward()
            optimizer.step()
        policy: Any = agent.policy
        spread.append(policy.network(batch["observation"], batch["object_mask"])[1].mean().item())
    assert spread[1] > spread[0] + 0.3


def test_actions_are_drawn_anew_for_every_robot() -> None:
    agent, seen = make("SAC"), states(1, num_actions=None).expand(4, 3).clone()
    with set_exploration_type(ExplorationType.RANDOM):
        action = PolicyWrapper(agent, flat=True)(seen.clone())["action"]
    assert len(action.reshape(-1, 2).unique(dim=0)) == 12
    greedy = agent.policy(seen)["action"]
    assert_near(greedy, greedy[:1, :1].expand(4, 3, 2))


def test_a_price_that_is_none() -> None:
    with pytest.raises(ValueError, match="SAC: alpha must be above 0; got 0"):
        make("SAC", alpha=0.0)
