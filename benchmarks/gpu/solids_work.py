"""How many cells `drop_solids` visits in a step of `packing_irregular.yaml`, and what they cost by its disassembly.

`python -m benchmarks.gpu.solids_work` writes `results/solids_work.json`. Nothing is run on a GPU: the visits are counted
from states that are played on a CPU, the instructions of a visit from the binary for a chip. A warp's visit takes the
longest of three: its issue slots, a clock an instruction; the pipe of integers and of minima and maxima, two clocks an
instruction; its loads from the first-level cache, four clocks a load. What waits for memory is not in it: where a report
of a GPU has the measured time of the kernel before this form, the ratio of both stands beside.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu import shipped
from benchmarks.gpu.chips import DEVICES, Device
from benchmarks.gpu.expectations import bound
from benchmarks.gpu.launches import Compiled, Launch, innermost_loops
from benchmarks.gpu.steps import launches
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels.triton.solids import blocks
from torchrl_gpu.envs.packing.kernels.triton.undersides import undersides
from torchrl_gpu.envs.packing.types import Moved
from torchrl_gpu.evaluation.reports import write_json

CONFIG, KERNEL, CHIP = "packing_irregular", "drop_solids_kernel", "H100"
RESULT = Path(__file__).parents[1] / "results" / "solids_work.json"
MEASURED_S = 2.95e-3  # `results/gpu_h100.json`, of the form that visited every cell of every touched placement
# The loop of that form, commit 90842daf, for compute capability 9.0: two cells of 256 pairs of placements.
FORMER_LANES = 256
FORMER_LOOP = {
    "VIADDMNMX": 64, "LDG": 24, "IMAD": 18, "IADD3": 9, "FFMA": 8, "FMNMX": 8, "PRMT": 8, "UIADD3": 2, "ISETP": 2,
    "VIADD": 1, "LDC": 1, "BRA": 1,
}  # fmt: skip
_PAIRED = "VIADDMNMX"
_INTEGER_PIPE = ("VIADDMNMX", "VIMNMX", "IADD3", "PRMT", "FMNMX", "ISETP", "VIADD", "LOP3", "SHF", "SEL")
_CLOCKS = {"issue": 1, "integers": 2, "loads": 4}  # of an instruction, on a quarter of a multiprocessor
_WARMUP_STEPS, _COUNTED_STEPS = 6, 8


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
    """Visits of cells by warps in a step.

    Attributes:
        total: Of all warps.
        longest: Of the warp that has most.
        warps: That have any.
    """

    total: int
    longest: int
    warps: int


def loop_of(launch: Launch, compiled: Compiled) -> Loop:
    """The longest inner loop of a compiled form, which is the unrolled one."""
    loops = [loop for loop in innermost_loops(compiled.instructions) if any(_PAIRED in line for line in loop)]
    counted = Counter(_mnemonic(line) for line in max(loops, key=len))
    per_cell = launch.options["V"] * launch.options["T"] / 32
    return Loop(dict(counted), counted[_PAIRED] / per_cell)


def _mnemonic(line: str) -> str:
    words = line.split()
    name = words[1] if words[0].startswith("@") else words[0]
    return name.partition(".")[0]


@cache
def played() -> list[tuple[PackingEnv, Moved, Tensor]]:
    """Steps of the shipped environment by random legal actions: environment, what moved, and the items then shown."""
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
    """Visits of a step by programs of so many pairs of placements, a warp each.

    Where `clipped`, cells without material are left out, and of maps that are kept those that no tile of placements puts
    into what has changed.
    """
    catalogue, bin_, step = env.catalogue, env.bin, env.bin.step
    cut = blocks(catalogue, bin_)
    spans = undersides(catalogue, bin_, cut.variants).spans.numpy()
    extent = catalogue.extent.numpy()
    order = (extent[..., 0] * 32768 + extent[..., 1]).argsort(axis=1, kind="stable")
    counts: list[int] = []
    for n in range(env.num_envs):
        for slot, item in enumerate(shown[n].tolist()):
            if item < 0:
                continue
            kept = int(moved.slot[n, slot]) >= 0
            window = moved.changed[n].tolist() if kept else [0, 0, *bin_.cells]
            for group in range(spans.shape[1]):
                members = order[item, group * cut.variants : (group + 1) * cut.variants]
                for p, q in dict.fromkeys(tuple(extent[item, each].tolist()) for each in members):
                    lanes_x, lanes_y, last_x = _placements((p, q), window, bin_.cells, step)
                    for first in range(0, len(lanes_x), lanes):
                        part = slice(first, first + lanes)
                        tile = lanes_x[part], last_x[part], lanes_y[part]
                        counts.append(_cells(tile, (p, q), window, spans[item, group], clipped, kept))
    used = [count for count in counts if count]
    return Visits(sum(used), max(used), len(used))


def _placements(
    size: tuple[int, int], window: list[int], cells: tuple[int, int], step: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of placements that touch a window, as `placements.work` orders them: first x, y, and last x of each."""
    along_x, along_y = (_touched(size[axis], window[axis], window[axis + 2], cells[axis], step) for axis in (0, 1))
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


