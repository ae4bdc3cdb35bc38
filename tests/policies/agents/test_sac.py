"""What is SAC's own: the price of entropy."""

from __future__ import annotations

from typing import Any

import pytest
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
    losses = agent.losses(transitions("SAC", 32))
    for name in ("actor", "critic"):  # which are summed with it
        losses[name].backward(retain_graph=True)
    assert agent.log_alpha.grad is None
    losses["alpha"].backward()
    assert (agent.log_alpha.grad < 0).item() is rises  # descent moves against the slope


def test_actions_are_drawn_anew_for_every_robot() -> None:
    agent, seen = make("SAC"), states(1, num_actions=None).expand(4, 3).clone()
    with set_exploration_type(ExplorationType.RANDOM):
        action = PolicyWrapper(agent, flat=True)(seen.clone())["action"]
    assert len(action.reshape(-1, 2).unique(dim=0)) == 12
    greedy = agent.policy(seen)["action"]
    assert_near(greedy, greedy[:1, :1].expand(4, 3, 2))
