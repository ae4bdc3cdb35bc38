"""Placement grid: positions of item footprints in the bin."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import Bin, Catalogue, Placement


def grid_positions(extent: Tensor, cells: int, step: int) -> tuple[Tensor, Tensor]:
    """First cells, int64 (…, G), of footprints of `extent` cells (…) along one axis, and whether they fit, bool.

    Placement g puts the footprint's first cell at g·step while it fits; the first g past the last fit stands for the
    placement flush with the far wall where that is not on the grid already; later ones do not fit, and are clamped.
    """
    last = (cells - extent).unsqueeze(-1)  # (…, 1)
    wanted = torch.arange(-(-cells // step), device=extent.device, dtype=torch.int64) * step  # (G,)
    fits = (wanted - last < step) & (last >= 0)
    return torch.minimum(wanted, last).clamp_min(0), fits


def catalogue_rows(item_id: Tensor, catalogue: Catalogue) -> Tensor:
    """Item ids (…) clamped to rows of the catalogue, int64 (…); where the two differ there is no item."""
    return item_id.clamp(0, catalogue.num_items - 1)


def inside(placement: Placement, catalogue: Catalogue, bin_: Bin) -> tuple[Placement, Tensor]:
    """Placements clamped to valid items, orientations and cells, and the mask of those that were valid, (N,) bool.

    The others place nothing: without an item, or in no orientation, or with cells outside the bin.
    """
    item, orientation, x, y, z = placement
    row = catalogue_rows(item, catalogue)
    turned = orientation.clamp(0, catalogue.num_orientations - 1)
    last = [cells - side for cells, side in zip(bin_.cells, catalogue.extent[row, turned].unbind(-1), strict=True)]
    at = [torch.minimum(corner, most).clamp_min(0) for corner, most in zip((x, y), last, strict=True)]
    same = (item == row) & (orientation == turned) & (x == at[0]) & (y == at[1])
    fits = (last[0] >= 0) & (last[1] >= 0)
    return placement._replace(item_id=row, orientation=turned, x=at[0], y=at[1], z=z), same & fits


def walls(item_id: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Rest heights that walls impose on items (N, K): 0 where the footprint fits, else +inf; (N, K, O, Gx, Gy)."""
    present = catalogue_rows(item_id, catalogue)
    row = present.flatten()
    shared = catalogue.num_items < row.numel()  # a catalogue row is then computed once and copied
    extent = catalogue.extent if shared else catalogue.extent[row]  # (M or N·K, O, 2)
    _, fits_x = grid_positions(extent[..., 0], bin_.cells[0], bin_.step)
    _, fits_y = grid_positions(extent[..., 1], bin_.cells[1], bin_.step)
    wall = torch.where(fits_x[..., :, None] & fits_y[..., None, :], 0.0, torch.inf).float()
    if shared:
        wall = wall.flatten(1).index_select(0, row)
    absent = torch.where(item_id != present, torch.inf, 0.0).float()[..., None, None, None]
    return wall.view(*item_id.shape, -1, *bin_.grid) + absent


def heights_under(heightmap: Tensor, x: Tensor, y: Tensor, footprint: Sequence[int]) -> Tensor:
    """Return the heights of the cells of one footprint in each environment, metres, (N, P, Q).

    Cells behind the wall repeat the last one.

    Args:
        heightmap: Metres, (N, X, Y) float32.
        x, y: First cell, (N,) int64.
        footprint: Rows and columns, P and Q.
    """
    cell = cells_under(heightmap, x, y, footprint)
    return heightmap.flatten(1).gather(1, cell).view(len(heightmap), *footprint)


def cells_under(heightmap: Tensor, x: Tensor, y: Tensor, footprint: Sequence[int]) -> Tensor:
    """Return the numbers of the cells that `heights_under` reads, in flattened heightmaps, (N, P·Q) int64."""
    cells_x, cells_y = heightmap.shape[1:]
    rows = torch.arange(footprint[0], device=x.device, dtype=torch.int64)
    columns = torch.arange(footprint[1], device=x.device, dtype=torch.int64)
    at_x = (x[:, None] + rows).clamp_max(cells_x - 1)
    at_y = (y[:, None] + columns).clamp_max(cells_y - 1)
    return (at_x[:, :, None] * cells_y + at_y[:, None, :]).flatten(1)
