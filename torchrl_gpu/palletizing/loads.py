"""Which box bears which, and the kilograms that may still be put on each.

The weight of a box counts in full on every box that it touches from above, on every box that bears one of these, and so
on to the floor. That is at least what a box really bears: to share the weight out among the boxes below would need the
forces between them, which no heightmap tells.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Loads(NamedTuple):
    """Boxes of N pallets, at most C on each, numbered in the order of placing.

    Attributes:
        top: Number of the box that is seen from above, −1 for the floor, (N, X, Y) int64.
        below: Whether box j is box i or bears it, at [i, j], (N, C, C) bool.
        left: Kilograms that may still be put on each box, inf for any, (N, C) float32.
        boxes: Number of boxes so far, (N,) int64.
    """

    top: Tensor
    below: Tensor
    left: Tensor
    boxes: Tensor

    def room(self) -> Tensor:
        """Kilograms that may be put on each cell, inf for any, (N, X, Y) float32."""
        least = torch.where(self.below, self.left[:, None], torch.inf).amin(2)
        # The floor bears anything. It is one more column, behind those of the boxes.
        least = torch.nn.functional.pad(least, (0, 1), value=torch.inf)
        floor = least.shape[1] - 1
        number = torch.where(self.top < 0, floor, self.top)
        return least.gather(1, number.flatten(1)).view(number.shape)

    def add(self, touched: Tensor, covered: Tensor, weight: Tensor, max_load: Tensor) -> Loads:
        """Add one box to each pallet whose `covered` mask is not empty.

        Args:
            touched: Cells of other boxes that the box lies on, (N, X, Y) bool.
            covered: Cells on which the box is seen from above from now on, (N, X, Y) bool.
            weight: Kilograms, (N,).
            max_load: Kilograms that may be put on the box, (N,).
        """
        most = self.left.shape[1]
        # Cells that touch no box mark one more column, which is dropped.
        number = torch.where(touched & (self.top >= 0), self.top, most)
        none = torch.zeros_like(self.left, dtype=torch.bool)
        none = torch.nn.functional.pad(none, (0, 1))
        under = none.scatter(1, number.flatten(1), True)[:, :most]
        bearers = (under[..., None] & self.below).any(1)  # (N, C)
        is_placed = covered.flatten(1).any(1)
        numbers = torch.arange(most, device=weight.device, dtype=torch.int64)
        own = (numbers == self.boxes[:, None]) & is_placed[:, None]
        left = torch.where(bearers, self.left - weight[:, None], self.left)
        top = torch.where(covered, self.boxes[:, None, None], self.top)
        below = torch.where(own[..., None], (bearers | own)[:, None], self.below)
        left = torch.where(own, max_load[:, None], left)
        return Loads(top, below, left, self.boxes + is_placed)
