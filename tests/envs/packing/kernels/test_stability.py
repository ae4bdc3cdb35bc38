"""The rules in torch, on placements given by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.envs.packing.hulls import centre_in_hull
from tests.envs.packing.scenes import CELL, as_solids, bin_of
from torchrl_gpu.envs.packing.kernels.stability import stands
from torchrl_gpu.envs.packing.kernels.windows import GridWindows
from torchrl_gpu.envs.packing.types import Bin, Catalogue

ZERO = torch.zeros(1, 1, dtype=torch.int64)


def judged(heightmap: torch.Tensor, extent: tuple[int, int], bin_: Bin, *, flat: bool = True) -> torch.Tensor:
    """Which placements of a box at rest stand, (Gx, Gy), where they fit."""
    box = Catalogue.of_boxes(torch.tensor([[[*extent, CELL]]], dtype=torch.float64), torch.ones(1))
    catalogue = box if flat else as_solids(box)
    axes = [torch.arange(c)[None, None] for c in bin_.cells]
    windows = GridWindows(heightmap[None], *axes, 1, extent)
    fits = [c - e + 1 for c, e in zip(bin_.cells, extent, strict=True)]
    z = torch.zeros(1, 1, *bin_.cells)
    z[0, 0, : fits[0], : fits[1]] = heightmap.unfold(0, extent[0], 1).unfold(1, extent[1], 1).amax((-1, -2))
    return stands(windows, z, ZERO, ZERO, catalogue, bin_)[0, 0, : fits[0], : fits[1]]


@pytest.mark.parametrize("flat", [True, False])
def test_support_is_the_area_or_the_hull_on_a_random_pile(flat: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    heights = torch.randint(0, 3, (20, 20), generator=generator) * CELL
    heights[:8, :8] = 0
    for p, q in ((2, 2), (3, 4), (5, 3), (4, 7)):
        came = judged(heights, (p, q), bin_of((20, 20), stability="support"), flat=flat)
        answers = set()
        for (x, y), stable in np.ndenumerate(came.numpy()):
            window = heights[x : x + p, y : y + q].numpy()
            contact = window == window.max()
            expected = window.max() == 0 or contact.mean() > 0.5 or (contact.sum() > 1 and centre_in_hull(contact))
            assert stable == expected
            answers.add(bool(expected))
        assert answers == {True, False}


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("rule", ["corners", "support"])
def test_heights_within_the_tolerance_are_the_same_height(rule: str, flat: bool) -> None:
    # A thousandth of a cell is the tolerance: a cell lower by half of it still carries, by twice of it no longer.
    bin_ = bin_of((3, 3), stability=rule)
    for below, expected in ((0.5, True), (2.0, False)):
        heights = torch.full((3, 3), CELL - below * bin_.tolerance)
        heights[0, 0] = CELL
        assert judged(heights, (3, 3), bin_, flat=flat).item() is expected
