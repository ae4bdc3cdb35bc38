"""Cells that `drop_solids` visits in a step of `packing_irregular.yaml`.

Their cost comes from the disassembly of the kernel.

`python -m benchmarks.gpu.solids_work` writes `results/solids_work.json`. Nothing is run on a GPU: the visits are
counted from states that are played on a CPU, the instructions of a visit from the binary for a chip. The loops around
the inner ones are left out. A warp's visit takes the longest of three: its issue slots, a clock an instruction; the
pipe of integers and of minima and maxima, two clocks an instruction; its loads from the first-level cache, four clocks
a load. What waits for memory is not in it. Of the first form an H100 has measured the time; what the others would take
if they waited as much stands in a column of its own.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu import shipped
from benchmarks.gpu.chips import DEVICES, Device
from benchmarks.gpu.expectations import bound
from benchmarks.gpu.launches import Compiled, Launch, innermost_loops
from benchmarks.gpu.steps import launches
from benchmarks.result_types import JsonObject
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels.triton.solids import blocks
from torchrl_gpu.envs.packing.kernels.triton.undersides import undersides
from torchrl_gpu.envs.packing.types import Moved
from torchrl_gpu.evaluation.reports import write_json

CONFIG = "packing_irregular"
KERNEL = "drop_solids_kernel"
CHIP = "H100"
RESULT = Path(__file__).parents[1] / "results" / "solids_work.json"
# From `results/gpu_h100.json`, of the form that visited every cell of every touched placement.
MEASURED_S = 2.95e-3
# The loop of that form, commit 90842daf, for compute capability 9.0: two cells of 256 pairs of placements.
FORMER_LANES = 256
FORMER_LOOP = {
    "VIADDMNMX": 64, "LDG": 24, "IMAD": 18, "IADD3": 9, "FFMA": 8, "FMNMX": 8, "PRMT": 8, "UIADD3": 2, "ISETP": 2,
    "VIADD": 1, "LDC": 1, "BRA": 1,
}  # fmt: skip
_PAIRED = "VIADDMNMX"
_INTEGER_PIPE = ("VIADDMNMX", "VIMNMX", "IADD3", "PRMT", "FMNMX", "ISETP", "VIADD", "LOP3", "SHF", "SEL")
# Of an instruction, on a quarter of a multiprocessor.
_CLOCKS = {"issue": 1, "integers": 2, "loads": 4}
_WARMUP_STEPS, _COUNTED_STEPS = 6, 8
# Programs of each kind.
_SAMPLED = 240


class Loop(NamedTuple):
    """The inner loop of a form of the kernel.

    Attributes:
        instructions: How many of each in a pass.
        cells: Cells of the footprint that a pass visits.
    """

    instructions: dict[str, int]
    cells: float

    @property
    def clocks(self) -> float:
        """Clocks of a warp's visit of a cell, where nothing waits."""
        loads = self.instructions.get("LDG", 0)
        integers = sum(count for name, count in self.instructions.items() if name in _INTEGER_PIPE)
        issued = sum(self.instructions.values())
        pipes = {"issue": issued, "integers": integers, "loads": loads}
        return max(count * _CLOCKS[pipe] for pipe, count in pipes.items()) / self.cells


class Visits(NamedTuple):
    """Visits of cells by warps in a step, were every cell visited in turn.

    Attributes:
        new: For items newly shown.
        kept: For items whose maps are kept.
        longest: Of the warp that has most.
        warps: That have any.
    """

    new: float
    kept: float
    longest: float
    warps: float


class Shares(NamedTuple):
    """Shares of these visits that the kernel makes today.

    They are the first cells of blocks, checks of blocks, and other cells.
    """

    first: float
    checks: float
    others: float

    @property
    def visited(self) -> float:
        """Share of the cells that are visited."""
        return self.first + self.others


def loops_of(launch: Launch, compiled: Compiled) -> tuple[Loop, Loop]:
    """Return the inner loops of a compiled form.

    The first is the longest that visits cells, which is unrolled. The second checks blocks.
    """
    counted = [Counter(map(mnemonic, lines)) for lines in innermost_loops(compiled.instructions)]
    paired = [each for each in counted if each[_PAIRED]]
    visiting = max((each for each in paired if not each["REDUX"]), key=lambda each: sum(each.values()))
    checking = next(each for each in paired if each["REDUX"])
    per_cell = launch.options["V"] * launch.options["T"] / 32
    return Loop(dict(visiting), visiting[_PAIRED] / per_cell), Loop(dict(checking), checking[_PAIRED] / per_cell)


