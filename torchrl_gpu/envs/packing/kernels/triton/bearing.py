"""`upheld` in Triton: the stability rule `load_bearing` of boxes.

A program works on lines of placements along x, as in `boxes`.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.triton.boxes import fits_along, lines
from torchrl_gpu.envs.packing.kernels.triton.stability import join, touches
from torchrl_gpu.envs.packing.stability.load_bearing import bearing_heights
from torchrl_gpu.envs.packing.stability.margins import margins
from torchrl_gpu.envs.packing.types import Bin, Catalogue

# Lanes of a program.
_LANES = 128
# Stability rules that these kernels have; all others are judged by `eager`.
BEARING_RULES = ("load_bearing",)


def upheld(
    heightmap: Tensor, bears: Tensor, z_map: Tensor, legal: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    """As `reference.upheld`, of contiguous arguments."""
    out = torch.empty_like(legal)
    num_lanes = item_id.numel() * catalogue.num_orientations * bin_.grid[1]
    heights = bearing_heights(heightmap, bears)
    maps = (z_map, legal.view(torch.uint8), out.view(torch.uint8))
    tensors = (heights, item_id, catalogue.extent, catalogue.height, *maps)
    lengths = (bin_.contact_tolerance, *bin_.drops, *margins(bin_))
    sizes = (item_id.shape[1], catalogue.num_orientations, *bin_.cells)
    launch = upheld_kernel[(triton.cdiv(num_lanes, _LANES),)]
    launch(
        *tensors, item_id.numel(), catalogue.num_items, *lengths, *sizes,
        STEP=bin_.step, T=_LANES, enable_fp_fusion=False, num_warps=_LANES // 32,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_slots", "num_items", "margin_x", "margin_y", "slots_per_env", "orientations"])
def upheld_kernel(
    heights, item_id, extent, item_height, z_map, legal, out, num_slots, num_items, gap, drop_x, drop_y,
    margin_x, margin_y, slots_per_env, orientations, X, Y, STEP: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Legal mask without placements whose contacts do not hold the rectangle.

    Contacts are those that bear load, the rectangle lies around the middle.
    """
    GX = (X + STEP - 1) // STEP
    GY = (Y + STEP - 1) // STEP
    env, gy, p, q, _, line, there = lines(
        item_id, extent, item_height, num_slots, num_items, slots_per_env, orientations, GY, T
    )
    here = heights + env * (X * Y)
    half_x = tl.maximum(tl.minimum(margin_x, 4 * p) - 8, 0)
    half_y = tl.maximum(tl.minimum(margin_y, 4 * q) - 8, 0)
    fits_y = there & fits_along(gy, q, Y, STEP)
    y = tl.maximum(tl.minimum(gy * STEP, Y - q), 0)
    for gx in range(GX):
        at = line * (GX * GY) + gx * GY + gy
        fits = fits_y & fits_along(gx, p, X, STEP) & (tl.load(legal + at, mask=there, other=0) > 0)
        z = tl.load(z_map + at, mask=fits, other=float("inf"))
        x = tl.maximum(tl.minimum(gx * STEP, X - p), 0)
        rows = tl.where(fits, p, 0)
        columns = tl.where(fits, q, 0)
        held = _holds_rectangle(here, x, y, rows, columns, z - gap, drop_x, drop_y, half_x, half_y, X, Y)
        tl.store(out + at, (fits & held).to(tl.uint8), mask=there)


@triton.jit
def _holds_rectangle(heights, x, y, p, q, level, drop_x, drop_y, half_x, half_y, X, Y):
    """Whether the contacts of T boxes hold a rectangle around the middle, (T,)."""
    held = tl.full(level.shape, True, tl.int1)
    # Of the rectangle the first row, and the last.
    for edge in tl.static_range(2):
        edge_x = 8 * p + (2 * edge - 1) * half_x
        # There is no slope yet, as in `stands`.
        end_rise = tl.full(level.shape, -1, tl.int32)
        start_rise = tl.full(level.shape, -1, tl.int32)
        end_run = tl.zeros(level.shape, tl.int32)
        start_run = tl.zeros(level.shape, tl.int32)
        end_held = tl.zeros(level.shape, tl.int1)
        start_held = tl.zeros(level.shape, tl.int1)
        for i in range(tl.max(p, 0)):
            last = tl.full(level.shape, -1, tl.int32)
            first = tl.full(level.shape, 32767, tl.int32)
            for j in range(tl.max(q, 0)):
                along_x = tl.abs(2 * i + 1 - p).to(tl.float32)
                along_y = tl.abs(2 * j + 1 - q).to(tl.float32)
                lowest = level - tl.maximum(along_x * drop_x, along_y * drop_y)
                contact, _ = touches(heights, heights, x, y, i, j, p, q, lowest[None, :], X, Y, 0, True, 1)
                contact = tl.max(contact.to(tl.int32), 0) > 0
                last = tl.where(contact, tl.maximum(last, j), last)
                first = tl.where(contact, tl.minimum(first, j), first)
            there = last >= 0
            ahead = 16 * i + 8 - edge_x
            end = 16 * last + 8 - (8 * q + half_y)
            start = 8 * q - half_y - 8 - 16 * first
            end_rise, end_run, end_now = join(end_rise, end_run, end, there, ahead)
            start_rise, start_run, start_now = join(start_rise, start_run, start, there, ahead)
            end_held = end_held | end_now
            start_held = start_held | start_now
        held = held & end_held & start_held
    return held
