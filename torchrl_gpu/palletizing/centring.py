"""Loads moved to the middle of their pallets.

A plan that fills from a corner leaves the free room on one side, and the centre of gravity off the middle. The load of
a pallet is moved as a whole, so that every box keeps its place among the others, and none comes to stick out.
"""

from __future__ import annotations

import numpy as np

from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import Placements

# Share of a pallet's side that the centre of gravity of a load may lie off its middle.
MOST_OFF_MIDDLE = 0.1


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
        sides = placed.sides[mine]
        share = _shares(sides, weights[placed.box[mine]])
        for axis, length in enumerate((pallet.length, pallet.width)):
            first = corner[mine, axis]
            corner[mine, axis] += _shift(first, sides[:, axis], share, length)
    return placed._replace(corner=corner)


def off_middle(corner: np.ndarray, sides: np.ndarray, weight: np.ndarray, pallet: Pallet) -> float:
    """Return how far off the middle a load stays once it is moved.

    It is a share of the pallet's side, the larger one of both axes.

    Args:
        corner: Lower corners of P boxes, metres from the pallet's corner, (P, 3).
        sides: Along x, y and z, metres, (P, 3).
        weight: Kilograms, 0 where it is not known, (P,).
        pallet: That they are on.
    """
    share = _shares(sides, weight)
    furthest = 0.0
    for axis, length in enumerate((pallet.length, pallet.width)):
        first = corner[:, axis]
        shift = _shift(first, sides[:, axis], share, length)
        middle = _centre(first, sides[:, axis], share) + shift
        furthest = max(furthest, abs(middle - length / 2) / length)
    return furthest


def _shares(sides: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weights of boxes, or their volumes where one is not known, (P,)."""
    return weight if weight.all() else np.asarray(sides.prod(1))


def _centre(first: np.ndarray, sides: np.ndarray, share: np.ndarray) -> float:
    """Centre of gravity along an axis, metres."""
    return float((share * (first + sides / 2)).sum() / share.sum())


def _shift(first: np.ndarray, sides: np.ndarray, share: np.ndarray, length: float) -> float:
    """How far a load is moved along an axis, metres."""
    # A load that sticks out stays where it is on that side.
    room_before = max(0.0, float(first.min()))
    room_behind = max(0.0, length - float((first + sides).max()))
    return min(max(length / 2 - _centre(first, sides, share), -room_before), room_behind)
