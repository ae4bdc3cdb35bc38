"""The hull test of the rules in torch, in whole numbers.

How far does the hull of contacts reach along a row, towards one end of the row? As far as the row's own furthest
contact, or to where the furthest line between a contact before the row and one behind it crosses the row. `crossing`
says where that is, as a fraction of whole numbers, so that a point on the hull's edge is never a matter of rounding.

The usual way, a stack of corners of the hull, would branch on values and so read the device back. For all placements at
once `Hull` visits the rows one by one and keeps the steepest line so far, which takes the least memory. For one
placement of each environment that would take P times as many operators: `reaches` and `furthest_inside` try all pairs
of rows instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.stability.contacts import Contacts


def crossing(before: Tensor, before_run: Tensor, behind: Tensor, behind_run: Tensor) -> Tensor:
    """Return where a line between two rows crosses a row between them.

    Args:
        before: Place along its row of the contact before the crossed row, whole numbers.
        before_run: Distance of that row from the crossed one.
        behind: Place along its row of the contact behind the crossed row.
        behind_run: Distance of that row from the crossed one.

    Returns:
        The place on the crossed row, times the distance `before_run + behind_run`.
    """
    return before * behind_run + behind * before_run


def reaches(reach: Tensor, touches: Tensor, ahead: Tensor) -> Tensor:
    """Return where the hull reaches a point on its row from one side.

    Args:
        reach: How far the furthest contact of each row lies beyond the point, units, (…, P) int64.
        touches: Mask of the rows with contact, (…, P) bool, broadcast to `reach`.
        ahead: How far each row lies behind the point's, units, (…, P) int64, broadcast to `reach`.

    Returns:
        (…) bool.
    """
    is_before = touches & (ahead < 0)
    is_behind = touches & (ahead > 0)
    joins = is_before[..., :, None] & is_behind[..., None, :]
    line = crossing(reach[..., :, None], -ahead[..., :, None], reach[..., None, :], ahead[..., None, :])
    by_line = (joins & (line >= 0)).any(-1).any(-1)
    by_own_row = (touches & (ahead == 0) & (reach >= 0)).any(-1)
    return by_line | by_own_row


def furthest_inside(furthest: Tensor) -> Tensor:
    """Return 1 + the last column of each row inside the hull, 0 for none.

    P³ numbers, in P steps of a few operators.

    Args:
        furthest: 1 + the last contact of each row, 0 for none, (N, P) int64.

    Returns:
        (N, P) int64.
    """
    row = torch.arange(furthest.shape[1], device=furthest.device, dtype=torch.int64)
    before = furthest[:, :, None]
    behind = furthest[:, None, :]
    # Rows from row a to row b, (P, P).
    apart = (row - row[:, None]).clamp_min(1)
    edges = []
    for i in range(len(row)):
        line = crossing(before, i - row[:, None], behind, row - i)
        # Rounded down to the last column inside.
        column = torch.div(line, apart, rounding_mode="floor")
        around = (row[:, None] < i) & (row > i)
        joins = around & (before > 0) & (behind > 0)
        edges.append(torch.where(joins, column, 0).amax((1, 2))[:, None])
    return torch.maximum(furthest, torch.cat(edges, 1))


class Hull:
    """Test whether the hull of contacts holds a rectangle, at all placements at once.

    The hull is that of contact cells' centres. Cells are added row by row. To keep the hulls themselves would take a
    list for each placement. Instead each corner of the rectangle keeps, on either side, the steepest contact so far,
    which is all that decides: see `_Reach`.

    Args:
        contacts: Gives shapes.
        centre: Middle of the rectangle, from the corner of the footprint, units, (N, J, 2).
        per_cell: Units to a cell, an even number.
        half: Half the sides of the rectangle, units, (N, J, 2); None for a point.
    """

    def __init__(self, contacts: Contacts, centre: Tensor, per_cell: int, half: Tensor | None = None) -> None:
        self._contacts = contacts
        self._per_cell = per_cell
        self._columns = contacts.windows.footprint[1]
        x, y = centre[..., None, None].unbind(2)  # (N, J, 1, 1)
        half_x: Tensor | int = 0
        half_y: Tensor | int = 0
        edges = [x]
        if half is not None:
            half_x, half_y = half[..., None, None].unbind(2)
            edges = [x - half_x, x + half_x]
        # How far each row must reach, from either end of it.
        targets = y + half_y, per_cell * self._columns - y + half_y
        self._reaches: list[tuple[Tensor, list[_Reach]]] = []
        for edge in edges:
            sides = [_Reach(contacts.z, target, per_cell) for target in targets]
            self._reaches.append((edge, sides))
        # 1 + the furthest contact of the row, counted from both ends; 0 for none.
        self._furthest: list[Tensor] = []

    def add(self, i: int, j: int, contact: Tensor) -> None:
        """Add the contact (N, J, Gx, Gy) of footprint cell (i, j)."""
        if j == 0:
            self._furthest = [self._contacts.zeros(self._columns), self._contacts.zeros(self._columns)]
        from_start, from_end = self._furthest
        contact = contact.to(from_start.dtype)
        torch.maximum(from_start, contact * (j + 1), out=from_start)
        torch.maximum(from_end, contact * (self._columns - j), out=from_end)
        if j == self._columns - 1:
            for edge, sides in self._reaches:
                for side, furthest in zip(sides, self._furthest, strict=True):
                    side.add_row(furthest, self._per_cell * i + self._per_cell // 2 - edge)

    def holds(self) -> Tensor:
        """Return where the hull holds the rectangle, (N, J, Gx, Gy) bool.

        It does where it reaches the rectangle's corners, on its first and on its last row.
        """
        held = []
        for _, sides in self._reaches:
            held += [side.held for side in sides]
        return torch.stack(held).all(0)


class _Reach:
    """Test that the hull reaches a point on its row from one side.

    It does where a contact of that row does, or where the steepest of the contacts before, at `rise` over `run`, and
    one behind it rise to it. Before any contact the slope is −1 / 0, below every other, and joins with none.
    """

    def __init__(self, shaped: Tensor, target: Tensor, per_cell: int) -> None:
        self._per_cell = per_cell
        self._target = per_cell // 2 + target  # (N, J, 1, 1)
        self._rise = torch.full_like(shaped, -1, dtype=torch.int32)
        self._run = torch.zeros_like(self._rise)
        self.held = torch.zeros_like(self._rise, dtype=torch.bool)

    def add_row(self, furthest: Tensor, ahead: Tensor) -> None:
        """Add 1 + the furthest contact of a row `ahead` of the point's, 0 for none."""
        ahead = ahead.int()
        reach = self._per_cell * furthest.int() - self._target.int()
        there = furthest > 0
        joined = crossing(self._rise, self._run, reach, ahead)
        steeper = there & (ahead < 0) & (joined > 0)
        meets = torch.where(ahead == 0, reach, joined) >= 0
        self.held |= there & (ahead >= 0) & meets
        self._rise = torch.where(steeper, reach, self._rise)
        self._run = torch.where(steeper, -ahead, self._run)
