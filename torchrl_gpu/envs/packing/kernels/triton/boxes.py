"""`drop_map` of boxes in small bins in Triton: columns of the bin in registers.

A lane is one line of placements along x, of one box in one orientation in one bin. The maximum over the box's width is
taken while the lane reads the rows, the maximum over its length from power-of-two windows in registers. Stored maps are
not read: recomputing a height costs less than loading it.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: RUF005 (kernels know no unpacking)

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.triton.placements import present
from torchrl_gpu.envs.packing.kernels.triton.stability import stands
from torchrl_gpu.envs.packing.types import Bin, Catalogue

# Rows that a lane keeps in registers.
MOST_CELLS_X = 16
# Lanes of a program.
_LANES = 128


def drop_boxes(heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin) -> tuple[Tensor, Tensor]:
    """As `reference.drop_map`, for boxes in bins of at most `MOST_CELLS_X` rows.

    Arguments contiguous.
    """
    shape = (*item_id.shape, catalogue.num_orientations, *bin_.grid)
    z_map = heightmap.new_empty(shape)
    legal = torch.empty_like(z_map, dtype=torch.bool)
    num_lanes = item_id.numel() * catalogue.num_orientations * bin_.grid[1]
    tensors = (heightmap, item_id, catalogue.extent, catalogue.height, z_map, legal.view(torch.uint8))
    numbers = (item_id.numel(), catalogue.num_items, *heights_of(bin_))
    constants = {"SLOTS": item_id.shape[1], "ORIENTATIONS": catalogue.num_orientations, "T": _LANES}
    constants |= {"X": bin_.cells[0], "Y": bin_.cells[1], "STEP": bin_.step}
    constants["LEVELS"] = min(catalogue.footprint[0], bin_.cells[0]).bit_length() - 1
    # Left to itself ptxas would rather spill.
    most_registers = 64 if bin_.stability == "com" else None
    launch = drop_boxes_kernel[(triton.cdiv(num_lanes, _LANES),)]
    launch(
        *tensors, *numbers, **constants,
        RULE=bin_.stability, enable_fp_fusion=False, num_warps=_LANES // 32, maxnreg=most_registers,
    )  # fmt: skip
    return z_map, legal


def heights_of(bin_: Bin) -> tuple[float, float, float]:
    """Return the bin's height, its highest legal top and its contact tolerance."""
    highest = float(np.float32(bin_.size[2]) + np.float32(bin_.tolerance))
    return bin_.size[2], highest, bin_.contact_tolerance


