"""Whether forces exist that hold a pile of boxes as it is planned.

A linear program decides, and nobody's engine. Its unknowns are the forces at the corners of each contact rectangle,
each inside a pyramid of Coulomb friction. Its equations are the balance of forces and torques of every box. Pressure
that is spread over a rectangle is a sum of forces at its corners, so that corners suffice.

That forces exist is necessary for a pile to stand, and not sufficient: rigid boxes with friction may have many
equilibria, and which one they take is open. Boxes touch what is below them, and nothing to their sides.

SciPy solves it (extra `meshes`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from torchrl_gpu.envs.packing.physics.scene import FRICTION
from torchrl_gpu.envs.packing.plan import PackingPlan

# Metres between heights that are the same but for rounding.
EXACT_GAP = 0.0001
# Metres that two boxes must overlap along x and y to touch: places that are whole cells are off by rounding.
_LEAST_OVERLAP = 1e-6
_SIDEWAYS = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
# Statuses of `linprog`.
_SOLVED = 0
_INFEASIBLE = 2


class BoxPile(NamedTuple):
    """Boxes along the axes, on a pallet whose top is at height 0.

    Attributes:
        low: Lowest corner of each box, metres, (M, 3) float64.
        sides: Metres, (M, 3) float64.
        weight: Of each box, in any one unit, above 0, (M,) float64.
        pallet: Length and width, metres, from the origin.
    """

    low: np.ndarray
    sides: np.ndarray
    weight: np.ndarray
    pallet: tuple[float, float]


class Contact(NamedTuple):
    """A rectangle in which a box stands on another, or on the pallet.

    Attributes:
        upper: Number of the box above.
        lower: Number of the box below, −1 for the pallet.
        corners: Metres, (4, 3) float64.
    """

    upper: int
    lower: int
    corners: np.ndarray


def pile_of(plan: PackingPlan) -> BoxPile:
    """Return the boxes of a plan, by its masses or all of one density."""
    low = np.zeros((len(plan.poses), 3))
    sides = np.zeros_like(low)
    for row, (solid, pose) in enumerate(zip(plan.solids, plan.poses, strict=True)):
        corners = solid.vertices @ pose.rotation.T + pose.position
        low[row] = corners.min(0)
        sides[row] = np.ptp(corners, axis=0)
    weight = sides.prod(1) if plan.masses is None else np.array(plan.masses)
    return BoxPile(low, sides, weight, plan.bin_size[:2])


def contacts_of(pile: BoxPile, gap: float = EXACT_GAP) -> list[Contact]:
    """Return the contacts of all boxes, between faces at most `gap` metres apart."""
    length, width = pile.pallet
    top = pile.low + pile.sides
    # The pallet is the last body, so that its index is −1.
    low_xy = np.vstack([pile.low[:, :2], [0.0, 0.0]])
    high_xy = np.vstack([top[:, :2], [length, width]])
    surface = np.append(top[:, 2], 0.0)
    found = []
    for upper, bottom in enumerate(pile.low[:, 2]):
        first = np.maximum(low_xy, low_xy[upper])
        last = np.minimum(high_xy, high_xy[upper])
        overlaps = (last - first > _LEAST_OVERLAP).all(1)
        is_below = np.abs(surface - bottom) <= gap
        # A box thinner than the gap would touch itself.
        is_below[upper] = False
        for below in (overlaps & is_below).nonzero()[0].tolist():
            lower = below if below < len(pile.low) else -1
            found.append(Contact(upper, lower, _corners(first[below], last[below], bottom)))
    return found


def _corners(first: np.ndarray, last: np.ndarray, height: float) -> np.ndarray:
    x, y = np.meshgrid([first[0], last[0]], [first[1], last[1]])
    return np.column_stack([x.ravel(), y.ravel(), np.full(4, height)])


def stands(pile: BoxPile, *, friction: float = FRICTION, gap: float = EXACT_GAP) -> bool:
    """Return whether contact forces exist that hold every box.

    Args:
        pile: The boxes.
        friction: Coulomb's coefficient of all contacts.
        gap: Metres across which two boxes touch.

    Raises:
        RuntimeError: The solver gave up.
    """
    return _largest_acceleration(pile, np.zeros(2), friction, gap) is not None


def side_force(pile: BoxPile, *, friction: float = FRICTION, gap: float = EXACT_GAP) -> float:
    """Return the largest sideways acceleration that the pile can bear.

    It is a share of g, at most `friction`, for the worst of ±x and ±y, and 0 for a pile that does not stand.
    Arguments and errors are those of `stands`.
    """
    least = friction
    for direction in _SIDEWAYS:
        share = _largest_acceleration(pile, direction, friction, gap)
        if share is None:
            return 0.0
        least = min(least, share)
    return least


def _largest_acceleration(pile: BoxPile, direction: np.ndarray, friction: float, gap: float) -> float | None:
    """Return the largest share of g along a direction at which forces balance.

    None if they do not balance even at rest.
    """
    if not len(pile.low):
        return friction
    forces, push = _balance(pile, contacts_of(pile, gap), direction, friction)
    cost = np.zeros(forces.shape[1] + 1)
    # The solver minimizes.
    cost[-1] = -1.0
    # All that holds a pile sideways is the friction of the pallet: the bound is implied, and keeps the program bounded
    # where nothing pushes.
    bounds = [(0.0, None)] * forces.shape[1] + [(0.0, friction)]
    solved = linprog(cost, A_eq=np.column_stack([forces, push]), b_eq=_gravity(pile), bounds=bounds, method="highs")
    if solved.status == _SOLVED:
        # What does not move at all may come out as a negative zero.
        return max(0.0, float(solved.x[-1]))
    if solved.status == _INFEASIBLE:
        return None
    raise RuntimeError(f"equilibrium: the solver gave up on {len(pile.low)} boxes: {solved.message}")


def _balance(
    pile: BoxPile, contacts: list[Contact], direction: np.ndarray, friction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the equations of balance: what each unknown does to each box.

    They are contact forces (6M, 16C) for C contacts, and sideways inertia (6M,).

    Six rows are a box: force along x, y, z, and torque about its centre. An unknown is the size of a force along one
    edge of the friction pyramid at one corner of a contact. The pyramid has its edges along ±x and ±y, and lies inside
    the cone. Forces count in mean weights, and arms in mean sides: a solver's tolerances are absolute.
    """
    unit = pile.sides.mean()
    centre = pile.low + pile.sides / 2
    edges = np.column_stack([friction * _SIDEWAYS, np.ones(4)])
    forces = np.zeros((len(pile.low), 6, len(contacts), 4, 4))
    for number, contact in enumerate(contacts):
        for body, sign in ((contact.upper, 1.0), (contact.lower, -1.0)):
            if body < 0:
                continue
            arm = (contact.corners - centre[body]) / unit  # (4, 3)
            torque = np.cross(arm[:, None], edges)  # (4, 4, 3)
            forces[body, :3, number] = sign * edges.T[:, None]
            forces[body, 3:, number] = sign * np.moveaxis(torque, -1, 0)
    push = np.zeros((len(pile.low), 6))
    push[:, :2] = (pile.weight / pile.weight.mean())[:, None] * direction
    return forces.reshape(6 * len(pile.low), -1), push.ravel()


def _gravity(pile: BoxPile) -> np.ndarray:
    """Return the loads that contact forces must balance, (6M,)."""
    loads = np.zeros((len(pile.low), 6))
    loads[:, 2] = pile.weight / pile.weight.mean()
    return loads.ravel()
