"""The stability rule `load_bearing`.

All backends agree, and the reference is its definition by convex hulls.
"""

from __future__ import annotations

import itertools
import os
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs.packing.hulls import convex_hull, holds
from tests.envs.packing.kernels.parity import one_item, some_placement
from tests.envs.packing.scenes import CELL, Scene, scene_in
from tests.native.compilers import need_compiler
from torchrl_gpu.envs.packing.kernels import compiled, eager, get_kernels, reference
from torchrl_gpu.envs.packing.types import Bin, Placement

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(params=["eager", "compiled", "triton"], scope="module")
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "triton":
        if not INTERPRETED:
            pytest.skip("Triton runs here in the process of test_triton.py")
        from torchrl_gpu.envs.packing.kernels.triton import kernels as triton_kernels

        return triton_kernels
    if request.param == "compiled":
        need_compiler()
        return compiled
    return eager


def bearing_bin(
    cells: tuple[int, int], margin: float = 0.0, tilt: float = 0.0, step: int = 1, bearing_tilt: float = 0.5
) -> Bin:
    size = (cells[0] * CELL, cells[1] * CELL, 8 * CELL)
    return Bin(size, cells, step, "load_bearing", margin, tilt, bearing_tilt)


def bearing_scene(seed: int) -> tuple[Scene, Tensor]:
    rng = np.random.default_rng(seed)
    cells = tuple(int(c) for c in rng.integers(2, 24 if seed % 7 == 0 else 12, 2))
    tilt = float(rng.choice([0, 10, 30]))
    margin = float(rng.choice([0, 0.1, 0.2, 0.4]))
    step = int(rng.integers(1, 3))
    bin_ = bearing_bin(cells, margin, tilt, step, bearing_tilt=float(rng.choice([0, 0.5, 8, 40])))
    s = scene_in(bin_, rng, "boxes", num_envs=3, most_items=4, most_orientations=2, most_visible=2)
    return s, torch.from_numpy(rng.random((3, *cells)) < rng.choice([0.3, 0.6, 0.9]))


Case = tuple[tuple[Any, ...], Tensor, tuple[Any, ...], Tensor]


def asked(upheld: tuple[Any, ...], placement: Placement) -> Case:
    """A call of `upheld` and one of `bear`, with what the reference gives."""
    placed = *upheld[:2], placement, *upheld[-2:]
    return upheld, reference.upheld(*upheld), placed, reference.bear(*placed)


# The reference is asked once for all backends.
@cache
def some_case(seed: int) -> Case:
    s, bears = bearing_scene(seed)
    return asked((s.heightmap, bears, *eager.drop_map(*s[:3], s.bin_.dropped), *s[1:]), some_placement(s, seed))


@cache
def case_of_rows(width: int, tilt: float) -> Case:
    n = 4 if INTERPRETED else 20
    box = one_item((3, width), "boxes")
    bin_ = bearing_bin((4, width + 1), tilt=tilt, bearing_tilt=tilt / 2)
    rng, shape = np.random.default_rng(width), (n, 4, width + 1)
    bears = torch.from_numpy(rng.random(shape) < np.geomspace(0.1 / width, 1, n)[:, None, None])
    heightmap = CELL * (1 - torch.from_numpy(rng.integers(0, 4, shape)).float() / 8 * (tilt > 0))
    item_id, at = torch.zeros(2, n, 1, dtype=torch.int64)
    upheld = heightmap, bears, *eager.drop_map(heightmap, item_id, box, bin_.dropped), item_id, box, bin_
    return asked(upheld, Placement(*[at[:, 0]] * 4, torch.full((n,), CELL)))


def test_backends_agree(kernels: ModuleType) -> None:
    stable = refused = 0
    for seed in (1, 2) if INTERPRETED else range(8):
        given, expected, placed, after = some_case(seed)
        assert torch.equal(kernels.upheld(*given), expected), seed
        assert torch.equal(kernels.bear(*placed), after), seed
        stable, refused = stable + int(expected.sum()), refused + int((given[3] & ~expected).sum())
    assert min(stable, refused) > (10 if INTERPRETED else 100)


