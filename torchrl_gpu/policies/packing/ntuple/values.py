"""N-tuple network values of bins after placements.

A value is the sum of table weights, one for each patch, indexed by its heights. Szubert and Jaśkowski, "Temporal
difference learning of n-tuple networks for the game 2048", CIG 2014, here over heightmaps.

`PatchPlan` defines the patches. Each operation is defined in torch, which runs on any device and reads nothing back; on
a CPU with a compiler it runs in C++ (`native/afterstates.h`), and on a CUDA device in Triton, once that has been seen
to work (`triton_values`, `triton_tables`). There a placement costs only the patches that its footprint touches, and an
update only the entries that it moves.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from ctypes import Array, Structure, addressof, byref, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs.counter_rng import TRITON_DRAWS
from torchrl_gpu.envs.packing.items.cutting import TRITON_CUTS
from torchrl_gpu.policies.indices import indices
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

# Kernels by module: what they do, for messages, and further modules whose device functions they call.
_TESTED = {
    TRITON_PLACEMENTS: ("the values of afterstates", (TRITON_TABLES,)),
    TRITON_TABLES: ("tables of afterstates", ()),
    TRITON_ROLLOUTS: ("rollouts of tables", (TRITON_TABLES, TRITON_PLACEMENTS, TRITON_CUTS, TRITON_DRAWS, *_BOXES)),
}
# Cells of a patch, and ways to turn and mirror one onto itself.
MOST_CELLS = 9
MOST_IMAGES = 8
MOST_LEVELS = 250
MOST_ENTRIES = 2**28
MOST_SHAPES = 32
_CPU = torch.device("cpu")

# Errors are summed in whole numbers, whose sums do not depend on their order: this is an error of 1, and the largest
# error that counts.
_ONE = 2.0**32
_LARGEST = 2.0**10

_SHAPE = re.compile(r"([1-9])x([1-9])(?::([1-9][0-9]?))?")


class OrientedShape(NamedTuple):
    """One patch shape in one orientation.

    Attributes:
        rows: Cells along x.
        columns: Cells along y.
        cells: (x, y) of each cell, in the order of the index.
        clip: Largest difference of other cells from the first by which a patch is found; None for heights.
        table: Number of its table; shapes that are the same when turned share one.
        offset: Index at which the table begins.
        weights: Factor of each cell in the index, (images, cells), for each way to turn and mirror the patch.
    """

    rows: int
    columns: int
    cells: tuple[tuple[int, int], ...]
    clip: int | None
    table: int
    offset: int
    weights: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PatchPlan:
    """Patches of a bin that have weights in the tables.

    A bin is `levels` high and has a frame of one cell around it of that height, so that walls are seen. A shape "2x3"
    stands for all patches of 2×3 and of 3×2 cells that touch the bin; their entries are found by the heights of the six
    cells. "3x3:2" is found by the height of the middle cell and the differences of the others from it, cut off at 2
    levels.

    Patches that are the same when turned or mirrored share their entry. Patches with differences and an even side have
    no cell in the middle: they share only if the cell from which the others differ stays in its place.

    Args:
        shapes: Shapes of patches, all different.
        levels: Height of the bin, in levels.
    """

    shapes: Sequence[str]
    levels: int = 10

    def __post_init__(self) -> None:
        levels = whole("PatchPlan", "levels", self.levels, 1, MOST_LEVELS)
        object.__setattr__(self, "levels", levels)
        are_words = all(isinstance(each, str) for each in self.shapes)
        if isinstance(self.shapes, str) or not are_words:
            raise ValueError(
                f"PatchPlan: shapes must be a list such as ['2x2', '1x4', '3x3:2'], not {shown(self.shapes)}"
            )
        object.__setattr__(self, "shapes", tuple(self.shapes))
        parsed = [_parse(shape, self.levels) for shape in self.shapes]
        has_duplicates = len(set(parsed)) < len(parsed)
        if not parsed or len(parsed) > MOST_SHAPES or has_duplicates:
            raise ValueError(f"PatchPlan: shapes must be 1 to {MOST_SHAPES} different ones, not {shown(self.shapes)}")
        if self.entries > MOST_ENTRIES:
            raise ValueError(
                f"PatchPlan: shapes {shown(self.shapes)} have {self.entries:,} entries, more than {MOST_ENTRIES:,}"
            )

    @cached_property
    def oriented(self) -> tuple[OrientedShape, ...]:
        """Every shape in each of its orientations, with tables one behind the other."""
        found: list[OrientedShape] = []
        offset = 0
        for table, shape in enumerate(self.shapes):
            rows, columns, clip = _parse(shape, self.levels)
            found += _orientations(rows, columns, clip, self.levels, table, offset)
            offset += math.prod(_sizes(found[-1], self.levels))
        return tuple(found)

    @cached_property
    def entries(self) -> int:
        """Number of weights of all tables."""
        last = self.oriented[-1]
        return last.offset + math.prod(_sizes(last, self.levels))

    def patches(self, cells: Sequence[int]) -> int:
        """Number of patches of a bin of (X, Y) cells."""
        numbers = [self.sides(each, cells) for each in self.oriented]
        return sum(map(math.prod, numbers))

    @staticmethod
    def sides(shape: OrientedShape, cells: Sequence[int]) -> tuple[int, int]:
        """Numbers of patches of a shape along x and along y in a bin of (X, Y) cells."""
        # The frame adds a cell at each end, and a patch must touch the bin or lie in it.
        along_x = cells[0] + 3 - shape.rows
        along_y = cells[1] + 3 - shape.columns
        return along_x, along_y

    def check_fits(self, cells: Sequence[int]) -> None:
        """Raise ValueError unless every shape fits a bin of (X, Y) cells with its frame."""
        for each in self.oriented:
            fits_x = each.rows <= cells[0] + 2
            fits_y = each.columns <= cells[1] + 2
            if not fits_x or not fits_y:
                raise ValueError(
                    f"PatchPlan: a patch of {each.rows}x{each.columns} does not fit a bin of {tuple(cells)} cells and"
                    " its frame"
                )

    @cached_property
    def first_images(self) -> Tensor:
        """Least equivalent index of each weight, turned or mirrored, (E,) int64."""
        first = []
        for table, shape in enumerate(self.tables):
            num_entries = math.prod(_sizes(shape, self.levels))
            numbers = torch.arange(num_entries, dtype=torch.int64, device="cpu")
            first.append(self.images(table, numbers).amin(0))
        return torch.cat(first)

    @cached_property
    def tables(self) -> tuple[OrientedShape, ...]:
        """For each table, the last orientation of the shape that it belongs to."""
        last = {each.table: each for each in self.oriented}
        return tuple(last.values())

    def images(self, table: int, numbers: Tensor) -> Tensor:
        """Indices (J, M) int64 equivalent to entries (M,) of a table, in J images.

        An image is the patch turned or mirrored. The digits of an index are the heights of the cells; an image has the
        same digits at other places.
        """
        shape = self.tables[table]
        digits = []
        for size in reversed(_sizes(shape, self.levels)):
            digits.append(numbers % size)
            numbers = numbers // size
        digits.reverse()
        images = []
        for factors in shape.weights:
            image = torch.zeros_like(numbers)
            for digit, factor in zip(digits, factors, strict=True):
                image = image + digit * factor
            images.append(image)
        return torch.stack(images) + shape.offset


def _parse(shape: str, levels: int) -> tuple[int, int, int | None]:
    """Rows, columns and clip of a shape in words."""
    # Rows go before columns, so that "4x1" and "1x4" are the same shape.
    found = _SHAPE.fullmatch(shape)
    sides = found.groups()[:2] if found else ("0", "0")
    rows, columns = sorted(map(int, sides))
    if not found or rows * columns > MOST_CELLS:
        raise ValueError(
            f"PatchPlan: a shape has at most {MOST_CELLS} cells, such as '2x2', '1x4' or '3x3:2', and"
            f" {shown(shape)} is none"
        )
    clip = found.group(3)
    return rows, columns, None if clip is None else min(int(clip), levels)


def _sizes(shape: OrientedShape, levels: int) -> list[int]:
    """Number of digits that each cell of a patch can have in the patch's index."""
    others = levels + 1
    if shape.clip is not None:
        others = 2 * shape.clip + 1
    num_others = len(shape.cells) - 1
    return [levels + 1, *[others] * num_others]


