"""The heightmap after a placement, and by how much placements would raise it, in Triton."""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.triton_placements import num_fitting
from torchrl_gpu.envs.packing.types import Bin, Catalogue

if TYPE_CHECKING:
    from torchrl_gpu.envs.packing.kernels import Placement

_CELLS = 1024  # per program of `place_kernel`: several small bins, or a part of a large one
_PLACEMENTS = 128  # per program of `growth_kernel`


def place(heightmap: Tensor, placement: Placement, catalogue: Catalogue) -> Tensor:
    """As `reference.place`; arguments contiguous."""
    num_envs, cells_x, cells_y = heightmap.shape
    cells = cells_x * cells_y
    per_bin = min(_CELLS, triton.next_power_of_2(cells))
    num_bins = _CELLS // per_bin
    maps = (heightmap, heightmap) if catalogue.top is None else (catalogue.top.contiguous(), _bottom(catalogue))
    out = torch.empty_like(heightmap)
    num_tiles = triton.cdiv(cells, per_bin)
    if out.numel():
        place_kernel[(triton.cdiv(num_envs, num_bins) * num_tiles,)](
            heightmap,
            *placement,
            catalogue.extent,
            catalogue.height,
            *maps,
            out,
            num_envs,
            ORIENTATIONS=catalogue.num_orientations,
            X=cells_x,
            Y=cells_y,
            ROWS=maps[1].shape[-2],
            COLUMNS=maps[1].shape[-1],
            FLAT=catalogue.flat,
            TILES=num_tiles,
            BINS=num_bins,
            CELLS=per_bin,
            enable_fp_fusion=False,
            num_warps=4,
        )
    return out


def _bottom(catalogue: Catalogue) -> Tensor:
    assert catalogue.bottom is not None
    return catalogue.bottom.contiguous()


@triton.jit
def place_kernel(
    heightmap,
    item_id,
    orientation,
    at_x,
    at_y,
    at_z,
    extent,
    item_height,
    top,
    bottom,
    out,
    num_envs,
    ORIENTATIONS: tl.constexpr,
    X: tl.constexpr,
    Y: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FLAT: tl.constexpr,
    TILES: tl.constexpr,
    BINS: tl.constexpr,
    CELLS: tl.constexpr,
):
    """CELLS cells of BINS bins per program: read once, raised where the item is, written once."""
    pid = tl.program_id(0).to(tl.int64)
    env = pid // TILES * BINS + tl.arange(0, BINS)  # (BINS,)
    cell = (pid % TILES).to(tl.int32) * CELLS + tl.arange(0, CELLS)  # (CELLS,)
    there = env < num_envs
    item = tl.load(item_id + env, mask=there, other=-1)
    turned = tl.load(orientation + env, mask=there, other=0)
    variant = tl.maximum(item, 0) * ORIENTATIONS + turned
    p = tl.where(item >= 0, tl.load(extent + variant * 2).to(tl.int32), 0)
    q = tl.load(extent + variant * 2 + 1).to(tl.int32)
    first_x = tl.load(at_x + env, mask=there, other=0).to(tl.int32)
    first_y = tl.load(at_y + env, mask=there, other=0).to(tl.int32)
    z = tl.load(at_z + env, mask=there, other=0.0)

    i = (cell // Y)[None, :] - first_x[:, None]
    j = (cell % Y)[None, :] - first_y[:, None]
    under = (i >= 0) & (i < p[:, None]) & (j >= 0) & (j < q[:, None])
    if FLAT:
        raised = (z + tl.load(item_height + variant))[:, None]
    else:
        where = (variant * (ROWS * COLUMNS))[:, None] + (i * COLUMNS + j)
        under = under & (tl.load(bottom + where, mask=under, other=float("inf")) < float("inf"))
        raised = z[:, None] + tl.load(top + where, mask=under, other=0.0)
    where = (env * (X * Y))[:, None] + cell[None, :]
    inside = there[:, None] & (cell < X * Y)[None, :]
    height = tl.load(heightmap + where, mask=inside, other=0.0)
    tl.store(out + where, tl.where(under, tl.maximum(height, raised), height), mask=inside)


def growth(heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """As `reference.pile_growth`; arguments contiguous."""
    grid = bin_.grid[0] * bin_.grid[1]
    maps = (heightmap, heightmap) if catalogue.top is None else (catalogue.top.contiguous(), _bottom(catalogue))
    out = torch.empty_like(z_map)
    num_tiles = triton.cdiv(grid, _PLACEMENTS)
    if out.numel():
        growth_kernel[(item_id.numel() * catalogue.num_orientations * num_tiles,)](
            heightmap,
            item_id,
            z_map,
            catalogue.extent,
            catalogue.height,
            *maps,
            out,
            SLOTS=item_id.shape[1],
            ORIENTATIONS=catalogue.num_orientations,
            X=bin_.cells[0],
            Y=bin_.cells[1],
            STEP=bin_.step,
            ROWS=maps[1].shape[-2],
            COLUMNS=maps[1].shape[-1],
            FLAT=catalogue.flat,
            TILES=num_tiles,
            T=_PLACEMENTS,
            enable_fp_fusion=False,
            num_warps=4,
        )
    return out


@triton.jit
def growth_kernel(
    heightmap,
    item_id,
    z_map,
    extent,
    item_height,
    top,
    bottom,
    out,
    SLOTS: tl.constexpr,
    ORIENTATIONS: tl.constexpr,
    X: tl.constexpr,
    Y: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FLAT: tl.constexpr,
    TILES: tl.constexpr,
    T: tl.constexpr,
):
    """T placements of one item in one orientation per program."""
    GX: tl.constexpr = (X + STEP - 1) // STEP
    GY: tl.constexpr = (Y + STEP - 1) // STEP
    pid = tl.program_id(0).to(tl.int64)
    variant = pid // TILES  # over (N, K, O)
    slot = variant // ORIENTATIONS
    lane = (pid % TILES).to(tl.int32) * T + tl.arange(0, T)
    item = tl.load(item_id + slot)
    row = tl.maximum(item, 0) * ORIENTATIONS + variant % ORIENTATIONS
    p = tl.where(item >= 0, tl.load(extent + row * 2), X + 1).to(tl.int32)  # an empty slot fits nowhere
    q = tl.load(extent + row * 2 + 1).to(tl.int32)
    gx, gy = lane // GY, lane % GY
    fits = (gx < num_fitting(p, X, STEP, GX)) & (gy < num_fitting(q, Y, STEP, GY))
    x, y = tl.minimum(gx * STEP, X - p), tl.minimum(gy * STEP, Y - q)
    z = tl.load(z_map + variant * (GX * GY) + lane, mask=fits, other=0.0)
    here = heightmap + slot // SLOTS * (X * Y) + (x * Y + y)
    high = tl.load(item_height + row)
    total = tl.zeros([T], tl.float32)
    for i in range(p):
        of_row = tl.zeros([T], tl.float32)  # summed by rows, so that the rounding stays small
        for j in range(q):
            height = tl.load(here + (i * Y + j), mask=fits, other=float("inf"))
            above = z + high
            if not FLAT:
                at = row * (ROWS * COLUMNS) + (i * COLUMNS + j)
                material = tl.load(bottom + at) < float("inf")
                above = tl.where(material, z + tl.load(top + at), -float("inf"))
            of_row += tl.maximum(above - height, 0.0)
        total += of_row
    tl.store(out + variant * (GX * GY) + lane, total, mask=lane < GX * GY)
