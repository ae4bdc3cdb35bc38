"""Look-ups and updates of n-tuple tables in Triton, for CUDA devices.

Operations are defined in `values` and `sweep`. Learning takes two launches. In the first, every patch adds its bin's
error to the entry of its heights, in whole numbers, so that the order of programs does not matter; the patch that comes
first owns the entry. In the second, owners move their entries. A single launch would need a barrier between all
programs, which only a cooperative launch makes safe. `scratch` is zeros before and after, and nothing is read back: a
CUDA graph can hold any number of updates.

The value of a bin is summed shape after shape and patch after patch, as in C++ (`native/afterstates.h`): it is the same
to the last bit, and so are the tables. With `TRITON_INTERPRET=1` the kernels run on a CPU.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: RUF005 (kernels know no unpacking)

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.policies.packing.ntuple import values as afterstates
from torchrl_gpu.policies.packing.ntuple.sweep import sweep_bins as sweep_on_cpu
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan, Tables

# Patches of a program, and of a program that moves entries.
_MOST_LANES = 2048
_LANES = 128
# Largest error, and an error of 1 in whole numbers, as in `values`.
_LARGEST = tl.constexpr(1024.0)
_ONE = tl.constexpr(4294967296.0)
# A float64 of this size counts in ones: adding it and taking it away rounds to a whole number, halves to even ones.
_ORIGIN = tl.constexpr(6755399441055744.0)


class Geometry(NamedTuple):
    """Patches of a bin of some cells, and their images, as int32 on the device.

    There are P patches of S shapes, of at most C cells each.

    Attributes:
        cell: Cell of the bin behind each digit of a patch's index, (C, P); −1 for one of the frame, and for none.
        factor: What the digit counts in the index, (C, P); 0 for none.
        clip: Largest difference from the first cell, (P,); −1 if heights are the digits.
        offset: Where the patch's table begins, (P,).
        shape: Oriented shape of the patch, (P,), in the order of `PatchPlan.oriented`.
        start: First patch of each shape, (S + 1,).
        image: What the digits count, (S, J, C), for each way to turn and mirror a patch.
        first_image: Least equivalent index of each entry, (E,).
    """

    cell: Tensor
    factor: Tensor
    clip: Tensor
    offset: Tensor
    shape: Tensor
    start: Tensor
    image: Tensor
    first_image: Tensor


@lru_cache(maxsize=8)
def geometry(plan: PatchPlan, cells: tuple[int, int], device: torch.device) -> Geometry:
    """Describe the patches of a plan in a bin of (X, Y) cells."""
    most = max(len(each.cells) for each in plan.oriented)
    ways = max(len(each.weights) for each in plan.oriented)
    cell = []
    factor = []
    clip: list[int] = []
    offset: list[int] = []
    shape: list[int] = []
    start = [0]
    image = torch.zeros(len(plan.oriented), ways, most, dtype=torch.int64, device="cpu")
    for number, each in enumerate(plan.oriented):
        rows, columns = plan.sides(each, cells)
        patches = rows * columns
        of_shape = torch.full((most, patches), -1, dtype=torch.int64, device="cpu")
        counts = torch.zeros(most, patches, dtype=torch.int64, device="cpu")
        for i, (x, y) in enumerate(each.cells):
            # The frame is one cell wide: the first patch begins one before the bin.
            row = torch.arange(rows, dtype=torch.int64, device="cpu")[:, None] + (x - 1)
            column = torch.arange(columns, dtype=torch.int64, device="cpu") + (y - 1)
            inside = (row >= 0) & (row < cells[0]) & (column >= 0) & (column < cells[1])
            of_shape[i] = torch.where(inside, row * cells[1] + column, -1).flatten()
            counts[i] = each.weights[0][i]
        cell.append(of_shape)
        factor.append(counts)
        clip += [-1 if each.clip is None else each.clip] * patches
        offset += [each.offset] * patches
        shape += [number] * patches
        start.append(start[-1] + patches)
        for way in range(ways):
            # Images behind the last repeat the first.
            weights = each.weights[way if way < len(each.weights) else 0]
            image[number, way, : len(each.cells)] = torch.tensor(weights, dtype=torch.int64, device="cpu")
    lists = [torch.tensor(each, dtype=torch.int64, device="cpu") for each in (clip, offset, shape, start)]
    tensors = [torch.cat(cell, 1), torch.cat(factor, 1), *lists, image, plan.first_images]
    return Geometry(*[each.int().to(device) for each in tensors])


# -- device functions --


@triton.jit
def _height(bins, base, cell, patch, there, levels):
    """Heights of cells of patches, in levels, or the bin's for cells of the frame."""
    at = tl.load(cell + patch, mask=there, other=-1)
    height = tl.load(bins + base + at, mask=at >= 0, other=255)
    return tl.minimum(height.to(tl.int32), levels)


