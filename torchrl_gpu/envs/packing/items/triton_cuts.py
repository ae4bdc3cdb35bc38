"""Boxes cut from a bin in Triton, for CUDA devices.

`cutting.CutSequences` defines every draw and the order.

A program holds the pieces of one bin in registers and cuts only where neither of the last two sequences of its row is
wanted: in torch every look-up cuts all bins anew, in hundreds of launches. With `TRITON_INTERPRET=1` it runs on a CPU.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.packing.items.cutting import CutSequences, Kept, most_parts
from torchrl_gpu.envs.triton_draws import drawn, mixed


@triton.jit
def _at(values, lane, place):
    """Value at a place, as a scalar."""
    return tl.sum(tl.where(lane == place, values, 0), 0)


# Three numbers of 12 bits are packed into one, so that a box is read from the registers at once.


@triton.jit
def _first(packed):
    return packed & 4095


@triton.jit
def _second(packed):
    return packed >> 12 & 4095


@triton.jit
def _third(packed):
    return packed >> 24 & 4095


@triton.jit
def _is_long(size, max_side):
    return (_first(size) > max_side) | (_second(size) > max_side) | (_third(size) > max_side)


@triton.jit
def _axis(size, max_side, draw):
    """Draw one of the axes with a long side.

    Returns the bits by which the axis is shifted in a packed number, and the long side, 0 if there is none.
    """
    x = (_first(size) > max_side).to(tl.int64)
    y = (_second(size) > max_side).to(tl.int64)
    z = (_third(size) > max_side).to(tl.int64)
    which = draw * (x + y + z) >> 32
    shift = tl.where((x > 0) & (which == 0), 0, tl.where((y > 0) & (which == x), 12, 24)).to(tl.int64)
    return shift, tl.where(x + y + z > 0, size >> shift & 4095, 0)


@triton.jit
def _layers(key, whole, min_side, max_side, most, turns, lane):
    """Cut layers as `CutSequences._walked` does.

    Returns sizes, number of pieces, and their places in the order of arrival.
    """
    # Size, and the height of the base in the bits above.
    listed = tl.where(lane == 1, whole, 0)
    following = lane + 1
    is_listed = _is_long(whole, max_side).to(tl.int32)
    made = tl.where((lane == 0) & (is_listed == 0), whole, 0)
    zero = most - most
    count = 1 - is_listed
    end = 1 + is_listed
    cuts = zero
    before = zero
    step = zero
    here = before + 1
    while here < end:
        box = _at(listed, lane, here)
        shift, side = _axis(box, max_side, drawn(key, 2 * step))
        must = turns - step <= most - 1 - cuts
        lengths = tl.where(must, side - 2 * min_side + 1, side)
        length = tl.where(must, min_side, 1) + (drawn(key, 2 * step + 1) * lengths >> 32)
        after = _at(following, lane, here)
        if tl.minimum(length, side - length) >= min_side:
            low = tl.where(shift == 24, side - length, length)
            first = box - ((side - low) << shift)
            second = box - (low << shift) + tl.where(shift == 24, low << 36, 0)
            first_long, second_long = _is_long(first, max_side).to(tl.int32), _is_long(second, max_side).to(tl.int32)
            listed = tl.where((lane == end) & (first_long > 0), first, listed)
            listed = tl.where((lane == end + first_long) & (second_long > 0), second, listed)
            made = tl.where((lane == count) & (first_long == 0), first, made)
            made = tl.where((lane == count + 1 - first_long) & (second_long == 0), second, made)
            end += first_long + second_long
            count += 2 - first_long - second_long
            cuts += 1
            following = tl.where(lane == before, after, following)
            # The walk skips the next box.
            before = after
        else:
            before = here
        here = _at(following, lane, before)
        if here >= end:
            before = zero
            here = _at(following, lane, before)
        step += 1
    base = made >> 36
    place = lane * 0
    for j in range(count):
        other = _at(base, lane, j)
        place += ((other < base) | ((other == base) & (j < lane))).to(tl.int32)
    return made, count, place


@triton.jit
def _overlap(first, extent, other, other_extent):
    return (first < other + other_extent) & (other < first + extent)


@triton.jit
def _stack(key, whole, min_side, max_side, most, turns, levels, lane, P: tl.constexpr):
    """Cut a stack as `CutSequences._stacked` does.

    Returns sizes, number of pieces, and their places in the order of arrival.
    """
    size = tl.where(lane == 0, whole, 0)
    corner = size * 0
    count = most - most + 1
    for turn in range(turns):
        long = _is_long(size, max_side)
        i = tl.min(tl.where(long, lane, P), 0)
        while i < P:
            box = _at(size, lane, i)
            counter = 2 * (turn * most + i)
            shift, side = _axis(box, max_side, drawn(key, counter))
            at = min_side + (drawn(key, counter + 1) * (side - 2 * min_side + 1) >> 32)
            size = tl.where(lane == i, box - ((side - at) << shift), size)
            size = tl.where(lane == count, box - (at << shift), size)
            corner = tl.where(lane == count, _at(corner, lane, i) + (at << shift), corner)
            count += 1
            i = tl.min(tl.where(long & (lane > i), lane, P), 0)
    uniform = (drawn(key, lane + 2 * turns * most).to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
    early = uniform
    for _ in range(levels):
        least = uniform * 0 + 1.0
        for i in range(count):
            of, by = _at(corner, lane, i), _at(size, lane, i)
            carries = _third(of) + _third(by) == _third(corner)
            carries = carries & _overlap(_first(of), _first(by), _first(corner), _first(size))
            carries = carries & _overlap(_second(of), _second(by), _second(corner), _second(size))
            least = tl.where(carries, tl.minimum(least, _at(early, lane, i)), least)
        early = uniform * least
    place = lane * 0
    for j in range(count):
        other = _at(early, lane, j)
        place += ((other > early) | ((other == early) & (j < lane))).to(tl.int32)
    return size, count, place


@triton.jit
def sequence_of(
    n, wanted, kept_key, last, kept, X, Y, Z, min_side, max_side, most, turns, levels,
    LAYERS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Where in `kept` the sequence of a key begins, in row n.

    It is cut unless it is one of the row's last two. P lanes, at least `most` + 2. What the program wrote before this
    can be read after it.
    """
    lane = tl.arange(0, P)
    slot = tl.load(last + n)
    hit = tl.load(kept_key + 2 * n + slot) == wanted
    if not hit:
        slot = 1 - slot
        hit = tl.load(kept_key + 2 * n + slot) == wanted
    begin = (2 * n + slot) * most
    if not hit:
        mixed_key = mixed(wanted)
        whole = X.to(tl.int64) + (Y.to(tl.int64) << 12) + (Z.to(tl.int64) << 24)
        if LAYERS:
            size, count, place = _layers(mixed_key, whole, min_side, max_side, most, turns, lane)
        else:
            size, count, place = _stack(mixed_key, whole, min_side, max_side, most, turns, levels, lane, P)
        of_y = tl.minimum(Y, max_side) - min_side + 1
        of_z = tl.minimum(Z, max_side) - min_side + 1
        row = ((_first(size) - min_side) * of_y + _second(size) - min_side) * of_z + _third(size) - min_side
        rows = tl.where(lane < count, row, -1)
        place = tl.where(lane < count, place, lane)
        # All threads have now seen which sequences there were.
        tl.debug_barrier()
        tl.store(kept + begin + place, rows, mask=lane < most)
        tl.store(kept_key + 2 * n + slot, wanted)
    tl.store(last + n, slot)
    tl.debug_barrier()
    return begin


