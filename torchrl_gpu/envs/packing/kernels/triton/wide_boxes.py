"""`drop_map` of boxes in large bins in Triton.

It is a sliding maximum along each line of placements. Along y: the pile's maxima over windows of 2, 4, 8 … cells,
computed once per bin, of which two that overlap cover a box's width. Along x: the line is cut into blocks as long as
the box; a window is the end of one block and the beginning of the next, whose maxima are running maxima of a backward
and a forward pass (van Herk 1992; Gil and Werman 1993). A result costs four words from the cache, independent of the
size of the box.

Stored maps are not read: recomputing a height costs as much as loading it.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.triton.boxes import fits_along, heights_of, lines, write_legality
from torchrl_gpu.envs.packing.types import Bin, Catalogue

# Lanes of a program.
_LANES = 128


def drop_wide_boxes(heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin) -> tuple[Tensor, Tensor]:
    """As `reference.drop_map`, for boxes in bins of any size.

    Arguments contiguous.
    """
    shape = (*item_id.shape, catalogue.num_orientations, *bin_.grid)
    z_map = heightmap.new_empty(shape)
    legal = torch.empty_like(z_map, dtype=torch.bool)
    num_envs = len(heightmap)
    cells_x, cells_y = bin_.cells
    num_levels = min(catalogue.footprint[1], cells_y).bit_length()
    windows = heightmap.new_empty(num_levels, num_envs, cells_x, cells_y)
    padded = triton.next_power_of_2(cells_y)
    num_warps = min(4, max(1, padded // 64))
    launch_windows = windows_kernel[(num_envs * cells_x,)]
    launch_windows(
        heightmap, windows, heightmap.numel(), cells_y,
        PADDED=padded, LEVELS=num_levels, enable_fp_fusion=False, num_warps=num_warps,
    )  # fmt: skip
    num_lanes = item_id.numel() * catalogue.num_orientations * bin_.grid[1]
    tensors = (heightmap, windows, item_id, catalogue.extent, catalogue.height, z_map, legal.view(torch.uint8))
    numbers = (item_id.numel(), heightmap.numel(), catalogue.num_items, *heights_of(bin_))
    sizes = (item_id.shape[1], catalogue.num_orientations, cells_x, cells_y)
    constants = {"STEP": bin_.step, "LEVELS": num_levels, "T": _LANES}
    launch = drop_wide_boxes_kernel[(triton.cdiv(num_lanes, _LANES),)]
    # Left to itself ptxas would rather spill from 32 registers.
    launch(
        *tensors, *numbers, *sizes, **constants,
        RULE=bin_.stability, enable_fp_fusion=False, num_warps=_LANES // 32, maxnreg=64,
    )  # fmt: skip
    return z_map, legal


@triton.jit(do_not_specialize=["level_size", "Y"])
def windows_kernel(heightmap, windows, level_size, Y, PADDED: tl.constexpr, LEVELS: tl.constexpr):
    """Maxima over 1, 2, 4, 8 … cells along y from each cell on, (levels, N, X, Y).

    A row of a bin per program.
    """
    y = tl.arange(0, PADDED)
    row = tl.program_id(0).to(tl.int64) * Y
    highest = tl.load(heightmap + row + y, mask=y < Y, other=0.0)
    tl.store(windows + row + y, highest, mask=y < Y)
    level = windows + row
    for k in tl.static_range(LEVELS - 1):
        # From here on the level below is complete: other threads wrote parts of it.
        tl.debug_barrier()
        highest = tl.maximum(highest, tl.load(level + y + (1 << k), mask=y + (1 << k) < Y, other=0.0))
        level += tl.cast(level_size, tl.int64)
        tl.store(level + y, highest, mask=y < Y)


@triton.jit(do_not_specialize=["num_slots", "level_size", "num_items", "slots_per_env", "orientations", "X", "Y"])
def drop_wide_boxes_kernel(
    heightmap, windows, item_id, extent, item_height, z_map, legal, num_slots, level_size, num_items, ceiling, limit,
    tolerance, slots_per_env, orientations, X, Y,
    STEP: tl.constexpr, LEVELS: tl.constexpr, RULE: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """`drop_map` of boxes in large bins: T lines of placements along x per program."""
    GX = (X + STEP - 1) // STEP
    GY = (Y + STEP - 1) // STEP
    env, gy, p, q, high, line, there = lines(
        item_id, extent, item_height, num_slots, num_items, slots_per_env, orientations, GY, T
    )
    fits = there & (p <= X) & fits_along(gy, q, Y, STEP)
    y = tl.minimum(gy * STEP, Y - q)
    level = tl.zeros([T], tl.int64)
    reach = tl.full([T], 1, tl.int32)
    for k in tl.static_range(1, LEVELS):
        level += (q >= (1 << k)).to(tl.int64)
        reach = tl.where(q >= (1 << k), 1 << k, reach)
    near = windows + level * level_size + env * (X * Y) + y
    far = near + (q - reach)
    out_z = z_map + line * (GX * GY) + gy
    out_legal = legal + line * (GX * GY) + gy

    # On a single cell there may be no placement flush with the wall.
    last = tl.minimum(X - p, (GX - 1) * STEP)
    # From the far end: the maximum from each row to the end of its block.
    length = tl.maximum(p, 1)
    in_block = (X - 1) % length
    highest = tl.zeros([T], tl.float32)
    for back in range(X):
        x = X - 1 - back
        under = tl.maximum(tl.load(near + x * Y, mask=fits, other=0.0), tl.load(far + x * Y, mask=fits, other=0.0))
        highest = tl.where(in_block == length - 1, under, tl.maximum(highest, under))
        gx = (x + STEP - 1) // STEP
        placed = fits & (tl.minimum(gx * STEP, X - p) == x) & (last >= x)
        tl.store(out_z + gx * GY, highest, mask=placed)
        in_block = tl.where(in_block == 0, length - 1, in_block - 1)
    # The second pass may read z with another layout of threads.
    tl.debug_barrier()
    # From the near end: the maximum from the beginning of each row's block to it.
    in_block = tl.zeros([T], tl.int32)
    for x in range(X):
        under = tl.maximum(tl.load(near + x * Y, mask=fits, other=0.0), tl.load(far + x * Y, mask=fits, other=0.0))
        highest = tl.where(in_block == 0, under, tl.maximum(highest, under))
        first = x - p + 1
        first_gx = (first + STEP - 1) // STEP
        placed = fits & (first >= 0) & (tl.minimum(first_gx * STEP, X - p) == first) & (last >= first)
        where = out_z + first_gx * GY
        tl.store(where, tl.maximum(highest, tl.load(where, mask=placed, other=0.0)), mask=placed)
        in_block = tl.where(in_block == length - 1, 0, in_block + 1)
    # `write_legality` reads z with another layout of threads.
    tl.debug_barrier()
    here = heightmap + env * (X * Y)
    write_legality(here, out_z, out_legal, gy, p, q, high, there, ceiling, limit, tolerance, X, Y, RULE, STEP)
