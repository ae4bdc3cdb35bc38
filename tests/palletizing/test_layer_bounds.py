"""Upper bounds of layers, by hand and beside the best of all layouts."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_gpu.palletizing.layer_bounds import bar_bound, bar_bound_of_l, line_bound
from torchrl_gpu.palletizing.layer_patterns import best_pattern

SIDES = st.integers(1, 30)
BOX = st.integers(1, 8)


def bar_bound_of(length: int, width: int, along: int, across: int) -> int:
    return int(bar_bound(np.array([length]), np.array([width]), along, across)[0])


def _squares(side_x: int, side_y: int, width: int) -> int:
    """Bits of a box at square 0 of a grid with so many squares in a column."""
    column = (1 << side_y) - 1
    box = 0
    for step in range(side_x):
        box |= column << (width * step)
    return box


def most_by_trying_all(length: int, width: int, along: int, across: int) -> int:
    """Most boxes on a small grid.

    Each free square stays empty or is the corner of a box, column by column.
    """

    @cache
    def most(square: int, covered: int) -> int:
        # The lowest bit is the square, the others are those after it.
        if square == length * width:
            return 0
        best = most(square + 1, covered >> 1)
        x, y = divmod(square, width)
        for side_x, side_y in {(along, across), (across, along)}:
            if x + side_x > length or y + side_y > width:
                continue
            box = _squares(side_x, side_y, width)
            if not covered & box:
                best = max(best, 1 + most(square + 1, (covered | box) >> 1))
        return best

    return most(0, 0)


def test_bar_bound_by_hand() -> None:
    # A square of 6 × 6 holds 8 bars of 4, not 9: two squares of 2 × 2 of each colour are left.
    assert bar_bound_of(6, 6, 4, 1) == 8
    assert bar_bound_of(8, 6, 4, 1) == 12


def test_line_bound_by_hand() -> None:
    # The area of a square of 5 × 5 would do for two of 3 × 3, but no line meets two of them.
    assert line_bound(5, 5, 3, 3) == 1
    assert line_bound(6, 3, 3, 3) == 2
    assert line_bound(2, 9, 3, 3) == 0


@given(SIDES, SIDES, st.integers(0, 30), st.integers(0, 30), BOX, BOX)
@settings(max_examples=100, deadline=None)
def test_bound_of_an_l_counts_the_rarest_colour(
    length: int, width: int, leg: int, foot: int, along: int, across: int
) -> None:
    leg = min(leg, length)
    foot = min(foot, width)
    x, y = np.indices((length, width))
    inside = (x < leg) | (y < foot)
    most = int(inside.sum())
    for bar in (along, across):
        for colour in ((x + y) % bar, (x - y) % bar):
            rarest = np.bincount(colour[inside], minlength=bar).min()
            most = min(most, bar * int(rarest))
    shape = np.array([[length], [width], [leg], [foot]])
    assert bar_bound_of_l(shape, along, across).tolist() == [most // (along * across)]


@given(SIDES, SIDES, BOX, BOX)
@settings(max_examples=100, deadline=None)
def test_a_rectangle_has_its_bound_as_an_l(length: int, width: int, along: int, across: int) -> None:
    shape = np.array([[length], [width], [length], [width]])
    assert bar_bound_of_l(shape, along, across).tolist() == [bar_bound_of(length, width, along, across)]


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_small_layers_are_the_best_of_all_and_within_bounds(length: int, width: int, along: int, across: int) -> None:
    most = most_by_trying_all(length, width, along, across)
    assert best_pattern(length / 100, width / 100, along / 100, across / 100).number == most
    assert most <= bar_bound_of(length, width, along, across)
    assert most <= line_bound(length, width, along, across)