@triton.jit(do_not_specialize=["places", "X", "Y", "Z", "min_side", "max_side", "most", "turns", "levels"])
def cut_items_kernel(
    key, position, kept_key, last, kept, out, places, X, Y, Z, min_side, max_side, most, turns, levels,
    LAYERS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Rows of `sizes` at places of one sequence, by P lanes, at least `most` + 2."""
    n = tl.program_id(0).to(tl.int64)
    wanted = tl.load(key + n)
    begin = sequence_of(
        n, wanted, kept_key, last, kept, X, Y, Z, min_side, max_side, most, turns, levels, LAYERS, P
    )  # fmt: skip
    for k in range(places):
        at = tl.load(position + n * places + k)
        tl.store(out + n * places + k, tl.load(kept + begin + at))


def items(made: CutSequences, key: Tensor, position: Tensor, kept: Kept) -> Tensor:
    """Return rows of `sizes` (N, K) int64, and write `kept`.

    They are those at places (N, K) in [0, T) of the sequences of keys (N,).
    """
    out = torch.empty_like(position, memory_format=torch.contiguous_format)
    lanes = lanes_of(made)
    numbers = numbers_of(made)
    warps = max(1, min(4, lanes // 256))
    with torch.cuda.device(key.device) if key.is_cuda else contextlib.nullcontext():
        cut_items_kernel[(len(key),)](
            key.contiguous(), position.contiguous(), *kept, out, position.shape[1], *numbers,
            LAYERS=made.by_layers, P=lanes, enable_fp_fusion=False, num_warps=warps,
        )  # fmt: skip
    return out


def lanes_of(made: CutSequences) -> int:
    """Lanes that hold the pieces of a bin."""
    return int(triton.next_power_of_2(made.most_pieces + 2))


def numbers_of(made: CutSequences) -> tuple[int, ...]:
    """Numbers that `sequence_of` takes, from the sides of the bin to the levels."""
    levels = most_parts(made.whole[2], made.min_side, made.max_side) - 1
    return (*made.numbers[:5], made.most_pieces, made.numbers[-1], levels)


def self_test(device: str) -> str:
    """Return the difference from torch on a device in one line.

    It is "" if the kernel cuts the same boxes.
    """
    there = torch.device(device)
    for whole, low, high, layers in (((7, 6, 9), 2, 4, True), ((7, 6, 9), 2, 4, False)):
        made = CutSequences(whole, low, high, layers, 100)
        position = torch.arange(made.most_pieces, device=there, dtype=torch.int64).expand(6, -1)
        kept = made.nothing_kept(6, there)
        # The keys are cut anew, partly kept, the last but one, and anew.
        for first in (0, 1, 0, 5):
            key = torch.arange(first, first + 6, device=there, dtype=torch.int64) * 77_777
            if not torch.equal(items(made, key, position, kept), made.rows(key)):
                return f"boxes cut by keys {key.tolist()} are others than those of torch"
    return ""
