"""Upper bounds of the number of equal boxes on a rectangle or an L-shaped piece.

A search that has reached its bound may stop. All lengths are whole numbers of one unit, in which sums are exact.
"""

from __future__ import annotations

import numpy as np


def bar_bound(length: np.ndarray, width: np.ndarray, along: int, across: int) -> np.ndarray:
    """Return the most boxes of rectangles by Barnes (1979).

    A box is a stack of bars one unit thick. Bars of a length m leave free at least the smaller of two corners of a
    rectangle, whose sides are its sides modulo m and what these lack to m.

    Args:
        length, width: Sides of the rectangles, whole numbers, of one shape.
        along, across: Sides of the box.
    """
    free = np.zeros_like(length * width)
    for bar in (along, across):
        rest_x = length % bar
        rest_y = width % bar
        free = np.maximum(free, np.minimum(rest_x * rest_y, (bar - rest_x) * (bar - rest_y)))
    return (length * width - free) // (along * across)


def bar_bound_of_l(shapes: np.ndarray, along: int, across: int) -> np.ndarray:
    """Return the most boxes of L-shaped pieces, by bars as in `bar_bound`.

    The squares of a grid get m colours in turn along both axes. A bar of length m covers one square of every colour, so
    that there are no more bars than squares of the rarest one. Colours may rise in either of two diagonals.

    Args:
        shapes: Length, width, width of the upright leg and height of the foot, (4, P) int64.
        along, across: Sides of the box.
    """
    length, width, leg, foot = shapes
    above = width - foot
    area = length * foot + leg * above
    free = np.zeros_like(area)
    for bar in (along, across):
        free = np.maximum(free, _free(length, foot, leg, above, bar))
        free = np.maximum(free, _free(leg, above, length, foot, bar))
    return (area - free) // (along * across)


def _free(lower_x: np.ndarray, lower_y: np.ndarray, upper_x: np.ndarray, upper_y: np.ndarray, bar: int) -> np.ndarray:
    """Area that bars leave free in two rectangles, one on the other at the left."""
    x1 = lower_x % bar
    y1 = lower_y % bar
    x2 = upper_x % bar
    y2 = upper_y % bar
    rarest = np.full_like(x1, bar * bar)
    # Counts are piecewise linear in the colour, so that the rarest one is where the squares of a rectangle end.
    for colour in (np.full_like(x1, bar - 1), (x1 + y1 - 1) % bar, (y1 - 1) % bar, (y1 + x2 + y2 - 1) % bar):
        squares = _count_colour(x1, y1, colour, bar) + _count_colour(x2, y2, (colour - y1) % bar, bar)
        rarest = np.minimum(rarest, squares)
    return x1 * y1 + x2 * y2 - bar * rarest


def _count_colour(x: np.ndarray, y: np.ndarray, colour: np.ndarray, bar: int) -> np.ndarray:
    """Squares of a colour in rectangles whose sides are below the number of colours."""
    return _count_diagonal(x, y, colour) + _count_diagonal(x, y, colour + bar)


def _count_diagonal(x: np.ndarray, y: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Squares (i, j) of rectangles of which i + j is a total."""
    shorter = np.minimum(x, y)
    return np.maximum(np.minimum(np.minimum(total + 1, shorter), x + y - 1 - total), 0)


def line_bound(length: int, width: int, along: int, across: int) -> int:
    """Return the most boxes of a rectangle by Isermann (1987).

    A line across the rectangle meets some boxes that lie along it and some that lie across. These pairs, and hence
    their mean over all lines, are within a convex polygon, for lines of either direction. It is the area that counts
    where no pair is short of a side.

    Args:
        length, width: Sides of the rectangle, whole numbers.
        along, across: Sides of the box.
    """
    level = _corners(length, along, across)
    upright = _corners(width, across, along)
    most = 0
    straight = 0
    while straight * along * across <= length * width:
        # Lines meet `straight` boxes this often in all: each one over its whole side.
        fit_x = _others(level, straight * across, width)
        fit_y = _others(upright, straight * along, length)
        if fit_x is None or fit_y is None:
            break
        most = max(most, straight + min(fit_x // along, fit_y // across))
        straight += 1
    return most


def _corners(room: int, one: int, other: int) -> list[tuple[int, int]]:
    """Corners of the hull of all pairs of numbers of two sides that fit a length."""
    corners: list[tuple[int, int]] = []
    for number in range(room // one + 1):
        point = number, (room - number * one) // other
        while len(corners) > 1 and _is_below(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return corners


def _is_below(first: tuple[int, int], middle: tuple[int, int], last: tuple[int, int]) -> bool:
    """Whether a point is not above the line between its neighbours."""
    rise = (middle[1] - first[1]) * (last[0] - first[0])
    return rise <= (last[1] - first[1]) * (middle[0] - first[0])


def _others(corners: list[tuple[int, int]], met: int, lines: int) -> int | None:
    """Most that lines meet of a second side where they meet so much of the first.

    Both are sums over all lines. It is None where lines cannot meet so much of the first side.
    """
    if met > corners[-1][0] * lines:
        return None
    if len(corners) == 1:
        return corners[0][1] * lines
    at = 1
    while met > corners[at][0] * lines:
        at += 1
    start = corners[at - 1]
    end = corners[at]
    fall = (start[1] - end[1]) * (met - start[0] * lines)
    return start[1] * lines - -(-fall // (end[0] - start[0]))
