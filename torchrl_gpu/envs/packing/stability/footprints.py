"""One placement for the NumPy definitions of stability rules, and their hull test."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# A cell's centre lies at 8 sixteenths of it.
SIXTEENTHS = 16


class Footprint(NamedTuple):
    """An item at rest, seen on the cells of its own footprint.

    Attributes:
        contact: Mask of the cells in which the item touches the pile, (P, Q) bool; by a rule that tracks what bears
            load, touches what bears load.
        material: Mask of the cells in which the item has material, (P, Q) bool.
        on_floor: Whether the item's base is at the floor.
        centre: Centre of mass along x and y, in sixteenths of a cell from the corner of cell (0, 0), (2,) integers.
        half_sides: Half the sides of the rectangle about the middle that the bin's margin wants supported, sixteenths
            of a cell, (2,) integers.
    """

    contact: np.ndarray
    material: np.ndarray
    on_floor: bool
    centre: np.ndarray
    half_sides: np.ndarray


def hull_holds(points: np.ndarray, target: np.ndarray) -> bool:
    """Whether a target lies in the convex hull of points, all of whole coordinates.

    Args:
        points: (C, 2) integers; a single point and points on one line have hulls too.
        target: (2,) integers.
    """
    offsets = points - target
    if len(offsets) == 0:
        return False
    if (offsets == 0).all(axis=1).any():
        return True

    # The hull misses the target if all points are in front of it, on one side of a line through the target. If there is
    # such a line then there is one through a point as well, so that one line through each point is all there is to try.
    x, y = offsets.T
    side = np.outer(x, y) - np.outer(y, x)
    ahead = offsets @ offsets.T
    on_one_side = (side >= 0).all(axis=1) | (side <= 0).all(axis=1)
    in_front = ((side != 0) | (ahead > 0)).all(axis=1)
    return not (on_one_side & in_front).any()


def outline(mask: np.ndarray) -> np.ndarray:
    """Return the first and the last cell of each row of a mask (P, Q).

    Their hull is that of all cells. (C, 2) integers.
    """
    cells = []
    for i, row in enumerate(mask):
        columns = np.flatnonzero(row)
        if len(columns):
            cells.append((i, columns[0]))
            cells.append((i, columns[-1]))
    return np.array(cells, dtype=np.int64).reshape(-1, 2)


def centres_of(cells: np.ndarray) -> np.ndarray:
    """Return the centres of cells (C, 2) in sixteenths of a cell, (C, 2) integers."""
    return SIXTEENTHS * cells + SIXTEENTHS // 2
