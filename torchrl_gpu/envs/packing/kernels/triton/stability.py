"""Stability of a tile of placements inside a Triton kernel: the rules of `reference.stands`.

Counts are compared as integers, and so is all of "com". Slopes of "support" are ratios of integers that differ by far
more than their rounding where they differ at all, and are equal where those are equal, since the division rounds
correctly: so the hull test is exact.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from torchrl_gpu.envs.packing.kernels.triton.split import cell_at
from torchrl_gpu.envs.packing.types import Bin
from torchrl_gpu.system import arguments

RULES = ("none", "corners", "support", "com")  # of `stands` and `balances`, and none
_NONE = tl.constexpr(-1e4)  # slope where there is no contact
_SURE = tl.constexpr(1e6)  # slope of a contact on the centre's row that reaches the centre


def rule_of(bin_: Bin) -> str:
    """The bin's stability rule as a constant of the kernels; ValueError where they do not implement it."""
    return arguments.choice("triton", "stability", bin_.stability, RULES)


@triton.jit
def stands(
    heights,
    low,
    x,
    y,
    p,
    q,
    z,
    tolerance,
    X,
    Y,
    pitch,
    RULE: tl.constexpr,
    FLAT: tl.constexpr,
    STEP: tl.constexpr,
):
    """True where V items are stable at rest on T placements.

    Args:
        heights: The split heightmap of the bin, a pointer, or of the bin of each placement, (T,).
        low: (V,) pointers to the bottoms of the items; not read for boxes.
        x: (T,) int32, first cell of each placement.
        y: Likewise.
        p: Cells of the items along x: a number, or for boxes (T,), 0 where there is no placement.
        q: Likewise along y.
        z: (V, T) float32.
        tolerance: Heights closer than this are the same.
        X, Y: Cells of the bin.
        pitch: Cells from a row of the bottoms to the next.
        RULE: "corners" or "support".
        FLAT: True for boxes.
        STEP: Grid step by which `heights` is split.

    Returns:
        (V, T) bool.
    """
    level = z - tolerance
    rows, columns = p, q
    if FLAT:
        rows, columns = tl.max(p, 0), tl.max(q, 0)
    count = tl.zeros(z.shape, tl.int32)
    area = tl.zeros([z.shape[0]], tl.int32)
    right_before = tl.full(z.shape, _NONE, tl.float32)
    right_after = tl.full(z.shape, _NONE, tl.float32)
    left_before = tl.full(z.shape, _NONE, tl.float32)
    left_after = tl.full(z.shape, _NONE, tl.float32)
    for i in range(rows):
        right = tl.full(z.shape, -1, tl.int32)
        left = tl.full(z.shape, 32767, tl.int32)
        for j in range(columns):
            contact, material = _touches(heights, low, x, y, i, j, p, q, level, X, Y, pitch, FLAT, STEP)
            count += contact.to(tl.int32)
            area += material
            if RULE == "support":
                right = tl.where(contact, tl.maximum(right, j), right)
                left = tl.where(contact, tl.minimum(left, j), left)
        if RULE == "support":
            ahead = 2 * i - (p - 1)  # twice the rows from the centre
            width = q - 1
            if FLAT:
                ahead, width = ahead[None, :], width[None, :]
            right_before, right_after = _steepest(right_before, right_after, 2 * right - width, right >= 0, ahead)
            left_before, left_after = _steepest(left_before, left_after, width - 2 * left, right >= 0, ahead)
    whole = area[:, None]
    if FLAT:
        whole = (p * q)[None, :]
    if RULE == "support":
        meet = (right_before + right_after >= 0) & (left_before + left_after >= 0)
        held = (count * 2 > whole) | ((count >= 2) & meet)
    else:
        tl.static_assert(RULE == "corners", "a stability rule without a kernel")
        corners = tl.zeros(z.shape, tl.int32)
        for corner in tl.static_range(4):  # a corner of a thin item counts twice
            far_i, far_j = corner // 2 * (p - 1), corner % 2 * (q - 1)
            contact, _ = _touches(heights, low, x, y, far_i, far_j, p, q, level, X, Y, pitch, FLAT, STEP)
            corners += contact.to(tl.int32)
        held = (count * 20 > whole * 19) | ((corners == 3) & (count * 20 > whole * 17))
        held = held | ((corners == 4) & (count * 2 > whole))
    return held | (z <= tolerance)


