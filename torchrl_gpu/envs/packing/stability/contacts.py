"""Contact of all placements with the pile at once."""

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