def _cells(
    tile: tuple[np.ndarray, np.ndarray, np.ndarray],
    size: tuple[int, int],
    window: list[int],
    spans: np.ndarray,
    clipped: bool,
    kept: bool,
) -> int:
    """Cells that the loop of a program visits."""
    (x, last_x, y), (p, q) = tile, size
    if not clipped:
        return p * q
    first_i, end_i, first_j, end_j = 0, p, 0, q
    if kept:
        first_i, end_i = max(window[0] - int(last_x.max()), 0), min(window[2] - int(x.min()), p)
        first_j, end_j = max(window[1] - int(y.max()), 0), min(window[3] - int(y.min()), q)
    step, _, length = spans.shape
    row, column, a = np.ogrid[:step, :step, :length]
    i = row + a * step
    low = np.maximum(spans & 0xFFFF, np.maximum(first_j - column + step - 1, 0) // step)
    high = np.minimum(spans >> 16, np.maximum(end_j - column + step - 1, 0) // step)
    return int(np.where((i >= first_i) & (i < end_i), np.maximum(high - low, 0), 0).sum())


def seconds(found: Visits, loop: Loop, device: Device) -> float:
    """Least time of the visits: shared evenly by all quarters of multiprocessors, or that of the longest warp."""
    quarters = 4 * device.multiprocessors
    return max(found.total / quarters, found.longest) * loop.clocks / device.clock


def forms() -> dict[str, tuple[Loop, int, bool]]:
    """The former form of the kernel and the one of today: its loop, pairs of placements a program, and whether clipped."""
    former = Loop(FORMER_LOOP, FORMER_LOOP[_PAIRED] / 32)
    capability = DEVICES[CHIP].capability
    launch = next(e for e in launches(CONFIG, capability) if e.name == KERNEL and e.options["STORED"])
    loop = loop_of(launch, launch.compiled(capability))
    return {"before": (former, FORMER_LANES, False), "now": (loop, launch.options["T"], True)}


def section() -> dict[str, Any]:
    """A row for each form: visits, clocks of a visit, least time, and the time to be expected."""
    device = DEVICES[CHIP]
    least = bound(KERNEL, CONFIG, device).seconds
    rows: list[dict[str, Any]] = []
    waits = 1.0
    for name, (loop, lanes, clipped) in forms().items():
        found = [visits(*step, lanes, clipped=clipped) for step in played()]
        mean = Visits(*(round(sum(values) / len(found)) for values in zip(*found, strict=True)))
        alone = seconds(mean, loop, device)
        if name == "before":
            waits = MEASURED_S / alone
        row = {"form": name, "visits": f"{mean.total:,}", "longest": f"{mean.longest:,}", "warps": f"{mean.warps:,}"}
        row |= {"clocks": f"{loop.clocks:.3g}", "least": f"{alone * 1e6:.0f}"}
        row |= {"expected": f"{alone * waits * 1e6:.0f}", "over": f"{alone / least:.2g} to {alone * waits / least:.2g}"}
        rows.append(row)
    columns = {"form": "drop_solids", "visits": "visits of cells", "longest": "of the longest warp", "warps": "warps"}
    columns |= {"clocks": "clocks a visit", "least": "µs without waits", "expected": "µs with waits as before"}
    return {"title": "prediction for an H100", "columns": columns | {"over": "× bound"}, "rows": rows}


def main() -> int:
    """Writes the JSON of the table in the documentation."""
    write_json(RESULT, {"benchmark": "gpu.solids_work", "sections": [section()]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
