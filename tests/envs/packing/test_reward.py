"""C, P and J, worked by hand."""

from __future__ import annotations

import pytest
import torch

from torchrl_gpu.envs.packing.reward import ALPHA, BETA, GAMMA, compactness, objective, pyramidality
from torchrl_gpu.envs.packing.types import Bin

BIN = Bin((4.0, 2.0, 10.0), (4, 2))
# Two bins of 4×2 cells of 1 m². The first: heights 2 2 0 0 / 2 0 0 0 with 5 m³ packed. The second is empty.
HEIGHTS = torch.tensor([[[2.0, 2], [2, 0], [0, 0], [0, 0]], [[0.0, 0]] * 4])
VOLUME = torch.tensor([5.0, 0.0])


def test_compactness_by_hand() -> None:
    # 5 m³ over 4·2·2 m³ up to the highest cell
    assert compactness(HEIGHTS, VOLUME, BIN).tolist() == [5 / 16, 0]


def test_pyramidality_by_hand() -> None:
    # 5 m³ over the 6 m³ under the heightmap
    assert pyramidality(HEIGHTS, VOLUME, BIN).tolist() == pytest.approx([5 / 6, 0])


def test_objective_by_hand() -> None:
    # 0.75 · 5/16 + 0.25 · 5/6, and 0.25 more where the last placement stands
    stable = torch.tensor([True, False])
    filled = 0.75 * 5 / 16 + 0.25 * 5 / 6
    assert objective(HEIGHTS, VOLUME, stable, BIN).tolist() == pytest.approx([filled + 0.25, 0])
    assert objective(HEIGHTS, VOLUME, ~stable, BIN).tolist() == pytest.approx([filled, 0.25])


def test_objective_with_other_weights() -> None:
    stable = torch.tensor([True, False])
    parts = compactness(HEIGHTS, VOLUME, BIN), pyramidality(HEIGHTS, VOLUME, BIN), stable.float()
    for index in range(3):
        alone = tuple(2.0 if i == index else 0.0 for i in range(3))
        assert objective(HEIGHTS, VOLUME, stable, BIN, alone).tolist() == pytest.approx((2 * parts[index]).tolist())


def test_a_full_bin_is_worth_all_three_weights() -> None:
    full = torch.full((1, 4, 2), 10.0)
    best = objective(full, torch.tensor([80.0]), torch.tensor([True]), BIN)
    assert best.item() == pytest.approx(ALPHA + BETA + GAMMA)