def mnemonic(line: str) -> str:
    """Name of an instruction, without its forms and its predicate."""
    words = line.split()
    name = words[1] if words[0].startswith("@") else words[0]
    return name.partition(".")[0]


@cache
def played() -> list[tuple[PackingEnv, Moved, Tensor]]:
    """Play steps of the shipped environment by random legal actions.

    Returns the environment, what moved, and the items then shown.
    """
    env = PackingEnv(**shipped.environment_arguments(CONFIG) | {"device": "cpu", "seed": 0})
    torch.manual_seed(0)
    current, found = env.reset(), []
    for number in range(_WARMUP_STEPS + _COUNTED_STEPS):
        current = env.rand_action(current)
        state = env.state
        following = state.item_id[:, 0]
        # `advance` writes into the record of placements, which the step then does again.
        moved = env.kernels.advance(state, current["action"], following, env.catalogue, env.bin)
        _, current = env.step_and_maybe_reset(current)
        if number >= _WARMUP_STEPS:
            found.append((env, moved, env.state.item_id))
    return found


def visits(env: PackingEnv, moved: Moved, shown: Tensor, lanes: int, *, clipped: bool) -> Visits:
    """Return the visits of a step by programs of some pairs of placements each.

    Where `clipped`, cells without material are left out, and of maps that are kept those that no tile of placements
    puts into what has changed.
    """
    variants = blocks(env.catalogue, env.bin).variants
    spans = undersides(env.catalogue, env.bin, variants).spans.numpy()
    # By whether their maps are kept.
    counts: dict[bool, list[int]] = {True: [], False: []}
    for tile in _tiles(env, moved, shown, lanes):
        of_tile = spans[tile.item, tile.group]
        counts[tile.kept].append(count_cells(tile, of_tile) if clipped else tile.size[0] * tile.size[1])
    new, kept = counts[False], counts[True]
    return Visits(sum(new), sum(kept), max(new + kept), sum(count > 0 for count in new + kept))


class Tile(NamedTuple):
    """Pairs of placements of one program: first cells along x of both, and along y."""

    env: int
    # In which the item was shown before, of kept maps.
    slot: int
    item: int
    group: int
    # Orientations.
    members: np.ndarray
    size: tuple[int, int]
    kept: bool
    window: list[int]
    x: np.ndarray
    last_x: np.ndarray
    y: np.ndarray

    @property
    def reached(self) -> tuple[int, int, int, int]:
        """Return the cells of the footprint that some placement puts into the window.

        `contact.reached` does the same.
        """
        (p, q), (x0, y0, x1, y1) = self.size, self.window
        first_i, end_i = max(x0 - int(self.last_x.max()), 0), min(x1 - int(self.x.min()), p)
        return first_i, end_i, max(y0 - int(self.y.max()), 0), min(y1 - int(self.y.min()), q)


