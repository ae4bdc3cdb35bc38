"""First contact of irregular items in Triton.

This inner loop takes nearly all of the time. V items rest on T placements, or pairs of placements: V·T results stay in
registers while the cells of the footprint pass by, so that a height is read once for V add-maxima and a bottom once for
T. Cells pass by in the order of the phases of the grid step: within a phase neighbouring placements read neighbouring
words. A placement flush with the wall begins in another phase than its neighbours; only its address differs. Cells of
the padding are never visited.

Whole heights are counted in int16, two placements to a register: Hopper and the Blackwell of data centres add and
maximise both in one instruction (VIADDMNMX.S16x2), other Blackwells in two (VIADD.16x2, VIMNMX.S16x2). A bottom becomes
a count inside an addition: the low half of `1.5·2²³ − b/unit` as a float is the count of −b. In bins of up to 255
units it is read from a table of bytes, see `undersides`.

Of a placement whose height is known from before, only the cells can matter that lie in the part of the bin that has
changed since: heights only rise. A tile of placements visits the cells that any of them puts there.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

# Units that are counted: twice as many, less one, still fit int16.
MOST_COUNTED = tl.constexpr(16383)

# A float of this size counts in ones, and the low half of its bits is 0.
_ORIGIN = tl.constexpr(12582912.0)


@triton.jit
def reached(x, last_x, y, p, q, there, window):
    """Cells of a footprint that some of T placements put into a window of cells.

    They are the first and one past the last, along x and along y. Each of T lanes has placements at `x` to `last_x`.
    The window is (x0, x1, y0, y1). Placements that are not `there` do not count, and without any there are no cells.
    """
    most = 1 << 30
    low_x = tl.min(tl.where(there, x, most), 0)
    high_x = tl.max(tl.where(there, last_x, -most), 0)
    low_y = tl.min(tl.where(there, y, most), 0)
    high_y = tl.max(tl.where(there, y, -most), 0)
    first_i = tl.maximum(window[0] - high_x, 0)
    end_i = tl.minimum(window[1] - low_x, p)
    first_j = tl.maximum(window[2] - high_y, 0)
    end_j = tl.minimum(window[3] - low_y, q)
    return first_i, end_i, first_j, end_j


@triton.jit
def _of_phase(first, end, phase, STEP: tl.constexpr):
    """Cells of a phase among the cells [first, end) of a footprint.

    They are counted within the phase.
    """
    return tl.maximum(first - phase + STEP - 1, 0) // STEP, tl.maximum(end - phase + STEP - 1, 0) // STEP


@triton.jit
def first_contact(
    highest, heights, low, x, y, cells, per_unit, X, Y, pitch,
    PAIRS: tl.constexpr, PACKED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Highest `h − b` over some cells of V items of one extent at T placements.

    Args:
        highest: (V, T) float32, metres, or int32, a pair of counts: what is known already, at least 0.
        heights: The split heightmap of one bin: float32, metres; or, for pairs, int32: the count of a cell in the low
            half, that of the cell a step further along x in the high half.
        low: (V,) pointers to bottoms, float32, metres, of rows `pitch` apart.
        x, y: (T,) int32, first cell of each placement; of a pair, that of its first.
        cells: Cells of the footprint as from `reached`.
        PAIRS: Whether whole units are counted, two placements to an int32.
        PACKED: Whether the device has instructions for pairs of int16.
    """
    first_i, end_i, first_j, end_j = cells
    length_y = (Y + STEP - 1) // STEP
    plane = (X + STEP - 1) // STEP * length_y
    for r in range(tl.minimum(end_i, STEP)):
        rows = (x + r) % STEP * (STEP * plane) + (x + r) // STEP * length_y
        first_a, end_a = _of_phase(first_i, end_i, r, STEP)
        for c in range(tl.minimum(end_j, STEP)):
            phase = heights + (rows + (y + c) % STEP * plane + (y + c) // STEP)
            first_b, end_b = _of_phase(first_j, end_j, c, STEP)
            for a in range(first_a, end_a):
                height_row = phase + a * length_y
                low_row = low + ((a * STEP + r) * pitch + c)
                for b in tl.range(first_b, end_b, loop_unroll_factor=2):
                    height = tl.load(height_row + b)
                    bottom = tl.load(low_row + b * STEP)
                    if PAIRS:
                        highest = _add_max(height[None, :], _below(bottom, per_unit, PACKED)[:, None], highest, PACKED)
                    else:
                        highest = tl.maximum(highest, height[None, :] - bottom[:, None])
    return highest


@triton.jit
def first_contact_of_bytes(
    highest, maps, undersides, x, y, cells, X, Y, length, width,
    PACKED: tl.constexpr, STEP: tl.constexpr, V: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """As `first_contact`, for items whose undersides are bytes.

    Results are pairs of counts, 255 above their own. A block of STEP × STEP cells can raise no placement that rests
    higher already than the highest cell below the block on the lowest cell of the block. So one cell of each block is
    visited first, and then the others of those blocks alone that could still raise one of the placements; between two
    such blocks of a row, all. Most blocks cannot.

    Args:
        maps: Pointers to the counts of one bin, and to the maxima over the blocks that begin at each cell.
        undersides: Pointers to `words`, `spans` and `blocks` of a group of `undersides.Undersides`, of `length` rows of
            `width` cells a phase.
        LENGTH: `length`, padded to a power of two.
    """
    heights, maxima = maps
    words, spans, blocks = undersides
    first_i, end_i, first_j, end_j = cells
    length_y = (Y + STEP - 1) // STEP
    plane = (X + STEP - 1) // STEP * length_y
    corner = x % STEP * (STEP * plane) + x // STEP * length_y + (y % STEP * plane + y // STEP)
    highest = _visit_phase(
        highest, heights + corner, words, spans, _of_phase(first_i, end_i, 0, STEP), _of_phase(first_j, end_j, 0, STEP),
        length_y, width, PACKED, V,
    )  # fmt: skip

    # Of each row of blocks the first that could raise a placement, and one past the last.
    row = tl.arange(0, LENGTH)
    open_blocks = tl.zeros([LENGTH], tl.int32)
    first_row = 1 << 14
    end_row = 0
    for a in range(first_i // STEP, tl.maximum(end_i + STEP - 1, 0) // STEP):
        first = 1 << 14
        end = 0
        for b in range(first_j // STEP, tl.maximum(end_j + STEP - 1, 0) // STEP):
            most = tl.load(maxima + corner + (a * length_y + b))
            above = _bytes_in_pairs(tl.load(blocks + a * width + b), PACKED, V)
            could = _add_max(most[None, :], above[:, None], highest, PACKED) ^ highest
            raises = tl.reduce(tl.reduce(could, 0, _either), 0, _either) != 0
            first = tl.where(raises, tl.minimum(first, b), first)
            end = tl.where(raises, b + 1, end)
        open_blocks = tl.where(row == a, first | (end << 16), open_blocks)
        first_row = tl.where(end > 0, tl.minimum(first_row, a), first_row)
        end_row = tl.where(end > 0, a + 1, end_row)

    for phase in range(1, STEP * STEP):
        r = phase // STEP
        c = phase % STEP
        rows = (x + r) % STEP * (STEP * plane) + (x + r) // STEP * length_y
        here = heights + (rows + (y + c) % STEP * plane + (y + c) // STEP)
        first_a, end_a = _of_phase(first_i, end_i, r, STEP)
        first_b, end_b = _of_phase(first_j, end_j, c, STEP)
        of_phase = phase * length
        for a in range(tl.maximum(first_a, first_row), tl.minimum(end_a, end_row)):
            reach = tl.sum(tl.where(row == a, open_blocks, 0), 0)
            span = tl.load(spans + of_phase + a)
            begin = tl.maximum(tl.maximum(first_b, span & 0xFFFF), reach & 0xFFFF)
            end = tl.minimum(tl.minimum(end_b, span >> 16), reach >> 16)
            highest = _visit_row(highest, here + a * length_y, words + (of_phase + a) * width, begin, end, PACKED, V)
    return highest


@triton.jit
def _visit_phase(highest, here, words, spans, rows, columns, length_y, width, PACKED: tl.constexpr, V: tl.constexpr):
    """`highest` after the cells of the first phase."""
    for a in range(rows[0], rows[1]):
        span = tl.load(spans + a)
        begin = tl.maximum(columns[0], span & 0xFFFF)
        end = tl.minimum(columns[1], span >> 16)
        highest = _visit_row(highest, here + a * length_y, words + a * width, begin, end, PACKED, V)
    return highest


@triton.jit
def _visit_row(highest, heights, words, begin, end, PACKED: tl.constexpr, V: tl.constexpr):
    """`highest` after a range of cells of a row of a phase."""
    for b in tl.range(begin, end, loop_unroll_factor=4):
        height = tl.load(heights + b)
        above = _bytes_in_pairs(tl.load(words + b), PACKED, V)
        highest = _add_max(height[None, :], above[:, None], highest, PACKED)
    return highest


@triton.jit
def _either(first, second):
    return first | second


@triton.jit
def _bytes_in_pairs(word, PACKED: tl.constexpr, V: tl.constexpr):
    """The lowest V bytes of a word, each in both halves of an int32, (V,)."""
    number = tl.arange(0, V)
    if PACKED:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, 0, $2;",
            "=r,r,r",
            [word + number * 0, number * 0x0101 + 0x4040],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:  # noqa: RET505 (a constexpr decides)
        return ((word >> (8 * number)) & 0xFF) * 0x10001


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
