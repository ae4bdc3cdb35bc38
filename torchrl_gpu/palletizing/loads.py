"""Most loads of boxes on pallets: which box bears which, and the kilograms that may still be put on each.

The weight of a box counts in full on every box that it touches from above, on every box that bears one of these, and so
on to the floor: at least what a box really bears.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Loads(NamedTuple):
    """Boxes of N pallets, at most C each, by their numbers in the order of placing."""

    top: Tensor  # (N, X, Y) int64, number of the box that is seen from above; −1 for the floor
    below: Tensor  # (N, C, C) bool, [i, j] true where box j is box i or bears it
    left: Tensor  # (N, C) float32, kilograms that may still be put on each box; inf for any
    boxes: Tensor  # (N,) int64, how many there are

    def room(self) -> Tensor:
        """Kilograms that may be put on each cell, (N, X, Y) float32; inf for any."""
        least = torch.where(self.below, self.left[:, None], torch.inf).amin(2)
        least = torch.nn.functional.pad(least, (0, 1), value=torch.inf)  # the last is the floor's
        number = torch.where(self.top < 0, least.shape[1] - 1, self.top)
        return least.gather(1, number.flatten(1)).view(number.shape)

    def put(self, touched: Tensor, covered: Tensor, weight: Tensor, max_load: Tensor) -> Loads:
        """The loads after one more box on each pallet of which cells are covered.

        It lies on the cells `touched` (N, X, Y) of those `covered`, weighs `weight` (N,) and bears `max_load` (N,)
        kilograms.
        """
        most = self.left.shape[1]
        number = torch.where(touched & (self.top >= 0), self.top, most)
        under = torch.zeros_like(self.left, dtype=torch.bool)
        under = torch.nn.functional.pad(under, (0, 1)).scatter(1, number.flatten(1), True)[:, :most]
        bearers = (under[..., None] & self.below).any(1)  # (N, C)
        placed = covered.flatten(1).any(1)
        each = torch.arange(most, device=weight.device, dtype=torch.int64)
        own = (each == self.boxes[:, None]) & placed[:, None]
        left = torch.where(bearers, self.left - weight[:, None], self.left)
        return Loads(
            torch.where(covered, self.boxes[:, None, None], self.top),
            torch.where(own[..., None], (bearers | own)[:, None], self.below),
            torch.where(own, max_load[:, None], left),
            self.boxes + placed,
        )
