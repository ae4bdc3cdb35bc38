"""Stability of all placements at once, in torch: the rules of `reference.stands`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import threshold

from torchrl_gpu.envs.packing.kernels.balance import SIXTEENTHS, cells_from, plumb
from torchrl_gpu.envs.packing.kernels.windows import GridWindows
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.system import arguments


def stands(
    windows: GridWindows, z: Tensor, item: Tensor, orientation: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    """True where an item is stable at rest.

    Args:
        windows: The heightmap under the placements.
        z: (N, J, Gx, Gy) float32, metres.
        item: (N, J) int64.
        orientation: (N, J) int64.
        catalogue: The items.
        bin_: The bin; its rule is "corners", "support" or "com".

    Returns:
        (N, J, Gx, Gy) bool.

    Raises:
        ValueError: The bin's rule is none of the three.
    """
    rule = arguments.choice("eager", "stability", bin_.stability, ("none", *_OFF_FLOOR, "com"))
    contacts = _Contacts(windows, z - bin_.contact_tolerance, item, orientation, catalogue)
    if rule == "com":
        return _com(contacts, plumb(catalogue, bin_)[item, orientation])
    return _OFF_FLOOR[rule](contacts) | (z <= bin_.tolerance)


class _Contacts:
    """Contact of each item with the pile, one footprint cell at a time."""

    def __init__(
        self, windows: GridWindows, level: Tensor, item: Tensor, orientation: Tensor, catalogue: Catalogue
    ) -> None:
        self.windows, self.level = windows, level
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
        contact = torch.ge(cells, self.level, out=self._scratch).to(torch.int8)
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


_NONE, _SURE = -1e4, 1e6


def _support(contacts: _Contacts) -> Tensor:
    """Rule "support", GOPT, RA-L 2024: more than half the area, or the centre in the hull of two or more contact cells.

    The hull meets the centre's row in an interval. Its upper end is past the centre exactly if a contact of that row
    is, or if the steepest contacts before and after the row rise to it: the largest slopes on both sides sum to at
    least 0.
    """
    rows, columns = contacts.windows.footprint
    centre = ((contacts.extent - 1).float() / 2)[..., None, None]  # (N, J, 2, 1, 1)
    count = contacts.zeros(rows * columns)
    sides = [_Slopes(contacts.level, centre[:, :, 1]), _Slopes(contacts.level, columns - 1 - centre[:, :, 1])]
    for i in range(rows):
        reach = contacts.zeros(columns), contacts.zeros(columns)  # 1 + the furthest contact of the row, from both ends
        for j in range(columns):
            contact = contacts.at(i, j)
            count += contact
            wide = contact.to(reach[0].dtype)
            torch.maximum(reach[0], wide * (j + 1), out=reach[0])
            torch.maximum(reach[1], wide * (columns - j), out=reach[1])
        for side, furthest in zip(sides, reach, strict=True):
            side.add_row(furthest, i - centre[:, :, 0])
    return (count.float() / contacts.area > 0.50) | ((count >= 2) & sides[0].meet() & sides[1].meet())


_OFF_FLOOR = {"corners": _corners, "support": _support}  # every item is stable on the floor


class _Slopes:
    """The steepest contacts before and after the centre's row, as slopes from the centre.

    A contact on the centre's row itself counts as before it, with a slope so steep that its sign decides the sum;
    without a contact the slope is so low that only such a contact lifts the sum.
    """

    def __init__(self, like: Tensor, centre: Tensor) -> None:
        self.centre = centre  # (N, J, 1, 1), along the row
        self.before = torch.full_like(like, _NONE)
        self.after = self.before.clone()

    def add_row(self, furthest: Tensor, ahead: Tensor) -> None:
        """Takes 1 + the furthest contact (N, J, Gx, Gy), 0 for none, of a row `ahead` (N, J, 1, 1) of the centre's."""
        at = threshold(furthest.to(self.before.dtype), 0.0, -torch.inf)
        # Offsets are multiples of 1/2: a quarter more makes 0, which is enough in the centre's row, positive.
        slope = torch.where(ahead == 0, _SURE, 1 / ahead.abs())
        offset = torch.where(ahead == 0, 0.25, 0.0).float() - 1 - self.centre
        rise = at * slope
        for best, here in ((self.before, ahead <= 0), (self.after, ahead > 0)):
            start = torch.where(here, offset * slope, -torch.inf)
            torch.maximum(best, rise + start, out=best)

    def meet(self) -> Tensor:
        """True where the hull reaches the centre; slopes are ratios of small integers, sums at least 1e-5 apart."""
        return self.before + self.after >= -1e-5


def _com(contacts: _Contacts, centre: Tensor) -> Tensor:
    """Rule "com": the centre of mass (N, J, 2), int32 sixteenths of a cell, in the hull or within a contact cell."""
    rows, columns = contacts.windows.footprint
    below = [
        (cells_from(centre[..., axis], size).abs() <= SIXTEENTHS // 2).to(torch.int8)
        for axis, size in enumerate((rows, columns))
    ]  # (N, J, P), (N, J, Q): 1 where the centre is above a row, and a column
    square = contacts.zeros(4)
    x, y = centre[..., None, None].unbind(2)  # (N, J, 1, 1)
    sides = _Reach(contacts.level, y), _Reach(contacts.level, SIXTEENTHS * columns - y)
    for i in range(rows):
        reach = contacts.zeros(columns), contacts.zeros(columns)  # as in `_support`
        for j in range(columns):
            contact = contacts.at(i, j)
            square += contact * (below[0][:, :, i] * below[1][:, :, j])[..., None, None]
            wide = contact.to(reach[0].dtype)
            torch.maximum(reach[0], wide * (j + 1), out=reach[0])
            torch.maximum(reach[1], wide * (columns - j), out=reach[1])
        for side, furthest in zip(sides, reach, strict=True):
            side.add_row(furthest, SIXTEENTHS * i + SIXTEENTHS // 2 - x)
    return (square > 0) | (sides[0].held & sides[1].held)


class _Reach:
    """Incremental test, in integers, that the hull reaches the centre on its row; rows are added in order.

    It does where a contact of that row does, or where the steepest of the contacts before, at `rise` over `run`, and
    one behind it rise to it. Before any contact the slope is −1 / 0, below every other, and joins with none.
    """

    def __init__(self, like: Tensor, centre: Tensor) -> None:
        self.centre = centre  # (N, J, 1, 1), sixteenths along the row
        self.rise = torch.full_like(like, -1, dtype=torch.int32)
        self.run = torch.zeros_like(self.rise)
        self.held = torch.zeros_like(self.rise, dtype=torch.bool)

    def add_row(self, furthest: Tensor, ahead: Tensor) -> None:
        """Takes 1 + the furthest contact (N, J, Gx, Gy), 0 for none, of a row `ahead` sixteenths of the centre's."""
        reach = SIXTEENTHS * furthest.int() - (SIXTEENTHS // 2 + self.centre)
        there = furthest > 0
        steeper = there & (ahead < 0) & (reach * self.run > self.rise * -ahead)
        joined = torch.where(ahead == 0, reach, reach * self.run + self.rise * ahead)
        self.held |= there & (ahead >= 0) & (joined >= 0)
        self.rise = torch.where(steeper, reach, self.rise)
        self.run = torch.where(steeper, -ahead, self.run)