@triton.jit
def lines(item_id, extent, item_height, num_slots, num_items, slots_per_env, orientations, GY, T: tl.constexpr):
    """Environment, placement along y and box of T lines of placements.

    Returns:
        Environment, int64, and placement along y; the box's p, q and height, with p = q = 0 for an empty slot; the
        line's number over (N, K, O), int64; whether there is such a line. (T,) each.
    """
    start = tl.program_id(0).to(tl.int64) * T
    # Division is of 64 bits once per program, and of 32 bits per lane.
    from_line = start // GY
    from_slot = start // GY // orientations
    offset = (start % GY).to(tl.int32) + tl.arange(0, T)
    gy = offset % GY
    offset_line = (from_line % orientations).to(tl.int32) + offset // GY
    orientation = offset_line % orientations
    slot = from_slot + offset_line // orientations
    env = (
        from_slot // slots_per_env
        + ((from_slot % slots_per_env).to(tl.int32) + offset_line // orientations) // slots_per_env
    )
    there = slot < num_slots
    item = present(tl.load(item_id + slot, mask=there, other=-1), num_items)
    variant = tl.maximum(item, 0) * orientations + orientation
    p = tl.where(item >= 0, tl.load(extent + variant * 2), 0).to(tl.int32)
    q = tl.where(item >= 0, tl.load(extent + variant * 2 + 1), 0).to(tl.int32)
    return env, gy, p, q, tl.load(item_height + variant), slot * orientations + orientation, there


@triton.jit
def fits_along(placement, extent, cells, STEP: tl.constexpr):
    """True where a footprint fits at a placement of the grid, along one axis.

    `extent` is its cells, 0 for an empty slot.
    """
    return (extent > 0) & (extent <= cells) & (placement * STEP - (cells - extent) < STEP)


@triton.jit
def write_legality(
    here, out_z, out_legal, gy, p, q, high, there, ceiling, limit, tolerance, X, Y,
    RULE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Write the legal mask of T lines of boxes from their z-map.

    Where none fits, z becomes the bin's height.
    """
    GX = (X + STEP - 1) // STEP
    GY = (Y + STEP - 1) // STEP
    y = tl.maximum(tl.minimum(gy * STEP, Y - q), 0)
    fits_y = there & fits_along(gy, q, Y, STEP)
    for gx in range(GX):
        fits = fits_y & fits_along(gx, p, X, STEP)
        z = tl.load(out_z + gx * GY, mask=fits, other=float("inf"))
        fine = z + high <= limit
        if RULE != "none":
            x = tl.maximum(tl.minimum(gx * STEP, X - p), 0)
            rows = tl.where(fits, p, 0)
            columns = tl.where(fits, q, 0)
            held = stands(here, here, x, y, rows, columns, z[None, :], here, tolerance, X, Y, 0, RULE, True, 1)
            fine = fine & (tl.max(held.to(tl.int32), 0) > 0)
        tl.store(out_z + gx * GY, tl.zeros_like(z) + ceiling, mask=there & ~fits)
        tl.store(out_legal + gx * GY, fine.to(tl.uint8), mask=there)


@triton.jit
def drop_lines(
    here, gy, p, q, high, line, there, z_map, legal, ceiling, limit, tolerance,
    X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr, LEVELS: tl.constexpr, RULE: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Write the maps of T lines of placements along x.

    Line by line the boxes are (p, q, high), at gy along y, in the bins at `here`.
    """
    GX: tl.constexpr = (X + STEP - 1) // STEP
    GY: tl.constexpr = (Y + STEP - 1) // STEP
    fits_y = there & (p <= X) & fits_along(gy, q, Y, STEP)
    y = tl.minimum(gy * STEP, Y - q)

    # The highest cell of each row over the width, X of them.
    rows = (tl.zeros([T], tl.float32),) * X
    width = tl.where(fits_y, q, 0)
    for j in range(tl.max(width, 0)):
        under = rows[:0]
        for x in tl.static_range(X):
            height = tl.load(here + (x * Y + y + j), mask=j < width, other=0.0)
            under = under + (tl.maximum(rows[x], height),)
        rows = under

    # Windows of 2, 4, 8 … rows up to the length of the box: two that overlap cover it.
    reach = tl.full([T], 1, tl.int32)
    for k in tl.static_range(LEVELS):
        longer = p >= (2 << k)
        doubled = rows[:0]
        for x in tl.static_range(X):
            if x + (1 << k) < X:
                doubled = doubled + (tl.where(longer, tl.maximum(rows[x], rows[x + (1 << k)]), rows[x]),)
            else:
                doubled = doubled + (rows[x],)
        rows = doubled
        reach = tl.where(longer, 2 << k, reach)
    second = rows
    for k in tl.static_range(LEVELS):
        shifts = ((p - reach) >> k & 1) == 1
        shifted = rows[:0]
        for x in tl.static_range(X):
            if x + (1 << k) < X:
                shifted = shifted + (tl.where(shifts, second[x + (1 << k)], second[x]),)
            else:
                shifted = shifted + (second[x],)
        second = shifted

    flush = tl.zeros([T], tl.float32)
    if STEP > 1:
        for x in tl.static_range(X):
            flush = tl.where(X - p == x, tl.maximum(rows[x], second[x]), flush)
    out = line * (GX * GY) + gy
    for gx in tl.static_range(GX):
        z = tl.maximum(rows[gx * STEP], second[gx * STEP])
        if STEP > 1:
            z = tl.where(gx * STEP > X - p, flush, z)
        fits = fits_y & (gx * STEP - (X - p) < STEP)
        tl.store(z_map + (out + gx * GY), tl.where(fits, z, ceiling), mask=there)
        if RULE == "none":
            tl.store(legal + (out + gx * GY), (fits & (z + high <= limit)).to(tl.uint8), mask=there)
    if RULE != "none":
        # `write_legality` reads z with another layout of threads.
        tl.debug_barrier()
        write_legality(
            here, z_map + out, legal + out, gy, p, q, high, there, ceiling, limit, tolerance, X, Y, RULE, STEP
        )


@triton.jit(do_not_specialize=["num_slots", "num_items"])
def drop_boxes_kernel(
    heightmap, item_id, extent, item_height, z_map, legal, num_slots, num_items, ceiling, limit, tolerance,
    SLOTS: tl.constexpr, ORIENTATIONS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr,
    LEVELS: tl.constexpr, RULE: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """`drop_map` of boxes in small bins: T lines of placements along x per program."""
    GY: tl.constexpr = (Y + STEP - 1) // STEP
    env, gy, p, q, high, line, there = lines(
        item_id, extent, item_height, num_slots, num_items, SLOTS, ORIENTATIONS, GY, T
    )
    here = heightmap + env * (X * Y)
    drop_lines(
        here, gy, p, q, high, line, there, z_map, legal, ceiling, limit, tolerance, X, Y, STEP, LEVELS, RULE, T
    )  # fmt: skip
