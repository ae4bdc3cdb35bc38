"""Margins and slopes of a bin, as the rule `load_bearing` reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.stability.footprints import SIXTEENTHS
from torchrl_gpu.envs.packing.types import Bin


def margins(bin_: Bin) -> tuple[int, int]:
    """Return the bin's margin along x and y in whole sixteenths of a cell."""
    cell_x, cell_y = bin_.cell
    most_x, most_y = bin_.cells
    cells_x = min(bin_.margin / cell_x, most_x)
    cells_y = min(bin_.margin / cell_y, most_y)
    return int(cells_x * SIXTEENTHS), int(cells_y * SIXTEENTHS)


def half_sides(extent: Tensor, bin_: Bin) -> Tensor:
    """Return half the sides of the rectangle that a box's contacts must hold.

    It lies about the box's middle and is the margin, but at most a quarter of the box's side, less the half cell by
    which squares exceed their centres.

    Args:
        extent: Cells of the box along x and y, (…, 2) int64.
        bin_: Gives the margin.

    Returns:
        Sixteenths of a cell, (…, 2) int64.
    """
    margin_x, margin_y = margins(bin_)
    quarter_x, quarter_y = (SIXTEENTHS // 4 * extent).unbind(-1)
    half = torch.stack([quarter_x.clamp_max(margin_x), quarter_y.clamp_max(margin_y)], -1)
    return (half - SIXTEENTHS // 2).clamp_min(0)


def drops(extent: Tensor, footprint: Sequence[int], bin_: Bin) -> tuple[Tensor, Tensor]:
    """Return by how much contacts may lie below a box's base, by row and by column.

    The larger of the two counts.

    Args:
        extent: Cells of the box along x and y, (…, 2) int64.
        footprint: Numbers of rows and columns, P and Q.
        bin_: Gives the largest slope.

    Returns:
        Metres by row, (…, P) float32, and by column, (…, Q) float32.
    """
    drop_x, drop_y = bin_.drops
    return _from_middle(extent, footprint, 0) * drop_x, _from_middle(extent, footprint, 1) * drop_y


def bearing_drops(extent: Tensor, footprint: Sequence[int], bin_: Bin) -> tuple[Tensor, Tensor]:
    """Return by how much what a box passes load on to may lie below its base.

    By row and by column; arguments and results are those of `drops`.
    """
    held = drops(extent, footprint, bin_)
    by_axis = []
    for axis, (drop, most) in enumerate(zip(bin_.bearing_drops, held, strict=True)):
        # What does not hold the box takes no load from it either.
        by_axis.append(torch.minimum(_from_middle(extent, footprint, axis) * drop, most + bin_.bearing_slack))
    return by_axis[0], by_axis[1]


def _from_middle(extent: Tensor, footprint: Sequence[int], axis: int) -> Tensor:
    """Half cells from the middle of a box to centres of cells, (…, cells) float32."""
    cell = torch.arange(footprint[axis], device=extent.device, dtype=torch.int64)
    return (2 * cell + 1 - extent[..., axis, None]).abs().float()
