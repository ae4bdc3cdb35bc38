"""`place` and `pile_growth` in Triton."""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.triton.placements import num_fitting, present
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Placement

# Elements of a program that copies.
_LANES = 1024
# Placements of a program of `growth_kernel`.
_PLACEMENTS = 128


class Cut(NamedTuple):
    """Tiling of the elements of every environment, such as cells, over programs.

    Its fields are constants of kernels.

    Attributes:
        ENVS: Environments of a program; 1 where an environment takes several programs.
        LANES: Elements of each environment in a program, a power of two.
        TILES: Programs of an environment.
    """

    ENVS: int
    LANES: int
    TILES: int


def cut(elements: int) -> Cut:
    """Return the tiling of environments with this many elements each."""
    lanes = min(_LANES, triton.next_power_of_2(elements))
    return Cut(_LANES // lanes, lanes, triton.cdiv(elements, lanes))


def maps_of(catalogue: Catalogue) -> tuple[Tensor, Tensor]:
    """Return tops and bottoms of a catalogue, contiguous.

    For boxes two placeholders that kernels never read.
    """
    if catalogue.top is None or catalogue.bottom is None:
        return catalogue.extent, catalogue.extent
    return catalogue.top.contiguous(), catalogue.bottom.contiguous()


def place(heightmap: Tensor, placement: Placement, catalogue: Catalogue) -> Tensor:
    """As `reference.place`.

    Arguments contiguous.
    """
    num_envs, cells_x, cells_y = heightmap.shape
    share = cut(cells_x * cells_y)
    maps = maps_of(catalogue)
    out = torch.empty_like(heightmap)
    tensors = (heightmap, *placement, catalogue.extent, catalogue.height, *maps, out)
    sizes = (num_envs, catalogue.num_items, catalogue.num_orientations, *maps[1].shape[-2:])
    constants = {"X": cells_x, "Y": cells_y, "FLAT": catalogue.flat, **share._asdict()}
    if out.numel():
        launch = place_kernel[(triton.cdiv(num_envs, share.ENVS) * share.TILES,)]
        launch(*tensors, *sizes, **constants, enable_fp_fusion=False, num_warps=4)
    return out


@triton.jit(do_not_specialize=["num_envs", "num_items", "orientations", "rows", "columns"])
def place_kernel(
    heightmap, item_id, orientation, at_x, at_y, at_z, extent, item_height, top, bottom, out,
    num_envs, num_items, orientations, rows, columns,
    X: tl.constexpr, Y: tl.constexpr, FLAT: tl.constexpr, ENVS: tl.constexpr, LANES: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """`place`: LANES cells of ENVS bins per program, read once and written once."""
    pid = tl.program_id(0).to(tl.int64)
    env = pid // TILES * ENVS + tl.arange(0, ENVS)
    cell = (pid % TILES).to(tl.int32) * LANES + tl.arange(0, LANES)
    there = env < num_envs
    where = (env * (X * Y))[:, None] + cell[None, :]
    inside = there[:, None] & (cell < X * Y)[None, :]
    height = tl.load(heightmap + where, mask=inside, other=0.0)
    item = present(tl.load(item_id + env, mask=there, other=-1), num_items)
    turned = present(tl.load(orientation + env, mask=there, other=0), orientations)
    variant = tl.maximum(item, 0) * orientations + tl.maximum(turned, 0)
    x = tl.load(at_x + env, mask=there, other=0)
    y = tl.load(at_y + env, mask=there, other=0)
    z = tl.load(at_z + env, mask=there, other=0.0)
    inside_x = (x >= 0) & (x <= X - tl.load(extent + variant * 2))
    inside_y = (y >= 0) & (y <= Y - tl.load(extent + variant * 2 + 1))
    fine = (turned >= 0) & inside_x & inside_y
    item = tl.where(fine, item, -1)
    x = tl.where(fine, x, 0).to(tl.int32)
    y = tl.where(fine, y, 0).to(tl.int32)
    maps = (extent, item_height, top, bottom)
    height = raised(height, cell, (item, variant, x, y, z), maps, rows, columns, Y, FLAT)
    tl.store(out + where, height, mask=inside)


@triton.jit
def raised(height, cell, placed, maps, rows, columns, Y: tl.constexpr, FLAT: tl.constexpr):
    """Heights (E, L) of L cells of E bins after a placement in each.

    Args:
        height: Before, (E, L).
        cell: (L,).
        placed: Items, −1 for none, their rows of the catalogue, and x, y and z; (E,) each.
        maps: Pointers to extents, heights, tops and bottoms of the catalogue.
    """
    item, variant, x, y, z = placed
    extent, item_height, top, bottom = maps
    p = tl.where(item >= 0, tl.load(extent + variant * 2).to(tl.int32), 0)
    q = tl.load(extent + variant * 2 + 1).to(tl.int32)
    i = (cell // Y)[None, :] - x[:, None]
    j = (cell % Y)[None, :] - y[:, None]
    under = (i >= 0) & (i < p[:, None]) & (j >= 0) & (j < q[:, None])
    if FLAT:
        above = (z + tl.load(item_height + variant))[:, None]
    else:
        where = (variant * (rows * columns))[:, None] + (i * columns + j)
        under = under & (tl.load(bottom + where, mask=under, other=float("inf")) < float("inf"))
        above = z[:, None] + tl.load(top + where, mask=under, other=0.0)
    return tl.where(under, tl.maximum(height, above), height)


def growth(heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """As `reference.pile_growth`.

    Arguments contiguous.
    """
    grid = bin_.grid[0] * bin_.grid[1]
    maps = maps_of(catalogue)
    out = torch.empty_like(z_map)
    num_tiles = triton.cdiv(grid, _PLACEMENTS)
    tensors = (heightmap, item_id, z_map, catalogue.extent, catalogue.height, *maps, out)
    counts = (catalogue.num_items, item_id.shape[1], catalogue.num_orientations)
    sizes = (*bin_.cells, *maps[1].shape[-2:], num_tiles)
    constants = {"STEP": bin_.step, "FLAT": catalogue.flat, "T": _PLACEMENTS}
    if out.numel():
        launch = growth_kernel[(item_id.numel() * catalogue.num_orientations * num_tiles,)]
        launch(*tensors, *counts, *sizes, **constants, enable_fp_fusion=False, num_warps=4)
    return out


@triton.jit(do_not_specialize=["num_items", "num_slots", "orientations", "X", "Y", "rows", "columns", "tiles"])
def growth_kernel(
    heightmap, item_id, z_map, extent, item_height, top, bottom, out,
    num_items, num_slots, orientations, X, Y, rows, columns, tiles,
    STEP: tl.constexpr, FLAT: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """`pile_growth`: T placements of one item in one orientation per program."""
    GX = (X + STEP - 1) // STEP
    GY = (Y + STEP - 1) // STEP
    pid = tl.program_id(0)
    turned = pid // tiles % orientations
    slot = (pid // tiles // orientations).to(tl.int64)
    # Number over (N, K, O).
    variant = slot * orientations + turned
    lane = pid % tiles * T + tl.arange(0, T)
    item = present(tl.load(item_id + slot), num_items)
    row = tl.maximum(item, 0) * orientations + turned
    # An empty slot fits nowhere.
    p = tl.where(item >= 0, tl.load(extent + row * 2), X + 1).to(tl.int32)
    q = tl.load(extent + row * 2 + 1).to(tl.int32)
    gx = lane // GY
    gy = lane % GY
    fits = (gx < num_fitting(p, X, STEP)) & (gy < num_fitting(q, Y, STEP))
    x = tl.minimum(gx * STEP, X - p)
    y = tl.minimum(gy * STEP, Y - q)
    z = tl.load(z_map + variant * (GX * GY) + lane, mask=fits, other=0.0)
    here = heightmap + slot // num_slots * (X * Y) + (x * Y + y)
    high = tl.load(item_height + row)
    total = tl.zeros([T], tl.float32)
    # Where nothing fits, the item has no cells to be read.
    walked = tl.where(tl.max(fits.to(tl.int32), 0) > 0, p, 0)
    for i in range(walked):
        # Summed by rows, so that the rounding stays small.
        of_row = tl.zeros([T], tl.float32)
        for j in range(q):
            height = tl.load(here + (i * Y + j), mask=fits, other=float("inf"))
            above = z + high
            if not FLAT:
                at = row * (rows * columns) + (i * columns + j)
                material = tl.load(bottom + at) < float("inf")
                above = tl.where(material, z + tl.load(top + at), -float("inf"))
            of_row += tl.maximum(above - height, 0.0)
        total += of_row
    tl.store(out + variant * (GX * GY) + lane, total, mask=lane < GX * GY)
