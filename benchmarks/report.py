"""The course of every benchmark: parity, rows that take turns, a table and JSON."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.packing.bench import ADD_MAX, TimedRow, measure
from torchrl_gpu.cli.parser import OneLineParser, positive, whole
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.system import machine
from torchrl_gpu.system.allocator import keep_freed_memory
from torchrl_gpu.system.console import progress, wide_console

_LEGEND = (
    "Rates are medians of repetitions that took turns, with their range; resets are in the time. NumPy, loop: every"
    " placement in a Python loop, any item through the same code, as released heightmap packers work; targets refer to"
    " it. Box loop: the same for boxes alone. Windows: NumPy at its best. All three step one environment at a time."
)


def parser(program: str, description: str | None, *, seconds: float, repetitions: int = 5) -> OneLineParser:
    """A parser with the options of every benchmark."""
    made = OneLineParser(prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; NumPy and peers run on the CPU")
    made.add_argument("--seconds", type=positive, default=seconds, help="for each row, over all repetitions")
    made.add_argument("--repetitions", type=whole(1), default=repetitions, help="turns; the median and range are shown")
    made.add_argument("--output", type=Path, help="JSON with every raw timing")
    return made


def add_counts(parser: argparse.ArgumentParser, counts: Mapping[str, tuple[int | list[int], str]]) -> None:
    """Add options that take one or several numbers of at least 1.

    `counts` holds the default of each, and its help.
    """
    for name, (default, said) in counts.items():
        several = "+" if isinstance(default, list) else None
        parser.add_argument(f"--{name}", nargs=several, type=whole(1), default=default, help=said)


class Measurement:
    """One call of a benchmark, and its result as plain data.

    Args:
        benchmark: Its name.
        args: Of the command line.
        device: Where ours runs.
    """

    def __init__(self, benchmark: str, args: argparse.Namespace, device: torch.device) -> None:
        self.args = args
        self.device = device
        self._started = time.perf_counter()
        kept = keep_freed_memory()
        arguments = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        self.result: JsonObject = {"benchmark": benchmark}
        self.result["machine"] = machine.describe(device) | {"keeps_freed_memory": kept}
        self.result["arguments"] = arguments
        self.result |= {"parity": [], "sections": [], "missing": []}

    def check(self, setting: str, difference: str, **more: Any) -> None:
        """Keep a comparison.

        A `difference` of "" says that nothing differs.
        """
        self.result["parity"].append({"setting": setting, "difference": difference, **more})

    def refused(self, why: str = "a ratio between two different environments means nothing") -> bool:
        """True where a check has failed. It is printed then, and no rate may be shown."""
        failed = [check for check in self.result["parity"] if check["difference"]]
        console = Console(stderr=True)
        for check in failed:
            console.print(f"parity fails in {check['setting']}: {check['difference']}", markup=False)
        if failed:
            console.print(f"Nothing was timed: {why}.", markup=False)
        return bool(failed)

    def take_turns(self, title: str, rows: Sequence[TimedRow]) -> None:
        """Time rows in turn, each warm.

        Rows that failed a check are never timed.
        """
        assert not any(check["difference"] for check in self.result["parity"])
        with progress(title) as say:
            measure(rows, self.args.seconds, self.args.repetitions, on_row=say)

    def finish(self) -> JsonObject:
        """Return the whole result, and write it as JSON to `--output` if given."""
        self.result |= {"elapsed_s": time.perf_counter() - self._started} | machine.gpu_use(self.device)
        if self.args.output:
            write_json(self.args.output, self.result)
            print(f"Written: {self.args.output}")
        return self.result


@dataclass
class Section:
    """Rows that are compared with each other, and those that could not be measured.

    Attributes:
        title: What all rows of it measure.
        unit: Of the rates.
        rows: In the order in which they are shown.
        missing: Names of further rows, and why there is no rate.
    """

    title: str
    unit: str
    rows: list[TimedRow]
    missing: dict[str, str] = field(default_factory=dict)


def section(title: str, unit: str, rows: list[TimedRow], bars: Mapping[str, float | None] | None = None) -> JsonObject:
    """Rows as data, with ratios to the bars that there are.

    Args:
        title: What all rows measure.
        unit: Of their rates.
        rows: Measured.
        bars: Rates to compare with, by name; those of the NumPy rows and of Jumanji's best batch by default.
    """
    bars = _rates_of_others(rows) if bars is None else bars
    data = []
    for row in rows:
        is_bar = row.name.startswith(("NumPy", "Jumanji", "ceiling"))
        low = min(row.rates)
        high = max(row.rates)
        ratios = {} if is_bar else {key: row.rate / bar for key, bar in bars.items() if bar}
        line = {"name": row.name, "rate": row.rate, "range": [low, high], "ratios": ratios}
        line |= {"threads": row.threads, "notes": row.notes, "calls": row.calls}
        line |= {"results_per_call": row.per_call, "seconds": row.seconds}
        data.append(line | row.extra)
    return {"title": title, "unit": unit, "rows": data}


def _rates_of_others(rows: list[TimedRow]) -> dict[str, float | None]:
    rates = {row.name: row.rate for row in rows}
    bars = {f"numpy_{name.replace(' ', '_')}": rates.get(f"NumPy, {name}") for name in ("loop", "box loop", "windows")}
    return bars | {"jumanji_best": max((r for name, r in rates.items() if name.startswith("Jumanji")), default=None)}


def show(result: JsonObject) -> None:
    """Print every section, the machine, and what is missing."""
    console = wide_console()
    ceiling = _rate_of(result["sections"], ADD_MAX)
    for each in result["sections"]:
        console.print(_table(each, ceiling))
    for line in result["missing"]:
        console.print(line, markup=False)
    console.print(f"Parity: {len(result['parity'])} settings agree at every step. {_LEGEND}", markup=False)
    console.print(machine_line(result), markup=False)


def machine_line(result: JsonObject) -> str:
    """The machine and the time of a measurement, in one line."""
    at = result["machine"]
    place = (
        f"{at['device_name']}, {at['cores']} cores, torch {at['versions']['torch']} with {at['torch_threads']} threads"
    )
    load = f"commit {at['commit'] or 'unknown'}, load {at['load_average'] or 0:.1f} before"
    use = f"GPU utilisation {result['gpu_utilisation']}, memory {result['gpu_memory']}"
    return f"{place}, {load}; {use}; {result['elapsed_s']:.0f} s in all"


def _rate_of(sections: list[JsonObject], name: str) -> float | None:
    """Return the rate of the first row of a name."""
    for section in sections:
        for row in section["rows"]:
            if row["name"] == name:
                rate: float = row["rate"]
                return rate
    return None


_RATIOS = {"loop": "numpy_loop", "box loop": "numpy_box_loop", "windows": "numpy_windows", "Jumanji": "jumanji_best"}


def _table(data: JsonObject, ceiling: float | None) -> Table:
    measured: set[str] = set()
    for row in data["rows"]:
        measured |= {key for key, ratio in row["ratios"].items() if ratio}
    shown = {name: key for name, key in _RATIOS.items() if key in measured}
    table = Table(title=f"{data['title']}, {data['unit']}", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("median", "range", *(f"× {name}" for name in shown), "s", "threads"):
        table.add_column(heading, justify="right", no_wrap=heading != "threads")
    table.add_column("")
    for row in data["rows"]:
        notes = [row["notes"]] if row["notes"] else []
        if "add_max_per_object" in row and ceiling:
            notes.append(f"{row['rate'] * row['add_max_per_object'] / ceiling:.0%} of the add-max ceiling")
        spread = "–".join(map(number, row["range"]))
        ratios = [row["ratios"].get(key) for key in shown.values()]
        cells = ["" if ratio is None else number(ratio) for ratio in ratios]
        seconds = f"{sum(row['seconds']):.1f}"
        table.add_row(row["name"], number(row["rate"]), spread, *cells, seconds, row["threads"], "; ".join(notes))
    return table


def number(value: float) -> str:
    """A rate with three digits or all those before the point."""
    if value >= 1e9:
        return f"{value / 1e9:.1f} G"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
