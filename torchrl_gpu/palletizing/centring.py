"""Loads moved to the middle of their pallets.

A plan that fills from a corner leaves the free room on one side, and the centre of gravity off the middle. The load of
a pallet is moved as a whole, so that every box keeps its place among the others, and none comes to stick out.
"""

from __future__ import annotations

import numpy as np

from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import Placements


def centre_loads(placed: Placements, pallet: Pallet, weights: np.ndarray) -> Placements:
    """Move the load of every pallet towards its middle, as far as there is room.

    What comes to the middle is the centre of gravity.

    Args:
        placed: All placements.
        pallet: That they are on.
        weights: Kilograms of all boxes of the list, 0 where they are not known.
    """
    corner = placed.corner.copy()
    names = np.stack([placed.order, placed.pallet], 1)
    _, number = np.unique(names, axis=0, return_inverse=True)
    number = number.reshape(-1)
    for each in range(number.max(initial=-1) + 1):
        mine = number == each
        share = weights[placed.box[mine]]
        # Boxes without weights count by their volumes.
        if not share.all():
            share = placed.sides[mine].prod(1)
        for axis, length in enumerate((pallet.length, pallet.width)):
            first = corner[mine, axis]
            sides = placed.sides[mine, axis]
            corner[mine, axis] += _shift(first, sides, share, length)
    return placed._replace(corner=corner)


def _shift(first: np.ndarray, sides: np.ndarray, share: np.ndarray, length: float) -> float:
    """How far a load is moved along an axis, metres."""
    middle = float((share * (first + sides / 2)).sum() / share.sum())
    # A load that sticks out stays where it is on that side.
    room_before = max(0.0, float(first.min()))
    room_behind = max(0.0, length - float((first + sides).max()))
    return min(max(length / 2 - middle, -room_before), room_behind)
