"""The rules in torch, on placements given by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.envs.packing.scenes import CELL, as_solids, bin_of, judge
from torchrl_gpu.envs.packing.kernels import available_backends, get_kernels
from torchrl_gpu.envs.packing.stability import rule_of
from torchrl_gpu.envs.packing.stability.contacts import Contacts
from torchrl_gpu.envs.packing.stability.windows import GridWindows
from torchrl_gpu.envs.packing.types import Bin, Catalogue

ZERO = torch.zeros(1, 1, dtype=torch.int64)


def judged(heightmap: torch.Tensor, extent: tuple[int, int], bin_: Bin, *, flat: bool = True) -> torch.Tensor:
    """Stability of a box at rest at every placement where it fits, (Gx, Gy)."""
    box = Catalogue.of_boxes(torch.tensor([[[*extent, CELL]]], dtype=torch.float64), torch.ones(1))
    catalogue = box if flat else as_solids(box)
    axes = [torch.arange(c)[None, None] for c in bin_.cells]
    windows = GridWindows(heightmap[None], *axes, 1, extent)
    fits = [c - e + 1 for c, e in zip(bin_.cells, extent, strict=True)]
    z = torch.zeros(1, 1, *bin_.cells)
    z[0, 0, : fits[0], : fits[1]] = heightmap.unfold(0, extent[0], 1).unfold(1, extent[1], 1).amax((-1, -2))
    contacts = Contacts(windows, z, ZERO, ZERO, catalogue, bin_)
    return rule_of(bin_).judge_all(contacts)[0, 0, : fits[0], : fits[1]]


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("rule", ["corners", "support"])
def test_heights_within_the_tolerance_are_the_same_height(rule: str, flat: bool) -> None:
    # A thousandth of a cell is the tolerance: a cell lower by half of it still carries, by twice of it no longer.
    bin_ = bin_of((3, 3), stability=rule)
    for below, expected in ((0.5, True), (2.0, False)):
        heights = torch.full((3, 3), CELL - below * bin_.tolerance)
        heights[0, 0] = CELL
        assert judged(heights, (3, 3), bin_, flat=flat).item() is expected


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("open_cells", [[(0, 0)], [(0, 5)], [(0, 0), (0, 19)], [(0, 5), (0, 6)]])
def test_corners_of_a_thin_item_are_judged_as_in_the_reference(open_cells: list[tuple[int, int]], flat: bool) -> None:
    # 19 of 20 cells are 0.95, not above it; a thin item has each of its two ends twice.
    contact = np.ones((1, 20), dtype=bool)
    for cell in open_cells:
        contact[cell] = False
    heights = torch.from_numpy(1 + contact) * CELL
    came = judged(heights, (1, 20), bin_of((1, 20), stability="corners"), flat=flat)
    assert came.item() is judge(contact, "corners")


@pytest.mark.parametrize("flat", [True, False])
def test_thresholds_of_the_corners_rule_are_those_of_the_reference(flat: bool) -> None:
    ends = [(0, 0), (0, 4), (3, 0), (3, 4)]
    rest = [cell for cell in np.ndindex(4, 5) if cell not in ends]
    for corners, others in ((3, 16), (3, 14), (3, 15), (4, 15), (2, 16), (2, 15), (4, 6), (4, 7)):
        contact = np.zeros((4, 5), dtype=bool)
        for cell in ends[:corners] + rest[:others]:
            contact[cell] = True
        came = judged(torch.from_numpy(1 + contact) * CELL, (4, 5), bin_of((4, 5), stability="corners"), flat=flat)
        assert came.item() is judge(contact, "corners"), (corners, others)


@pytest.mark.parametrize("rule", ["corners", "support", "com"])
@pytest.mark.parametrize("backend", ["reference", "eager", "compiled"])
def test_a_plate_lies_flat_high_up_however_its_columns_were_stacked(backend: str, rule: str) -> None:
    if problem := available_backends()[backend]:
        pytest.skip(problem)
    cell, top = 0.1, 480
    bin_ = Bin((4 * cell, 4 * cell, 600 * cell), (4, 4), 1, rule)
    # Box by box.
    column = [np.full(top // tall, tall * cell, np.float32).cumsum()[-1] for tall in (1, 2, 3, 5)]
    heights = torch.tensor(column)[:, None].expand(4, 4).contiguous()[None]
    assert heights.max() - heights.min() > 1e-3 * cell
    plate = Catalogue.of_boxes(torch.tensor([[[4.0, 4.0, cell]]]), torch.tensor([16 * cell**3]))
    _, legal = get_kernels(backend).drop_map(heights, torch.zeros(1, 1, dtype=torch.int64), plate, bin_)
    assert legal.flatten().tolist() == [True] + [False] * 15
    step = heights.clone()
    # A step of a cell is one.
    step[:, 1:] -= cell
    _, legal = get_kernels(backend).drop_map(step, torch.zeros(1, 1, dtype=torch.int64), plate, bin_)
    assert not legal.any()
