"""`torchrl-gpu bench packing`: steps of PackingEnv per second, beside ceilings.

The ceilings are the NumPy reference and the speed of memory. Parity comes first: nothing is timed while the kernels
that run here and the reference give different episodes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import NotRequired, TypedDict

import torch
from rich.table import Table

from torchrl_gpu.cli.parser import OneLineParser, positive, whole
from torchrl_gpu.device import get_device
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ItemSource, ProceduralSolids
from torchrl_gpu.policies.exploration import random_legal
from torchrl_gpu.system import machine
from torchrl_gpu.system.allocator import keep_freed_memory
from torchrl_gpu.system.console import progress, wide_console

_MOST_REPETITIONS = 15
COPY = "ceiling: memory copy"
ADD_MAX = "ceiling: add and max"


class BinChanges(TypedDict, total=False):
    """Options of `PackingEnv` in which the settings differ."""

    bin_size: tuple[float, float, float]
    resolution: int
    grid_step: int
    items: ItemSource
    num_items: int
    orientations: str


class RowData(TypedDict):
    """A row as JSON.

    Attributes:
        rate: Median of the results a second.
        seconds: Of each repetition.
        calls: In a repetition.
        results_per_call: As `TimedRow.per_call`.
        range: Least and largest rate.
        bytes_per_step: That a step must read and write, where that is known.
        ratio: Of the rate to that of the NumPy reference.
        share_of_copy: Of those bytes a second, in what a copy moves.
    """

    group: str
    name: str
    rate: float
    seconds: list[float]
    calls: int
    results_per_call: int
    threads: str
    notes: str
    range: list[float]
    bytes_per_step: NotRequired[int]
    ratio: NotRequired[float]
    share_of_copy: NotRequired[float]


@dataclass
class TimedRow:
    """One row of a table.

    Attributes:
        run: `run(n)` does `n` units of work and returns when they are done.
        per_call: Results of one unit, for example environments stepped.
        threads: What it may use, in words.
        group: Rows of a group are compared with each other.
    """

    name: str
    run: Callable[[int], None]
    per_call: int = 1
    threads: str = "1"
    group: str = ""
    notes: str = ""
    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def rates(self) -> list[float]:
        """Results per second of each repetition."""
        return [self.calls * self.per_call / s for s in self.seconds]

    @property
    def rate(self) -> float:
        """Median of `rates`."""
        return statistics.median(self.rates)


def measure(
    rows: Sequence[TimedRow],
    seconds: float,
    repetitions: int = 5,
    on_row: Callable[[str], None] = lambda name: None,
) -> None:
    """Time rows in turn, after a warm-up, and fill their `calls` and `seconds`.

    A row takes `seconds` over all its `repetitions`; a call that takes longer is made twice all the same. `on_row` is
    called with the name of each row before its turn.
    """
    repetitions = min(repetitions, _MOST_REPETITIONS)
    turns = {}
    for each in rows:
        on_row(each.name)
        # The first call compiles, allocates, and faults memory in.
        _timed(each.run, 1)
        once = _timed(each.run, 1)
        each.calls = max(1, round(seconds / repetitions / once))
        # At least twice, as one time says nothing of the range.
        turns[id(each)] = max(2, min(repetitions, round(seconds / (once * each.calls))))
    # Rows take turns. One row after the other would be simpler, and a processor that grows hot, or another program,
    # would slow down one row and not the next.
    for turn in range(repetitions):
        for each in rows:
            if turn < turns[id(each)]:
                on_row(each.name)
                each.seconds.append(_timed(each.run, each.calls))


def _timed(run: Callable[[int], None], calls: int) -> float:
    _synchronise()
    start = time.perf_counter()
    run(calls)
    _synchronise()
    return max(time.perf_counter() - start, 1e-9)


def _synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def ceilings(device: torch.device) -> list[TimedRow]:
    """Make the rows of the ceilings: bytes copied a second, and add-max operations.

    The copy is between tensors too large for any cache, read and written. The add-max stays in the caches: a
    subtraction and a maximum of float32, in two calls, as the eager kernel has them.
    """
    # Much larger than any cache, as what fits into one would be copied faster than memory goes.
    size = (1 << 28) if device.type == "cuda" else (1 << 25)
    source = torch.ones(size, device=device, dtype=torch.float32)
    target = torch.empty(size, device=device, dtype=torch.float32)
    small = (1 << 20) if device.type == "cuda" else (1 << 16) * torch.get_num_threads()
    best = torch.zeros(small, device=device, dtype=torch.float32)
    cells = torch.zeros(small, device=device, dtype=torch.float32)
    scratch = torch.zeros(small, device=device, dtype=torch.float32)
    rounds = 1000

    def copy(calls: int) -> None:
        for _ in range(calls):
            target.copy_(source)

    def add_max(calls: int) -> None:
        for _ in range(calls * rounds):
            torch.sub(cells, 0.5, out=scratch)
            torch.maximum(best, scratch, out=best)

    threads = str(torch.get_num_threads())
    return [
        TimedRow(COPY, copy, 8 * size, threads, notes="bytes/s"),
        TimedRow(ADD_MAX, add_max, small * rounds, threads, notes="add-max/s"),
    ]


# Environments of irregular items, at most.
_MOST_IRREGULAR = 64


def main(argv: list[str]) -> int:
    """Print the table and write the JSON.

    Where parity fails nothing is timed, and the exit status is 1.
    """
    args = make_parser().parse_args(argv)
    device = get_device(args.device)
    kept = keep_freed_memory()
    settings = {name: changes for name, changes in _settings(args).items() if name in args.settings}
    for name, changes in settings.items():
        found = difference(changes, device, steps=args.parity_steps if name == "bpp10" else 2)
        if found:
            print(f"parity fails in {name}: {found}\nNothing was timed.", file=sys.stderr)
            return 1
    rows = ceilings(device)
    for name, changes in settings.items():
        rows += _rows(name, changes, args.num_envs, device)
    with progress("bench packing") as report:
        measure(rows, args.seconds, args.repetitions, on_row=report)
    here = machine.describe(device)
    gpu = machine.gpu_use(device)
    data = [_as_data(row, rows) for row in rows]
    arguments = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    result = {
        "machine": {**here, "keeps_freed_memory": kept, **gpu},
        "arguments": arguments,
        "rows": data,
    }
    _show(data, here, gpu)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"Written: {args.output}")
    return 0


def make_parser() -> OneLineParser:
    parser = OneLineParser(prog="torchrl-gpu bench", description=__doc__)
    names, add = ["bpp10", "irregular"], parser.add_argument
    add("environment", choices=["packing"], help="that is stepped")
    add("--settings", nargs="+", choices=names, default=names, help="of the environment")
    add("--num_envs", nargs="+", type=whole(1), default=[1, 64, 1024], help="batches")
    add("--num_objects", type=whole(1), default=20, help="irregular: objects of the catalogue")
    add("--resolution", type=whole(1), default=200, help="irregular: cells along x and y")
    add("--grid_step", type=whole(1), default=4, help="irregular: cells between placements")
    add("--device", default="auto", help="where PackingEnv runs; the reference runs on the CPU")
    add("--seconds", type=positive, default=5.0, help="for each row, over all repetitions")
    add("--repetitions", type=whole(1), default=5, help="turns; the median and the range are shown")
    add("--parity_steps", type=whole(1), default=40, help="steps of bpp10 compared before anything is timed")
    add("--output", type=Path, help="JSON with every raw timing")
    return parser


def _settings(args: argparse.Namespace) -> dict[str, BinChanges]:
    irregular: BinChanges = {
        "bin_size": (0.4, 0.4, 0.3),
        "resolution": args.resolution,
        "grid_step": args.grid_step,
        "items": ProceduralSolids(args.num_objects),
        "num_items": 50,
        "orientations": "cube",
    }
    return {"bpp10": {}, "irregular": irregular}


# A kernel that leaves something out is fast. So nothing is timed before both have played the same episodes.
def difference(changes: BinChanges, device: torch.device, steps: int) -> str:
    """Return the first difference between kernels and reference in one line, or "".

    The kernels run on the device, the reference on the CPU. Both are driven for `steps` steps by the same actions,
    legal ones and now and then any, in a `PackingEnv` of `changes`.
    """
    ours = PackingEnv(2, **changes, device=device, seed=0, backend="auto")
    theirs = PackingEnv(2, **changes, device="cpu", seed=0, backend="reference")
    generator = torch.Generator().manual_seed(0)
    here = ours.reset()
    there = theirs.reset()
    for step in range(steps):
        # Now and then any action: what an illegal one does must be the same, too.
        drawn = torch.rand(2, 1, generator=generator, dtype=torch.float32, device="cpu") < 0.05
        weights = there["action_mask"].float() + drawn + 1e-9
        action = weights.multinomial(1, generator=generator).squeeze(1)
        here["action"] = action.to(device)
        there["action"] = action
        gave, here = ours.step_and_maybe_reset(here)
        expected, there = theirs.step_and_maybe_reset(there)
        for key, wanted in expected["next"].items():
            came = gave["next", key].cpu()
            if wanted.dtype == torch.bool:
                wrong = came != wanted
            else:
                wrong = ~came.isclose(wanted, rtol=0, atol=1e-6)
            if bool(wrong.any()):
                return f"step {step}: {key} differs in {int(wrong.sum())} of {wrong.numel()} entries"
    return ""


def _rows(name: str, changes: BinChanges, num_envs: list[int], device: torch.device) -> Iterator[TimedRow]:
    if name == "irregular":
        num_envs = sorted({min(n, _MOST_IRREGULAR) for n in num_envs})
    reference = PackingEnv(1, **changes, device="cpu", seed=0, backend="reference")
    yield TimedRow("NumPy reference", random_steps(reference), group=name)
    for n in num_envs:
        env = PackingEnv(n, **changes, device=device, seed=0)
        threads = str(torch.get_num_threads()) if device.type == "cpu" else str(device)
        # Heights go in and out, z-maps and masks out.
        written = 8 * prod(env.bin.cells) + 5 * env.num_actions
        extra: dict[str, object] = {"bytes_per_step": written}
        yield TimedRow(f"{n} envs", random_steps(env), n, threads, name, f"kernels {env.kernels.backend}", extra=extra)


def random_steps(env: PackingEnv) -> Callable[[int], None]:
    """Make a function that steps `env` `n` times with random legal actions.

    They are drawn on its device. Resets are included.
    """
    current = [env.reset()]

    @torch.no_grad()
    def run(steps: int) -> None:
        for _ in range(steps):
            current[0]["action"] = random_legal(current[0]["action_mask"])
            _, current[0] = env.step_and_maybe_reset(current[0])

    return run


def _as_data(row: TimedRow, rows: list[TimedRow]) -> RowData:
    reference = next((each.rate for each in rows if each.group == row.group and "bytes_per_step" not in each.extra), 0)
    copied = next(each.rate for each in rows if each.name == COPY)
    around = [min(row.rates), max(row.rates)]
    found: RowData = {
        "group": row.group,
        "name": row.name,
        "rate": row.rate,
        "seconds": row.seconds,
        "calls": row.calls,
        "results_per_call": row.per_call,
        "threads": row.threads,
        "notes": row.notes,
        "range": around,
    }
    written = row.extra.get("bytes_per_step")
    if isinstance(written, int):
        found["bytes_per_step"] = written
        found["ratio"] = row.rate / reference
        found["share_of_copy"] = row.rate * written / copied
    return found


def _show(rows: list[RowData], at: machine.Machine, gpu: dict[str, str]) -> None:
    console = wide_console()
    table = Table(title="PackingEnv, environment steps/s", title_justify="left")
    for heading in ("", "", "median", "range", "× NumPy", "% of memory", "threads", ""):
        table.add_column(heading, justify="right" if heading and heading != "threads" else "left", no_wrap=True)
    for row in rows:
        ratio = row.get("ratio")
        share = row.get("share_of_copy")
        rate = f"{row['rate']:,.3g}" if row["rate"] < 100 else f"{row['rate']:,.0f}"
        around = "–".join(f"{each:.3g}" for each in row["range"])
        times = "" if ratio is None else f"{ratio:,.3g}"
        of_memory = "" if share is None else f"{share:.1%}"
        table.add_row(row["group"], row["name"], rate, around, times, of_memory, row["threads"], row["notes"])
    console.print(table)
    console.print(
        "Medians of repetitions that took turns; resets are in the time. Every step agrees with the reference, which"
        " steps one environment at a time. % of memory: the bytes that a step must read and write, of those copied.",
        f"{at['device_name']}, {at['cores']} cores, torch {at['versions']['torch']} with {at['torch_threads']} threads,"
        f" GPU utilisation {gpu['gpu_utilisation']}, memory {gpu['gpu_memory']}.",
        sep="\n",
        markup=False,
    )
