"""Distributions over atoms: the projection by hand and by its laws."""

from __future__ import annotations

import math

import pytest
import torch

from tests.tolerances import assert_near
from torchrl_gpu.policies.losses import cross_entropy, project

SUPPORT = torch.linspace(-1.0, 3.0, 5)  # −1, 0, 1, 2, 3


def test_by_hand() -> None:
    # Values −5, 0.25, 2 with chances 0.2, 0.4, 0.4: the first is clamped to −1, the second gives 0 three quarters of
    # its chance and 1 a quarter, the third hits 2.
    chances, values = torch.tensor([[0.2, 0.4, 0.4]]), torch.tensor([[-5.0, 0.25, 2.0]])
    assert project(chances, values, SUPPORT)[0].tolist() == pytest.approx([0.2, 0.3, 0.1, 0.4, 0.0])


def test_values_on_the_atoms_change_nothing() -> None:
    chances = torch.rand(4, 5).softmax(-1)
    assert_near(project(chances, SUPPORT.expand(4, -1), SUPPORT), chances)


def test_chances_still_sum_to_1_and_means_are_kept_inside() -> None:
    chances, values = torch.randn(50, 7).softmax(-1), 4 * torch.rand(50, 7) - 1
    projected = project(chances, values, SUPPORT)
    assert_near(projected.sum(-1), torch.ones(50))
    assert_near((projected * SUPPORT).sum(-1), (chances * values).sum(-1))
    outside = project(chances, 20 * values, SUPPORT)
    assert_near(outside.sum(-1), torch.ones(50))


def test_cross_entropy_by_hand() -> None:
    # Logits 0 and ln 3 are chances 1/4 and 3/4.
    logits, chances = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.5, 0.5]])
    assert cross_entropy(logits, chances).item() == pytest.approx(-0.5 * math.log(1 / 4) - 0.5 * math.log(3 / 4))
