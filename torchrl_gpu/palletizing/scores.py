"""Scores of plans: what goes without saying when a person builds a pallet."""

from __future__ import annotations

import numpy as np

from torchrl_gpu.palletizing.plan import Placements

# Height of a load over its least width beyond which it is a tower: it tips at less than 0.4 g.
MOST_SLENDER = 2.5
Score = tuple[int, int, float, float]


def plan_score(pallets: int, last_volume: float, placed: Placements, weights: np.ndarray) -> Score:
    """Return the score of an order's plan, the least of which is the best.

    Args:
        pallets: That the plan takes.
        last_volume: Cubic metres on the last one.
        placed: Its boxes.
        weights: Kilograms of all boxes, 0 where they are not known.

    Returns:
        Pallets, those whose load is a tower, cubic metres on the last one of several, and the mean height of the
        load's middle, in which heavy boxes count more.
    """
    if not len(placed.box):
        return pallets, 0, 0.0, 0.0
    towers = 0
    for number in np.unique(placed.pallet):
        mine = placed.rows(placed.pallet == number)
        towers += is_tower(mine.corner, mine.sides)
    share = weights[placed.box] + placed.sides.prod(1)
    middle = placed.corner[:, 2] + placed.sides[:, 2] / 2
    mean_height = float((share * middle).sum() / share.sum())
    return pallets, towers, last_volume if pallets > 1 else 0.0, mean_height


def is_tower(corner: np.ndarray, sides: np.ndarray) -> bool:
    """Whether the boxes of a pallet, (P, 3) each, stand too high for their width."""
    upper = corner + sides
    span = (upper - corner.min(0)).max(0)
    return bool(upper[:, 2].max() > MOST_SLENDER * min(span[0], span[1]))
