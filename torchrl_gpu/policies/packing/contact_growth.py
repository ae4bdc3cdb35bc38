"""By how much items at first contact raise a pile, as products of matrices, which any runtime has."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.types import Bin, Catalogue

_ELEMENTS = 1 << 21  # heights under all placements of one bin that are laid out at once


@final
class ContactGrowth(nn.Module):
    """What `pile_growth` of the kernels gives, in plain operators of torch without a step for each cell.

    At first contact no column of an item ends below the pile. Then the pile grows by the tops of the columns, each on
    the item's base, less what the pile under them sums to: by `cells · z + Σ top − Σ h`, of which the last sum over all
    placements is a product of the item's outline with the pile under each placement. Holds what it needs of a catalogue
    as buffers: outlines, a byte for each cell, and for each item its cells and the sum of its tops.

    Args:
        catalogue: Items of one orientation each, see `Catalogue.separated`.
        bin_: The bin.
    """

    def __init__(self, catalogue: Catalogue, bin_: Bin) -> None:
        super().__init__()
        self.bin = bin_
        number, self.footprint = catalogue.num_items, catalogue.footprint
        item = torch.arange(-1, number, device=catalogue.extent.device, dtype=torch.int64).roll(
            -1
        )  # a last row of no item
        top, bottom = catalogue.maps(item, torch.zeros_like(item))
        outline = bottom.isfinite()
        extent = catalogue.extent[:, 0]
        self.outline: Tensor
        self.extent: Tensor
        self.cells: Tensor
        self.tops: Tensor
        self.register_buffer("outline", outline)
        self.register_buffer("extent", torch.cat([extent, extent.new_zeros(1, 2)]))
        self.register_buffer("cells", outline.sum((1, 2)).float())
        self.register_buffer("tops", torch.where(outline, top, 0.0).double().sum((1, 2)).float())

    def forward(self, heightmap: Tensor, variant: Tensor, z_map: Tensor) -> Tensor:
        """Growth (B, J, Gx, Gy) float32, metres summed over cells; 0 where the footprint does not fit.

        Args:
            heightmap: (B, X, Y) float32, metres.
            variant: (B, J) int64, rows of the catalogue; others stand for no item.
            z_map: (B, J, Gx, Gy) float32, metres, where items come to rest.
        """
        last = self.cells.shape[0] - 1
        row = torch.where((variant >= 0) & (variant < last), variant, last)
        extent = self.extent[row]
        (x, fits_x), (y, fits_y) = (
            grid_positions(extent[..., axis], self.bin.cells[axis], self.bin.step) for axis in (0, 1)
        )
        under = self._under(heightmap, self.outline[row], extent, (x, y))
        growth = self.cells[row][..., None, None] * z_map + self.tops[row][..., None, None] - under
        return torch.where(fits_x[..., :, None] & fits_y[..., None, :], growth, 0.0)

    def _under(self, heightmap: Tensor, outline: Tensor, extent: Tensor, corner: tuple[Tensor, Tensor]) -> Tensor:
        """Sum (B, J, Gx, Gy) of the pile under outlines (B, J, P, Q) at the corners (B, J, Gx) and (B, J, Gy)."""
        (cells_x, cells_y), (p, q), step = self.bin.cells, self.footprint, self.bin.step
        (gx, gy), device = self.bin.grid, heightmap.device
        x, y = (torch.arange(grid, device=device, dtype=torch.int64) * step for grid in (gx, gy))
        near = _windows(x, p, cells_x), _windows(y, q, cells_y)
        under = self._summed(heightmap, outline, *near)
        if step == 1:
            return under
        # Placements flush with the far wall: the outline is moved to the far end of its frame, and that to the wall.
        far = (
            _windows(torch.full_like(x[:1], cells_x - p), p, cells_x),
            _windows(torch.full_like(y[:1], cells_y - q), q, cells_y),
        )
        far_x = _at_far_end(outline, extent[..., 0, None, None], 2)
        far_y = _at_far_end(outline, extent[..., 1, None, None], 3)
        far_xy = _at_far_end(far_x, extent[..., 1, None, None], 3)
        flush_x = (corner[0] != x)[..., :, None]  # (B, J, Gx, 1)
        flush_y = (corner[1] != y)[..., None, :]
        at_far_x = torch.where(
            flush_y, self._summed(heightmap, far_xy, far[0], far[1]), self._summed(heightmap, far_x, far[0], near[1])
        )
        at_near_x = torch.where(flush_y, self._summed(heightmap, far_y, near[0], far[1]), under)
        return torch.where(flush_x, at_far_x, at_near_x)

    def _summed(self, heightmap: Tensor, outline: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Sum (B, J, G, H) of cells under outlines (B, J, P, Q) for rows (P, G) and columns (Q, H) of the pile."""
        (p, g), (q, h) = rows.shape, columns.shape
        beside = heightmap.index_select(2, columns.flatten())  # (B, X, Q·H)
        at_once = max(1, _ELEMENTS // (q * g * h))
        total = None
        for first in range(0, p, at_once):
            part, number = rows[first : first + at_once], min(at_once, p - first)
            heights = beside.index_select(1, part.flatten()).view(-1, number, g, q, h)
            heights = heights.transpose(2, 3).reshape(-1, number * q, g * h)
            material = outline[:, :, first : first + number].flatten(2).float()  # (B, J, R·Q)
            product = material @ heights
            total = product if total is None else total + product
        assert total is not None
        return total.view(*outline.shape[:2], g, h)


def _windows(first: Tensor, length: int, cells: int) -> Tensor:
    """Cells (length, G) that windows with these first cells (G,) see; beyond the bin its nearest cell, seen by none."""
    return (torch.arange(length, device=first.device, dtype=torch.int64)[:, None] + first).clamp(0, cells - 1)


def _at_far_end(outline: Tensor, extent: Tensor, dim: int) -> Tensor:
    """Outlines (B, J, P, Q), of an extent (B, J, 1, 1) along `dim`, moved to the end of that axis."""
    length = outline.shape[dim]
    shape = [1, 1, 1, 1]
    shape[dim] = length
    at = (torch.arange(length, device=outline.device, dtype=torch.int64).view(shape) + extent) % length
    return outline.gather(dim, at.expand_as(outline))