@pytest.mark.parametrize(("width", "tilt"), [(7, 0), (8, 5), (9, 0), (9, 20), (16, 0), (17, 5), (33, 0), (33, 5)])
def test_rows_of_contacts_are_found_in_vectors_of_any_width(kernels: ModuleType, width: int, tilt: float) -> None:
    given, expected, placed, after = case_of_rows(width, tilt)
    assert torch.equal(kernels.upheld(*given), expected)
    assert 0 < expected.sum() < 4 * len(expected)
    assert torch.equal(kernels.bear(*placed), after)


def in_hull(contact: np.ndarray, point: tuple[int, int]) -> bool:
    points = [(16 * int(i) + 8, 16 * int(j) + 8) for i, j in np.argwhere(contact)]
    return bool(points) and holds(convex_hull(points), point)


# Sixteenths of a cell.
@pytest.mark.parametrize("margin", [0, 8, 11, 14, 200])
def test_the_hull_of_what_bears_holds_the_middle_by_the_margin(kernels: ModuleType, margin: int) -> None:
    # A box on every pattern, or some of them, of cells that bear; all of them touch.
    p, q = 4, 3
    pattern = (torch.arange(0, 2 ** (p * q), 97 if INTERPRETED else 17)[:, None] >> torch.arange(p * q) & 1).bool()
    bears = pattern.view(-1, p, q)
    n = len(bears)
    box = one_item((p, q), "boxes")
    bin_ = bearing_bin((p, q), margin * CELL / 16)
    heightmap, item_id = torch.full((n, p, q), CELL), torch.zeros(n, 1, dtype=torch.int64)
    z_map = torch.full((n, 1, 1, p, q), 8 * CELL)
    z_map[..., 0, 0] = CELL
    legal = z_map == CELL
    upheld = kernels.upheld(heightmap, bears, z_map, legal, item_id, box, bin_)
    half = [max(min(margin, 4 * side) - 8, 0) for side in (p, q)]
    corners = [(8 * p + a * half[0], 8 * q + b * half[1]) for a, b in itertools.product((-1, 1), repeat=2)]

    def holds_all(bearing: np.ndarray) -> bool:
        return all(in_hull(bearing, corner) for corner in corners)

    expected = [holds_all(each) for each in bears.numpy()]
    assert upheld[:, 0, 0, 0, 0].tolist() == expected
    assert not (upheld & ~legal).any()
    assert 0 < sum(expected) < n
    at = torch.zeros(n, dtype=torch.int64)
    after = kernels.bear(heightmap, bears, Placement(at, at, at, at, torch.full((n,), CELL)), box, bin_)

    def bearing_after(bearing: np.ndarray) -> list[bool]:
        return [in_hull(bearing, (16 * i + 8, 16 * j + 8)) for i, j in itertools.product(range(p), range(q))]

    assert after.flatten(1).tolist() == [bearing_after(each) for each in bears.numpy()]


@pytest.mark.parametrize(
    # Cells; the furthest lie 1.5 cells from the middle, and 1.5 mm are level.
    ("lower", "tilt", "stable"),
    [(0.01, 0, True), (0.02, 0, False), (0.25, 8.9, False), (0.25, 9.2, True), (1.45, 44, True), (1.47, 44, False)],
)
def test_a_box_may_come_to_lie_as_steep_as_the_bin_says(
    kernels: ModuleType, lower: float, tilt: float, stable: bool
) -> None:
    heightmap = torch.full((1, 4, 4), 2 * CELL)
    heightmap[:, 2:] -= lower * CELL
    item_id, bears = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 4, 4, dtype=torch.bool)
    z_map, legal = torch.full((1, 1, 1, 4, 4), 2 * CELL), torch.zeros(1, 1, 1, 4, 4, dtype=torch.bool)
    legal[..., 0, 0] = True
    bin_ = bearing_bin((4, 4), 0.75 * CELL, tilt)
    for turned in (heightmap, heightmap.mT.contiguous(), heightmap.flip(1)):
        upheld = kernels.upheld(turned, bears, z_map, legal, item_id, one_item((4, 4), "boxes"), bin_)
        assert bool(upheld.any()) is stable


