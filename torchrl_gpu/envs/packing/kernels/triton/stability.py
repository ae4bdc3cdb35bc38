"""Stability rules inside Triton kernels, for a tile of placements.

The fast forms of the rules in `packing.stability`, all in integers.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from torchrl_gpu.envs.packing.kernels.triton.split import cell_at

# Stability rules that these kernels have; all others are judged by `eager`, after the drop.
DROP_RULES = ("none", "corners", "support", "com")


@triton.jit
def stands(
    heights, low, x, y, p, q, z, centre, tolerance, X, Y, pitch,
    RULE: tl.constexpr, FLAT: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Stability of V items at rest at z (V, T) on T placements, (V, T).

    The rule is "corners", "support" or "com".

    Args:
        heights: The split heightmap of the bin, a pointer, or of the bin of each placement, (T,).
        low: (V,) pointers to the bottoms of the items, of rows `pitch` apart; not read for boxes.
        x, y: (T,) int32, first cell of each placement.
        p, q: Cells of the items: numbers, or for boxes (T,), 0 where there is no placement.
        centre: Pointers to the centres of mass of the items, (V, 1), int32 sixteenths of a cell from the corner of the
            footprint; read by "com" only, and not for boxes, whose centre is the middle.
        tolerance: Gaps up to this count as contact.
    """
    HULL: tl.constexpr = RULE == "support" or RULE == "com"
    # Units of a length to a cell.
    CELL: tl.constexpr = 16 if RULE == "com" else 2
    tl.static_assert(HULL or RULE == "corners", "a stability rule without a kernel")
    level = z - tolerance
    rows = p
    columns = q
    centre_x = (CELL // 2) * p
    centre_y = (CELL // 2) * q
    if FLAT:
        rows = tl.max(p, 0)
        columns = tl.max(q, 0)
        centre_x = centre_x[None, :]
        centre_y = centre_y[None, :]
    elif RULE == "com":
        centre_x = tl.load(centre)
        centre_y = tl.load(centre + 1)
    count = tl.zeros(z.shape, tl.int32)
    area = tl.zeros([z.shape[0]], tl.int32)
    # There is no slope yet: −1 / 0 is below all, and meets none.
    right_rise = tl.full(z.shape, -1, tl.int32)
    left_rise = tl.full(z.shape, -1, tl.int32)
    right_run = tl.zeros(z.shape, tl.int32)
    left_run = tl.zeros(z.shape, tl.int32)
    # Bit 1: the hull reaches the centre from its right; bit 2: from its left.
    held = tl.zeros(z.shape, tl.int32)
    for i in range(rows):
        right = tl.full(z.shape, -1, tl.int32)
        left = tl.full(z.shape, 32767, tl.int32)
        ahead = CELL * i + CELL // 2 - centre_x
        for j in range(columns):
            contact, material = touches(heights, low, x, y, i, j, p, q, level, X, Y, pitch, FLAT, STEP)
            if RULE != "com":
                count += contact.to(tl.int32)
                area += material
            if HULL:
                right = tl.where(contact, tl.maximum(right, j), right)
                left = tl.where(contact, tl.minimum(left, j), left)
            if RULE == "com":
                square = (tl.abs(ahead) <= 8) & (tl.abs(16 * j + 8 - centre_y) <= 8)
                held = tl.where(contact & square, 3, held)
        if HULL:
            there = right >= 0
            beyond_right = CELL * right + CELL // 2 - centre_y
            beyond_left = centre_y - CELL // 2 - CELL * left
            right_rise, right_run, right_held = join(right_rise, right_run, beyond_right, there, ahead)
            left_rise, left_run, left_held = join(left_rise, left_run, beyond_left, there, ahead)
            held = held | right_held.to(tl.int32) | (left_held.to(tl.int32) << 1)
    stable = held == 3
    if RULE != "com":
        whole = area[:, None]
        if FLAT:
            whole = (p * q)[None, :]
        if RULE == "support":
            stable = (count * 2 > whole) | ((count >= 2) & stable)
        else:
            corners = tl.zeros(z.shape, tl.int32)
            # A corner of a thin item counts twice.
            for corner in tl.static_range(4):
                far_i = corner // 2 * (p - 1)
                far_j = corner % 2 * (q - 1)
                contact, _ = touches(heights, low, x, y, far_i, far_j, p, q, level, X, Y, pitch, FLAT, STEP)
                corners += contact.to(tl.int32)
            stable = (count * 20 > whole * 19) | ((corners == 3) & (count * 20 > whole * 17))
            stable = stable | ((corners == 4) & (count * 2 > whole))
        stable = stable | (z <= tolerance)
    return stable


@triton.jit
def touches(heights, low, x, y, i, j, p, q, level, X, Y, pitch, FLAT: tl.constexpr, STEP: tl.constexpr):
    """Whether footprint cell (i, j) of V items touches at T placements, (V, T).

    The second result is 1 for each item with material there.
    """
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
def join(rise, run, reach, there, ahead):
    """Steepest slope before the centre's row, with one more row.

    The slope is rise over run. The furthest contact of that row lies `reach` beyond the centre. Third result: True
    where the hull reaches the centre by that contact.
    """
    joined = reach * run + rise * ahead
    steeper = there & (ahead < 0) & (joined > 0)
    meets = there & (ahead >= 0) & (tl.where(ahead == 0, reach, joined) >= 0)
    return tl.where(steeper, reach, rise), tl.where(steeper, -ahead, run), meets
