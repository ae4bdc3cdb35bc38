"""N-tuple network values of bins after placements: sums of table weights, one for each patch, indexed by its heights.

Szubert and Jaśkowski, "Temporal difference learning of n-tuple networks for the game 2048", CIG 2014, over heightmaps.
`PatchPlan` defines the patches. Each operation is defined in torch, which runs on any device and reads nothing back; on
a CPU with a compiler they run in C++ (`native/afterstates.h`), and on a CUDA device in Triton where that has been seen
to work (`triton_values`, `triton_tables`). There a placement costs only the patches that its footprint touches, and an
update only the entries that it moves.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from ctypes import Structure, addressof, byref, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs.counter_rng import TRITON_DRAWS
from torchrl_gpu.envs.packing.items.cutting import TRITON_CUTS
from torchrl_gpu.system.arguments import shown, tensor, whole
from torchrl_gpu.system.threads import kernel_threads
from torchrl_gpu.system.triton_kernels import load_kernels, problem_of

TRITON_PLACEMENTS = "torchrl_gpu.policies.packing.ntuple.triton_values"
TRITON_TABLES = "torchrl_gpu.policies.packing.ntuple.triton_tables"
TRITON_ROLLOUTS = "torchrl_gpu.policies.packing.ntuple.triton_rollouts"
_BOXES = tuple(
    f"torchrl_gpu.envs.packing.kernels.triton.{name}"
    for name in ("boxes", "piles", "placements", "split", "stability", "transition")
)
_TESTED = {  # by module, for messages, and further modules whose device functions it calls
    TRITON_PLACEMENTS: ("the values of afterstates", (TRITON_TABLES,)),
    TRITON_TABLES: ("tables of afterstates", ()),
    TRITON_ROLLOUTS: ("rollouts of tables", (TRITON_TABLES, TRITON_PLACEMENTS, TRITON_CUTS, TRITON_DRAWS, *_BOXES)),
}
# of a patch, and ways to turn and mirror one onto itself
MOST_CELLS = 9
MOST_IMAGES = 8
MOST_LEVELS = 250
MOST_ENTRIES = 2**28
MOST_SHAPES = 32
_CPU = torch.device("cpu")
_ONE = 2.0**32  # an error of 1, as it is summed: in whole numbers, whose sums do not depend on their order
_LARGEST = 2.0**10  # error


class Lying(NamedTuple):
    """One patch shape in one orientation."""

    rows: int  # cells along x
    columns: int  # cells along y
    cells: tuple[tuple[int, int], ...]  # (x, y) of each, in the order of the index
    clip: int | None  # largest difference of other cells from the first, by which a patch is found; None for heights
    table: int  # its number; shapes that are the same turned share one
    offset: int  # where the table begins
    weights: tuple[tuple[int, ...], ...]  # (images, cells), in the index, for each way to turn and mirror the patch


@dataclass(frozen=True)
class PatchPlan:
    """Patches of a bin that have weights in the tables.

    A bin is `levels` high, and has a frame of one cell around it of that height, so that walls are seen. A shape
    "2x3" stands for all patches of 2×3 and of 3×2 cells that touch the bin; their entries are found by the heights of
    the six cells. "3x3:2" is found by the height of the middle cell and the differences of the others from it, cut off
    at 2 levels. Patches that are the same turned or mirrored have the same entry; of those with differences and an even
    side, which have no cell in the middle, only where that from which the others differ stays in its place.

    Args:
        shapes: Of patches; no two alike.
        levels: Height of the bin, in levels.
    """

    shapes: Sequence[str]
    levels: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", whole("PatchPlan", "levels", self.levels, 1, MOST_LEVELS))
        if isinstance(self.shapes, str) or not all(isinstance(each, str) for each in self.shapes):
            raise ValueError(f"PatchPlan: want shapes such as ['2x2', '1x4', '3x3:2']; got {shown(self.shapes)}")
        object.__setattr__(self, "shapes", tuple(self.shapes))
        parsed = [_parsed(shape, self.levels) for shape in self.shapes]
        if not parsed or len(parsed) > MOST_SHAPES or len(set(parsed)) < len(parsed):
            raise ValueError(f"PatchPlan: want 1 to {MOST_SHAPES} different shapes; got {shown(self.shapes)}")
        if self.entries > MOST_ENTRIES:
            raise ValueError(
                f"PatchPlan: want at most {MOST_ENTRIES:,} entries; got {self.entries:,} of {shown(self.shapes)}"
            )

    @cached_property
    def lying(self) -> tuple[Lying, ...]:
        """Every shape in each of its orientations; their tables lie one behind the other."""
        found: list[Lying] = []
        offset = 0
        for table, shape in enumerate(self.shapes):
            found += _lying(*_parsed(shape, self.levels), self.levels, table, offset)
            offset += math.prod(_sizes(found[-1], self.levels))
        return tuple(found)

    @cached_property
    def entries(self) -> int:
        """Number of weights of all tables."""
        return self.lying[-1].offset + math.prod(_sizes(self.lying[-1], self.levels))

    def patches(self, cells: Sequence[int]) -> int:
        """Number of patches of a bin of (X, Y) cells."""
        return sum(math.prod(self.sides(each, cells)) for each in self.lying)

    @staticmethod
    def sides(lying: Lying, cells: Sequence[int]) -> tuple[int, int]:
        """Numbers of patches of a shape along x and along y in a bin of (X, Y) cells."""
        return cells[0] + 3 - lying.rows, cells[1] + 3 - lying.columns

    def check_fits(self, cells: Sequence[int]) -> None:
        """ValueError unless every shape fits a bin of (X, Y) cells with its frame."""
        for each in self.lying:
            if each.rows > cells[0] + 2 or each.columns > cells[1] + 2:
                raise ValueError(
                    f"PatchPlan: want patches that fit a bin of {tuple(cells)} cells and its frame;"
                    f" got {each.rows}x{each.columns}"
                )

    @cached_property
    def first_images(self) -> Tensor:
        """Least equivalent index of each weight, turned or mirrored, (E,) int64."""
        first = []
        for table, shape in enumerate(self.tables):
            numbers = torch.arange(math.prod(_sizes(shape, self.levels)), dtype=torch.int64, device="cpu")
            first.append(self.images(table, numbers).amin(0))
        return torch.cat(first)

    @cached_property
    def tables(self) -> tuple[Lying, ...]:
        """For each table, the last of the shapes that share it, as it lies."""
        return tuple({each.table: each for each in self.lying}.values())

    def images(self, table: int, numbers: Tensor) -> Tensor:
        """Indices (J, M) int64 equivalent to entries (M,) of a table, turned or mirrored in J ways."""
        shape = self.tables[table]
        digits = []
        for size in reversed(_sizes(shape, self.levels)):
            digits.append(numbers % size)
            numbers = numbers // size
        digits = digits[::-1]
        zero = torch.zeros_like(numbers)
        images = [sum((d * w for d, w in zip(digits, image, strict=True)), zero) for image in shape.weights]
        return torch.stack(images) + shape.offset


def _parsed(shape: str, levels: int) -> tuple[int, int, int | None]:
    found = re.fullmatch(r"([1-9])x([1-9])(?::([1-9][0-9]?))?", shape)
    rows, columns = sorted(map(int, found.groups()[:2])) if found else (0, 0)
    if not found or rows * columns > MOST_CELLS:
        raise ValueError(
            f"PatchPlan: want shapes of at most {MOST_CELLS} cells such as '2x2', '1x4' or '3x3:2'; got {shown(shape)}"
        )
    clip = found.group(3)
    return rows, columns, None if clip is None else min(int(clip), levels)


def _sizes(shape: Lying, levels: int) -> list[int]:
    """Number of digits that each cell of a patch can have in the patch's index."""
    others = levels + 1 if shape.clip is None else 2 * shape.clip + 1
    return [levels + 1, *[others] * (len(shape.cells) - 1)]


