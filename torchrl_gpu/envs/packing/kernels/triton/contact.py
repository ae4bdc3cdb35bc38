"""First contact of irregular items in Triton: the inner loop, which takes nearly all of the time.

V items rest on T placements, or pairs of placements: V·T results stay in registers while the cells of the footprint
pass by, so that a height is read once for V add-maxima and a bottom once for T. Cells pass by in the order of the
phases of the grid step: within a phase neighbouring placements read neighbouring words. A placement flush with the wall
begins in another phase than its neighbours; only its address differs. Cells of the padding are never visited.

Whole heights are counted in int16, two placements to a register: Hopper and the Blackwell of data centres add and
maximise both in one instruction (VIADDMNMX.S16x2), other Blackwells in two (VIADD.16x2, VIMNMX.S16x2). A bottom becomes
a count inside an addition: the low half of `1.5·2²³ − b/unit` as a float is the count of −b.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

MOST_COUNTED = tl.constexpr(16383)  # units: twice as many, less one, still fit int16

# A float of this size counts in ones, and the low half of its bits is 0.
_ORIGIN = tl.constexpr(12582912.0)


@triton.jit
def first_contact(
    heights, low, x, y, p, q, per_unit, X, Y, pitch,
    PAIRS: tl.constexpr, PACKED: tl.constexpr, STEP: tl.constexpr, V: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Highest `h − b` over the cells of V items that share the extent p × q at T placements, at least 0.

    Args:
        heights: The split heightmap of one bin: float32, metres; or, for pairs, int32: the count of a cell in the low
            half, that of the cell a step further along x in the high half.
        low: (V,) pointers to bottoms, float32, metres, of rows `pitch` apart.
        x, y: (T,) int32, first cell of each placement; of a pair, that of its first.
        PAIRS: True to count whole units, two placements to an int32.
        PACKED: True where the device has instructions for pairs of int16.

    Returns:
        (V, T) float32, metres, or int32, a pair of counts.
    """
    length_y = (Y + STEP - 1) // STEP
    plane = (X + STEP - 1) // STEP * length_y
    highest = tl.zeros([V, T], tl.int32 if PAIRS else tl.float32)
    for r in range(tl.minimum(p, STEP)):
        rows = (x + r) % STEP * (STEP * plane) + (x + r) // STEP * length_y
        for c in range(tl.minimum(q, STEP)):
            phase = heights + (rows + (y + c) % STEP * plane + (y + c) // STEP)
            for a in range((p - r + STEP - 1) // STEP):
                height_row = phase + a * length_y
                low_row = low + ((a * STEP + r) * pitch + c)
                for b in tl.range((q - c + STEP - 1) // STEP, loop_unroll_factor=2):
                    height = tl.load(height_row + b)
                    bottom = tl.load(low_row + b * STEP)
                    if PAIRS:
                        highest = _add_max(height[None, :], _below(bottom, per_unit, PACKED)[:, None], highest, PACKED)
                    else:
                        highest = tl.maximum(highest, height[None, :] - bottom[:, None])
    return highest


@triton.jit
def _below(bottom, per_unit, PACKED: tl.constexpr):
    """Count of −b, in both halves of an int32."""
    # Clamped, so that +inf, no material, counts as less than any height can make up for.
    count = tl.maximum(tl.fma(-bottom, per_unit, _ORIGIN), _ORIGIN - MOST_COUNTED - 1)
    bits = count.to(tl.int32, bitcast=True)
    if PACKED:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $1, 0x1010;", "=r,r", [bits], dtype=tl.int32, is_pure=True, pack=1
        )
    else:  # noqa: RET505 (a constexpr decides)
        return (bits << 16) | (bits & 0xFFFF)


@triton.jit
def _add_max(height, below, highest, PACKED: tl.constexpr):
    """max(height + below, highest), on pairs of int16."""
    if PACKED:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 sum; add.s16x2 sum, $1, $2; max.s16x2 $0, sum, $3; }",
            "=r,r,r,r",
            [height, below, highest],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:  # noqa: RET505 (a constexpr decides)
        first = tl.maximum(((height << 16) + (below << 16)) >> 16, (highest << 16) >> 16)
        second = tl.maximum((height >> 16) + (below >> 16), highest >> 16)
        return (second << 16) | (first & 0xFFFF)


@triton.jit
def counted(pairs, half):
    """Counts, float32, of the first (half 0) or second (half 1) placement of pairs."""
    return ((pairs << (16 * (1 - half))) >> 16).to(tl.float32)
