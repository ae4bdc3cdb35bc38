"""Contact of all placements with the pile at once, and a hull test on it."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.stability.centres import centre_16ths
from torchrl_gpu.envs.packing.stability.margins import drops, half_sides
from torchrl_gpu.envs.packing.stability.windows import GridWindows
from torchrl_gpu.envs.packing.types import Bin, Catalogue

# Types of counters, the smallest first.
_COUNTERS = (torch.int8, torch.int16, torch.int32)


class Contacts:
    """Contact of J items with N piles at every placement.

    One footprint cell is looked at a time.

    Attributes:
        windows: Heights under every placement; of cells that bear load alone, where the rule tracks them.
        z: Rest heights, metres, (N, J, Gx, Gy) float32.
        extent: Cells of each item along x and y, (N, J, 2) int64.
        area: Number of cells of each item with material, at least 1, (N, J, 1, 1) int64.
    """

    def __init__(
        self, windows: GridWindows, z: Tensor, item: Tensor, orientation: Tensor, catalogue: Catalogue, bin_: Bin
    ) -> None:
        self.windows = windows
        self.z = z
        self.extent = catalogue.extent[item, orientation]
        self._item = item
        self._orientation = orientation
        self._catalogue = catalogue
        self._bin = bin_
        self._level = z - bin_.contact_tolerance
        self._drops: tuple[Tensor, Tensor] | None = None
        if bin_.max_tilt and "max_tilt" in bin_.rule.options:
            self._drops = drops(self.extent, windows.footprint, bin_)
        self._bottom = None if catalogue.flat else catalogue.maps(item, orientation)[1]  # (N, J, P, Q)
        if self._bottom is None:
            area = self.extent.prod(-1)
        else:
            area = self._bottom.isfinite().sum((-1, -2)).clamp_min(1)
        self.area = area[..., None, None]
        # 1 within the item's own extent, (N, J, P, 1, 1) and (N, J, Q, 1, 1) int8.
        self._rows = self._inside(0)
        self._columns = self._inside(1)
        self._scratch = torch.empty_like(self._level)

    def _inside(self, axis: int) -> Tensor:
        cells = self.windows.footprint[axis]
        cell = torch.arange(cells, device=self._level.device, dtype=torch.int64)
        return (cell < self.extent[..., axis, None]).to(torch.int8)[..., None, None]

    def at(self, i: int, j: int) -> Tensor:
        """Return 1 where footprint cell (i, j) touches, else 0, (N, J, Gx, Gy) int8."""
        cells = self.windows.cells(i, j)
        if self._bottom is not None:
            cells = torch.sub(cells, self._bottom[..., i, j, None, None], out=self._scratch)
        level = self._level
        if self._drops is not None:
            by_row, by_column = self._drops
            drop = torch.maximum(by_row[..., i], by_column[..., j])
            level = level - drop[..., None, None]
        # A comparison into float32 and its cast are vectorised; one into booleans is not.
        contact = torch.ge(cells, level, out=self._scratch).to(torch.int8)
        if self._bottom is not None:
            return contact
        return contact.mul_(self._rows[:, :, i] * self._columns[:, :, j])

    def zeros(self, largest: int) -> Tensor:
        """Return a map of counters of the smallest type that counts to `largest`."""
        dtype = next(dtype for dtype in _COUNTERS if torch.iinfo(dtype).max >= largest)
        return torch.zeros_like(self._level, dtype=dtype)

    def on_floor(self) -> Tensor:
        """Return the mask of placements on the floor, (N, J, Gx, Gy) bool."""
        return self.z <= self._bin.tolerance

    def centre(self) -> Tensor:
        """Return the centres of mass, sixteenths of a cell from the footprint's corner.

        Shape (N, J, 2) int32.
        """
        return centre_16ths(self._catalogue, self._bin)[self._item, self._orientation]

    def half_sides(self) -> Tensor:
        """Return half the sides of the rectangle that the bin's margin wants held.

        Sixteenths of a cell, (N, J, 2) int64.
        """
        return half_sides(self.extent, self._bin)


class Hull:
    """Test in integers whether the hull of contacts holds a rectangle.

    The hull is that of contact cells' centres, at all placements at once. Cells are added row by row. To keep the hulls
    themselves would take a list for each placement. Instead each corner of the rectangle keeps, on either side, the
    steepest contact so far, which is all that decides: see `_Reach`.

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
        joined = reach * self._run + self._rise * ahead
        steeper = there & (ahead < 0) & (joined > 0)
        meets = torch.where(ahead == 0, reach, joined) >= 0
        self.held |= there & (ahead >= 0) & meets
        self._rise = torch.where(steeper, reach, self._rise)
        self._run = torch.where(steeper, -ahead, self._run)
