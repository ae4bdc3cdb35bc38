"""Orientations and placements of a program of `drop_solids_kernel`.

These device functions are called again after the loop over cells, since keeping their results through it would take
registers.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def present(item, num_items):
    """Item indices, with −1 for any that is no row of the catalogue."""
    return tl.where((item >= 0) & (item < num_items), item, -1)


@triton.jit
def variants(source, orientations, X, V: tl.constexpr):
    """The V orientations of a group, their catalogue rows and extents, (V,) each.

    An empty slot fits nowhere.

    Args:
        source: Pointers to the item, to the order of orientations, to extents and bottoms of the catalogue; the number
            of the group; and the number of items of the catalogue.
        orientations: O.
        X: Cells of the bin along x.
    """
    item_id, order, extent, _bottom, group, num_items = source
    item = present(tl.load(item_id), num_items)
    row = tl.maximum(item, 0)
    orientation = group * V + tl.arange(0, V)
    if V > 1:
        orientation = tl.load(order + row * orientations + orientation).to(tl.int64)
    variant = row * orientations + orientation
    p = tl.where(item >= 0, tl.load(extent + variant * 2), X + 1).to(tl.int32)
    return orientation, variant, p, tl.load(extent + variant * 2 + 1).to(tl.int32)


@triton.jit
def sharers(source, turn, orientations, X, cells, V: tl.constexpr):
    """Orientations of a group that share the extent of the one in `turn`.

    Returns:
        Pointers to their bottoms, for others to that of the one in turn, (V,); which of them share, (V,); whether the
        one in turn is the first of them; the extent.
    """
    index = tl.arange(0, V)
    _orientation, variant, p, q = variants(source, orientations, X, V)
    p_now = tl.sum(tl.where(index == turn, p, 0), 0)
    q_now = tl.sum(tl.where(index == turn, q, 0), 0)
    mine = (p == p_now) & (q == q_now)
    leader = tl.sum(tl.where(index == turn, variant, 0), 0)
    leads = tl.min(tl.where(mine, index, V), 0) == turn
    return source[3] + tl.where(mine, variant, leader) * cells, mine, leads, p_now, q_now


@triton.jit
def work(start, p, q, window, X, Y, PAIRS: tl.constexpr, STEP: tl.constexpr, T: tl.constexpr):
    """T placements, or pairs along x, that fit and touch a window (x0, x1, y0, y1).

    They are those from `start` on.

    Returns:
        Placement along x, the first of a pair, and along y; whether there is a second one, and whether there is a
        first. (T,) each.
    """
    first_x, last_x = touched(p, window[0], window[1], X, STEP)
    first_y, last_y = touched(q, window[2], window[3], Y, STEP)
    width = last_y - first_y
    rows = last_x - first_x
    if PAIRS:
        # The flush placement begins in another phase than the one before it: it stays single.
        flush = ((rows > 0) & ((last_x - 1) * STEP > X - p)).to(tl.int32)
        in_pairs = rows - flush
        rows = (in_pairs + 1) // 2 + flush
    lane = start + tl.arange(0, T)
    there = lane < rows * width
    lane = tl.where(there, lane, 0)
    row = lane // tl.maximum(width, 1)
    column = lane % tl.maximum(width, 1)
    if PAIRS:
        alone = (flush > 0) & (row == rows - 1)
        gx = tl.where(alone, last_x - 1, first_x + 2 * row)
        paired = ~alone & (2 * row + 1 < in_pairs)
    else:
        gx = first_x + row
        paired = lane < 0
    return gx, first_y + column, paired, there


@triton.jit
def num_fitting(extent, cells, STEP: tl.constexpr):
    """Number of placements of a footprint along one axis, a flush one included."""
    room = cells - extent
    return tl.where(room >= 0, tl.minimum((tl.maximum(room, 0) + STEP - 1) // STEP + 1, (cells + STEP - 1) // STEP), 0)


@triton.jit
def touched(extent, start, end, cells, STEP: tl.constexpr):
    """Fitting placements along one axis whose footprint meets the cells [start, end).

    They are the first, and one past the last.
    """
    first = tl.where(start >= extent, (start - extent) // STEP + 1, 0)
    fitting = num_fitting(extent, cells, STEP)
    last = tl.minimum(fitting, (end + STEP - 1) // STEP)
    # The last placement may be flush with the wall, before its place on the grid.
    last = tl.where(cells - extent < end, fitting, last)
    return first, tl.maximum(last, first)
