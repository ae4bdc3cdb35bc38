"""The stability rule `load_bearing` in torch: what of a pile bears load, and sizes that every backend reads.

A cell bears load if it is floor, or if it lies on top of a box and inside the convex hull of those contacts of this
box that bear load themselves. A box is stable if that hull holds its middle by a margin. A force down on a bearing cell
then acts inside the support of the box below it, and so on to the floor: where all contacts of a box are of one height,
forces exist that hold every box. After Gao et al., arXiv 2507.09123. Contacts may differ by a tolerance, and with
`max_tilt` boxes may lean and lie lower than their heights add up to: neither is bounded in sum, so that a high pile may
tip although each of its boxes was legal.

Contacts are squares of the grid. That the hull of squares holds a square, or a rectangle, is tested on the centres of
the squares alone: both sides are sums with one square.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.geometry import inside
from torchrl_gpu.envs.packing.kernels.balance import SIXTEENTHS, windows
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Placement


def bearing_heights(heightmap: Tensor, bears: Tensor) -> Tensor:
    """Heights of the cells that bear load, −inf elsewhere; (N, X, Y) float32."""
    return torch.where(bears, heightmap, -torch.inf)


def margins(bin_: Bin) -> tuple[int, int]:
    """The bin's margin along x and y in whole sixteenths of a cell."""
    x, y = (int(min(bin_.margin / cell, cells) * SIXTEENTHS) for cell, cells in zip(bin_.cell, bin_.cells, strict=True))
    return x, y


def half_sides(extent: Tensor, bin_: Bin) -> Tensor:
    """Half sides of the rectangle around a box's middle that its contacts must hold, sixteenths of a cell.

    It is the margin, but at most a quarter of the box's side, less the half cell by which squares exceed their centres.
    Of extents (…, 2), cells along x and y.
    """
    quarters = (SIXTEENTHS // 4 * extent).unbind(-1)
    least = [quarter.clamp_max(most) for quarter, most in zip(quarters, margins(bin_), strict=True)]
    return (torch.stack(least, -1) - SIXTEENTHS // 2).clamp_min(0)


def drops(extent: Tensor, footprint: Sequence[int], bin_: Bin) -> tuple[Tensor, Tensor]:
    """Metres by which contact with a box may lie below its base, by row (…, P) and by column (…, Q), float32.

    The larger of the two counts; of extents (…, 2), cells along x and y.
    """
    made = []
    for axis, (cells, drop) in enumerate(zip(footprint, bin_.drops, strict=True)):
        cell = torch.arange(cells, device=extent.device, dtype=torch.int64)
        made.append((2 * cell + 1 - extent[..., axis, None]).abs().float() * drop)
    return made[0], made[1]


def bear(heightmap: Tensor, bears: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    placement, present = inside(placement, catalogue, bin_)
    extent = catalogue.extent[placement.item_id, placement.orientation]  # (N, 2)
    footprint = torch.Size(map(min, catalogue.footprint, bin_.cells))
    rows, columns = (torch.arange(size, device=bears.device, dtype=torch.int64) for size in footprint)
    own = (rows < extent[:, :1])[:, :, None] & (columns < extent[:, 1:])[:, None, :]  # (N, P, Q)
    under = windows(bearing_heights(heightmap, bears), placement.x, placement.y, footprint)
    drop_x, drop_y = drops(extent, footprint, bin_)
    level = (placement.z - bin_.contact_tolerance)[:, None, None]
    contact = own & (under >= level - torch.maximum(drop_x[:, :, None], drop_y[:, None, :]))
    last, first = (_hull_edge(contact * way) - 1 for way in (columns + 1, len(columns) - columns))  # (N, P)
    held = own & (columns <= last[..., None]) & (len(columns) - 1 - columns <= first[..., None])
    return _laid(bears, held, placement, extent, present)


def _hull_edge(numbered: Tensor) -> Tensor:
    """1 + the last column of each row inside the hull of the contacts, 0 for none: (N, P).

    `numbered` (N, P, Q) is 1 + its column for a contact, and 0 elsewhere.
    """
    furthest = numbered.amax(-1)  # (N, P)
    row = torch.arange(furthest.shape[1], device=furthest.device, dtype=torch.int64)
    before, behind = furthest[:, :, None], furthest[:, None, :]
    apart = (row - row[:, None]).clamp_min(1)  # from row a to row b
    edges = [furthest]
    for i in range(len(row)):  # a line between contacts before and behind the row, where it crosses the row
        crossing = torch.div(before * (row - i) + behind * (i - row[:, None]), apart, rounding_mode="floor")
        joins = (row[:, None] < i) & (row > i) & (before > 0) & (behind > 0)
        edges.append(torch.where(joins, crossing, 0).amax((1, 2))[:, None])
    return torch.maximum(furthest, torch.cat(edges[1:], 1))


def _laid(bears: Tensor, held: Tensor, placement: Placement, extent: Tensor, present: Tensor) -> Tensor:
    """The map `bears` (N, X, Y) with `held` (N, P, Q) over the cells that a box covers."""
    at = []
    for corner, side, cells in zip((placement.x, placement.y), extent.unbind(-1), bears.shape[1:], strict=True):
        offset = torch.arange(cells, device=bears.device, dtype=torch.int64) - corner[:, None]
        at.append((offset, (offset >= 0) & (offset < side[:, None]) & present[:, None]))
    (x, covered_x), (y, covered_y) = at
    rows = held.gather(1, x.clamp(0, held.shape[1] - 1)[:, :, None].expand(-1, -1, held.shape[2]))
    fresh = rows.gather(2, y.clamp(0, held.shape[2] - 1)[:, None, :].expand(-1, rows.shape[1], -1))
    return torch.where(covered_x[:, :, None] & covered_y[:, None, :], fresh, bears)
