"""Patterns of a layer: best known numbers of boxes, and the laws of any layout."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_gpu.palletizing import l_shapes
from torchrl_gpu.palletizing.layer_bounds import bar_bound, line_bound
from torchrl_gpu.palletizing.layer_patterns import LayerPattern, best_pattern, equal_patterns

INCH = 0.0254
# Pallet, box, and the most boxes on a layer: by hand, or by Morabito and Morales (1998) for the last ones.
BEST_KNOWN = [
    (1.2, 0.8, 0.4, 0.3, 8),
    (1.2, 0.8, 0.6, 0.4, 4),
    (1.2, 0.8, 0.3, 0.2, 16),
    (1.2, 0.8, 0.2, 0.15, 32),
    (1.2, 0.8, 0.4, 0.266, 9),
    (1.2, 1.0, 0.5, 0.3, 8),
    (1.2, 1.0, 0.4, 0.333, 9),
    (1.2, 0.8, 0.171, 0.133, 42),
]
IN_INCHES = [(48, 40, 9.6, 8, 25), (48, 40, 16, 40 / 3, 9)]
BEST_KNOWN += [(*(side * INCH for side in case[:4]), case[4]) for case in IN_INCHES]
# Layers of the literature, in centimetres, on which five blocks miss the best number by one (Birgin, Lobato and
# Morabito 2010). Their areas hold no box more.
HARD = [
    (43, 26, 7, 3, 53),
    (49, 28, 8, 3, 57),
    (57, 34, 7, 4, 69),
    (63, 44, 8, 5, 69),
]
HARD += [
    (61, 35, 10, 3, 71),
    (67, 37, 11, 3, 75),
    (67, 40, 11, 3, 81),
]
HARD += [
    (74, 49, 11, 4, 82),
    (93, 46, 13, 4, 82),
    (106, 59, 13, 5, 96),
    (141, 71, 13, 8, 96),
]

CONTAINERS = [((12.03, 2.35, 1.0, 0.67), 42), ((5.87, 2.33, 0.68, 0.43), 44), ((12.03, 2.35, 1.0, 2 / 3), 42)]


def in_metres(*sides: int) -> tuple[float, float, float, float]:
    length, width, along, across = sides
    return length / 100, width / 100, along / 100, across / 100


def check_layout(pattern: LayerPattern, sides: tuple[float, float, float, float]) -> None:
    """Boxes lie on the rectangle and apart."""
    length, width, along, across = sides
    side_x = np.where(pattern.turned, across, along)
    side_y = np.where(pattern.turned, along, across)
    low = np.stack([pattern.x, pattern.y], 1)
    high = low + np.stack([side_x, side_y], 1)
    assert low.min(initial=0) >= 0
    assert (high <= np.array([length, width]) + 1e-4).all()
    apart = (low[:, None] >= high[None] - 1e-9).any(2)
    apart |= apart.T
    assert (apart | np.eye(len(low), dtype=bool)).all()


@pytest.mark.parametrize("case", BEST_KNOWN, ids=str)
def test_pattern_has_the_best_known_number_of_boxes(case: tuple[float, float, float, float, int]) -> None:
    *sides, best = case
    pattern = best_pattern(*sides)
    assert pattern.number == best
    check_layout(pattern, (sides[0], sides[1], sides[2], sides[3]))


@pytest.mark.parametrize("case", HARD, ids=str)
def test_hard_layer_has_the_best_known_number_of_boxes(case: tuple[int, int, int, int, int]) -> None:
    length, width, along, across, best = case
    assert best == length * width // (along * across)
    sides = in_metres(length, width, along, across)
    pattern = best_pattern(*sides)
    assert pattern.number == best
    check_layout(pattern, sides)
    # The other way round it is the same problem.
    assert best_pattern(sides[1], sides[0], sides[3], sides[2]).number == best


def test_search_of_a_hard_layer_ends_where_it_may_look_at_no_more_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of sides that no other test has, since patterns are kept.
    sides = (0.4301, 0.2602, 0.07, 0.03)
    monkeypatch.setattr(l_shapes, "_MOST_CUTS", 1000)
    pattern = best_pattern(*sides)
    assert pattern.number == 52
    check_layout(pattern, sides)


def test_pieces_too_deep_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l_shapes, "_DEEPEST", 1)
    assert best_pattern(0.4302, 0.2601, 0.07, 0.03).number == 52


@pytest.mark.parametrize(("sides", "best"), [((1.2, 0.8, 0.126, 0.077), 97), ((1.2, 1.2, 0.156, 0.103), 88)], ids=str)
def test_small_cartons_are_laid_in_five_blocks(sides: tuple[float, float, float, float], best: int) -> None:
    # One cut alone leaves 94 and 84 of them.
    pattern = best_pattern(*sides)
    assert pattern.number == best
    check_layout(pattern, sides)


@pytest.mark.parametrize(("sides", "best"), CONTAINERS, ids=str)
def test_floors_of_containers_are_filled(sides: tuple[float, float, float, float], best: int) -> None:
    # Their areas in square nanometres do not fit 64 bits.
    pattern = best_pattern(*sides)
    assert pattern.number == best
    check_layout(pattern, sides)


def test_equal_patterns_have_as_many_boxes_as_the_fullest_one() -> None:
    sides = (1.2, 0.8, 0.3, 0.2)
    patterns = equal_patterns(*sides)
    assert patterns
    for pattern in patterns:
        assert pattern.number == best_pattern(*sides).number
        check_layout(pattern, sides)
    # Of a hard layer no two parts hold 53 boxes together.
    assert equal_patterns(*in_metres(43, 26, 7, 3)) == []


@given(st.integers(20, 70), st.integers(20, 50), st.integers(4, 14), st.integers(3, 9))
@settings(max_examples=40, deadline=None)
def test_patterns_of_whole_numbers_are_layouts_within_bounds(length: int, width: int, along: int, across: int) -> None:
    sides = in_metres(length, width, along, across)
    pattern = best_pattern(*sides)
    check_layout(pattern, sides)
    by_bars = bar_bound(np.array([length]), np.array([width]), along, across)
    assert pattern.number <= min(int(by_bars[0]), line_bound(length, width, along, across))


def test_random_patterns_are_layouts_and_no_worse_than_rows() -> None:
    draw = random.Random(0)
    for _ in range(60):
        length, width = draw.uniform(0.6, 1.3), draw.uniform(0.6, 1.3)
        along, across = draw.uniform(0.12, 0.7), draw.uniform(0.12, 0.7)
        pattern = best_pattern(length, width, along, across)
        straight = math.floor(length / along) * math.floor(width / across)
        turned = math.floor(length / across) * math.floor(width / along)
        assert pattern.number >= max(straight, turned)
        check_layout(pattern, (length, width, along, across))


@pytest.mark.parametrize("sides", [(1.2, 0.8, 0.047, 0.031), (1.2, 1.0, 0.011, 0.007), (1.2, 0.8, 0.003, 0.002)])
def test_many_small_boxes_fill_the_layer(sides: tuple[float, float, float, float]) -> None:
    pattern = best_pattern(*sides)
    assert pattern.number * sides[2] * sides[3] > 0.97 * sides[0] * sides[1]
    if pattern.number < 2000:
        check_layout(pattern, sides)


def test_boxes_that_may_not_turn_lie_in_rows() -> None:
    pattern = best_pattern(1.2, 0.8, 0.3, 0.4, may_turn=False)
    assert pattern.number == 8
    assert not pattern.turned.any()
    assert best_pattern(1.2, 0.8, 1.3, 0.1, may_turn=False).number == 0
