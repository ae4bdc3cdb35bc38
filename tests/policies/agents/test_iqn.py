"""What is IQN's own: the τ that decisions are made by."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.policies.navigation_spaces import make, spec_for, states
from tests.tolerances import assert_near


def test_decisions_are_repeatable() -> None:
    agent, seen = make("IQN"), states(200)
    assert torch.equal(*(agent.policy(seen.clone())["action_value"] for _ in range(2)))


def test_random_taus_give_the_same_scores_in_the_mean() -> None:
    seen = states(20).exclude("action_mask")
    even: Any = make("IQN", acting_taus=512)
    drawn = even.scores.network(seen["observation"], seen["object_mask"], torch.rand(8192)).mean(-2)
    expected = even.scores(seen)["action_value"]
    assert (drawn - expected).abs().max() < 0.02 * expected.std()


def test_the_score_at_a_level_is_the_mean_of_the_quantiles_below_it() -> None:
    agent: Any = make("IQN", cvar=0.25, acting_taus=64)
    seen = states(5)
    taus = 0.25 * (torch.arange(64) + 0.5) / 64
    quantiles = agent.scores.network(seen["observation"], seen["object_mask"], taus)
    assert_near(agent.scores(seen)["action_value"], quantiles.mean(-2))


@pytest.mark.parametrize("name", ["IQN", "ACIQN"])
def test_a_level_by_a_clearance_that_is_not_observed(name: str) -> None:
    spec = spec_for(name, flat=True)
    del spec.observation_spec["clearance"]
    with pytest.raises(ValueError, match=f"^{name}: an adaptive cvar wants clearance to observe; NavigationSpec gives"):
        make(name, spec=spec, cvar="adaptive")
