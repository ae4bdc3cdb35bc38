"""The mode that refuses what CUDA cannot compute in the same way twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.deterministic import Deterministic, NotDeterministic

REFUSED: list[Callable[[Tensor], object]] = [
    lambda values: functional.interpolate(values, scale_factor=2.0, mode="bilinear").sum().backward(),
    lambda values: functional.adaptive_max_pool2d(values, 2).sum().backward(),
    lambda values: values.median(0),
    lambda values: torch.zeros(2).scatter_reduce(0, torch.tensor([0, 0]), values.flatten()[:2].detach(), "prod"),
]
TAKEN: list[Callable[[Tensor], object]] = [
    lambda values: functional.interpolate(values, scale_factor=2.0).sum().backward(),
    lambda values: functional.max_pool2d(values, 2).sum().backward(),
    lambda values: values.median(),
    lambda values: torch.zeros(2).scatter_reduce(0, torch.tensor([0, 0]), values.flatten()[:2].detach(), "amax"),
]


@pytest.mark.parametrize("call", REFUSED)
def test_what_is_refused(call: Callable[[Tensor], object]) -> None:
    with Deterministic(), pytest.raises(NotDeterministic, match=r"deterministic implementation"):
        call(torch.rand(1, 1, 4, 4, requires_grad=True))


@pytest.mark.parametrize("call", TAKEN)
def test_what_is_not(call: Callable[[Tensor], object]) -> None:
    with Deterministic():
        call(torch.rand(1, 1, 4, 4, requires_grad=True))


def test_the_setting_of_a_run_does_not_outlive_it() -> None:
    with Deterministic():
        torch.use_deterministic_algorithms(True)
    assert not torch.are_deterministic_algorithms_enabled()
