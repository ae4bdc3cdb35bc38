"""Weights of the boxes on the tops of a load of blocks."""

from __future__ import annotations

from torchrl_gpu.palletizing.flat_tops import Rectangle
from torchrl_gpu.palletizing.scores import is_much_heavier


class BlockWeights:
    """Blocks of one pallet, and what a box of each weighs."""

    def __init__(self) -> None:
        # Bases, tops and kilograms of a box.
        self._blocks: list[tuple[Rectangle, int, float]] = []

    def copy(self) -> BlockWeights:
        """Return the weights of a load that goes on in its own way."""
        other = BlockWeights()
        other._blocks = list(self._blocks)
        return other

    def has_lighter_below(self, base: Rectangle, height: int, weight: float) -> bool:
        """Return whether a box of some kilograms would stand on a much lighter one."""
        x0, y0, x1, y1 = base
        for (left, lower, right, upper), top, below in self._blocks:
            is_under = top == height and left < x1 and right > x0 and lower < y1 and upper > y0
            if is_under and is_much_heavier(weight, below):
                return True
        return False

    def place(self, base: Rectangle, top: int, weight: float) -> None:
        """Add a block whose boxes weigh so many kilograms each."""
        self._blocks.append((base, top, weight))
