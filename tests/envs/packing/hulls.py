"""Convex hulls of cells in integers.

They are the oracle of the rules that ask for a centre in a hull.
"""

from __future__ import annotations

import numpy as np

Point = tuple[int, int]


def turns_left(a: Point, b: Point, c: Point) -> int:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def convex_hull(points: list[Point]) -> list[Point]:
    """Return the corners of the hull, anticlockwise (Andrew's monotone chain).

    A segment has two points, and a point one.
    """
    ordered = sorted(set(points))
    if len(ordered) < 3:
        return ordered
    chains = []
    for side in (ordered, ordered[::-1]):
        chain: list[Point] = []
        for point in side:
            while len(chain) >= 2 and turns_left(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        chains.append(chain[:-1])
    return chains[0] + chains[1]


def holds(hull: list[Point], point: Point) -> bool:
    if len(hull) < 3:
        first, last = hull[0], hull[-1]
        between = all(min(a, b) <= p <= max(a, b) for a, b, p in zip(first, last, point, strict=True))
        return between and turns_left(first, last, point) == 0
    return all(turns_left(a, b, point) >= 0 for a, b in zip(hull, hull[1:] + hull[:1], strict=True))


def centre_in_hull(contact: np.ndarray) -> bool:
    """Return whether the centre of a grid lies in the hull of its true cells.

    Coordinates are doubled to stay whole.
    """
    points = [(2 * int(i), 2 * int(j)) for i, j in np.argwhere(contact)]
    return holds(convex_hull(points), (contact.shape[0] - 1, contact.shape[1] - 1))


def balances(contact: np.ndarray, centre: tuple[int, int]) -> bool:
    """Return whether a centre of mass lies in the hull of the true cells.

    It is in sixteenths of a cell. The square of one cell is enough, too.
    """
    points = [(16 * int(i) + 8, 16 * int(j) + 8) for i, j in np.argwhere(contact)]
    square = any(abs(x - centre[0]) <= 8 and abs(y - centre[1]) <= 8 for x, y in points)
    return square or (len(points) > 0 and holds(convex_hull(points), centre))
