"""`drop_map` of irregular items in Triton: every placement of every item in one launch.

A program works out a tile of T placements of V orientations that share an extent, hence also their placements. While
the footprint's cells pass by, the V·T results stay in registers: a height is read once for V add-maxima, a bottom once
for T. That matters because a multiprocessor reads 32 words a clock and adds-and-maximises 64.

Cells pass by in the order of the phases of the grid step: within a phase neighbouring placements read neighbouring
words, and the words that a tile needs fit the first-level cache. A placement flush with the wall begins in another
phase than its neighbours; only its address differs. Cells of the padding are never visited.

Where heights are whole units they are counted: int16 in memory, int32 in registers, where Hopper adds and maximises in
one instruction (VIADDMNMX). A bottom becomes a count inside an addition: `1.5·2²³ − b/unit` as a float has the count in
its low bits, and no material, −inf, is less than all. Pairs of int16 in one register would halve the work once more,
but want two placements in one word at any shift, hence rows stored twice, and two more instructions per bottom.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.triton_split import sortable, split
from torchrl_gpu.envs.packing.kernels.triton_stability import stands
from torchrl_gpu.envs.packing.types import Bin, Catalogue

if TYPE_CHECKING:
    from torchrl_gpu.envs.packing.kernels import Kept

# 1.5·2²³: a float of this size counts in ones, and its bits go up by one with it.
_ORIGIN = tl.constexpr(12582912.0)
_ORIGIN_BITS = tl.constexpr(0x4B400000)

# Results per thread, by stability rule: more reuse what is read better, until the registers of the rule's second pass
# no longer fit.
RESULTS_PER_THREAD = {"none": 32, "corners": 16, "support": 8}
MOST_THREADS = 64  # per program; small programs waste less of the last tile


class Blocks(NamedTuple):
    """How the work is cut: a pure function of shapes, so that a call can be captured in a graph.

    Attributes:
        variants: V, orientations per program.
        placements: T, placements per program.
        num_warps: Warps per program.
    """

    variants: int
    placements: int
    num_warps: int


def blocks(catalogue: Catalogue, bin_: Bin) -> Blocks:
    """The cut for a catalogue and a bin.

    Orientations share a program where their extents are the same for every item, as they are for half turns.
    """
    alike = Counter(zip(catalogue.bounds, catalogue.least, strict=True)).values()
    variants = next(v for v in (4, 2, 1) if all(count % v == 0 for count in alike))
    variants = variants if sortable(catalogue) else 1
    per_thread = max(1, RESULTS_PER_THREAD[bin_.stability] // variants)
    grid = bin_.grid[0] * bin_.grid[1]
    threads = min(MOST_THREADS, max(32, triton.next_power_of_2(triton.cdiv(grid, per_thread))))
    placements = min(threads * per_thread, max(32, triton.next_power_of_2(grid)))
    return Blocks(variants, placements, threads // 32)


def drop_solids(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, kept: Kept | None
) -> tuple[Tensor, Tensor]:
    """As `reference.drop_map`, for catalogues with maps; arguments contiguous."""
    assert catalogue.bottom is not None
    num_envs, num_slots = item_id.shape
    num_orientations, (grid_x, grid_y) = catalogue.num_orientations, bin_.grid
    cut = blocks(catalogue, bin_)
    read = split(heightmap, catalogue, bin_, ordered=cut.variants > 1)
    z_map = heightmap.new_empty(num_envs, num_slots, num_orientations, grid_x, grid_y)
    legal = torch.empty_like(z_map, dtype=torch.bool)
    num_tiles = triton.cdiv(grid_x * grid_y, cut.placements)
    earlier = (z_map, legal, item_id, item_id) if kept is None else tuple(each.contiguous() for each in kept)
    unit = catalogue.unit or 1.0
    drop_solids_kernel[(num_envs * num_slots * (num_orientations // cut.variants) * num_tiles,)](
        read.heights,
        read.counts,
        read.exact,
        read.order,
        item_id,
        catalogue.extent,
        catalogue.height,
        catalogue.bottom.contiguous(),
        earlier[0],
        earlier[1].view(torch.uint8),
        earlier[2],
        earlier[3],
        z_map,
        legal.view(torch.uint8),
        bin_.size[2],
        float(np.float32(bin_.size[2]) + np.float32(bin_.tolerance)),
        bin_.tolerance,
        unit,
        1.0 / unit,
        K=num_slots,
        ORIENTATIONS=num_orientations,
        X=bin_.cells[0],
        Y=bin_.cells[1],
        STEP=bin_.step,
        ROWS=catalogue.bottom.shape[-2],
        COLUMNS=catalogue.bottom.shape[-1],
        RULE=bin_.stability,
        V=cut.variants,
        T=cut.placements,
        TILES=num_tiles,
        EXACT_TILES=read.exact.shape[-1],
        EXACT_PADDED=triton.next_power_of_2(read.exact.shape[-1]),
        COUNTED=catalogue.unit is not None,
        KEPT=kept is not None,
        enable_fp_fusion=False,
        num_warps=cut.num_warps, maxnreg=168,
    )
    return z_map, legal


@triton.jit
def drop_solids_kernel(
    heights,
    counts,
    exact,
    order,
    item_id,
    extent,
    item_height,
    bottom,
    kept_z,
    kept_legal,
    kept_slot,
    changed,
    z_map,
    legal,
    ceiling,
    limit,
    tolerance,
    unit,
    per_unit,
    K: tl.constexpr,
    ORIENTATIONS: tl.constexpr,
    X: tl.constexpr,
    Y: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RULE: tl.constexpr,
    V: tl.constexpr,
    T: tl.constexpr,
    TILES: tl.constexpr,
    EXACT_TILES: tl.constexpr,
    EXACT_PADDED: tl.constexpr,
    COUNTED: tl.constexpr,
    KEPT: tl.constexpr,
):
    """A tile of placements of V orientations of one visible item per program.

    A program has two shares, each a tile of its own list: of all placements, where it writes those that need no work;
    of those that do, which lie together in a rectangle of the grid, where it works.
    """
    GX: tl.constexpr = (X + STEP - 1) // STEP
    GY: tl.constexpr = (Y + STEP - 1) // STEP
    pid = tl.program_id(0).to(tl.int64)
    tile = (pid % TILES).to(tl.int32)
    group = pid // TILES % (ORIENTATIONS // V)
    slot = pid // (TILES * (ORIENTATIONS // V))
    env = slot // K
    index = tl.arange(0, V)
    lane = tile * T + tl.arange(0, T)

    item = tl.load(item_id + slot)
    present = item >= 0
    row = tl.where(present, item, 0)
    orientation = group * V + index
    if V > 1:
        orientation = tl.load(order + row * ORIENTATIONS + orientation).to(tl.int64)
    variant = row * ORIENTATIONS + orientation
    p = tl.where(present, tl.load(extent + variant * 2).to(tl.int32), X + 1)  # an empty slot fits nowhere
    q = tl.load(extent + variant * 2 + 1).to(tl.int32)
    high = tl.load(item_height + variant)
    out = (slot * ORIENTATIONS + orientation) * (GX * GY)

    x0, x1, y0, y1 = 0, X, 0, Y
    from_slot = slot
    if KEPT:
        held = tl.load(kept_slot + slot)
        from_slot = env * K + tl.maximum(held, 0)
        rectangle = changed + env * 4
        x0 = tl.where(held >= 0, tl.load(rectangle), 0).to(tl.int32)
        y0 = tl.where(held >= 0, tl.load(rectangle + 1), 0).to(tl.int32)
        x1 = tl.where(held >= 0, tl.load(rectangle + 2), X).to(tl.int32)
        y1 = tl.where(held >= 0, tl.load(rectangle + 3), Y).to(tl.int32)

    # What needs no work.
    gx, gy = (lane // GY)[None, :], (lane % GY)[None, :]
    from_x, to_x = _touched(p, x0, x1, X, STEP, GX)
    from_y, to_y = _touched(q, y0, y1, Y, STEP, GY)
    touched = (gx >= from_x[:, None]) & (gx < to_x[:, None]) & (gy >= from_y[:, None]) & (gy < to_y[:, None])
    untouched = (lane < GX * GY)[None, :] & ~touched
    z = tl.zeros([V, T], tl.float32) + ceiling
    stays = tl.zeros([V, T], tl.uint8)
    if KEPT:
        fits = (gx < _num_fitting(p, X, STEP, GX)[:, None]) & (gy < _num_fitting(q, Y, STEP, GY)[:, None])
        before = ((from_slot * ORIENTATIONS + orientation) * (GX * GY))[:, None] + lane[None, :]
        z = tl.load(kept_z + before, mask=untouched & fits, other=ceiling)
        stays = tl.load(kept_legal + before, mask=untouched & fits, other=0)
    tl.store(z_map + (out[:, None] + lane[None, :]), z, mask=untouched)
    tl.store(legal + (out[:, None] + lane[None, :]), stays, mask=untouched)

    is_exact = False
    if COUNTED:
        part = tl.arange(0, EXACT_PADDED)
        is_exact = tl.min(tl.load(exact + env * EXACT_TILES + part, mask=part < EXACT_TILES, other=1), 0) > 0

    # What does: one extent after the other, which is one only where the sorted orientations come in whole groups.
    cells: tl.constexpr = STEP * STEP * GX * GY
    for turn in range(V):
        p_now = tl.sum(tl.where(index == turn, p, 0), 0)
        q_now = tl.sum(tl.where(index == turn, q, 0), 0)
        mine = (p == p_now) & (q == q_now)
        leads = tl.min(tl.where(mine, index, V), 0) == turn
        first_x, last_x = _touched(p_now, x0, x1, X, STEP, GX)
        first_y, last_y = _touched(q_now, y0, y1, Y, STEP, GY)
        width = last_y - first_y
        num_touched = tl.maximum(last_x - first_x, 0) * tl.maximum(width, 0)
        if leads & (tile * T < num_touched):
            at = tl.minimum(lane, num_touched - 1)
            at_x, at_y = first_x + at // width, first_y + at % width
            x = tl.minimum(at_x * STEP, X - p_now)
            y = tl.minimum(at_y * STEP, Y - q_now)
            leader = tl.sum(tl.where(index == turn, variant, 0), 0)
            low = bottom + tl.where(mine, variant, leader) * (ROWS * COLUMNS)
            here = heights + env * cells
            if is_exact:
                there = counts + env * cells
                rest = unit * _first_contact(there, low, x, y, p_now, q_now, per_unit, True, X, Y, STEP, COLUMNS, V, T)
            else:
                rest = _first_contact(here, low, x, y, p_now, q_now, per_unit, False, X, Y, STEP, COLUMNS, V, T)
            fine = rest + high[:, None] <= limit
            if RULE != "none":
                held_up = stands(here, low, x, y, p_now, q_now, rest, tolerance, RULE, False, X, Y, STEP, COLUMNS)
                fine = fine & held_up
            where = out[:, None] + (at_x * GY + at_y)[None, :]
            mask = mine[:, None] & (lane < num_touched)[None, :]
            tl.store(z_map + where, rest, mask=mask)
            tl.store(legal + where, fine.to(tl.uint8), mask=mask)


@triton.jit
def _num_fitting(extent, CELLS: tl.constexpr, STEP: tl.constexpr, GRID: tl.constexpr):
    """Placements of a footprint along one axis, the one flush with the wall included."""
    room = CELLS - extent
    return tl.where(room >= 0, tl.minimum((tl.maximum(room, 0) + STEP - 1) // STEP + 1, GRID), 0)


@triton.jit
def _touched(extent, start, end, CELLS: tl.constexpr, STEP: tl.constexpr, GRID: tl.constexpr):
    """First and last-but-one of the fitting placements along one axis whose footprint meets the cells [start, end)."""
    first = tl.where(start >= extent, (start - extent) // STEP + 1, 0)
    last = tl.minimum(_num_fitting(extent, CELLS, STEP, GRID), (end + STEP - 1) // STEP)
    # The last placement may stand flush with the wall, before its place on the grid.
    last = tl.where(CELLS - extent < end, _num_fitting(extent, CELLS, STEP, GRID), last)
    return first, tl.maximum(last, first)


@triton.jit
def _first_contact(
    heights,
    low,
    x,
    y,
    p,
    q,
    per_unit,
    INTEGER: tl.constexpr,
    X: tl.constexpr,
    Y: tl.constexpr,
    STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
    V: tl.constexpr,
    T: tl.constexpr,
):
    """Highest `h − b`, at least 0, of V items (p, q) on T placements; (V, T) float32, in units where `INTEGER`."""
    length_x: tl.constexpr = (X + STEP - 1) // STEP
    length_y: tl.constexpr = (Y + STEP - 1) // STEP
    plane: tl.constexpr = length_x * length_y
    if INTEGER:
        highest = tl.full([V, T], _ORIGIN_BITS, tl.int32)
    else:
        highest = tl.zeros([V, T], tl.float32)
    for r in range(tl.minimum(p, STEP)):
        rows = (x + r) % STEP * (STEP * plane) + (x + r) // STEP * length_y
        for c in range(tl.minimum(q, STEP)):
            phase = heights + (rows + (y + c) % STEP * plane + (y + c) // STEP)
            for a in range((p - r + STEP - 1) // STEP):
                height_row = phase + a * length_y
                low_row = low + ((a * STEP + r) * COLUMNS + c)
                for b in tl.range((q - c + STEP - 1) // STEP, loop_unroll_factor=4):
                    height = tl.load(height_row + b)
                    bottom = tl.load(low_row + b * STEP)
                    if INTEGER:
                        below = tl.fma(-bottom, per_unit, _ORIGIN).to(tl.int32, bitcast=True)
                        count = height.to(tl.uint16, bitcast=True).to(tl.int32)  # not negative
                        highest = tl.maximum(highest, count[None, :] + below[:, None])
                    else:
                        highest = tl.maximum(highest, height[None, :] - bottom[:, None])
    if INTEGER:
        return (highest - _ORIGIN_BITS).to(tl.float32)
    else:  # noqa: RET505 (a constexpr decides)
        return highest
