"""Flat tops of a load: free rectangles, what stands on them, what bears load."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from torchrl_gpu.palletizing.flat_tops import FlatTops, Rectangle

# Millimetres in nanometres.
MM = 1_000_000
SIDE = 8


def scaled(rectangle: tuple[int, ...]) -> Rectangle:
    x0, y0, x1, y1 = rectangle
    return x0 * MM, y0 * MM, x1 * MM, y1 * MM


def pallet(hole: int = 0, side: int = SIDE) -> FlatTops:
    floor = scaled((0, 0, side, side))
    return FlatTops(floor, floor, hole * MM)


def put(tops: FlatTops, base: tuple[int, ...], height: int, top: int) -> None:
    bearing = tops.bearing_part(scaled(base), height * MM)
    assert bearing is not None
    tops.place(scaled(base), top * MM, [bearing])


def largest_rectangles(mask: np.ndarray) -> set[tuple[int, ...]]:
    """Rectangles of set cells that lie in no other, by trying all."""
    size = mask.shape[0]
    inside = []
    ends = list(itertools.combinations(range(size + 1), 2))
    for x0, x1 in ends:
        for y0, y1 in ends:
            if mask[x0:x1, y0:y1].all():
                inside.append((x0, y0, x1, y1))
    return {each for each in inside if not lies_in_another(each, inside)}


def lies_in_another(inner: tuple[int, ...], others: list[tuple[int, ...]]) -> bool:
    for outer in others:
        holds_lower = outer[0] <= inner[0] and outer[1] <= inner[1]
        holds_upper = outer[2] >= inner[2] and outer[3] >= inner[3]
        if outer != inner and holds_lower and holds_upper:
            return True
    return False


@pytest.mark.parametrize("seed", range(8))
def test_free_rectangles_are_the_largest_ones_of_each_height(seed: int) -> None:
    draw = np.random.default_rng(seed)
    tops = pallet()
    heights = np.zeros((SIDE, SIDE), dtype=int)
    for _ in range(14):
        x0, y0 = draw.integers(0, SIDE - 1, 2).tolist()
        x1, y1 = (np.array([x0, y0]) + draw.integers(1, 5, 2)).clip(max=SIDE).tolist()
        base = (x0, y0, x1, y1)
        under = heights[x0:x1, y0:y1]
        # Only what stands with its whole base, so that nothing is hidden from above.
        if (under == under[0, 0]).all():
            top = int(under[0, 0] + draw.integers(1, 3))
            put(tops, base, int(under[0, 0]), top)
            heights[x0:x1, y0:y1] = top
    assert len(np.unique(heights)) > 2
    for height in np.unique(heights).tolist():
        expected = {scaled(each) for each in largest_rectangles(heights == height)}
        assert set(tops.free[height * MM]) == expected


def test_box_may_stick_out_by_a_quarter_of_its_side() -> None:
    tops = pallet()
    put(tops, (0, 0, 3, 4), 0, 2)
    assert tops.bearing_part(scaled((0, 0, 4, 4)), 2 * MM) == scaled((0, 0, 3, 4))
    assert tops.bearing_part(scaled((0, 0, 5, 4)), 2 * MM) is None
    assert tops.bearing_part(scaled((4, 4, 6, 6)), 2 * MM) is None


def test_overhang_bears_no_load() -> None:
    tops = pallet()
    put(tops, (0, 0, 3, 4), 0, 2)
    put(tops, (0, 0, 4, 4), 2, 4)
    assert tops.bearing_part(scaled((3, 0, 4, 4)), 4 * MM) is None
    assert tops.free[4 * MM] == [scaled((0, 0, 3, 4))]
    # What is below it is out of reach.
    assert not any(x0 < 4 * MM and y0 < 4 * MM for x0, y0, _, _ in tops.free[0])


def test_box_bridges_a_hole_between_tops_of_one_height() -> None:
    for hole, joined in ((0, False), (1, True)):
        tops = pallet(hole)
        put(tops, (0, 0, 3, 4), 0, 2)
        put(tops, (4, 0, 7, 4), 0, 2)
        assert (scaled((0, 0, 7, 4)) in tops.free[2 * MM]) == joined
        bridge = scaled((0, 0, 7, 4))
        assert tops.bearing_part(bridge, 2 * MM) == bridge


def test_hole_with_something_higher_is_not_bridged() -> None:
    tops = pallet(hole=1)
    put(tops, (3, 0, 4, 4), 0, 3)
    put(tops, (0, 0, 3, 4), 0, 2)
    put(tops, (4, 0, 7, 4), 0, 2)
    assert set(tops.free[2 * MM]) == {scaled((0, 0, 3, 4)), scaled((4, 0, 7, 4))}
    assert not tops.is_clear(scaled((0, 0, 7, 4)), 2 * MM)


def test_nothing_is_above_what_bears_no_load() -> None:
    tops = pallet(hole=1)
    put(tops, (0, 0, 3, 4), 0, 2)
    put(tops, (4, 0, 7, 4), 0, 2)
    tops.place(scaled((3, 0, 4, 4)), 1 * MM, [])
    assert set(tops.free[2 * MM]) == {scaled((0, 0, 3, 4)), scaled((4, 0, 7, 4))}
    assert 1 * MM not in tops.free


def test_heights_that_all_but_equal_count_as_one() -> None:
    tops = pallet()
    put(tops, (0, 0, 2, 2), 0, 3)
    assert tops.top_of(3 * MM + 1) == 3 * MM
    assert tops.top_of(3 * MM - 1) == 3 * MM
    assert tops.top_of(3 * MM + 2000) == 3 * MM + 2000