def _lying(rows: int, columns: int, clip: int | None, levels: int, table: int, offset: int) -> list[Lying]:
    """A shape in all its orientations."""
    cells = [(x, y) for x in range(rows) for y in range(columns)]
    if clip is not None:  # the middle one first
        middle = (rows // 2, columns // 2)
        cells = [middle, *(each for each in cells if each != middle)]
    others = levels + 1 if clip is None else 2 * clip + 1
    place = [others ** (len(cells) - 1 - i) for i in range(len(cells))]
    images = []
    for flip_x, flip_y, turned in itertools.product((False, True), repeat=3):
        if turned and rows != columns:
            continue
        moved = [_moved(each, rows, columns, flip_x, flip_y, turned) for each in cells]
        if clip is None or moved[0] == cells[0]:  # the one that the others are held against must stay
            images.append(tuple(place[cells.index(each)] for each in moved))
    weights = tuple(dict.fromkeys(images))
    ways = [(rows, columns, tuple(cells))]
    if rows != columns:
        ways.append((columns, rows, tuple((y, x) for x, y in cells)))
    return [Lying(a, b, each, clip, table, offset, weights) for a, b, each in ways]


def _moved(cell: tuple[int, int], rows: int, columns: int, flip_x: bool, flip_y: bool, turned: bool) -> tuple[int, int]:
    x = rows - 1 - cell[0] if flip_x else cell[0]
    y = columns - 1 - cell[1] if flip_y else cell[1]
    return (y, x) if turned else (x, y)


# -- the jobs --


class Tables(NamedTuple):
    """Table weights, and the running sums of errors that scale their steps, (E,) float32 each."""

    weight: Tensor  # entries that are the same turned or mirrored are equal
    drift: Tensor  # sum of the mean errors that an entry has seen; of the first of those that are the same
    path: Tensor  # sum of their sizes


def value_placements(
    heights: Tensor,
    extent: Tensor,
    top: Tensor,
    legal: Tensor,
    weight: Tensor,
    plan: PatchPlan,
    step: int = 1,
    pool: int = 1,
) -> Tensor:
    """Value of the bin after every legal placement of boxes, (N, V, Gx, Gy) float32, −inf where none is legal.

    Cells of the bin may be coarser than those that boxes are placed by: a box raises every one that it touches.

    Args:
        heights: (N, X, Y) uint8, levels; what is above `plan.levels` counts as that.
        extent: (N, V, 2) int64, fine cells along x and y of V boxes, or orientations of them.
        top: (N, V, Gx, Gy) uint8, levels: how high a box reaches on each placement.
        legal: (N, V, Gx, Gy) bool.
        weight: (E,) float32.
        plan: The patches.
        step: Fine cells between neighbouring placements.
        pool: Fine cells along each side of one of `heights`.
    """
    where = "value_placements"
    heights = _heights(where, heights, plan)
    rows = heights.shape[0]
    device = heights.device
    step = whole(where, "step", step, 1)
    pool = whole(where, "pool", pool, 1)
    grid = tuple(-(-cells * pool // step) for cells in heights.shape[1:])
    variants = extent.shape[1] if isinstance(extent, Tensor) and extent.ndim == 3 else 1
    extent = tensor(where, "extent", extent, torch.int64, (rows, variants, 2), device, cast=True).contiguous()
    top = tensor(where, "top", top, torch.uint8, (rows, variants, *grid), device).contiguous()
    legal = tensor(where, "legal", legal, torch.bool, (rows, variants, *grid), device).contiguous()
    weight = _weight(where, weight, plan, device)
    if not native.runs_on(heights):
        kernels = in_triton(TRITON_PLACEMENTS, heights.device)
        values = by_torch if kernels is None else kernels.value_placements
        return values(heights, extent, top, legal, weight, plan, step, pool)
    out = native.output(*legal.shape, dtype=torch.float32)
    held = PatchArguments.of(plan, heights, weight)
    given = (c_int64(rows), *map(_at, (heights, extent, top, legal)), c_int64(variants), c_int64(step), c_int64(pool))
    native.library().value_placements(byref(held), *given, *map(c_int64, grid), _at(out))
    return out


def value_bins(heights: Tensor, weight: Tensor, plan: PatchPlan) -> Tensor:
    """The values (N,) float32 of bins (N, X, Y) uint8, in levels, as they are."""
    heights = _heights("value_bins", heights, plan)
    weight = _weight("value_bins", weight, plan, heights.device)
    if not native.runs_on(heights):
        if (kernels := in_triton(TRITON_TABLES, heights.device)) is not None:
            return kernels.value_bins(heights, weight, plan)
        return _value_bins(framed(heights, plan), weight, plan)
    out = native.output(len(heights), dtype=torch.float32)
    held = PatchArguments.of(plan, heights, weight)
    native.library().value_bins(byref(held), c_int64(len(heights)), _at(heights), _at(out))
    return out


def shape_values(heights: Tensor, weight: Tensor, plan: PatchPlan, part: Sequence[int]) -> Tensor:
    """Contributions of the tables `part` to the values of bins, (L, N) float64, so that processes can share the work.

    L is the number of ways that shapes lie, in the order of `plan.lying`; zeros for those of other tables. In C++ the
    rows, added up one after another from the first, are to the last bit what `value_bins` gives.
    """
    heights = _heights("shape_values", heights, plan)
    weight = _weight("shape_values", weight, plan, heights.device)
    mine = [each.table in part for each in plan.lying]
    out = heights.new_zeros(len(mine), len(heights), dtype=torch.float64)
    if not native.runs_on(heights):
        sizes = [plan.sides(each, heights.shape[1:]) for each in plan.lying]
        split = weight[entries_of(framed(heights, plan), plan)].double().split([x * y for x, y in sizes], 1)
        for row, yes, values in zip(out, mine, split, strict=True):
            row.copy_(values.sum(1) * yes)
        return out
    found = native.output(sum(mine), len(heights), dtype=torch.float64)
    held = PatchArguments.of(plan, heights, weight, tuple(part))
    native.library().shape_values(byref(held), c_int64(len(heights)), _at(heights), _at(found))
    out[torch.tensor(mine, dtype=torch.bool, device="cpu")] = found
    return out


class Changes(NamedTuple):
    """Weights that have changed since the record was cleared, each by its least equivalent index."""

    first: Tensor  # (E,) int32; of each table, from its offset on, the numbers within it
    num: Tensor  # (tables,) int64, how many of each table
    marked: Tensor  # (E,) uint8, 1 for each of them

    @classmethod
    def of(cls, plan: PatchPlan) -> Changes:
        """An empty record, on the CPU."""
        sizes = (plan.entries, torch.int32), (len(plan.shapes), torch.int64), (plan.entries, torch.uint8)
        return cls(*(torch.zeros(size, dtype=dtype, device="cpu") for size, dtype in sizes))


def learn_bins(
    heights: Tensor,
    error: Tensor,
    counts: Tensor,
    tables: Tables,
    plan: PatchPlan,
    rate: float,
    scratch: Tensor,
    *,
    part: Sequence[int] | None = None,
    changes: Changes | None = None,
) -> None:
    """Updates weights in place, so that the values of bins move by about `rate` times their errors.

    Each entry moves by the mean of the errors of the bins that it occurs in, once for each time that it does: that is
    the simultaneous algebraic reconstruction technique (Andersen and Kak 1984), whose steps do not add up however often
    an entry occurs. It is scaled by temporal coherence (Beal and Smith 1999): by |sum| over sum of sizes of the mean
    errors that the entry has seen, so that entries whose errors only scatter come to rest.

    Args:
        heights: (N, X, Y) uint8, levels.
        error: (N,) float32: target of a bin, less its value.
        counts: (N,) bool, whether a bin counts.
        tables, plan: Written to, and their patches.
        rate: From 0 to 1.
        scratch: (E, 2) int64, zeros before and after.
        part, changes: Numbers of the tables that move, None for all, and a record of the entries that have. In C++
            alone: elsewhere a ValueError.
    """
    where = "learn_bins"
    heights = _heights(where, heights, plan)
    device = heights.device
    error = tensor(where, "error", error, torch.float32, (len(heights),), device)
    counts = tensor(where, "counts", counts, torch.bool, (len(heights),), device).contiguous() & error.isfinite()
    check_tables(where, heights, tables, plan, scratch)
    units = (error.double().nan_to_num(0.0).clamp(-_LARGEST, _LARGEST) * _ONE).round().long()
    rate = rate / plan.patches(heights.shape[1:])
    if not native.runs_on(heights):
        if part is not None or changes is not None:
            raise ValueError(f"{where}: want a CPU and a compiler for a part of the tables; got {device}")
        if (kernels := in_triton(TRITON_TABLES, device)) is not None:
            return kernels.learn_bins(heights, units, counts, tables, plan, rate, scratch)
        return _learn_bins(heights, units, counts, tables, plan, rate)
    held = PatchArguments.of(plan, heights, tables.weight, None if part is None else tuple(part))
    recorded = (None, None, None) if changes is None else [each.data_ptr() for each in changes]
    to = _Learnt(*(each.data_ptr() for each in (*tables, scratch, units, counts)), *recorded, rate)
    native.library().learn_bins(byref(held), byref(to), c_int64(len(heights)), _at(heights))
    return None


def check_tables(where: str, heights: Tensor, tables: Tables, plan: PatchPlan, scratch: Tensor) -> None:
    """ValueError unless tables and scratch are those of a plan, beside bins it fits."""
    _heights(where, heights, plan)
    for name, each in zip(Tables._fields, tables, strict=True):
        tensor(where, name, each, torch.float32, (plan.entries,), heights.device, contiguous=True)
    tensor(where, "scratch", scratch, torch.int64, (plan.entries, 2), heights.device, contiguous=True)


def sweep_in_cpp(
    levels: Tensor,
    reward: Tensor,
    done: Tensor,
    tables: Tables,
    plan: PatchPlan,
    rate: float,
    lam: float,
) -> tuple[Tensor, Tensor] | None:
    """TD(λ) over N trajectories of T steps in one C++ call, as `sweep.sweep_by_steps`; writes to the tables.

    Args:
        levels: (N, T, X, Y) uint8, the bins after each step.
        reward, done: (N, T) float32 and bool.
        tables, plan: Written to, and their patches; on a CPU.
        rate, lam: As in `learn_bins`, and λ.

    Returns:
        Errors (T, N) float32, of the last step first, and whether each was learned from. None, and nothing is learned,
        where entries that are the same turned or mirrored are not equal.
    """
    where = "sweep_in_cpp"
    rows, steps = reward.shape
    flat = _heights(where, levels.flatten(0, 1), plan)
    reward = tensor(where, "reward", reward, torch.float32, (rows, steps), _CPU).contiguous()
    done = tensor(where, "done", done, torch.bool, (rows, steps), _CPU).contiguous()
    for name, each in zip(Tables._fields, tables, strict=True):
        tensor(where, name, each, torch.float32, (plan.entries,), _CPU, contiguous=True)
    if flat.shape[0] != rows * steps or not rows * steps:
        raise ValueError(f"{where}: levels must be of {rows} × {steps} bins, at least one; got {len(flat)}")
    error = native.output(steps, rows, dtype=torch.float32)
    counts = native.output(steps, rows, dtype=torch.bool)
    held = {"levels": flat, "reward": reward, "done": done, "error": error, "counts": counts}
    held |= tables._asdict()
    patches = PatchArguments.of(plan, flat, tables.weight)
    sweep = _Sweep.of(held, rows=rows, steps=steps, lam=lam, rate=rate / plan.patches(flat.shape[1:]))
    function = native.library().sweep_bins
    function.restype = c_int64
    return (error, counts) if function(byref(patches), byref(sweep)) else None


def _heights(where: str, heights: Tensor, plan: PatchPlan) -> Tensor:
    if not isinstance(heights, Tensor) or heights.ndim != 3:
        raise ValueError(f"{where}: heights must be uint8 of shape (N, X, Y); got {shown(heights)}")
    plan.check_fits(heights.shape[1:])
    return tensor(where, "heights", heights, torch.uint8, tuple(heights.shape), heights.device).contiguous()


def _weight(where: str, weight: Tensor, plan: PatchPlan, device: torch.device) -> Tensor:
    return tensor(where, "weight", weight, torch.float32, (plan.entries,), device).contiguous()


# -- in Triton --


def in_triton(name: str, device: torch.device) -> Any:
    """A module of Triton kernels for a device, or None where torch does their work."""
    what, parts = _TESTED[name]
    return load_kernels(what, name, device, parts)


def triton_problems(device: torch.device) -> dict[str, str]:
    """Reasons why Triton's kernels of tables cannot run on a CUDA device, by what they do; "" where they can."""
    return {what: problem_of(what, name, device, parts) for name, (what, parts) in _TESTED.items()}


# -- in torch --


def framed(heights: Tensor, plan: PatchPlan) -> Tensor:
    """Bins within their frames, (N, X + 2, Y + 2) int64."""
    inside = heights.clamp_max(plan.levels).long()
    return torch.nn.functional.pad(inside, (1, 1, 1, 1), value=plan.levels)


def entries_of(bins: Tensor, plan: PatchPlan) -> Tensor:
    """Weight index of each patch of framed bins, (N, patches) int64."""
    found = []
    for each in plan.lying:
        size = plan.sides(each, (bins.shape[1] - 2, bins.shape[2] - 2))
        cells = [bins[:, x : x + size[0], y : y + size[1]] for x, y in each.cells]
        if each.clip is not None:
            first, *others = cells
            cells = [first, *((cell - first).clamp(-each.clip, each.clip) + each.clip for cell in others)]
        at = sum(
            (cell * weight for cell, weight in zip(cells, each.weights[0], strict=True)), torch.zeros_like(cells[0])
        )
        found.append((at + each.offset).flatten(1))
    return torch.cat(found, 1)


def _value_bins(bins: Tensor, weight: Tensor, plan: PatchPlan) -> Tensor:
    return weight[entries_of(bins, plan)].double().sum(1).float()


def by_torch(
    heights: Tensor, extent: Tensor, top: Tensor, legal: Tensor, weight: Tensor, plan: PatchPlan, step: int, pool: int
) -> Tensor:
    """The definition of `value_placements`, of checked tensors: all placements together, each bin as it would be."""
    device = heights.device
    before = framed(heights, plan)[:, None, None, None]  # (N, 1, 1, 1, X + 2, Y + 2)
    inside = []
    there = legal
    for axis, cells in enumerate(heights.shape[1:]):
        size = extent[..., axis, None]  # (N, V, 1)
        first = torch.minimum(
            torch.arange(top.shape[2 + axis], device=device, dtype=torch.int64) * step, cells * pool - size
        )  # (N, V, G)
        begin = first.div(pool, rounding_mode="floor")
        end = (first + size - 1).div(pool, rounding_mode="floor")
        at = torch.arange(-1, cells + 1, device=device, dtype=torch.int64)
        inside.append((at >= begin[..., None]) & (at <= end[..., None]))  # (N, V, G, cells + 2)
        fits = (size > 0) & (first >= 0)
        there = there & (fits[..., :, None] if axis == 0 else fits[..., None, :])
    under = inside[0][:, :, :, None, :, None] & inside[1][:, :, None, :, None, :]
    reached = torch.where(under, top.clamp_max(plan.levels).long()[..., None, None], 0)
    values = _value_bins(torch.maximum(before, reached).flatten(0, 3), weight, plan).view(top.shape)
    return torch.where(there, values, -torch.inf)


@lru_cache(maxsize=4)
def _first_images(plan: PatchPlan, device: torch.device) -> Tensor:
    """`first_images` on the device of their use, so that no update copies them there."""
    return plan.first_images.to(device)


def _learn_bins(heights: Tensor, units: Tensor, counts: Tensor, tables: Tables, plan: PatchPlan, rate: float) -> None:
    first = _first_images(plan, heights.device)
    at = first[entries_of(framed(heights, plan), plan)]  # (N, patches)
    rows = counts[:, None].expand_as(at)
    count = torch.zeros_like(first).index_add_(0, at.flatten(), rows.flatten().long())
    sums = torch.zeros_like(first).index_add_(0, at.flatten(), (units[:, None] * rows).flatten())
    mean = (sums.double() / count.clamp_min(1).double() / _ONE).float()
    tables.drift.add_(mean)
    tables.path.add_(mean.abs())
    coherence = torch.where(tables.path > 0, tables.drift.abs() / tables.path, 1.0)
    moved = tables.weight + (rate * coherence.double() * mean.double()).float()
    tables.weight.copy_(moved[first])


# -- in C++ --


class _Patch(Structure):
    """`struct Patch` of afterstates.h."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "columns", "cells", "clip", "table", "offset")),
        ("x", c_int64 * MOST_CELLS),
        ("y", c_int64 * MOST_CELLS),
        ("weight", c_int64 * MOST_IMAGES * MOST_CELLS),
    )

    @classmethod
    def of(cls, each: Lying) -> _Patch:
        clip = -1 if each.clip is None else each.clip
        made = cls(each.rows, each.columns, len(each.cells), clip, each.table, each.offset)
        for i, (x, y) in enumerate(each.cells):
            made.x[i], made.y[i] = x, y
            for j in range(MOST_IMAGES):
                made.weight[i][j] = each.weights[j if j < len(each.weights) else 0][i]
        return made


@lru_cache
def _described(plan: PatchPlan, part: tuple[int, ...] | None) -> Any:
    lying = [each for each in plan.lying if part is None or each.table in part]
    return (_Patch * len(lying))(*map(_Patch.of, lying))


class PatchArguments(Structure):
    """`struct Patches` of afterstates.h."""

    _fields_ = (
        *((name, c_int64) for name in ("shapes", "tables", "cells_x", "cells_y", "levels", "threads")),
        ("patch", c_void_p),
        ("weight", c_void_p),
    )

    @classmethod
    def of(
        cls, plan: PatchPlan, heights: Tensor, weight: Tensor, part: tuple[int, ...] | None = None
    ) -> PatchArguments:
        """Arguments of the C++ kernels, of all tables or of some; the tensors must outlive the call."""
        made = _described(plan, part)
        sizes = len(made), len(plan.shapes), *heights.shape[1:], plan.levels, kernel_threads()
        described = cls(*sizes, addressof(made), weight.data_ptr())
        described.held = made, heights, weight
        return described


class _Learnt(Structure):
    """`struct Learnt` of afterstates.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("weight", "drift", "path", "seen", "error", "counts")),
        *((name, c_void_p) for name in ("changed", "num_changed", "marked")),
        ("rate", c_double),
    )


class _Sweep(native.Arguments):
    """`struct Sweep` of sweep.h."""

    _fields_ = (
        *native.of_type(c_int64, "rows steps"),
        *native.of_type(c_void_p, "levels reward done"),
        ("lam", c_float),
        ("rate", c_double),
        *native.of_type(c_void_p, "weight drift path error counts"),
    )


def _at(values: Tensor) -> c_void_p:
    return c_void_p(values.data_ptr())


def level_heights(metres: Tensor, height: float, levels: int) -> Tensor:
    """Heights in whole levels of a bin of `height` metres, uint8; half a level counts as one."""
    return (metres * (levels / height)).round().clamp(0, levels).to(torch.uint8)