@triton.jit
def _digits(bins, base, patch, there, cell, clip, patches, levels, CELLS: tl.constexpr):
    """Digits of patches' indices, a tuple of CELLS tensors.

    `base` is where the bin of a patch begins.
    """
    limit = tl.load(clip + patch, mask=there, other=-1)
    # The first digit is a height; the others are heights or differences from it.
    first = _height(bins, base, cell, patch, there, levels)
    alike = (first,) * CELLS
    digits = alike[:1]
    for i in tl.static_range(1, CELLS):
        height = _height(bins, base, cell + i * patches, patch, there, levels)
        apart = tl.minimum(tl.maximum(height - first, -limit), limit) + limit
        digits = digits + (tl.where(limit >= 0, apart, height),)
    return digits


@triton.jit
def entries_of(bins, base, patch, there, cell, factor, clip, offset, patches, levels, CELLS: tl.constexpr):
    """Table entries of patches, (T,) int32, or 0 for lanes without a patch."""
    digits = _digits(bins, base, patch, there, cell, clip, patches, levels, CELLS)
    entry = tl.load(offset + patch, mask=there, other=0)
    for i in tl.static_range(CELLS):
        entry += digits[i] * tl.load(factor + i * patches + patch, mask=there, other=0)
    return entry


@triton.jit
def sums_of_shapes(weights, start, shapes, patches, BINS: tl.constexpr, LYING: tl.constexpr):
    """Sums of the weights of each shape of BINS bins, (BINS * LYING,) float64.

    One patch is added after the other, as in C++.
    """
    lane = tl.arange(0, BINS * LYING)
    shape = lane % LYING
    there = shape < shapes
    begin = tl.load(start + shape, mask=there, other=0)
    number = tl.load(start + shape + 1, mask=there, other=0) - begin
    mine = weights + lane // LYING * patches + begin
    total = tl.zeros([BINS * LYING], tl.float64)
    for i in tl.range(0, tl.max(number, 0), loop_unroll_factor=8):
        total += tl.load(mine + i, mask=i < number, other=0.0).to(tl.float64)
    return total


@triton.jit
def value_of(sums, which, shapes, LYING: tl.constexpr):
    """Value of one of the bins, from the sums of its shapes.

    One is added after the other, as in C++.
    """
    lane = tl.arange(0, sums.shape[0])
    whole = tl.full([], 0.0, tl.float64)
    for shape in range(shapes):
        whole += tl.sum(tl.where(lane == which * LYING + shape, sums, 0.0), 0)
    return whole.to(tl.float32)


@triton.jit
def _units(error):
    """Turn a finite error into whole numbers, int64."""
    clipped = tl.minimum(tl.maximum(error.to(tl.float64), -_LARGEST), _LARGEST)
    return (clipped * _ONE + _ORIGIN - _ORIGIN).to(tl.int64)


