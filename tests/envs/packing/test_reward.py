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


def test_compactness_pyramidality_and_objective_by_hand() -> None:
    # 5 m³ over 4·2·2 m³ up to the highest cell, and over the 6 m³ under the heightmap
    assert compactness(HEIGHTS, VOLUME, BIN).tolist() == [5 / 16, 0]
    assert pyramidality(HEIGHTS, VOLUME, BIN).tolist() == pytest.approx([5 / 6, 0])
    # 0.75 · 5/16 + 0.25 · 5/6, and 0.25 more where the last placement is stable
    stable = torch.tensor([True, False])
    filled = 0.75 * 5 / 16 + 0.25 * 5 / 6
    assert objective(HEIGHTS, VOLUME, stable, BIN).tolist() == pytest.approx([filled + 0.25, 0])
    assert objective(HEIGHTS, VOLUME, ~stable, BIN).tolist() == pytest.approx([filled, 0.25])
    full = objective(torch.full((1, 4, 2), 10.0), torch.tensor([80.0]), torch.tensor([True]), BIN)
    assert full.item() == pytest.approx(ALPHA + BETA + GAMMA)