@triton.jit
def _touches(
    heights,
    low,
    x,
    y,
    i,
    j,
    p,
    q,
    level,
    X,
    Y,
    pitch,
    FLAT: tl.constexpr,
    STEP: tl.constexpr,
):
    """True where footprint cell (i, j) of V items touches at T placements; 1 for each item with material there."""
    at = cell_at(x + i, y + j, X, Y, STEP)
    if FLAT:
        inside = (i >= 0) & (j >= 0) & (i < p) & (j < q)
        height = tl.load(heights + at, mask=inside, other=-float("inf"))
        return height[None, :] >= level, 0
    else:  # noqa: RET505 (a constexpr decides)
        bottom = tl.load(low + (i * pitch + j))
        height = tl.load(heights + at)
        return height[None, :] - bottom[:, None] >= level, (bottom < float("inf")).to(tl.int32)


@triton.jit
def _steepest(before, after, rise, there, ahead):
    """Steepest slopes before and after the centre's row, updated with a row that is `ahead` of it."""
    slope = tl.div_rn(rise.to(tl.float32), tl.maximum(tl.abs(ahead), 1).to(tl.float32))
    slope = tl.where(ahead == 0, tl.where(rise >= 0, _SURE, _NONE), slope)
    before = tl.where(there & (ahead <= 0), tl.maximum(before, slope), before)
    after = tl.where(there & (ahead > 0), tl.maximum(after, slope), after)
    return before, after


@triton.jit
def balances(
    heights,
    low,
    x,
    y,
    p,
    q,
    z,
    centre_x,
    centre_y,
    tolerance,
    X,
    Y,
    pitch,
    FLAT: tl.constexpr,
    STEP: tl.constexpr,
):
    """True where V items are stable by the rule "com" on T placements, as `reference.holds`.

    Args:
        centre_x: Centre of mass, int32 sixteenths of a cell from the corner of the footprint; (V, 1), for boxes (1, T).
        centre_y: Likewise along y.
        tolerance: Gaps up to this count as contact.
        others: As in `stands`.

    Returns:
        (V, T) bool.
    """
    level = z - tolerance
    rows, columns = p, q
    if FLAT:
        rows, columns = tl.max(p, 0), tl.max(q, 0)
    right_rise = tl.full(level.shape, -1, tl.int32)  # no slope yet: −1 / 0 is below all, and meets none
    left_rise = tl.full(level.shape, -1, tl.int32)
    right_run = tl.zeros(level.shape, tl.int32)
    left_run = tl.zeros(level.shape, tl.int32)
    held = tl.zeros(level.shape, tl.int32)  # 1: the hull reaches the centre from its right, 2: from its left
    for i in range(rows):
        right = tl.full(level.shape, -32768, tl.int32)
        left = tl.full(level.shape, 32767, tl.int32)
        ahead = 16 * i + 8 - centre_x
        for j in range(columns):
            contact, _ = _touches(heights, low, x, y, i, j, p, q, level, X, Y, pitch, FLAT, STEP)
            right = tl.where(contact, tl.maximum(right, j), right)
            left = tl.where(contact, tl.minimum(left, j), left)
            square = (tl.abs(ahead) <= 8) & (tl.abs(16 * j + 8 - centre_y) <= 8)
            held = tl.where(contact & square, 3, held)
        there = right >= 0
        right_rise, right_run, right_held = _join(right_rise, right_run, 16 * right + 8 - centre_y, there, ahead)
        left_rise, left_run, left_held = _join(left_rise, left_run, centre_y - 8 - 16 * left, there, ahead)
        held = held | right_held.to(tl.int32) | (left_held.to(tl.int32) << 1)
    return held == 3


@triton.jit
def _join(rise, run, reach, there, ahead):
    """Steepest slope before the centre's row, rise over run, updated with one more row.

    The furthest contact of that row lies `reach` beyond the centre. Third result: True where the hull reaches the
    centre by that contact.
    """
    joined = tl.where(ahead == 0, reach, reach * run + rise * ahead)
    steeper = there & (ahead < 0) & (reach * run > rise * -ahead)
    return tl.where(steeper, reach, rise), tl.where(steeper, -ahead, run), there & (ahead >= 0) & (joined >= 0)
