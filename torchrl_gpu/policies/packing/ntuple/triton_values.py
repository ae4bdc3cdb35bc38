"""The value of every placement of boxes in Triton, for CUDA devices; defined in `values`.

A placement costs only the patches that its footprint touches. With `TRITON_INTERPRET=1` the kernel runs on a CPU.
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

from torchrl_gpu.policies.packing.ntuple import values as afterstates
from torchrl_gpu.policies.packing.ntuple.values import MOST_CELLS, PatchPlan

LANES = 128  # placements of a program
_FIELDS = 6  # rows, columns, cells, clip, offset, first patch; then x, y and weight of each cell


@triton.jit
def value_placements_kernel(
    framed,
    before,
    whole,
    weight,
    shapes,
    extent,
    top,
    legal,
    out,
    cells_x,
    cells_y,
    grid_x,
    grid_y,
    variants,
    num_shapes,
    patches,
    levels,
    step,
    pool,
    FIELDS: tl.constexpr,
    MOST: tl.constexpr,
    T: tl.constexpr,
):
    """T placements of one item or orientation in one bin.

    Args:
        framed: (N, X + 2, Y + 2) uint8.
        before: (N, patches) float32, the entry of each patch as it is, and `whole` (N,) their sum.
        shapes: (shapes, FIELDS + 3·MOST) int32, see `_described`.
    """
    plane = tl.program_id(0).to(tl.int64)
    n = plane // variants
    lane = tl.program_id(1) * T + tl.arange(0, T)
    there = lane < grid_x * grid_y
    at = plane * grid_x * grid_y + lane
    # More cells than any bin has are as good as 2²⁰, which fit nowhere and an int32.
    wide_x = tl.minimum(tl.maximum(tl.load(extent + plane * 2), 0), 1 << 20).to(tl.int32)
    wide_y = tl.minimum(tl.maximum(tl.load(extent + plane * 2 + 1), 0), 1 << 20).to(tl.int32)
    left = tl.minimum(lane // grid_y * step, cells_x * pool - wide_x)
    below = tl.minimum(lane % grid_y * step, cells_y * pool - wide_y)
    fits = (tl.minimum(left, wide_x - 1) >= 0) & (tl.minimum(below, wide_y - 1) >= 0)
    placed = there & fits & (tl.load(legal + at, mask=there, other=0) != 0)
    left, below = tl.maximum(left, 0), tl.maximum(below, 0)
    x, y = left // pool, below // pool
    rows = tl.where(placed, (left + wide_x - 1) // pool - x + 1, 0)
    columns = tl.where(placed, (below + wide_y - 1) // pool - y + 1, 0)
    reached = tl.minimum(tl.load(top + at, mask=placed, other=0).to(tl.int32), levels)
    most_rows, most_columns = tl.max(rows, 0), tl.max(columns, 0)
    wide = cells_y + 2
    bin_of = framed + n * (cells_x + 2) * wide
    more = tl.zeros((T,), dtype=tl.float32)
    for s in range(num_shapes):
        shape = shapes + s * (FIELDS + 3 * MOST)
        last_x = cells_x + 2 - tl.load(shape)
        last_y = cells_y + 2 - tl.load(shape + 1)
        cells = tl.load(shape + 2)
        clip = tl.load(shape + 3)
        entries = weight + tl.load(shape + 4)
        were = before + n * patches + tl.load(shape + 5)
        # Only patches that the footprint touches can change: each adds its new weight less its old one.
        for move_x in range(2 - tl.load(shape), most_rows + 1):
            for move_y in range(2 - tl.load(shape + 1), most_columns + 1):
                first_x, first_y = x + move_x, y + move_y  # of the patch, in the frame
                touches = placed & (move_x <= rows) & (move_y <= columns)
                touches = touches & (first_x >= 0) & (first_x <= last_x) & (first_y >= 0) & (first_y <= last_y)
                entry = tl.zeros((T,), dtype=tl.int32)
                origin = tl.zeros((T,), dtype=tl.int32)
                for i in range(cells):
                    cell_x = first_x + tl.load(shape + FIELDS + i)
                    cell_y = first_y + tl.load(shape + FIELDS + MOST + i)
                    height = tl.load(bin_of + cell_x * wide + cell_y, mask=touches, other=0).to(tl.int32)
                    under = (cell_x > x) & (cell_x <= x + rows) & (cell_y > y) & (cell_y <= y + columns)
                    height = tl.where(under, tl.maximum(height, reached), height)
                    origin = tl.where(i == 0, height, origin)
                    apart = tl.minimum(tl.maximum(height - origin, -clip), clip) + clip
                    digit = tl.where((clip >= 0) & (i > 0), apart, height)
                    entry += digit * tl.load(shape + FIELDS + 2 * MOST + i)
                more += tl.load(entries + entry, mask=touches, other=0.0)
                more -= tl.load(were + first_x * (last_y + 1) + first_y, mask=touches, other=0.0)
    value = tl.load(whole + n) + more
    tl.store(out + at, tl.where(placed, value, float("-inf")), mask=there)


def value_placements(
    heights: Tensor, extent: Tensor, top: Tensor, legal: Tensor, weight: Tensor, plan: PatchPlan, step: int, pool: int
) -> Tensor:
    """As `values.value_placements`, of checked and contiguous tensors."""
    rows, variants, *grid = top.shape
    out = torch.empty(top.shape, dtype=torch.float32, device=heights.device)
    if not out.numel():
        return out
    framed = afterstates.framed(heights, plan)
    before = weight[afterstates.entries_of(framed, plan)]
    launch = value_placements_kernel[rows * variants, triton.cdiv(grid[0] * grid[1], LANES)]
    with torch.cuda.device(heights.device) if heights.is_cuda else contextlib.nullcontext():
        launch(
            framed.to(torch.uint8),
            before,
            before.double().sum(1).float(),
            weight,
            _described(plan, (heights.shape[1], heights.shape[2]), heights.device),
            extent,
            top,
            legal.view(torch.uint8),
            out,
            *heights.shape[1:],
            *grid,
            variants,
            len(plan.lying),
            before.shape[1],
            plan.levels,
            step,
            pool,
            FIELDS=_FIELDS,
            MOST=MOST_CELLS,
            T=LANES,
            enable_fp_fusion=False,
        )
    return out


@lru_cache(maxsize=8)
def _described(plan: PatchPlan, cells: tuple[int, int], device: torch.device) -> Tensor:
    """Kernel's table of patch shapes in all their orientations, (shapes, _FIELDS + 3·MOST_CELLS) int32."""
    rows, patch = [], 0
    for each in plan.lying:
        fixed = [each.rows, each.columns, len(each.cells), -1 if each.clip is None else each.clip, each.offset, patch]
        padding = [0] * (MOST_CELLS - len(each.cells))
        x, y = zip(*each.cells, strict=True)
        rows.append([*fixed, *x, *padding, *y, *padding, *each.weights[0], *padding])
        patch += (cells[0] + 3 - each.rows) * (cells[1] + 3 - each.columns)
    return torch.tensor(rows, dtype=torch.int32, device="cpu").to(device)


