"""Stability of all placements at once, in torch: the rules of `reference.stands` and `reference.upheld`."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.balance import SIXTEENTHS, cells_from, centre_16ths
from torchrl_gpu.envs.packing.kernels.bearing import drops, half_sides
from torchrl_gpu.envs.packing.kernels.windows import GridWindows
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.system import arguments


def stands(
    windows: GridWindows, z: Tensor, item: Tensor, orientation: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    """True where an item of (N, J) is stable at rest at z (N, J, Gx, Gy), by the bin's rule; bool.

    Raises:
        ValueError: The rule is none of "corners", "support" and "com".
    """
    rule = arguments.choice("eager", "stability", bin_.stability, ("none", *_OFF_FLOOR, "com"))
    contacts = _Contacts(windows, z - bin_.contact_tolerance, item, orientation, catalogue)
    if rule == "com":
        return _com(contacts, centre_16ths(catalogue, bin_)[item, orientation])
    return _OFF_FLOOR[rule](contacts) | (z <= bin_.tolerance)


def upheld(
    windows: GridWindows, z: Tensor, item: Tensor, orientation: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    """True where a box of (N, J) is stable by the rule "load_bearing" on windows of the heights that bear load."""
    extent = catalogue.extent[item, orientation]
    lower = drops(extent, windows.footprint, bin_) if bin_.max_tilt else None
    contacts = _Contacts(windows, z - bin_.contact_tolerance, item, orientation, catalogue, lower)
    hull = _Hull(contacts, SIXTEENTHS // 2 * extent, SIXTEENTHS, half_sides(extent, bin_))
    for i, j in windows.offsets():
        hull.add(i, j, contacts.at(i, j))
    return hull.holds()


class _Contacts:
    """Contact of each item with the pile, one footprint cell at a time."""

    def __init__(
        self,
        windows: GridWindows,
        level: Tensor,
        item: Tensor,
        orientation: Tensor,
        catalogue: Catalogue,
        lower: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.windows, self.level, self.lower = windows, level, lower  # lower: see `drops`
        self.extent = catalogue.extent[item, orientation]  # (N, J, 2)
        self.bottom = None if catalogue.flat else catalogue.maps(item, orientation)[1]  # (N, J, P, Q)
        if self.bottom is None:
            area = self.extent.prod(-1)
        else:
            area = self.bottom.isfinite().sum((-1, -2)).clamp_min(1)
        self.area = area[..., None, None]  # (N, J, 1, 1)
        self._rows, self._columns = (
            (torch.arange(size, device=level.device, dtype=torch.int64) < self.extent[..., axis, None]).to(torch.int8)[
                ..., None, None
            ]
            for axis, size in enumerate(windows.footprint)
        )  # (N, J, P, 1, 1), (N, J, Q, 1, 1): 1 within the item's own extent
        self._scratch = torch.empty_like(level)

    def at(self, i: int, j: int) -> Tensor:
        """1 where footprint cell (i, j) touches, else 0; (N, J, Gx, Gy) int8."""
        cells = self.windows.cells(i, j)
        if self.bottom is not None:
            cells = torch.sub(cells, self.bottom[..., i, j, None, None], out=self._scratch)
        # A comparison into float32 and its cast are vectorised; one into booleans is not.
        level = self.level
        if self.lower is not None:
            level = level - torch.maximum(self.lower[0][..., i], self.lower[1][..., j])[..., None, None]
        contact = torch.ge(cells, level, out=self._scratch).to(torch.int8)
        return contact if self.bottom is not None else contact.mul_(self._rows[:, :, i] * self._columns[:, :, j])

    def zeros(self, largest: int) -> Tensor:
        """A map of counters, (N, J, Gx, Gy), of the smallest type that counts to `largest`."""
        dtype = next(t for t in (torch.int8, torch.int16, torch.int32) if torch.iinfo(t).max >= largest)
        return torch.zeros_like(self.level, dtype=dtype)


def _corners(contacts: _Contacts) -> Tensor:
    """Rule "corners", Zhao et al., AAAI 2021: True where enough area touches for the number of corners that do."""
    rows, columns = contacts.windows.footprint
    last = contacts.extent - 1
    count, corners = contacts.zeros(rows * columns), contacts.zeros(4)
    for i, j in contacts.windows.offsets():
        contact = contacts.at(i, j)
        count += contact
        on_edge = [int(at == 0) + (last[..., axis] == at).to(torch.int8) for axis, at in enumerate((i, j))]
        corners += contact * (on_edge[0] * on_edge[1])[..., None, None]  # a corner of a thin item counts twice
    share = count.float() / contacts.area
    return (share > 0.95) | ((corners == 3) & (share > 0.85)) | ((corners == 4) & (share > 0.50))


def _support(contacts: _Contacts) -> Tensor:
    """Rule "support", GOPT, RA-L 2024: more than half the area, or the centre in the hull of two or more contacts."""
    rows, columns = contacts.windows.footprint
    count, hull = contacts.zeros(rows * columns), _Hull(contacts, contacts.extent, 2)
    for i, j in contacts.windows.offsets():
        contact = contacts.at(i, j)
        count += contact
        hull.add(i, j, contact)
    return (count.float() / contacts.area > 0.50) | ((count >= 2) & hull.holds())


_OFF_FLOOR = {"corners": _corners, "support": _support}  # every item is stable on the floor


def _com(contacts: _Contacts, centre: Tensor) -> Tensor:
    """Rule "com": the centre of mass (N, J, 2), int32 sixteenths of a cell, in the hull or within a contact cell."""
    below = [
        (cells_from(centre[..., axis], size).abs() <= SIXTEENTHS // 2).to(torch.int8)
        for axis, size in enumerate(contacts.windows.footprint)
    ]  # (N, J, P), (N, J, Q): 1 where the centre is above a row, and a column
    square, hull = contacts.zeros(4), _Hull(contacts, centre, SIXTEENTHS)
    for i, j in contacts.windows.offsets():
        contact = contacts.at(i, j)
        square += contact * (below[0][:, :, i] * below[1][:, :, j])[..., None, None]
        hull.add(i, j, contact)
    return (square > 0) | hull.holds()


class _Hull:
    """Test, in integers, whether the hull of contact cells' centres holds a rectangle; cells are added row by row.

    The rectangle is about `centre` (N, J, 2), from the corner of the footprint, in an even number of units `per_cell`,
    and `half` (N, J, 2) are half its sides; None where it is a point.
    """

    def __init__(self, contacts: _Contacts, centre: Tensor, per_cell: int, half: Tensor | None = None) -> None:
        self.contacts, self.per_cell, self.columns = contacts, per_cell, contacts.windows.footprint[1]
        x, y = centre[..., None, None].unbind(2)  # (N, J, 1, 1)
        half_x, half_y = (0, 0) if half is None else half[..., None, None].unbind(2)
        targets = y + half_y, per_cell * self.columns - y + half_y  # from either end of a row
        edges = [x] if half is None else [x - half_x, x + half_x]
        self.reaches = [(edge, [_Reach(contacts.level, at, per_cell) for at in targets]) for edge in edges]
        self.furthest: list[Tensor] = []  # 1 + the furthest contact of the row, counted from both ends

    def add(self, i: int, j: int, contact: Tensor) -> None:
        """Takes the contact (N, J, Gx, Gy) of footprint cell (i, j)."""
        if j == 0:
            self.furthest = [self.contacts.zeros(self.columns) for _ in range(2)]
        contact = contact.to(self.furthest[0].dtype)
        for furthest, place in zip(self.furthest, (j + 1, self.columns - j), strict=True):
            torch.maximum(furthest, contact * place, out=furthest)
        if j == self.columns - 1:
            for edge, sides in self.reaches:
                for side, furthest in zip(sides, self.furthest, strict=True):
                    side.add_row(furthest, self.per_cell * i + self.per_cell // 2 - edge)

    def holds(self) -> Tensor:
        """Mask (N, J, Gx, Gy) of hulls that contain the rectangle: on its first and last row they reach its corners."""
        return torch.stack([side.held for _, sides in self.reaches for side in sides]).all(0)


class _Reach:
    """Test that the hull reaches a point on its row from one side.

    It does where a contact of that row does, or where the steepest of the contacts before, at `rise` over `run`, and
    one behind it rise to it. Before any contact the slope is −1 / 0, below every other, and joins with none.
    """

    def __init__(self, like: Tensor, centre: Tensor, per_cell: int) -> None:
        self.per_cell, self.centre = per_cell, per_cell // 2 + centre  # (N, J, 1, 1), along the row
        self.rise = torch.full_like(like, -1, dtype=torch.int32)
        self.run = torch.zeros_like(self.rise)
        self.held = torch.zeros_like(self.rise, dtype=torch.bool)

    def add_row(self, furthest: Tensor, ahead: Tensor) -> None:
        """Takes 1 + the furthest contact (N, J, Gx, Gy), 0 for none, of a row `ahead` of the point's."""
        ahead = ahead.int()
        reach = self.per_cell * furthest.int() - self.centre.int()
        there = furthest > 0
        joined = reach * self.run + self.rise * ahead
        steeper = there & (ahead < 0) & (joined > 0)
        self.held |= there & (ahead >= 0) & (torch.where(ahead == 0, reach, joined) >= 0)
        self.rise = torch.where(steeper, reach, self.rise)
        self.run = torch.where(steeper, -ahead, self.run)
