"""Exposure of a pile to the creep of PyBullet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# A box that leans rests on what is up to this far below its base, metres.
LEANS_M = 0.04
_ROUNDING_M = 1e-4


class Footprint(NamedTuple):
    """Cells that a box covers, and its height above the pallet.

    Attributes:
        x, y: First cell.
        length, width: Cells along x and y.
        base, height: Metres.
    """

    x: int
    y: int
    length: int
    width: int
    base: float
    height: float


class Exposure:
    """Exposure of a pile to creep.

    It is the number of levels below a box times the number of boxes that came after it, averaged over the pile. A level
    is one box of the longest chain from a box down to the floor.

    In PyBullet boxes that lie still move by a millimetre or so for every level below them while the next box is lowered
    and let go, whether they lean or not, and these shifts add up. So a high pile of many boxes falls though nothing on
    it is out of balance, and the exposure says when, without a simulation.

    Args:
        cells: Of the pallet along x and y.
    """

    def __init__(self, cells: tuple[int, int]) -> None:
        self._tops = np.zeros(cells)
        # Levels of the boxes on top, 0 for the floor.
        self._levels = np.zeros(cells, dtype=np.int64)
        self._boxes = 0
        # Sum over boxes of levels, and of levels times boxes that came after.
        self._sum_of_levels = 0
        self._sum = 0

    @property
    def mean(self) -> float:
        """Exposure now, 0 of an empty pallet."""
        return self._sum / self._boxes if self._boxes else 0.0

    def after(self) -> float:
        """Exposure after one more box, wherever it goes.

        It comes after all others, and nothing comes after it.
        """
        return (self._sum + self._sum_of_levels) / (self._boxes + 1)

    def add(self, box: Footprint) -> None:
        """Put a box down."""
        window = slice(box.x, box.x + box.length), slice(box.y, box.y + box.width)
        tops = self._tops[window]
        rests_on = (tops > box.base - LEANS_M) & (tops <= box.base + _ROUNDING_M)
        below = int(self._levels[window][rests_on].max(initial=0))
        self._sum += self._sum_of_levels
        self._sum_of_levels += below
        self._boxes += 1
        self._tops[window] = box.base + box.height
        self._levels[window] = below + 1