def self_test(device: str) -> str:
    """Reason not to use the kernel on a device, in one line; "" where it agrees with torch there."""
    plan, there = PatchPlan(("1x3", "2x2:1"), 6), torch.device(device)
    for pool, cells, step in ((1, (5, 4), 1), (2, (3, 4), 3)):
        given = some_placements(plan, cells, step, pool)
        heights, extent, top, legal, weight = (each.to(there) for each in given)
        made = value_placements(heights, extent, top, legal, weight, plan, step, pool).cpu()
        wanted = afterstates.by_torch(*given, plan, step, pool)
        if not torch.allclose(made, wanted, rtol=1e-4, atol=1e-4):
            apart = (made - wanted).nan_to_num(0.0, 0.0, 0.0).abs().max().item()
            return (
                f"want the values that torch gives of {cells} cells in pools of {pool}; got others, up to {apart:g} off"
            )
    return ""


def some_placements(
    plan: PatchPlan, cells: tuple[int, int], step: int, pool: int, rows: int = 2, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Self-test inputs: heights, extents, tops, legality and weights; with boxes that do not fit and bins too high."""
    g = torch.Generator().manual_seed(seed)
    grid = (rows, 2, *(-(-side * pool // step) for side in cells))
    return (
        torch.randint(0, plan.levels + 2, (rows, *cells), generator=g, dtype=torch.int64, device="cpu").to(torch.uint8),
        torch.randint(0, min(cells) * pool + 2, (rows, 2, 2), generator=g, dtype=torch.int64, device="cpu"),
        torch.randint(0, plan.levels + 3, grid, generator=g, dtype=torch.int64, device="cpu").to(torch.uint8),
        torch.rand(grid, generator=g, dtype=torch.float32, device="cpu") < 0.7,
        torch.randn(plan.entries, generator=g, dtype=torch.float32, device="cpu")[plan.first_images],
    )
