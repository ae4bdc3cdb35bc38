"""Placement grid, and the cells under footprints."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import Bin, Catalogue, Placement


def grid_positions(extent: Tensor, cells: int, step: int) -> tuple[Tensor, Tensor]:
    """Return the first cells of footprints along one axis, and whether they fit.

    Placement g puts the footprint's first cell at g·step while it fits. The first g past the last fit stands for the
    placement flush with the far wall, unless that is on the grid already. Later ones do not fit, and are clamped.

    Args:
        extent: Cells of each footprint along the axis, (…) int64.
        cells: Cells of the bin along it.
        step: Cells between placements.

    Returns:
        (…, G) int64, and bool.
    """
    last = (cells - extent).unsqueeze(-1)  # (…, 1)
    wanted = torch.arange(-(-cells // step), device=extent.device, dtype=torch.int64) * step  # (G,)
    fits = (wanted - last < step) & (last >= 0)
    return torch.minimum(wanted, last).clamp_min(0), fits


def catalogue_rows(item_id: Tensor, catalogue: Catalogue) -> Tensor:
    """Return item ids clamped to rows of the catalogue.

    Where the two differ there is no item.
    """
    return item_id.clamp(0, catalogue.num_items - 1)


def inside(placement: Placement, catalogue: Catalogue, bin_: Bin) -> tuple[Placement, Tensor]:
    """Return placements clamped to what is valid, and which were valid.

    The others place nothing: without an item, or in no orientation, or with cells outside the bin.

    Returns:
        The clamped placements, and a mask, (N,) bool.
    """
    item, orientation, x, y, z = placement
    row = catalogue_rows(item, catalogue)
    turned = orientation.clamp(0, catalogue.num_orientations - 1)
    extent_x, extent_y = catalogue.extent[row, turned].unbind(-1)
    last_x = bin_.cells[0] - extent_x
    last_y = bin_.cells[1] - extent_y
    at_x = torch.minimum(x, last_x).clamp_min(0)
    at_y = torch.minimum(y, last_y).clamp_min(0)
    is_item = (item == row) & (orientation == turned)
    is_there = (x == at_x) & (y == at_y)
    same = is_item & is_there
    fits = (last_x >= 0) & (last_y >= 0)
    clamped = Placement(row, turned, at_x, at_y, z)
    return clamped, same & fits


def walls(item_id: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Return the rest heights that walls impose: 0 where it fits, else +inf.

    Args:
        item_id: (N, K) int64.
        catalogue: The items.
        bin_: The bin.

    Returns:
        (N, K, O, Gx, Gy) float32.
    """
    present = catalogue_rows(item_id, catalogue)
    row = present.flatten()
    # A catalogue row is computed once and copied if fewer are in the catalogue than shown.
    shared = catalogue.num_items < row.numel()
    extent = catalogue.extent if shared else catalogue.extent[row]
    _, fits_x = grid_positions(extent[..., 0], bin_.cells[0], bin_.step)
    _, fits_y = grid_positions(extent[..., 1], bin_.cells[1], bin_.step)
    fits = fits_x[..., :, None] & fits_y[..., None, :]
    wall = torch.where(fits, 0.0, torch.inf).float()
    if shared:
        wall = wall.flatten(1).index_select(0, row)
    absent = torch.where(item_id != present, torch.inf, 0.0).float()[..., None, None, None]
    return wall.view(*item_id.shape, -1, *bin_.grid) + absent


def heights_under(heightmap: Tensor, x: Tensor, y: Tensor, footprint: Sequence[int]) -> Tensor:
    """Return the heights of the cells of one footprint in each environment, metres.

    Shape (N, P, Q).

    Cells behind the wall repeat the last one.

    Args:
        heightmap: Metres, (N, X, Y) float32.
        x, y: First cell, (N,) int64.
        footprint: Rows and columns, P and Q.
    """
    cell = cells_under(heightmap, x, y, footprint)
    return heightmap.flatten(1).gather(1, cell).view(len(heightmap), *footprint)


def cells_under(heightmap: Tensor, x: Tensor, y: Tensor, footprint: Sequence[int]) -> Tensor:
    """Return the numbers of the cells that `heights_under` reads.

    They count in flattened heightmaps, (N, P·Q) int64.
    """
    cells_x, cells_y = heightmap.shape[1:]
    rows = torch.arange(footprint[0], device=x.device, dtype=torch.int64)
    columns = torch.arange(footprint[1], device=x.device, dtype=torch.int64)
    at_x = (x[:, None] + rows).clamp_max(cells_x - 1)
    at_y = (y[:, None] + columns).clamp_max(cells_y - 1)
    return (at_x[:, :, None] * cells_y + at_y[:, None, :]).flatten(1)
