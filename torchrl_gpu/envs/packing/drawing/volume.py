"""Solids given by height maps, as one grid of densities: how much of every voxel holds material, and whose it is."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchrl_gpu.envs.packing.drawing.camera import Vector

FULL = 4096  # a voxel full of material; whole numbers, so that sums do not depend on the order of threads


class Volume(NamedTuple):
    """A bin's items on a grid of voxels.

    density: Share of material in [0, 1], float32 (B, Z, X, Y).
    label: Item that fills most of a voxel, at the borders that of a neighbour, −1 far from all, int16 (B, Z, X, Y).
    voxel: Sides of a voxel, metres.
    """

    density: Tensor
    label: Tensor
    voxel: Vector


def fill_volume(
    top: Tensor,
    bottom: Tensor,
    origin: Tensor,
    present: Tensor,
    *,
    bin_size: Vector,
    cell: tuple[float, float],
    resolution: int,
) -> Volume:
    """Voxels of solids that stand in a bin.

    Args:
        top, bottom: Upper and lower side of each item above its base, metres, (B, M, P, Q); bottom is +inf where there
            is no material.
        origin: Corner of each item's maps and its base height, metres, (B, M, 3).
        present: Items to draw, bool (B, M).
        bin_size: Metres.
        cell: Sides of a map's cell, metres.
        resolution: Most voxels along an axis.
    """
    split = max(1, resolution // max(_counts(bin_size, cell)))  # voxels per cell where cells are coarse
    top, bottom = (m.repeat_interleave(split, -2).repeat_interleave(split, -1) for m in (top, bottom))
    cell = cell[0] / split, cell[1] / split
    cells = _counts(bin_size, cell)
    pool = math.ceil(max(cells) / resolution)  # cells per voxel where they are fine
    across, along = (math.ceil(c / pool) for c in cells)
    voxel_xy = cell[0] * pool, cell[1] * pool
    layers = min(resolution, max(1, round(bin_size[2] / min(voxel_xy))))
    voxel = (*voxel_xy, bin_size[2] / layers)
    batch, num_items = present.shape
    total = torch.zeros(batch, across * along, layers, dtype=torch.int32, device=top.device)
    most, label = torch.zeros_like(total), torch.full_like(total, -1, dtype=torch.int16)
    for m in range(num_items):
        column = _columns(origin[:, m], top.shape[-2:], cell, pool, (across, along))  # (B, P·Q)
        share = _shares(top[:, m], bottom[:, m], origin[:, m, 2], voxel[2], layers)  # (B, P·Q, Z)
        share = (share * (FULL / pool**2) * present[:, m, None, None]).to(torch.int32)
        own = torch.zeros_like(total).scatter_add_(1, column.unsqueeze(2).expand_as(share), share)
        label.masked_fill_(own > most, m)
        torch.maximum(most, own, out=most)
        total += own
    density = (total.to(torch.float32) / FULL).clamp_max(1.0)
    density, label = (v.unflatten(1, (across, along)).permute(0, 3, 1, 2).contiguous() for v in (density, label))
    return Volume(density, _spread(label), voxel)


def _counts(bin_size: Vector, cell: tuple[float, float]) -> tuple[int, int]:
    return max(1, round(bin_size[0] / cell[0])), max(1, round(bin_size[1] / cell[1]))


def _columns(
    origin: Tensor, shape: torch.Size, cell: tuple[float, float], pool: int, counts: tuple[int, int]
) -> Tensor:
    """Column of voxels that each cell of a map belongs to, (B, P·Q)."""
    index = []
    for axis in range(2):
        first = torch.round(origin[:, axis] / cell[axis]).to(torch.int64)
        steps = torch.arange(shape[axis], device=origin.device, dtype=torch.int64)
        index.append(((first[:, None] + steps) // pool).clamp(0, counts[axis] - 1))  # (B, P)
    return (index[0].unsqueeze(2) * counts[1] + index[1].unsqueeze(1)).flatten(1)


def _shares(top: Tensor, bottom: Tensor, base: Tensor, step: float, layers: int) -> Tensor:
    """Share of each layer that lies between bottom and top, (B, P·Q, Z)."""
    floor = torch.arange(layers, device=top.device, dtype=top.dtype)
    high = ((top.flatten(1) + base[:, None]) / step).unsqueeze(2)
    low = ((bottom.flatten(1) + base[:, None]) / step).unsqueeze(2)
    return torch.minimum(high, floor + 1.0).sub_(torch.maximum(low, floor)).clamp_(0.0, 1.0)


def _spread(label: Tensor) -> Tensor:
    """Labels carried two voxels into the empty space about the items, (B, Z, X, Y)."""
    near = label.to(torch.float32)
    for _ in range(2):
        near = torch.where(near < 0.0, F.max_pool3d(near, 3, stride=1, padding=1), near)
    return near.to(torch.int16)
