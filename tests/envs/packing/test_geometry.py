"""Footprints on the placement grid."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.envs.packing.scenes import LAW, scene
from torchrl_gpu.envs.packing.geometry import grid_positions, walls


def positions(extent: int, cells: int, step: int) -> list[int]:
    position, fits = grid_positions(torch.tensor(extent), cells, step)
    return position[fits].tolist()


@pytest.mark.parametrize(
    ("extent", "cells", "step", "expected"),
    [
        (3, 10, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        (10, 10, 1, [0]),
        (11, 10, 1, []),
        # 10 − 2 = 8 is on the grid.
        (2, 10, 4, [0, 4, 8]),
        # 8 + 3 > 10, so the third placement stands for 7.
        (3, 10, 4, [0, 4, 7]),
        (5, 10, 4, [0, 4, 5]),
        # 10 − 6 = 4 is on the grid.
        (6, 10, 4, [0, 4]),
        (7, 10, 4, [0, 3]),
        # 9 would be flush, but the grid has only three placements and 8 takes the last.
        (1, 10, 4, [0, 4, 8]),
        (9, 10, 10, [0]),
    ],
)
def test_positions_by_hand(extent: int, cells: int, step: int, expected: list[int]) -> None:
    assert positions(extent, cells, step) == expected


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, int]:
    cells = draw(st.integers(1, 40))
    return draw(st.integers(1, cells + 2)), cells, draw(st.integers(1, cells))


@LAW
@given(axes())
def test_placements_are_the_grid_as_far_as_it_fits_and_then_the_wall(axis: tuple[int, int, int]) -> None:
    extent, cells, step = axis
    last, num_placements = cells - extent, -(-cells // step)
    on_grid = [x for x in range(0, num_placements * step, step) if x <= last]
    wall = [last] if last >= 0 and last % step and len(on_grid) < num_placements else []
    assert positions(*axis) == on_grid + wall
    position, fits = grid_positions(torch.tensor(extent), cells, step)
    assert len(fits) == -(-cells // step)
    assert not (fits[1:] & ~fits[:-1]).any()
    assert (position >= 0).all()
    assert (position[fits] + extent <= cells).all()
    assert fits.any() == (extent <= cells)


# Fewer and more slots than there are items.
@pytest.mark.parametrize("num_envs", [1, 8])
def test_walls_stand_where_a_footprint_does_not_fit(num_envs: int) -> None:
    seen = set()
    for seed in range(12):
        s = scene(seed, "boxes", num_envs=num_envs)
        wall = walls(s.item_id, s.catalogue, s.bin_)
        assert wall.shape == (*s.item_id.shape, s.catalogue.num_orientations, *s.bin_.grid)
        for n, k, o, gx, gy in torch.cartesian_prod(*map(torch.arange, wall.shape)).tolist():
            item = int(s.item_id[n, k])
            extent = s.catalogue.extent[item, o]
            axes = zip(extent, s.bin_.cells, (gx, gy), strict=True)
            fits = item >= 0 and all(grid_positions(e, cells, s.bin_.step)[1][g] for e, cells, g in axes)
            assert wall[n, k, o, gx, gy] == (0 if fits else torch.inf)
            seen.add((s.catalogue.num_items < s.item_id.numel(), fits))
    assert {fits for _, fits in seen} == {True, False}
    assert {shared for shared, _ in seen} == ({True, False} if num_envs == 1 else {True})