def _tiles(env: PackingEnv, moved: Moved, shown: Tensor, lanes: int) -> Iterator[Tile]:
    """The programs of a step that have something to work out."""
    catalogue, bin_ = env.catalogue, env.bin
    variants = blocks(catalogue, bin_).variants
    extent = catalogue.extent.numpy()
    order = (extent[..., 0] * 32768 + extent[..., 1]).argsort(axis=1, kind="stable")
    for n, slot in np.ndindex(*shown.shape):
        item = int(shown[n, slot])
        before = int(moved.slot[n, slot])
        if item < 0:
            continue
        window = moved.changed[n].tolist() if before >= 0 else [0, 0, *bin_.cells]
        for group in range(env.num_orientations // variants):
            members = order[item, group * variants : (group + 1) * variants]
            for p, q in dict.fromkeys(tuple(extent[item, each].tolist()) for each in members):
                x, y, last_x = placements((p, q), window, bin_.cells, bin_.step)
                for first in range(0, len(x), lanes):
                    part = slice(first, first + lanes)
                    yield Tile(
                        n, before, item, group, members, (p, q), before >= 0, window, x[part], last_x[part], y[part]
                    )


def placements(
    size: tuple[int, int], window: list[int], cells: tuple[int, int], step: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List pairs of placements that touch a window, in the order of `placements.work`.

    They are the first x, y, and the last x of each.
    """
    along_x = _touched(size[0], window[0], window[2], cells[0], step)
    along_y = _touched(size[1], window[1], window[3], cells[1], step)
    first, end = along_x
    flush = int(end > first and (end - 1) * step > cells[0] - size[0])
    in_pairs = end - first - flush
    rows = [(first + k, min(first + k + 1, end - 1 - flush)) for k in range(0, in_pairs, 2)]
    rows += [(end - 1, end - 1)] * flush
    columns = np.minimum(np.arange(*along_y) * step, cells[1] - size[1])
    starts = np.array([row[0] for row in rows], dtype=np.int64)
    lasts = np.array([row[1] for row in rows], dtype=np.int64)
    x = np.minimum(starts * step, cells[0] - size[0]).repeat(len(columns))
    last_x = np.minimum(lasts * step, cells[0] - size[0]).repeat(len(columns))
    return x, np.tile(columns, len(rows)), last_x


def _touched(extent: int, start: int, end: int, cells: int, step: int) -> tuple[int, int]:
    """As `placements.touched`."""
    room = cells - extent
    fitting = min(-(-room // step) + 1, -(-cells // step)) if room >= 0 else 0
    if fitting == 0 or end <= start:
        return 0, 0
    places = np.minimum(np.arange(fitting) * step, room)
    meets = np.flatnonzero((places < end) & (places + extent > start))
    return (int(meets[0]), int(meets[-1]) + 1) if len(meets) else (0, 0)


def count_cells(tile: Tile, spans: np.ndarray) -> int:
    """Return the cells with material that a program reaches."""
    first_i, end_i, first_j, end_j = tile.reached
    step, _, length = spans.shape
    row, column, a = np.ogrid[:step, :step, :length]
    i = row + a * step
    low = np.maximum(spans & 0xFFFF, np.maximum(first_j - column + step - 1, 0) // step)
    high = np.minimum(spans >> 16, np.maximum(end_j - column + step - 1, 0) // step)
    return int(np.where((i >= first_i) & (i < end_i), np.maximum(high - low, 0), 0).sum())


def shares(kept: bool, lanes: int) -> Shares:
    """Return the shares of a sample of programs, of new items or of kept maps.

    The sample is the same at each call.
    """
    total = np.zeros(4)
    for number, (env, moved, shown) in enumerate(played()):
        some = [tile for tile in _tiles(env, moved, shown, lanes) if tile.kept == kept]
        rng = np.random.default_rng(number)
        for index in rng.choice(len(some), _SAMPLED // len(played()), replace=False):
            total += _walked(env, moved, some[index])
    cells, first, checks, others = total.tolist()
    return Shares(first / cells, checks / cells, others / cells)


def _walked(env: PackingEnv, moved: Moved, tile: Tile) -> np.ndarray:
    """Count cells that a program reaches, its first visits, its checks, and others."""
    catalogue = env.catalogue
    step = env.bin.step
    p, q = tile.size
    assert catalogue.bottom is not None
    assert catalogue.unit is not None
    heights = np.rint(moved.state.heightmap[tile.env].numpy() / catalogue.unit).astype(np.int64)
    heights = np.pad(heights, (0, 2 * step))
    maxima = np.lib.stride_tricks.sliding_window_view(heights, (step, step)).max((2, 3))
    depth = np.rint(catalogue.bottom[tile.item].numpy()[tile.members][:, :p, :q] / catalogue.unit)
    above = np.where(np.isfinite(depth), 255 - depth, 0).astype(np.int64)
    above = np.pad(above, ((0, 0), (0, -p % step), (0, -q % step)))
    of_block = above.reshape(len(above), above.shape[1] // step, step, above.shape[2] // step, step)
    highest_below = of_block.max((2, 4))
    number = (of_block.max(0) > 0).sum((1, 3))
    x = np.stack([tile.x, tile.last_x])
    known = np.full((len(above), *x.shape), 255)
    if tile.kept:
        grid_x, grid_y = -(-x // step), -(-tile.y // step)
        z_map = moved.state.z_map[tile.env, tile.slot].numpy()[tile.members]
        known = known + np.rint(z_map[:, grid_x, grid_y[None]] / catalogue.unit).astype(np.int64)
    first_i, end_i, first_j, end_j = tile.reached
    rows = range(first_i // step, -(-end_i // step))
    columns = range(first_j // step, -(-end_j // step))
    sums = np.zeros(4)
    for a in rows:
        for b in columns:
            if number[a, b]:
                cell = heights[x + step * a, tile.y[None] + step * b]
                known = np.maximum(known, cell[None] + above[:, step * a, step * b][:, None, None])
                sums += (number[a, b], 1, 0, 0)
    for a in rows:
        could = []
        for b in columns:
            most = maxima[x + step * a, tile.y[None] + step * b]
            if (most[None] + highest_below[:, a, b][:, None, None] > known).any():
                could.append(b)
        sums[2] += len(columns)
        if could:
            opened = number[a, could[0] : could[-1] + 1]
            sums[3] += float(np.maximum(opened - 1, 0).sum())
    return sums


def seconds(visited: float, longest: float, clocks: float, device: Device) -> float:
    """Return the least time of visits.

    All quarters of multiprocessors share them evenly, unless the longest warp takes longer.
    """
    return max(visited / (4 * device.multiprocessors), longest) * clocks / device.clock


def section() -> JsonObject:
    """List the forms of the kernel.

    A row holds visits, clocks of a visit, the least time, and the time to be expected.
    """
    device = DEVICES[CHIP]
    least = bound(KERNEL, CONFIG, device).seconds
    launch = next(e for e in launches(CONFIG, device.capability) if e.name == KERNEL and e.options["STORED"])
    loop, check = loops_of(launch, launch.compiled(device.capability))
    lanes = launch.options["T"]
    former = Loop(FORMER_LOOP, FORMER_LOOP[_PAIRED] / 32)
    before = _mean([visits(*step, FORMER_LANES, clipped=False) for step in played()])
    reached = _mean([visits(*step, lanes, clipped=True) for step in played()])
    new, kept = shares(False, lanes), shares(True, lanes)
    # Of a check, in visits.
    weight = check.clocks / loop.clocks
    opened = reached.new * new.visited + reached.kept * kept.visited
    worth = opened + weight * (reached.new * new.checks + reached.kept * kept.checks)
    longest = reached.longest * (new.visited + weight * new.checks)
    touched = before.new + before.kept
    changed = reached.new + reached.kept
    forms = [
        ("every cell of every touched placement", before, touched, before.longest, former.clocks),
        ("cells with material that a change reaches", reached, changed, reached.longest, loop.clocks),
        ("blocks that can still raise a placement", reached, worth, longest, loop.clocks),
    ]
    alone = [seconds(visited, most, clocks, device) for _, _, visited, most, clocks in forms]
    waits = MEASURED_S / alone[0]
    rows: list[JsonObject] = []
    for (name, of_form, visited, most, clocks), time in zip(forms, alone, strict=True):
        row = {"form": name, "warps": f"{of_form.warps:,.0f}", "visits": f"{visited:,.0f}", "longest": f"{most:,.0f}"}
        row |= {"clocks": f"{clocks:.3g}", "least": f"{time * 1e6:.0f}", "over": f"{time / least:.2g}"}
        rows.append(row | {"expected": f"{time * waits * 1e6:,.0f}", "expected_over": f"{time * waits / least:.2g}"})
    columns = {"form": "visited", "warps": "warps", "visits": "visits", "longest": "of the longest warp"}
    columns |= {"clocks": "clocks a visit", "least": "µs without waits", "over": "× bound"}
    columns |= {"expected": "µs, waits as in the first row", "expected_over": "× bound, so"}
    return {"title": "prediction for an H100", "columns": columns, "rows": rows}


def _mean(found: list[Visits]) -> Visits:
    return Visits(*(sum(values) / len(found) for values in zip(*found, strict=True)))


def main() -> int:
    """Write the JSON of the table in the documentation."""
    write_json(RESULT, {"benchmark": "gpu.solids_work", "sections": [section()]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
