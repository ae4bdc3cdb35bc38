"""The value of every placement of boxes in Triton, for CUDA devices.

It is defined in `values`. A placement costs only the patches that its footprint touches. A lane is a placement and a
shape of patches: it adds up what the patches of that shape gain, in their order; then the shapes of a placement are
added up in theirs, so that a value does not depend on how a kernel divides the work. With `TRITON_INTERPRET=1` the
kernel runs on a CPU.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import contextlib
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.policies.packing.ntuple import triton_tables
from torchrl_gpu.policies.packing.ntuple import values as afterstates
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan

# Lanes and placements of a program.
MOST_LANES = 1024
_MOST_PLACEMENTS = 128
# Numbers of a shape: rows, columns, cells, clip, offset, first patch, digits of a cell; then x and y of its cells, in 4
# bits each, four cells to a word. These few words stay in registers, and one word for each number would not.
_WORDS = tl.constexpr(7)
_SIZE = tl.constexpr(10)


@triton.jit
def boxes_on(place, there, extent, top, legal, cells, grid, levels, step, pool):
    """Boxes on placements of one bin: x, y, rows, columns and the level they reach.

    All are cells of the bin. Rows and columns are 0 where a placement is not `there`, not legal, or the box does not
    fit. `extent` (V, 2), `top` and `legal` (V, Gx, Gy) are those of the bin, `cells` and `grid` pairs of numbers.
    """
    plane = grid[0] * grid[1]
    variant = tl.where(there, place // plane, 0)
    on_grid = place % plane
    # More cells than any bin has are as good as 2²⁰, which fit nowhere and an int32.
    wide_x = tl.minimum(tl.maximum(tl.load(extent + variant * 2), 0), 1 << 20).to(tl.int32)
    wide_y = tl.minimum(tl.maximum(tl.load(extent + variant * 2 + 1), 0), 1 << 20).to(tl.int32)
    left = tl.minimum(on_grid // grid[1] * step, cells[0] * pool - wide_x)
    below = tl.minimum(on_grid % grid[1] * step, cells[1] * pool - wide_y)
    fits = (tl.minimum(left, wide_x - 1) >= 0) & (tl.minimum(below, wide_y - 1) >= 0)
    placed = there & fits & (tl.load(legal + place, mask=there, other=0) != 0)
    left = tl.maximum(left, 0)
    below = tl.maximum(below, 0)
    x = left // pool
    y = below // pool
    rows = tl.where(placed, (left + wide_x - 1) // pool - x + 1, 0)
    columns = tl.where(placed, (below + wide_y - 1) // pool - y + 1, 0)
    reached = tl.minimum(tl.load(top + place, mask=placed, other=0).to(tl.int32), levels)
    return x, y, rows, columns, reached


@triton.jit
def add_gains(
    start, actions, bins, found, weight, shapes, extent, top, legal, gains,
    cells, grid, num_shapes, levels, step, pool,
    CELLS: tl.constexpr, LYING: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Write what T placements of one bin gain in the patches of each shape.

    They begin at `start`, and the gains are (shapes, actions).

    Args:
        bins: (X, Y) uint8, of the bin.
        found: (patches,) float32, the present weight of each patch.
        shapes: (shapes, _SIZE) int32, see `describe_shapes`.
    """
    lane = tl.arange(0, T * LYING)
    place = start + lane % T
    number = lane // T
    there = (place < actions) & (number < num_shapes)
    x, y, rows, columns, reached = boxes_on(place, there, extent, top, legal, cells, grid, levels, step, pool)
    shape = shapes + tl.where(there, number, 0) * _SIZE
    tall = tl.load(shape)
    wide = tl.load(shape + 1)
    last_x = cells[0] + 2 - tall
    last_y = cells[1] + 2 - wide
    number_of_cells = tl.load(shape + 2)
    clip = tl.load(shape + 3)
    digits = tl.load(shape + 6)
    table = tl.load(shape + 4)
    first_patch = tl.load(shape + 5)
    # Only patches that the footprint touches can change: each adds its new weight and takes its old one away.
    across = tl.maximum(columns + wide - 1, 1)
    moves = tl.where(rows > 0, (rows + tall - 1) * across, 0)
    more = tl.zeros([T * LYING], tl.float32)
    for move in range(tl.max(moves, 0)):
        # First cell of the patch, in the frame.
        first_x = x + 2 - tall + move // across
        first_y = y + 2 - wide + move % across
        touches = (move < moves) & (first_x >= 0) & (first_x <= last_x) & (first_y >= 0) & (first_y <= last_y)
        entry = tl.zeros([T * LYING], tl.int32)
        origin = tl.zeros([T * LYING], tl.int32)
        for i in tl.static_range(CELLS):
            # Read again for each patch: otherwise all words and what is in them would stay in registers, too many.
            if i % 4 == 0:
                word = tl.load(shape + _WORDS + i // 4, volatile=True)
            cell_x = first_x + (word >> 8 * (i % 4) & 15)
            cell_y = first_y + (word >> 8 * (i % 4) + 4 & 15)
            inside = (cell_x >= 1) & (cell_x <= cells[0]) & (cell_y >= 1) & (cell_y <= cells[1])
            at = (cell_x - 1) * cells[1] + cell_y - 1
            height = tl.load(bins + at, mask=touches & inside, other=255).to(tl.int32)
            height = tl.minimum(height, levels)
            under = (cell_x > x) & (cell_x <= x + rows) & (cell_y > y) & (cell_y <= y + columns)
            height = tl.where(under, tl.maximum(height, reached), height)
            if i == 0:
                origin = height
                digit = height
            else:
                apart = tl.minimum(tl.maximum(height - origin, -clip), clip) + clip
                digit = tl.where(clip >= 0, apart, height)
            entry = tl.where(i < number_of_cells, entry * digits + digit, entry)
        more += tl.load(weight + (table + entry), mask=touches, other=0.0)
        more -= tl.load(found + (first_patch + first_x * (last_y + 1) + first_y), mask=touches, other=0.0)
    tl.store(gains + number * actions + place, more, mask=there)


@triton.jit
def values_of(
    start, actions, whole, extent, top, legal, gains, cells, grid, num_shapes, levels, step, pool, T: tl.constexpr
):
    """Values (T,) of a bin after placements from `start` on, and which there are.

    They are −inf where a placement is not legal.
    """
    place = start + tl.arange(0, T)
    there = place < actions
    _x, _y, rows, _columns, _reached = boxes_on(place, there, extent, top, legal, cells, grid, levels, step, pool)
    more = tl.zeros([T], tl.float32)
    for number in range(num_shapes):
        more += tl.load(gains + number * actions + place, mask=there, other=0.0)
    return tl.where(rows > 0, whole + more, float("-inf")), there


@triton.jit(do_not_specialize=["cells_x", "cells_y", "grid_x", "grid_y", "variants", "num_shapes", "patches", "levels"])
def value_placements_kernel(
    bins, found, whole, weight, shapes, extent, top, legal, gains, out,
    cells_x, cells_y, grid_x, grid_y, variants, num_shapes, patches, levels, step, pool,
    CELLS: tl.constexpr, LYING: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """T placements in one bin per program."""
    n = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * T
    actions = variants * grid_x * grid_y
    cells = (cells_x, cells_y)
    grid = (grid_x, grid_y)
    mine = n * actions
    sums = gains + n * num_shapes * actions
    extent = extent + n * variants * 2
    top = top + mine
    legal = legal + mine
    bins = bins + n * cells_x * cells_y
    found = found + n * patches
    add_gains(
        start, actions, bins, found, weight, shapes, extent, top, legal, sums, cells, grid, num_shapes, levels, step,
        pool, CELLS, LYING, T,
    )  # fmt: skip
    tl.debug_barrier()
    value, there = values_of(
        start, actions, tl.load(whole + n), extent, top, legal, sums, cells, grid, num_shapes, levels, step, pool, T
    )
    tl.store(out + mine + start + tl.arange(0, T), value, mask=there)


def value_placements(
    heights: Tensor, extent: Tensor, top: Tensor, legal: Tensor, weight: Tensor, plan: PatchPlan, step: int, pool: int
) -> Tensor:
    """`values.value_placements` of checked and contiguous tensors."""
    rows, variants, *grid = top.shape
    device = heights.device
    out = torch.empty(top.shape, dtype=torch.float32, device=device)
    if not out.numel():
        return out
    whole, found = triton_tables.values_and_weights(heights, weight, plan)
    actions = out[0].numel()
    num_shapes = len(plan.oriented)
    gains = torch.empty(rows, num_shapes, actions, dtype=torch.float32, device=device)
    lying, placements = placement_lanes(plan)
    shapes = describe_shapes(plan, heights.shape[1:], device)
    tensors = (heights, found, whole, weight, shapes, extent, top, legal.view(torch.uint8), gains, out)
    numbers = (*heights.shape[1:], *grid, variants, num_shapes, found.shape[1], plan.levels, step, pool)
    constants = {"CELLS": most_cells(plan), "LYING": lying, "T": placements}
    # A fused multiplication and addition would round otherwise than C++ does.
    options = {"enable_fp_fusion": False, "num_warps": max(1, lying * placements // 64)}
    with torch.cuda.device(device) if heights.is_cuda else contextlib.nullcontext():
        launch = value_placements_kernel[(rows, triton.cdiv(actions, placements))]
        launch(*tensors, *numbers, **constants, **options)
    return out


def placement_lanes(plan: PatchPlan) -> tuple[int, int]:
    """Lanes for the shapes of a placement, and placements of a program."""
    lying = int(triton.next_power_of_2(len(plan.oriented)))
    return lying, min(_MOST_PLACEMENTS, MOST_LANES // lying)


def most_cells(plan: PatchPlan) -> int:
    """Cells of the largest patch."""
    return max(len(each.cells) for each in plan.oriented)


@lru_cache(maxsize=8)
def describe_shapes(plan: PatchPlan, cells: tuple[int, int], device: torch.device) -> Tensor:
    """Kernel's table of patch shapes in all their orientations, (shapes, _SIZE) int32."""
    rows = []
    patch = 0
    for each in plan.oriented:
        clip = -1 if each.clip is None else each.clip
        digits = plan.levels + 1 if each.clip is None else 2 * clip + 1
        words = [0, 0, 0]
        for i, (x, y) in enumerate(each.cells):
            words[i // 4] |= (x | y << 4) << 8 * (i % 4)
        # A word of all 32 bits is a negative number of 32.
        words = [word - (1 << 32) if word >= 1 << 31 else word for word in words]
        rows.append([each.rows, each.columns, len(each.cells), clip, each.offset, patch, digits, *words])
        patch += (cells[0] + 3 - each.rows) * (cells[1] + 3 - each.columns)
    return torch.tensor(rows, dtype=torch.int32, device="cpu").to(device)


def self_test(device: str) -> str:
    """Reason not to use the kernel on a device, in one line, or ""."""
    plan = PatchPlan(("1x3", "2x2:1"), 6)
    there = torch.device(device)
    cases = [(1, (5, 4), 1), (2, (3, 4), 3)]
    for pool, cells, step in cases:
        given = some_placements(plan, cells, step, pool)
        heights, extent, top, legal, weight = given
        placements = (heights.to(there), extent.to(there), top.to(there), legal.to(there))
        values = value_placements(*placements, weight.to(there), plan, step, pool).cpu()
        wanted = afterstates.by_torch(*given, plan, step, pool)
        if not torch.allclose(values, wanted, rtol=1e-4, atol=1e-4):
            apart = (values - wanted).nan_to_num(0.0, 0.0, 0.0).abs().max().item()
            return f"the values of {cells} cells in pools of {pool} differ from torch's by up to {apart:g}"
    return ""


def some_placements(
    plan: PatchPlan, cells: tuple[int, int], step: int, pool: int, rows: int = 2, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Self-test inputs: heights, extents, tops, legality and weights.

    Some boxes do not fit, and some bins are too high.
    """
    g = torch.Generator().manual_seed(seed)

    def whole(most: int, *shape: int) -> Tensor:
        return torch.randint(0, most, shape, generator=g, dtype=torch.int64, device="cpu")

    grid = (rows, 2, *(-(-side * pool // step) for side in cells))
    heights = whole(plan.levels + 2, rows, *cells).to(torch.uint8)
    extent = whole(min(cells) * pool + 2, rows, 2, 2)
    top = whole(plan.levels + 3, *grid).to(torch.uint8)
    legal = torch.rand(grid, generator=g, dtype=torch.float32, device="cpu") < 0.7
    weight = torch.randn(plan.entries, generator=g, dtype=torch.float32, device="cpu")
    return heights, extent, top, legal, weight[plan.first_images]