def _orientations(
    rows: int, columns: int, clip: int | None, levels: int, table: int, offset: int
) -> list[OrientedShape]:
    """A shape in all its orientations."""
    cells = list(itertools.product(range(rows), range(columns)))
    # Differences are taken from the cell in the middle, which therefore comes first.
    if clip is not None:
        middle = (rows // 2, columns // 2)
        cells = [middle, *(each for each in cells if each != middle)]
    others = levels + 1 if clip is None else 2 * clip + 1
    # The digit of the last cell counts in ones.
    exponents = reversed(range(len(cells)))
    place = [others**exponent for exponent in exponents]
    images = []
    for flip_x, flip_y, turned in itertools.product((False, True), repeat=3):
        if turned and rows != columns:
            continue
        moved = [_moved(each, rows, columns, flip_x, flip_y, turned) for each in cells]
        # The cell that others are compared with must stay in its place.
        if clip is None or moved[0] == cells[0]:
            factors = [place[cells.index(each)] for each in moved]
            images.append(tuple(factors))
    weights = tuple(dict.fromkeys(images))
    shape = OrientedShape(rows, columns, tuple(cells), clip, table, offset, weights)
    found = [shape]
    if rows != columns:
        turned_cells = tuple((y, x) for x, y in cells)
        found.append(OrientedShape(columns, rows, turned_cells, clip, table, offset, weights))
    return found


def _moved(cell: tuple[int, int], rows: int, columns: int, flip_x: bool, flip_y: bool, turned: bool) -> tuple[int, int]:
    """Place of a cell after mirroring and turning its patch."""
    x = rows - 1 - cell[0] if flip_x else cell[0]
    y = columns - 1 - cell[1] if flip_y else cell[1]
    return (y, x) if turned else (x, y)


# -- the operations --


class Tables(NamedTuple):
    """Table weights, and the running sums of errors that scale their steps.

    Entries that are the same when turned or mirrored have equal weights; their sums stand at the first of them.

    Attributes:
        weight: (E,) float32.
        drift: Sum of the mean errors that an entry has seen, (E,) float32.
        path: Sum of the sizes of these errors, (E,) float32.
    """

    weight: Tensor
    drift: Tensor
    path: Tensor


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
    """Value of the bin after every legal placement of boxes, (N, V, Gx, Gy) float32.

    It is −inf where a placement is not legal. Cells of the bin may be coarser than those that boxes are placed by: a
    box raises every one that it touches.

    Args:
        heights: (N, X, Y) uint8, levels; heights above `plan.levels` count as that.
        extent: (N, V, 2) int64, fine cells along x and y of V boxes or of orientations of boxes.
        top: (N, V, Gx, Gy) uint8, levels: how high a box reaches on each placement.
        legal: (N, V, Gx, Gy) bool.
        weight: (E,) float32.
        plan: The patches.
        step: Fine cells between neighbouring placements.
        pool: Fine cells along each side of a cell of `heights`.
    """
    where = "value_placements"
    # Everything is checked here, once for all backends: kernels in C++ and Triton read memory by these sizes.
    heights = _heights(where, heights, plan)
    rows = heights.shape[0]
    device = heights.device
    step = whole(where, "step", step, 1)
    pool = whole(where, "pool", pool, 1)
    sides = heights.shape[1:]
    grid = [-(-cells * pool // step) for cells in sides]
    variants = 1
    if isinstance(extent, Tensor) and extent.ndim == 3:
        variants = extent.shape[1]
    shape = (rows, variants, *grid)
    extent_shape = (rows, variants, 2)
    extent = tensor(where, "extent", extent, torch.int64, extent_shape, device, cast=True)
    extent = extent.contiguous()
    top = tensor(where, "top", top, torch.uint8, shape, device).contiguous()
    legal = tensor(where, "legal", legal, torch.bool, shape, device).contiguous()
    weight = _weight(where, weight, plan, device)
    if not native.runs_on(heights):
        kernels = in_triton(TRITON_PLACEMENTS, heights.device)
        values = by_torch if kernels is None else kernels.value_placements
        return values(heights, extent, top, legal, weight, plan, step, pool)
    out = native.output(*legal.shape, dtype=torch.float32)
    arguments = PatchArguments.of(plan, heights, weight)
    tensors = map(_address, (heights, extent, top, legal))
    sizes = map(c_int64, (variants, step, pool, *grid))
    native.library().value_placements(byref(arguments), c_int64(rows), *tensors, *sizes, _address(out))
    return out


def value_bins(heights: Tensor, weight: Tensor, plan: PatchPlan) -> Tensor:
    """Values (N,) float32 of bins (N, X, Y) uint8, in levels."""
    heights = _heights("value_bins", heights, plan)
    weight = _weight("value_bins", weight, plan, heights.device)
    if not native.runs_on(heights):
        kernels = in_triton(TRITON_TABLES, heights.device)
        if kernels is not None:
            return kernels.value_bins(heights, weight, plan)
        return _value_bins(framed(heights, plan), weight, plan)
    out = native.output(len(heights), dtype=torch.float32)
    arguments = PatchArguments.of(plan, heights, weight)
    number = c_int64(len(heights))
    native.library().value_bins(byref(arguments), number, _address(heights), _address(out))
    return out


def learn_bins(
    heights: Tensor,
    error: Tensor,
    counts: Tensor,
    tables: Tables,
    plan: PatchPlan,
    rate: float,
    scratch: Tensor,
) -> None:
    """Update weights in place, so that bins' values move by about `rate` · error.

    Each entry moves by the mean of the errors of the bins that it occurs in, once for each time that it occurs: that is
    the simultaneous algebraic reconstruction technique (Andersen and Kak 1984), whose steps do not add up however often
    an entry occurs. The step is scaled by temporal coherence (Beal and Smith 1999), |sum| over sum of sizes of the mean
    errors that the entry has seen, so that entries whose errors only scatter come to rest.

    Args:
        heights: (N, X, Y) uint8, levels.
        error: (N,) float32: target of a bin minus its value.
        counts: (N,) bool, whether a bin counts.
        tables: Written to.
        plan: Patches of the tables.
        rate: From 0 to 1.
        scratch: (E, 2) int64, zeros before and after.
    """
    where = "learn_bins"
    heights = _heights(where, heights, plan)
    device = heights.device
    one_per_bin = (len(heights),)
    error = tensor(where, "error", error, torch.float32, one_per_bin, device)
    counts = tensor(where, "counts", counts, torch.bool, one_per_bin, device).contiguous()
    counts = counts & error.isfinite()
    check_tables(where, heights, tables, plan, scratch)
    # NaN has no whole number: a bin whose error is none does not count, but its error is converted with the others.
    clipped = error.double().nan_to_num(0.0).clamp(-_LARGEST, _LARGEST)
    units = (clipped * _ONE).round().long()
    # The value of a bin is a sum over its patches, each of which takes away its part of the error.
    rate = rate / plan.patches(heights.shape[1:])
    if not native.runs_on(heights):
        kernels = in_triton(TRITON_TABLES, device)
        if kernels is not None:
            return kernels.learn_bins(heights, units, counts, tables, plan, rate, scratch)
        return _learn_bins(heights, units, counts, tables, plan, rate)
    arguments = PatchArguments.of(plan, heights, tables.weight)
    written = [each.data_ptr() for each in (*tables, scratch, units, counts)]
    update = _Update(*written, rate)
    number = c_int64(len(heights))
    native.library().learn_bins(byref(arguments), byref(update), number, _address(heights))
    return None


def check_tables(where: str, heights: Tensor, tables: Tables, plan: PatchPlan, scratch: Tensor) -> None:
    """Raise ValueError unless tables and scratch are those of a plan that fits bins."""
    _heights(where, heights, plan)
    device = heights.device
    entries = plan.entries
    for name, each in zip(Tables._fields, tables, strict=True):
        tensor(where, name, each, torch.float32, (entries,), device, contiguous=True)
    tensor(where, "scratch", scratch, torch.int64, (entries, 2), device, contiguous=True)


def sweep_in_cpp(
    levels: Tensor,
    reward: Tensor,
    done: Tensor,
    tables: Tables,
    plan: PatchPlan,
    rate: float,
    lam: float,
) -> tuple[Tensor, Tensor] | None:
    """Learn by TD(λ) from N trajectories of T steps in one C++ call.

    It is `sweep.sweep_by_steps` to the bit.

    Args:
        levels: (N, T, X, Y) uint8, the bins after each step.
        reward: (N, T) float32.
        done: (N, T) bool.
        tables: Written to, on a CPU.
        plan: Patches of the tables.
        rate: As in `learn_bins`.
        lam: λ.

    Returns:
        Errors (T, N) float32, of the last step first, and whether each was learned from. None, and nothing is learned,
        if entries that are the same when turned or mirrored are not equal.
    """
    where = "sweep_in_cpp"
    rows, steps = reward.shape
    flat = _heights(where, levels.flatten(0, 1), plan)
    shape = (rows, steps)
    reward = tensor(where, "reward", reward, torch.float32, shape, _CPU).contiguous()
    done = tensor(where, "done", done, torch.bool, shape, _CPU).contiguous()
    for name, each in zip(Tables._fields, tables, strict=True):
        tensor(where, name, each, torch.float32, (plan.entries,), _CPU, contiguous=True)
    number = rows * steps
    if flat.shape[0] != number or not number:
        raise ValueError(f"{where}: levels must be of {rows} × {steps} bins, at least one, not {len(flat)}")
    error = native.output(steps, rows, dtype=torch.float32)
    counts = native.output(steps, rows, dtype=torch.bool)
    tensors = {"levels": flat, "reward": reward, "done": done, "error": error, "counts": counts}
    tensors |= tables._asdict()
    patches = PatchArguments.of(plan, flat, tables.weight)
    share = rate / plan.patches(flat.shape[1:])
    sweep = _Sweep.of(tensors, rows=rows, steps=steps, lam=lam, rate=share)
    function = native.library().sweep_bins
    function.restype = c_int64
    # C++ returns 0, and has learned nothing, if entries that should be equal are not.
    was_learned = function(byref(patches), byref(sweep))
    return (error, counts) if was_learned else None


def _heights(where: str, heights: Tensor, plan: PatchPlan) -> Tensor:
    if not isinstance(heights, Tensor) or heights.ndim != 3:
        raise ValueError(f"{where}: heights must be uint8 of shape (N, X, Y), not {shown(heights)}")
    plan.check_fits(heights.shape[1:])
    shape = tuple(heights.shape)
    checked = tensor(where, "heights", heights, torch.uint8, shape, heights.device)
    return checked.contiguous()


def _weight(where: str, weight: Tensor, plan: PatchPlan, device: torch.device) -> Tensor:
    return tensor(where, "weight", weight, torch.float32, (plan.entries,), device).contiguous()


# -- in Triton --


def in_triton(name: str, device: torch.device) -> ModuleType | None:
    """Return a module of Triton kernels for a device, or None if torch works."""
    what, parts = _TESTED[name]
    return load_kernels(what, name, device, parts)


def triton_problems(device: torch.device) -> dict[str, str]:
    """Reasons why Triton's kernels of tables cannot run on a CUDA device.

    By what the kernels do; "" for kernels that can.
    """
    problems = {}
    for name, (what, parts) in _TESTED.items():
        problems[what] = problem_of(what, name, device, parts)
    return problems


# -- in torch --


def framed(heights: Tensor, plan: PatchPlan) -> Tensor:
    """Bins within their frames, (N, X + 2, Y + 2) int64."""
    inside = heights.clamp_max(plan.levels).long()
    return torch.nn.functional.pad(inside, (1, 1, 1, 1), value=plan.levels)


def entries_of(bins: Tensor, plan: PatchPlan) -> Tensor:
    """Weight index of each patch of framed bins, (N, patches) int64."""
    framed_x, framed_y = bins.shape[1:]
    size = (framed_x - 2, framed_y - 2)
    found = []
    for each in plan.oriented:
        rows, columns = plan.sides(each, size)
        cells = []
        for x, y in each.cells:
            cells.append(bins[:, x : x + rows, y : y + columns])
        if each.clip is not None:
            first, *others = cells
            clip = each.clip
            differences = [(cell - first).clamp(-clip, clip) + clip for cell in others]
            cells = [first, *differences]
        entry = torch.zeros_like(cells[0])
        for cell, factor in zip(cells, each.weights[0], strict=True):
            entry = entry + cell * factor
        found.append((entry + each.offset).flatten(1))
    return torch.cat(found, 1)


def _value_bins(bins: Tensor, weight: Tensor, plan: PatchPlan) -> Tensor:
    weights = weight[entries_of(bins, plan)]
    return weights.double().sum(1).float()


def by_torch(
    heights: Tensor, extent: Tensor, top: Tensor, legal: Tensor, weight: Tensor, plan: PatchPlan, step: int, pool: int
) -> Tensor:
    """Definition of `value_placements`, of checked tensors.

    All bins after all placements are made and valued together.
    """
    device = heights.device
    # With a frame of one cell, (N, 1, 1, 1, X + 2, Y + 2).
    before = framed(heights, plan)[:, None, None, None]
    inside = []
    there = legal
    for axis, cells in enumerate(heights.shape[1:]):
        size = extent[..., axis, None]  # (N, V, 1)
        place = indices(top.shape[2 + axis], device)
        # Fine cells that a box covers, then coarse cells: (N, V, G) each.
        first = torch.minimum(place * step, cells * pool - size)
        begin = first.div(pool, rounding_mode="floor")
        end = (first + size - 1).div(pool, rounding_mode="floor")
        at = torch.arange(-1, cells + 1, device=device, dtype=torch.int64)
        # Whether it covers each cell of the frame and the bin, (N, V, G, cells + 2).
        after_begin = at >= begin[..., None]
        inside.append(after_begin & (at <= end[..., None]))
        # Whatever the mask says, an empty slot has no box, and a box that is longer than the bin has no place.
        fits = (size > 0) & (first >= 0)
        fits = fits.unsqueeze(-1 if axis == 0 else -2)
        there = there & fits
    covers_x, covers_y = inside
    in_x = covers_x[:, :, :, None, :, None]
    under = in_x & covers_y[:, :, None, :, None, :]
    levels = top.clamp_max(plan.levels).long()[..., None, None]
    reached = torch.where(under, levels, 0)
    after = torch.maximum(before, reached).flatten(0, 3)
    values = _value_bins(after, weight, plan).view(top.shape)
    return torch.where(there, values, -torch.inf)


@lru_cache(maxsize=4)
def first_images_on(plan: PatchPlan, device: torch.device) -> Tensor:
    """Return `first_images` on the device of their use, so that no update copies them."""
    return plan.first_images.to(device)


def _learn_bins(heights: Tensor, units: Tensor, counts: Tensor, tables: Tables, plan: PatchPlan, rate: float) -> None:
    """Definition of `learn_bins`, of checked tensors."""
    first = first_images_on(plan, heights.device)
    entry = first[entries_of(framed(heights, plan), plan)]
    rows = counts[:, None].expand_as(entry)
    entries = entry.flatten()
    zeros = torch.zeros_like(first)
    count = zeros.index_add_(0, entries, rows.flatten().long())
    errors = (units[:, None] * rows).flatten()
    sums = torch.zeros_like(first).index_add_(0, entries, errors)
    number = count.clamp_min(1).double()
    mean = (sums.double() / number / _ONE).float()
    tables.drift.add_(mean)
    tables.path.add_(mean.abs())
    # Near 1 for entries whose errors have one sign, near 0 for those whose errors only scatter.
    coherence = tables.drift.abs() / tables.path
    coherence = torch.where(tables.path > 0, coherence, 1.0)
    step = rate * coherence.double() * mean.double()
    # Steps are computed in float64 and rounded once, as C++ and Triton do.
    moved = tables.weight + step.float()
    # Only the first of equal entries has moved: the others take its weight.
    tables.weight.copy_(moved[first])


# -- in C++ --


class _Patch(Structure):
    """`struct Patch` of afterstates.h."""

    _numbers = native.of_type(c_int64, "rows columns cells clip table offset")
    _lists = (
        ("x", c_int64 * MOST_CELLS),
        ("y", c_int64 * MOST_CELLS),
        ("weight", c_int64 * MOST_IMAGES * MOST_CELLS),
    )
    _fields_ = (*_numbers, *_lists)

    @classmethod
    def of(cls, shape: OrientedShape) -> _Patch:
        clip = -1 if shape.clip is None else shape.clip
        num_cells = len(shape.cells)
        patch = cls(shape.rows, shape.columns, num_cells, clip, shape.table, shape.offset)
        for i, (x, y) in enumerate(shape.cells):
            patch.x[i] = x
            patch.y[i] = y
            for j in range(MOST_IMAGES):
                # Places of images that a shape does not have repeat the first one.
                image = shape.weights[j if j < len(shape.weights) else 0]
                patch.weight[i][j] = image[i]
        return patch


@lru_cache
def _patches(plan: PatchPlan) -> Array[_Patch]:
    """Shapes of a plan for C++."""
    return (_Patch * len(plan.oriented))(*map(_Patch.of, plan.oriented))


class PatchArguments(Structure):
    """`struct Patches` of afterstates.h."""

    _numbers = native.of_type(c_int64, "shapes tables cells_x cells_y levels threads")
    _pointers = native.of_type(c_void_p, "patch weight")
    _fields_ = (*_numbers, *_pointers)

    @classmethod
    def of(cls, plan: PatchPlan, heights: Tensor, weight: Tensor) -> PatchArguments:
        """Describe the patches of a plan to C++.

        The tensors must outlive the call.
        """
        patches = _patches(plan)
        counts = (len(patches), len(plan.shapes))
        cells = heights.shape[1:]
        sizes = (*counts, *cells, plan.levels, kernel_threads())
        described = cls(*sizes, addressof(patches), weight.data_ptr())
        # C++ has their addresses alone: they must live as long as the description.
        described.held = (patches, heights, weight)
        return described


class _Update(Structure):
    """`struct Learnt` of afterstates.h."""

    _inputs = native.of_type(c_void_p, "weight drift path seen error counts")
    _fields_ = (*_inputs, ("rate", c_double))


class _Sweep(native.Arguments):
    """`struct Sweep` of sweep.h."""

    _sizes = native.of_type(c_int64, "rows steps")
    _steps = native.of_type(c_void_p, "levels reward done")
    _rates = (("lam", c_float), ("rate", c_double))
    _learned = native.of_type(c_void_p, "weight drift path error counts")
    _fields_ = (*_sizes, *_steps, *_rates, *_learned)


def _address(values: Tensor) -> c_void_p:
    return c_void_p(values.data_ptr())


def level_heights(metres: Tensor, height: float, levels: int) -> Tensor:
    """Heights in whole levels of a bin of `height` metres, uint8.

    Half a level counts as one.
    """
    in_levels = metres * (levels / height)
    return in_levels.round().clamp(0, levels).to(torch.uint8)
