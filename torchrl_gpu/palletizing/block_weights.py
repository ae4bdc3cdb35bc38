"""Weights of the boxes on the tops of a load of blocks."""

from __future__ import annotations

import numpy as np

from torchrl_gpu.palletizing.flat_tops import Rectangle
from torchrl_gpu.palletizing.scores import is_much_heavier


class BlockWeights:
    """Blocks of one pallet, and what a box of each weighs."""

    def __init__(self) -> None:
        # Corners and tops, nanometres, (B, 5).
        self._blocks = np.zeros((0, 5), dtype=np.int64)
        # Kilograms of a box, (B,).
        self._weight = np.zeros(0)

    def has_lighter_below(self, base: Rectangle, height: int, weight: float) -> bool:
        """Return whether a box of some kilograms would stand on a much lighter one."""
        x0, y0, x1, y1 = base
        blocks = self._blocks
        overlaps_x = (blocks[:, 0] < x1) & (blocks[:, 2] > x0)
        overlaps_y = (blocks[:, 1] < y1) & (blocks[:, 3] > y0)
        is_below = overlaps_x & overlaps_y & (blocks[:, 4] == height)
        lighter = is_much_heavier(np.array(weight), self._weight[is_below])
        return bool(lighter.any())

    def place(self, base: Rectangle, top: int, weight: float) -> None:
        """Add a block whose boxes weigh so many kilograms each."""
        self._blocks = np.concatenate([self._blocks, [[*base, top]]])
        self._weight = np.append(self._weight, weight)
