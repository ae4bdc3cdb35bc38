"""The level of risk, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.tolerances import assert_near
from torchrl_gpu.policies.risk import RiskLevel, midpoints

SEEN = TensorDict({"clearance": torch.tensor([[0.0], [2.5], [10.0], [15.0], [-0.4]], dtype=torch.float64)}, [5])


def test_the_adaptive_level_is_the_clearance_up_to_a_distance() -> None:
    level = RiskLevel("adaptive", 10.0)
    assert level.in_keys == ["clearance"]
    assert_near(level(SEEN), torch.tensor([[0.0], [0.25], [1.0], [1.0], [0.0]]))


def test_a_fixed_level_looks_at_nothing() -> None:
    level = RiskLevel(0.5)
    assert level.in_keys == []
    assert level(SEEN).tolist() == 0.5
    assert dict(level.state_dict()) == {}  # it is set, and not learned


def test_midpoints_by_hand() -> None:
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize("wrong", [(0.0, 10.0), (1.5, 10.0), ("bold", 10.0), ("adaptive", 0.0), (None, 10.0)])
def test_a_level_that_is_none(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"RiskLevel: cvar(_distance)? must be above 0"):
        RiskLevel(*wrong)
