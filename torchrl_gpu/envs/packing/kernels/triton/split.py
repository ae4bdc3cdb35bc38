"""Input of the kernel of irregular items, prepared in one small launch.

- The heightmap split by the phases of the grid step, so that neighbouring placements read neighbouring words.
- The same counted in whole units, in pairs of int16: a cell and the one a step further along x, which the neighbouring
  placement reads at the same time; and per tile a flag that the counts are exact.
- Per item the orientations sorted by extent, so that those of one extent are adjacent.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.triton.contact import MOST_COUNTED
from torchrl_gpu.envs.packing.types import Bin, Catalogue

# Cells of a program.
_TILE = 1024
# Orientations that are sorted at most: all pairs of them are compared.
_MOST_SORTED = 128


class Split(NamedTuple):
    """The heightmap split by the phases of the grid step, and sorted orientations.

    U = ceil(X / step), W = ceil(Y / step); phase (r, q) holds the cells (u·step + r, w·step + q). What is not requested
    is empty.

    Attributes:
        heights: Metres, 0 behind the wall, (N, step, step, U, W) float32.
        counts: The same in whole units, int32: a cell's count in the low half, in the high half that of (u + 1, w).
        maxima: Likewise, the maxima of the step × step cells that begin at a cell.
        exact: 1 where the counts of a tile are its heights, (N, number of tiles) int32.
        order: Orientations of each item sorted by extent, (M, O) int32.
    """

    heights: Tensor
    counts: Tensor
    maxima: Tensor
    exact: Tensor
    order: Tensor


def split(
    heightmap: Tensor,
    catalogue: Catalogue,
    bin_: Bin,
    *,
    counted: bool,
    ordered: bool,
    most: int = MOST_COUNTED.value,
    blocks: bool = False,
) -> Split:
    """Return the `Split` of heightmaps, without a host read.

    They are (N, X, Y) float32 and contiguous. Heights of more than `most` units are not counted.
    """
    num_envs = len(heightmap)
    step = bin_.step
    length_x, length_y = bin_.grid
    cells = step * step * length_x * length_y
    num_tiles = triton.cdiv(cells, _TILE)
    num_sorted = catalogue.num_items if ordered else 0
    phases = (num_envs, step, step, length_x, length_y)
    heights = heightmap if step == 1 else heightmap.new_empty(phases)
    counts = heightmap.new_empty(phases if counted else 0, dtype=torch.int32)
    maxima = heightmap.new_empty(phases if blocks else 0, dtype=torch.int32)
    exact = heightmap.new_empty((num_envs, num_tiles) if counted else 0, dtype=torch.int32)
    shape = (num_sorted, catalogue.num_orientations)
    order = heightmap.new_empty(shape if ordered else 0, dtype=torch.int32)
    split_tiles = num_envs * num_tiles if step > 1 or counted else 0
    if split_tiles + num_sorted:
        tensors = (heightmap, heights, counts, maxima, exact, catalogue.extent, order)
        numbers = (split_tiles, 1.0 / (catalogue.unit or 1.0), catalogue.num_orientations)
        sizes = {"X": bin_.cells[0], "Y": bin_.cells[1], "STEP": step, "TILES": num_tiles, "TILE": _TILE}
        sizes["PADDED"] = triton.next_power_of_2(catalogue.num_orientations) if ordered else 1
        flags = {"COUNTED": counted, "MOST": most, "BLOCKS": blocks}
        launch = split_kernel[(split_tiles + num_sorted,)]
        launch(*tensors, *numbers, **sizes, **flags, enable_fp_fusion=False, num_warps=4)
    return Split(heights, counts, maxima, exact, order)


def sortable(catalogue: Catalogue) -> bool:
    """Return whether a catalogue has few enough orientations to sort."""
    return catalogue.num_orientations <= _MOST_SORTED


@triton.jit
def cell_at(x, y, X, Y, STEP: tl.constexpr):
    """Index of cell (x, y) in the split heightmap of a bin."""
    length_x = (X + STEP - 1) // STEP
    length_y = (Y + STEP - 1) // STEP
    row = x % STEP * (STEP * length_x * length_y) + x // STEP * length_y
    return row + (y % STEP * (length_x * length_y) + y // STEP)


@triton.jit(do_not_specialize=["split_tiles", "orientations"])
def split_kernel(
    heightmap, heights, counts, maxima, exact, extent, order, split_tiles, per_unit, orientations,
    X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr, COUNTED: tl.constexpr, MOST: tl.constexpr,
    BLOCKS: tl.constexpr, PADDED: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """`split`: one tile of one bin per program.

    Further programs sort the orientations of one item each.
    """
    pid = tl.program_id(0).to(tl.int64)
    if pid < split_tiles:
        env = pid // TILES
        tile = (pid % TILES).to(tl.int32)
        length_x: tl.constexpr = (X + STEP - 1) // STEP
        length_y: tl.constexpr = (Y + STEP - 1) // STEP
        cells: tl.constexpr = STEP * STEP * length_x * length_y
        at = tile * TILE + tl.arange(0, TILE)
        x = at // length_y % length_x * STEP + at // (STEP * length_x * length_y)
        y = at % length_y * STEP + at // (length_x * length_y) % STEP
        inside = (at < cells) & (x < X) & (y < Y)
        height = tl.load(heightmap + env * (X * Y) + (x * Y + y), mask=inside, other=0.0)
        if STEP > 1:
            tl.store(heights + env * cells + at, height, mask=at < cells)
        if COUNTED:
            beside = inside & (x + STEP < X)
            next_height = tl.load(heightmap + env * (X * Y) + ((x + STEP) * Y + y), mask=beside, other=0.0)
            count, whole = _count(height, per_unit, MOST)
            next_count, _ = _count(next_height, per_unit, MOST)
            tl.store(counts + env * cells + at, count | (next_count << 16), mask=at < cells)
            if BLOCKS:
                of_bin = heightmap + env * (X * Y)
                most = _highest(of_bin, x, y, inside, X, Y, STEP)
                next_most = _highest(of_bin, x + STEP, y, beside, X, Y, STEP)
                most_count, _ = _count(most, per_unit, MOST)
                next_count, _ = _count(next_most, per_unit, MOST)
                tl.store(maxima + env * cells + at, most_count | (next_count << 16), mask=at < cells)
            tl.store(exact + pid, tl.min(whole.to(tl.int32), 0))
    else:
        item = pid - split_tiles
        index = tl.arange(0, PADDED)
        side = extent + (item * orientations + index) * 2
        side_x = tl.load(side, mask=index < orientations, other=32767).to(tl.int32)
        side_y = tl.load(side + 1, mask=index < orientations, other=32767).to(tl.int32)
        key = side_x * 32768 + side_y
        same = (key[None, :] == key[:, None]) & (index[None, :] < index[:, None])
        before = (key[None, :] < key[:, None]) | same
        rank = tl.sum(before.to(tl.int32), 1)
        tl.store(order + item * orientations + rank, index, mask=index < orientations)


@triton.jit
def _highest(heightmap, x, y, inside, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr):
    """Maxima of the STEP × STEP cells of a bin that begin at a cell.

    What lies behind the wall counts as 0.
    """
    most = tl.zeros(x.shape, tl.float32)
    for cell in range(STEP * STEP):
        at_x = x + cell // STEP
        at_y = y + cell % STEP
        mask = inside & (at_x < X) & (at_y < Y)
        most = tl.maximum(most, tl.load(heightmap + (at_x * Y + at_y), mask=mask, other=0.0))
    return most


@triton.jit
def _count(height, per_unit, MOST: tl.constexpr):
    """Height in whole units, int32, and whether the count is exact.

    The count is 0 where the height is not whole or too large.
    """
    count = tl.floor(height * per_unit + 0.5)
    whole = (tl.abs(height * per_unit - count) < 1e-3) & (count >= 0) & (count <= MOST)
    return tl.where(whole, count, 0.0).to(tl.int32), whole
