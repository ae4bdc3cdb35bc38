"""Scores of plans: what goes without saying when a person builds a pallet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchrl_gpu.palletizing.plan import Placements

# Height of a load over its least width beyond which it is a tower: it tips at less than 0.4 g.
MOST_SLENDER = 2.5
# Acceleration that a load meets on the road, in g: EUMOS 40509.
ROAD_G = 0.5
# Boxes that are no further apart beside one another lean on one another, metres; EUMOS lets a load bend by more.
_BESIDE = 0.03
# Boxes that are no further apart in height stand on one another, metres.
_TOUCH = 0.005
# Boxes side by side share an edge of no breadth but rounding, metres.
_EDGE = 1e-6
# A box presses on a lighter one where it is so many times as heavy, and heavier by so many kilograms.
_TIMES_HEAVIER = 2.0
_HEAVIER_KG = 3.0
# Boxes of a load of which each is compared with each: 4 million pairs.
_MOST_BOXES = 2000
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


class Column(NamedTuple):
    """Part of a load that rises above all that is beside it.

    Attributes:
        height: Above its neighbours, metres.
        width: Least side of the rectangle about it, metres.
    """

    height: float
    width: float

    @property
    def tips_at_g(self) -> float:
        """Acceleration at which it tips as one block, in g."""
        return self.width / self.height


def most_slender_column(corner: np.ndarray, sides: np.ndarray) -> Column:
    """Return the part of a load that tips first, if nothing is wrapped.

    On the pallet, and at every height at which a box ends, what rises above it falls into groups of boxes that touch
    one another. Each group is taken as one block that stands at that height. Of very many boxes the load as a whole is
    the only group.

    Args:
        corner: Lower corners of P boxes, metres, (P, 3).
        sides: Along x, y and z, metres, (P, 3).
    """
    upper = corner + sides
    if len(corner) > _MOST_BOXES:
        span = upper.max(0) - corner.min(0)
        return Column(float(upper[:, 2].max()), float(min(span[0], span[1])))
    touches = _touches(corner, upper)
    columns = []
    levels = np.unique(np.round(upper[:, 2], 4))
    for level in [0.0, *levels.tolist()]:
        rises = np.flatnonzero(upper[:, 2] > level + _TOUCH)
        for group in _groups(touches[np.ix_(rises, rises)]):
            members = rises[group]
            span = upper[members].max(0) - corner[members].min(0)
            height = float(upper[members, 2].max()) - level
            columns.append(Column(height, float(min(span[0], span[1]))))
    return min(columns, key=_tips_at_g)


def _tips_at_g(column: Column) -> float:
    return column.tips_at_g


def is_much_heavier(above: np.ndarray | float, below: np.ndarray | float) -> np.ndarray | bool:
    """Return whether boxes are much heavier than others, by their kilograms.

    A weight of 0 is not known, and says nothing.
    """
    is_heavier = (above > _TIMES_HEAVIER * below) & (above > below + _HEAVIER_KG)
    return is_heavier & (below > 0)


def presses_on_lighter(corner: np.ndarray, sides: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return which boxes of a load stand on one that is much lighter, (P,) bool.

    That is less than half as heavy, and lighter by 3 kg or more. Of more than 2,000 boxes none is found.

    Args:
        corner: Lower corners of P boxes, metres, (P, 3).
        sides: Along x, y and z, metres, (P, 3).
        weight: Kilograms, 0 where it is not known, (P,).
    """
    if len(corner) > _MOST_BOXES:
        return np.zeros(len(corner), dtype=bool)
    above, below = np.nonzero(np.asarray(is_much_heavier(weight[:, None], weight)))
    upper = corner + sides
    touches = abs(corner[above, 2] - upper[below, 2]) <= _TOUCH
    starts_before = corner[above, :2] < upper[below, :2] - _EDGE
    ends_behind = corner[below, :2] < upper[above, :2] - _EDGE
    stands_on = touches & (starts_before & ends_behind).all(1)
    presses = np.zeros(len(corner), dtype=bool)
    presses[above[stands_on]] = True
    return presses


def _touches(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Which boxes touch which, (P, P) bool."""
    reaches = np.all(lower[:, None] <= upper[None] + [_BESIDE, _BESIDE, _TOUCH], axis=2)
    return reaches & reaches.T


def _groups(touches: np.ndarray) -> list[np.ndarray]:
    """Groups of boxes that touch one another, by which touch which (Q, Q)."""
    left = np.ones(len(touches), dtype=bool)
    groups = []
    while left.any():
        members = np.zeros(len(touches), dtype=bool)
        members[int(left.argmax())] = True
        size = 0
        # Neighbours of neighbours, until there are no more.
        while members.sum() > size:
            size = int(members.sum())
            members |= touches[members].any(0)
        groups.append(np.flatnonzero(members))
        left &= ~members
    return groups