@triton.jit
def _add_errors(first, seen, units, counts, there):
    """Add an error to the entries (T,) at `first`.

    Those that had none before stay there, for this program to move, and −1 replaces the others. `counts` is 0 for an
    error that does not count.
    """
    entry = tl.load(first, mask=there, other=0)
    wanted = there & (tl.zeros_like(entry) + counts > 0)
    at = seen + entry.to(tl.int64) * 2
    one = tl.full(entry.shape, 1, tl.int64)
    before = tl.atomic_add(at + 1, one, mask=wanted, sem="relaxed")
    tl.atomic_add(at, one * units, mask=wanted, sem="relaxed")
    tl.store(first, tl.where(wanted & (before == 0), entry, -1), mask=there)


# -- kernels --


@triton.jit(do_not_specialize=["area", "patches", "shapes", "levels"])
def value_bins_kernel(
    bins, weight, found, out, cell, factor, clip, offset, start, area, patches, shapes, levels,
    CELLS: tl.constexpr, LYING: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """`value_bins`: one bin per program."""
    n = tl.program_id(0).to(tl.int64)
    weights = found + n * patches
    for tile in range(0, patches, T):
        patch = tile + tl.arange(0, T)
        there = patch < patches
        entry = entries_of(bins, n * area, patch, there, cell, factor, clip, offset, patches, levels, CELLS)
        tl.store(weights + patch, tl.load(weight + entry, mask=there, other=0.0), mask=there)
    tl.debug_barrier()
    tl.store(out + n, value_of(sums_of_shapes(weights, start, shapes, patches, 1, LYING), 0, shapes, LYING))


@triton.jit(do_not_specialize=["area", "patches", "levels"])
def add_errors_kernel(
    bins, units, counts, seen, first, cell, factor, clip, offset, first_image, area, patches, levels,
    CELLS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Add errors to the entries of bins, a part of one per program."""
    n = tl.program_id(0).to(tl.int64)
    patch = tl.program_id(1) * T + tl.arange(0, T)
    there = patch < patches
    entry = entries_of(bins, n * area, patch, there, cell, factor, clip, offset, patches, levels, CELLS)
    mine = first + n * patches + patch
    tl.store(mine, tl.load(first_image + entry, mask=there, other=0), mask=there)
    tl.debug_barrier()
    _add_errors(mine, seen, tl.load(units + n), tl.load(counts + n), there)


@triton.jit(do_not_specialize=["steps", "t", "area", "patches", "shapes", "levels"])
def sweep_kernel(
    bins, reward, done, weight, seen, goal, square, found, first, cell, factor, clip, offset, start, first_image,
    steps, t, lam, area, patches, shapes, levels,
    CELLS: tl.constexpr, LYING: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Add the error of the bin after step t to its entries, a bin per program.

    It is the bin's λ-return minus its value. `goal` (N,) holds the returns of step t + 1, and then those of t.
    """
    n = tl.program_id(0).to(tl.int64)
    last = steps - 1
    here = n * steps + t
    weights = found + n * (2 * patches)
    of_bin = first + n * patches
    # The bin, and behind it the one a step later.
    for tile in range(0, 2 * patches, T):
        place = tile + tl.arange(0, T)
        later = place >= patches
        there = place < tl.where(t < last, 2 * patches, patches)
        patch = tl.where(later, place - patches, place)
        base = (here + later.to(tl.int64)) * area
        entry = entries_of(bins, base, patch, there, cell, factor, clip, offset, patches, levels, CELLS)
        tl.store(weights + place, tl.load(weight + entry, mask=there, other=0.0), mask=place < 2 * patches)
        tl.store(of_bin + patch, tl.load(first_image + entry, mask=there, other=0), mask=there & (place < patches))
    tl.debug_barrier()
    sums = sums_of_shapes(weights, start, shapes, patches, 2, LYING)
    before = value_of(sums, 0, shapes, LYING)
    value = value_of(sums, 1, shapes, LYING)
    ends = tl.load(done + here) != 0
    goes_on = t < last
    follows = tl.load(goal + n, mask=goes_on, other=0.0)
    gain = tl.load(reward + here + 1, mask=goes_on, other=0.0)
    cut = goes_on & (t + 1 == last) & (tl.load(done + here + 1, mask=goes_on, other=1) == 0)
    known = tl.where(cut, value, follows)
    # As torch.lerp, which rounds once.
    near = tl.where(lam < 0.5, value, known)
    share = tl.where(lam < 0.5, lam, lam - 1.0)
    mixed = gain + tl.fma(share, known - value, near)
    wanted = tl.where(goes_on & (ends == 0), mixed, 0.0)
    tl.store(goal + n, wanted)
    error = wanted - before
    counts = goes_on | ends
    tl.store(square + (last - t) * tl.num_programs(0) + n, tl.where(counts, error * error, 0.0))
    learns = counts & (tl.abs(error) < float("inf"))
    units = _units(tl.where(learns, error, 0.0))
    for tile in range(0, patches, T):
        patch = tile + tl.arange(0, T)
        _add_errors(of_bin + patch, seen, units, learns.to(tl.int32), patch < patches)


@triton.jit(do_not_specialize=["stride", "from_bin", "area", "patches", "levels"])
def move_entries_kernel(
    bins, first, weight, drift, path, seen, cell, clip, offset, shape, image,
    stride, from_bin, area, patches, levels,
    RATE: tl.constexpr, CELLS: tl.constexpr, IMAGES: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Move the entries that patches of a bin own, and their images.

    What was seen of them is cleared. Bins lie `stride` apart, the first of them `from_bin` bins behind the beginning.
    """
    n = tl.program_id(0).to(tl.int64)
    patch = tl.program_id(1) * T + tl.arange(0, T)
    there = patch < patches
    entry = tl.load(first + n * patches + patch, mask=there, other=-1)
    owns = entry >= 0
    if tl.max(owns.to(tl.int32), 0) > 0:
        at = seen + entry.to(tl.int64) * 2
        total = tl.load(at, mask=owns, other=0)
        number = tl.load(at + 1, mask=owns, other=1)
        mean = (total.to(tl.float64) / number.to(tl.float64) / _ONE).to(tl.float32)
        moved = tl.load(drift + entry, mask=owns, other=0.0) + mean
        far = tl.load(path + entry, mask=owns, other=0.0) + tl.abs(mean)
        coherence = tl.where(far > 0, tl.div_rn(tl.abs(moved), tl.where(far > 0, far, 1.0)), 1.0)
        rate = tl.full([T], RATE, tl.float64)
        more = (rate * coherence.to(tl.float64) * mean.to(tl.float64)).to(tl.float32)
        value = tl.load(weight + entry, mask=owns, other=0.0) + more
        tl.debug_barrier()
        tl.store(at, tl.zeros_like(total), mask=owns)
        tl.store(at + 1, tl.zeros_like(total), mask=owns)
        tl.store(drift + entry, moved, mask=owns)
        tl.store(path + entry, far, mask=owns)
        base = (n * stride + from_bin) * area
        digits = _digits(bins, base, patch, owns, cell, clip, patches, levels, CELLS)
        of_shape = image + tl.load(shape + patch, mask=owns, other=0) * (IMAGES * CELLS)
        table = tl.load(offset + patch, mask=owns, other=0)
        for j in range(IMAGES):
            turned = table
            for i in tl.static_range(CELLS):
                turned += digits[i] * tl.load(of_shape + j * CELLS + i, mask=owns, other=0)
            tl.store(weight + turned, value, mask=owns)


# -- launches --


def value_bins(heights: Tensor, weight: Tensor, plan: PatchPlan) -> Tensor:
    """`values.value_bins` of checked and contiguous tensors."""
    return values_and_weights(heights, weight, plan)[0]


def values_and_weights(heights: Tensor, weight: Tensor, plan: PatchPlan) -> tuple[Tensor, Tensor]:
    """Values (N,) of bins, and the weights (N, patches) that they are the sums of."""
    g = geometry(plan, _cells(heights), heights.device)
    rows = len(heights)
    patches = g.cell.shape[1]
    out = torch.empty(rows, dtype=torch.float32, device=heights.device)
    found = torch.empty(rows, patches, dtype=torch.float32, device=heights.device)
    lanes = _lanes(patches)
    if rows:
        tensors = (heights, weight, found, out, g.cell, g.factor, g.clip, g.offset, g.start)
        numbers = (heights[0].numel(), patches, len(plan.oriented), plan.levels)
        options = _options(len(g.cell), lanes, lanes // 128)
        with _on(heights.device):
            value_bins_kernel[(rows,)](*tensors, *numbers, LYING=_padded(plan), **options)
    return out, found


def learn_bins(
    heights: Tensor, units: Tensor, counts: Tensor, tables: Tables, plan: PatchPlan, rate: float, scratch: Tensor
) -> None:
    """`values.learn_bins` of checked and contiguous tensors.

    Errors are whole numbers, and `rate` is that of one entry.
    """
    g = geometry(plan, _cells(heights), heights.device)
    rows = len(heights)
    patches = g.cell.shape[1]
    first = torch.empty(rows, patches, dtype=torch.int32, device=heights.device)
    if rows:
        tensors = (heights, units, counts.view(torch.uint8), scratch, first)
        patches_of_bin = (g.cell, g.factor, g.clip, g.offset, g.first_image)
        numbers = (heights[0].numel(), patches, plan.levels)
        options = _options(len(g.cell), _LANES, _LANES // 32)
        with _on(heights.device):
            launch = add_errors_kernel[(rows, triton.cdiv(patches, _LANES))]
            launch(*tensors, *patches_of_bin, *numbers, **options)
            move(heights[:, None], 0, first, tables, plan, rate, scratch, g)


def sweep_bins(
    levels: Tensor,
    reward: Tensor,
    done: Tensor,
    tables: Tables,
    plan: PatchPlan,
    rate: float,
    lam: float,
    scratch: Tensor,
) -> Tensor:
    """`sweep.sweep_bins` of checked tensors, in two launches a step.

    `rate` is that of one entry.
    """
    rows, steps = reward.shape
    g = geometry(plan, _cells(levels[:, 0]), levels.device)
    patches = g.cell.shape[1]
    device = levels.device
    lanes = _lanes(2 * patches)
    # As torch and kernels take it, but not the interpreter.
    lam = float(np.float32(lam))
    goal = torch.empty(rows, dtype=torch.float32, device=device)
    square = torch.empty(steps, rows, dtype=torch.float32, device=device)
    found = torch.empty(rows, 2 * patches, dtype=torch.float32, device=device)
    first = torch.empty(rows, patches, dtype=torch.int32, device=device)
    tensors = (levels, reward, done.view(torch.uint8), tables.weight, scratch, goal, square, found, first)
    patches_of_bin = (g.cell, g.factor, g.clip, g.offset, g.start, g.first_image)
    options = _options(len(g.cell), lanes, lanes // 128)
    with _on(device) if rows else contextlib.nullcontext():
        for t in range(steps - 1, -1, -1) if rows else ():
            numbers = (steps, t, lam, levels[0, 0].numel(), patches, len(plan.oriented), plan.levels)
            sweep_kernel[(rows,)](*tensors, *patches_of_bin, *numbers, LYING=_padded(plan), **options)
            move(levels, t, first, tables, plan, rate, scratch, g)
    return square.mean(1).mean()


def move(
    bins: Tensor, t: int, first: Tensor, tables: Tables, plan: PatchPlan, rate: float, scratch: Tensor, g: Geometry
) -> None:
    """Move the entries that bins (N, T, X, Y) own at moment t."""
    rows, patches = first.shape
    tensors = (bins, first, *tables, scratch, g.cell, g.clip, g.offset, g.shape, g.image)
    numbers = (bins.shape[1], t, bins[0, 0].numel(), patches, plan.levels)
    options = _options(len(g.cell), _LANES, _LANES // 32)
    launch = move_entries_kernel[(rows, triton.cdiv(patches, _LANES))]
    launch(*tensors, *numbers, RATE=rate, IMAGES=g.image.shape[1], **options)


def _options(cells: int, lanes: int, warps: int) -> dict[str, int | bool]:
    """Constants and options that all launches have."""
    # A fused multiplication and addition would round otherwise than C++ does.
    return {"CELLS": cells, "T": lanes, "enable_fp_fusion": False, "num_warps": max(1, warps)}


def _cells(heights: Tensor) -> tuple[int, int]:
    return heights.shape[1], heights.shape[2]


def _lanes(places: int) -> int:
    return min(_MOST_LANES, max(32, triton.next_power_of_2(places)))


def _padded(plan: PatchPlan) -> int:
    return int(triton.next_power_of_2(len(plan.oriented)))


def _on(device: torch.device) -> contextlib.AbstractContextManager:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


# -- the self-test --


class Sweep(NamedTuple):
    """Arguments of `sweep_bins` up to the tables."""

    levels: Tensor
    reward: Tensor
    done: Tensor
    tables: Tables


def some_sweep(plan: PatchPlan, cells: tuple[int, int], rows: int = 3, steps: int = 4, seed: int = 0) -> Sweep:
    """Self-test inputs on a CPU.

    Some bins are too high, some episodes end, and weights are of many sizes.
    """
    g = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g, dtype=torch.float32, device="cpu")

    high = (uniform(rows, steps, *cells) * (plan.levels + 2)).to(torch.uint8)
    # Few bins differ, so that environments share entries.
    high[:, 1:] = torch.where(uniform(rows, steps - 1, 1, 1) < 0.5, high[:1, 1:], high[:, 1:])
    weight = (uniform(plan.entries) - 0.5) * torch.exp2(-24 * uniform(plan.entries))
    tables = Tables(weight[plan.first_images], uniform(plan.entries) - 0.5, uniform(plan.entries))
    return Sweep(high, uniform(rows, steps), uniform(rows, steps) < 0.4, tables)


def self_test(device: str) -> str:
    """Difference of tables learned on a device from those of a CPU, or ""."""
    there = torch.device(device)
    rate = 0.4
    lam = 0.8
    cases = [(PatchPlan(("1x3", "2x2:1"), 6), (5, 4)), (PatchPlan(("2x3", "1x1"), 3), (3, 4))]
    for plan, cells in cases:
        given = some_sweep(plan, cells)
        first = given.levels[:, 0].contiguous()
        wanted = Tables(*[each.clone() for each in given.tables])
        learned = Tables(*[each.to(there, copy=True) for each in given.tables])
        values = value_bins(first.to(there), learned.weight, plan).cpu()
        if not torch.equal(values, afterstates.value_bins(first, wanted.weight, plan)):
            return f"the values of {cells} cells differ from a CPU's"
        seen = torch.zeros(plan.entries, 2, dtype=torch.int64, device="cpu")
        sweep_on_cpu(*given[:3], wanted, plan, rate=rate, lam=lam, scratch=seen)
        cleared = seen.to(there, copy=True)
        share = rate / plan.patches(cells)
        played = (given.levels.to(there), given.reward.to(there), given.done.to(there))
        sweep_bins(*played, learned, plan, share, lam, cleared)
        for name, ours, theirs in zip(Tables._fields, learned, wanted, strict=True):
            if not torch.equal(ours.cpu(), theirs):
                return f"the {name} after a sweep in {cells} cells differs from a CPU's"
        if bool(cleared.any()):
            return f"scratch is not zero after a sweep in {cells} cells"
    return ""
