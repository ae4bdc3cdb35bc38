"""Bounds of what comes from outside, element by element."""

from __future__ import annotations

import math

import pytest
import torch

from torchrl_gpu.envs.state_validation import ANY, Bounds

VALUES = (-math.inf, -2.0, 0.0, 2.0, math.inf, math.nan)


@pytest.mark.parametrize(
    ("bounds", "allowed"),
    [
        (Bounds(), {-2.0, 0.0, 2.0}),
        (Bounds(*ANY), {-math.inf, -2.0, 0.0, 2.0, math.inf}),
        (Bounds(-2, 0), {-2.0, 0.0}),
        (Bounds(torch.tensor([-math.inf, 0, 1, 1, 1, 1]), torch.tensor(2.0)), {-math.inf, 2.0}),
    ],
    ids=str,
)
def test_floats_by_hand(bounds: Bounds, allowed: set[float]) -> None:
    violated = bounds.violated(torch.tensor(VALUES)).tolist()
    assert {value for value, bad in zip(VALUES, violated, strict=True) if not bad} == allowed


def test_a_float_with_one_bound_by_hand() -> None:
    numbers = torch.tensor([-2.0, 0.0, 2.0, math.nan])
    assert Bounds(low=0).violated(numbers).tolist() == [True, False, False, True]
    assert Bounds(high=0).violated(numbers).tolist() == [False, False, True, True]


def test_whole_numbers_and_flags_by_hand() -> None:
    numbers = torch.tensor([-1, 0, 5, 6])
    assert Bounds().violated(numbers).tolist() == [False] * 4
    assert Bounds(0, 5).violated(numbers).tolist() == [True, False, False, True]
    assert Bounds(low=0).violated(numbers).tolist() == [True, False, False, False]
    assert Bounds(1, 1).violated(torch.tensor([False, True])).tolist() == [False, False]
