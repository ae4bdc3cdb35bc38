"""Kilograms that may still be put on the columns of a load of blocks.

A column is what a block has of boxes on one another. As in `loads`, the weight of a column counts in full on every
column that it touches from above, and on all that bear one of these. `loads` keeps the same for boxes on cells of many
pallets at once; here there is one pallet, and bases are rectangles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchrl_gpu.palletizing.flat_tops import Rectangle

_ROUNDING = 1e-6
# Columns of a pallet: which bears which is kept for each two.
_MOST_COLUMNS = 4000


class ColumnLoads:
    """Columns of one pallet, C of them."""

    def __init__(self) -> None:
        # Corners and tops, nanometres, (C, 5).
        self._columns = np.zeros((0, 5), dtype=np.int64)
        # Kilograms that may still be put on each, inf for any, (C,).
        self._room = np.zeros(0)
        # Whether column j is column i or bears it, at [i, j], (C, C).
        self._below = np.zeros((0, 0), dtype=bool)

    def most_room(self, heights: np.ndarray) -> np.ndarray:
        """Return the most that may be put on any column of each height, kilograms."""
        on_column = self._columns[:, 4] == heights[:, None]
        room = np.where(on_column, self._least_room(), 0.0).max(1, initial=0.0)
        # The pallet itself bears anything that its weight allows, and so does what it began with.
        return np.where(on_column.any(1), room, np.inf)

    def _least_room(self) -> np.ndarray:
        """What each column and all below it still bear, kilograms, (C,)."""
        return np.where(self._below, self._room, np.inf).min(1, initial=np.inf)

    def takes(self, bases: Sequence[Rectangle], height: int, weight: float) -> bool:
        """Return whether columns of equal weight may be put on some bases."""
        # A load has some tens of columns. Thousands of tiny boxes would fill the memory: they go on more pallets.
        if len(self._room) + len(bases) > _MOST_COLUMNS:
            return False
        bearers = self._bearers(bases, height)
        load = _load(bearers, weight)
        return bool((load <= self._room * (1 + _ROUNDING)).all())

    def place(self, bases: Sequence[Rectangle], height: int, top: int, weight: float, room: float) -> None:
        """Put columns on some bases.

        Args:
            bases: Of the columns.
            height: Of the bases, nanometres.
            top: Of the columns, nanometres.
            weight: Of each column, kilograms.
            room: Kilograms that may be put on each.
        """
        bearers = self._bearers(bases, height)
        load = _load(bearers, weight)
        # A column that bears anything goes on to do so, also after a box of unknown weight, which counts as inf.
        load[np.isinf(self._room)] = 0.0
        self._room = self._room - load
        before = len(self._room)
        fresh = len(bases)
        self._columns = np.concatenate([self._columns, [(*base, top) for base in bases]])
        self._room = np.concatenate([self._room, np.full(fresh, room)])
        below = np.zeros((before + fresh, before + fresh), dtype=bool)
        below[:before, :before] = self._below
        below[before:, :before] = bearers
        below[before:, before:] = np.eye(fresh, dtype=bool)
        self._below = below

    def _bearers(self, bases: Sequence[Rectangle], height: int) -> np.ndarray:
        """Which columns bear each base, (B, C)."""
        bearers = np.zeros((len(bases), len(self._room)), dtype=bool)
        columns = self._columns
        is_at_height = columns[:, 4] == height
        for row, (x0, y0, x1, y1) in enumerate(bases):
            overlaps_x = (columns[:, 0] < x1) & (columns[:, 2] > x0)
            overlaps_y = (columns[:, 1] < y1) & (columns[:, 3] > y0)
            touched = is_at_height & overlaps_x & overlaps_y
            bearers[row] = self._below[touched].any(0)
        return bearers


def _load(bearers: np.ndarray, weight: float) -> np.ndarray:
    """Kilograms that bases of a weight count on each column, (C,).

    `bearers` says which columns bear each base, (B, C).
    """
    times = bearers.sum(0)
    load = np.zeros(len(times))
    load[times > 0] = times[times > 0] * weight
    return load