@pytest.mark.parametrize(
    # Metres by which the second half of the contacts lies lower: the furthest lie 1.5 cells, 18.75 cm, from the middle.
    ("lower", "tilt", "bearing_tilt", "whole"),
    [
        (0.0, 0, 0, True),
        (0.00009, 0, 0, True),
        # 1.5 mm hold a box; 0.1 mm and the slope pass load on.
        (0.00011, 0, 0, False),
        (0.00090, 0, 0.25, True),
        (0.00093, 0, 0.25, False),
        (0.00149, 0, 20, True),
        # What does not hold the box takes no load from it.
        (0.00151, 0, 20, False),
        (0.03125, 20, 9.5, True),
        (0.03125, 20, 9.4, False),
    ],
)
def test_what_leans_bears_load_over_its_firm_contacts_alone(
    kernels: ModuleType, lower: float, tilt: float, bearing_tilt: float, whole: bool
) -> None:
    heightmap = torch.full((1, 4, 4), 2 * CELL)
    heightmap[:, 2:] -= lower
    bears = torch.ones(1, 4, 4, dtype=torch.bool)
    zero = torch.zeros(1, dtype=torch.int64)
    placement = Placement(zero, zero, zero, zero, torch.full((1,), 2 * CELL))
    bin_ = bearing_bin((4, 4), 0.0, tilt, bearing_tilt=bearing_tilt)
    box = one_item((4, 4), "boxes")
    expected = torch.ones(1, 4, 4, dtype=torch.bool)
    expected[:, 2:] = whole
    assert torch.equal(kernels.bear(heightmap, bears, placement, box, bin_), expected)
    turned = kernels.bear(heightmap.mT.contiguous(), bears, placement, box, bin_)
    assert torch.equal(turned, expected.mT)


def test_an_overhang_bears_nothing_and_what_lies_on_it_alone_falls(kernels: ModuleType) -> None:
    # A board of 6 cells over a post of 4: its last two cells bear nothing, and a box of 2 cells on them is refused.
    bin_ = bearing_bin((8, 3), 0.0)
    board = one_item((6, 3), "boxes")
    box = one_item((2, 3), "boxes")
    heightmap, bears = torch.zeros(1, 8, 3), torch.ones(1, 8, 3, dtype=torch.bool)
    heightmap[:, :4] = CELL
    zero = torch.zeros(1, dtype=torch.int64)
    placement = Placement(zero, zero, zero, zero, torch.full((1,), CELL))
    bears = kernels.bear(heightmap, bears, placement, board, bin_)
    assert bears[0, :, 0].tolist() == [True] * 4 + [False] * 2 + [True] * 2
    heightmap = reference.place(heightmap, placement, board, bin_)
    z_map, legal = eager.drop_map(heightmap, zero[:, None], box, bin_.dropped)
    upheld = kernels.upheld(heightmap, bears, z_map, legal, zero[:, None], box, bin_)
    # over both: the middle lies on the last cell that bears; on the floor: behind the board
    assert upheld[0, 0, 0, :, 0].tolist() == [True, True, True, False, False, False, True, False]


def test_the_rule_wants_boxes_and_a_call_of_its_own() -> None:
    kernels, bin_ = get_kernels("eager"), bearing_bin((4, 4))
    heightmap, item_id = torch.zeros(1, 4, 4), torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"drop_map.*load_bearing"):
        kernels.drop_map(heightmap, item_id, one_item((2, 2), "boxes"), bin_)
    maps = torch.zeros(1, 1, 1, 4, 4)
    with pytest.raises(ValueError, match=r"upheld.*load_bearing.*boxes"):
        kernels.upheld(heightmap, heightmap == 0, maps, maps == 0, item_id, one_item((2, 2), "solids"), bin_)
