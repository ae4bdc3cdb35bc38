"""`python -m benchmarks.packing`: PackingEnv beside the NumPy path and Jumanji's BinPack, parity first."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import report
from benchmarks.packing import jumanji_rows, parity
from benchmarks.packing.drops import drop_rows
from benchmarks.packing.numpy_packing import Drop, NumpyPacking
from benchmarks.packing.settings import BPP10, episodes_of, irregular, make
from torchrl_gpu import machine
from torchrl_gpu.allocator import keep_freed_memory
from torchrl_gpu.bench.ceilings import ceilings
from torchrl_gpu.bench.packing import random_steps
from torchrl_gpu.bench.timing import TimedRow, measure
from torchrl_gpu.cli.subcommands import OneLineParser
from torchrl_gpu.console import progress
from torchrl_gpu.device import get_device

SETTINGS = ("bpp10", "irregular")
_DROP_ENVS = (1, 64)


@dataclass
class Section:
    """Rows that are compared with each other.

    Attributes:
        title: What all rows of it measure.
        unit: Of the rates.
        rows: In the order in which they are shown.
    """

    title: str
    unit: str
    rows: list[TimedRow]


def main(argv: list[str]) -> int:
    """Prints the table and writes the JSON; 1 where parity fails, and then nothing is timed."""
    args = _parser().parse_args(argv)
    _check(args)
    started, device = time.perf_counter(), str(get_device(args.device))
    kept = keep_freed_memory()
    checks = list(_parity(args, device))
    if failed := [check for check in checks if check["difference"]]:
        report.refuse(failed)
        return 1
    sections, missing = list(_sections(args, device)), []
    rows = [row for section in sections for row in section.rows]
    if args.peers and not any(row.name.startswith("Jumanji") for row in rows) and "bpp10" in args.settings:
        missing.append(f"Jumanji BinPack-v2: {jumanji_rows.MISSING}")
    result: dict[str, Any] = {
        "benchmark": "packing",
        "machine": machine.describe(torch.device(device)) | {"keeps_freed_memory": kept},
        "arguments": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
        "parity": checks,
    }
    for section in sections:
        _measure(section, args, device)
    result["sections"] = [report.section(each.title, each.unit, each.rows) for each in sections]
    result |= {"missing": missing, "elapsed_s": time.perf_counter() - started}
    result |= machine.gpu_use(torch.device(device))
    report.show(result)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"Written: {args.output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m benchmarks.packing", description=__doc__)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="what to measure")
    parser.add_argument("--num_envs", nargs="+", type=int, default=[1, 64, 1024], help="batches of bpp10")
    parser.add_argument("--num_objects", type=int, default=20, help="irregular: visible objects, of 50 to pack")
    parser.add_argument("--resolution", type=int, default=200, help="irregular: cells along x and y")
    parser.add_argument("--grid_step", type=int, default=4, help="irregular: cells between placements")
    parser.add_argument("--steps", type=int, default=10, help="irregular: steps of one repetition, at most")
    parser.add_argument("--peer_batches", nargs="+", type=int, default=[1, 64, 512, 1024], help="batches of Jumanji")
    parser.add_argument("--device", default="auto", help="where ours runs; NumPy and Jumanji run on the CPU")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row, over all repetitions")
    parser.add_argument("--repetitions", type=int, default=5, help="turns; the median and the range are shown")
    parser.add_argument("--parity_steps", type=int, default=40, help="steps of bpp10 compared before anything is timed")
    parser.add_argument("--output", type=Path, help="JSON with every raw timing")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave Jumanji out")
    return parser


def _check(args: argparse.Namespace) -> None:
    counts = (
        "num_envs",
        "peer_batches",
        "num_objects",
        "resolution",
        "grid_step",
        "steps",
        "repetitions",
        "parity_steps",
    )
    for name in counts:
        given = getattr(args, name)
        least = min(given) if isinstance(given, list) else given
        if least < 1:
            raise ValueError(f"python -m benchmarks.packing: --{name} must be at least 1; got {least}")
    if not 0 < args.seconds < float("inf"):
        raise ValueError(f"python -m benchmarks.packing: --seconds must be positive; got {args.seconds}")


def _parity(args: argparse.Namespace, device: str) -> Iterator[dict[str, Any]]:
    for name, changes in BPP10.items() if "bpp10" in args.settings else ():
        found = parity.difference(changes, num_envs=3, steps=args.parity_steps, device=device, drops=parity.BOX_DROPS)
        yield {"setting": name, "num_envs": 3, "steps": args.parity_steps, "difference": found}
    if "irregular" in args.settings:  # one visible object: the loop takes a second for each
        changes = irregular(1, 60, args.resolution, args.grid_step)
        found = parity.difference(changes, num_envs=1, steps=3, device=device, drops=parity.DROPS)
        yield {"setting": "irregular, 1 visible object", "num_envs": 1, "steps": 3, "difference": found}


def _sections(args: argparse.Namespace, device: str) -> Iterator[Section]:
    yield Section("ceilings of this machine", "as noted", ceilings(torch.device(device)))
    if "bpp10" in args.settings:
        peers = jumanji_rows.jumanji_rows(args.peer_batches) if args.peers else []
        for name, changes in BPP10.items():
            rows = [*_numpy_rows(changes, parity.BOX_DROPS), *_our_rows(changes, args.num_envs, device)]
            if name == "bpp10":
                rows += [*_our_rows(changes, args.num_envs[-1:], device, ("z_map",)), *peers]
            yield Section(name, "environment steps/s", rows)
    if "irregular" in args.settings:
        one = irregular(1, 60, args.resolution, args.grid_step)
        cells = f"{args.resolution}×{args.resolution} cells"
        title = f"irregular, z-maps and legality of one object in 24 orientations, {cells}"
        yield Section(title, "objects/s", drop_rows(one, _DROP_ENVS, device))
        changes = irregular(args.num_objects, 60, args.resolution, args.grid_step)
        rows = [*_numpy_rows(changes, parity.DROPS), *_our_rows(changes, [1], device)]
        yield Section(f"irregular, whole steps, {args.num_objects} visible objects", "environment steps/s", rows)


def _numpy_rows(changes: dict[str, Any], drops: dict[str, Drop]) -> list[TimedRow]:
    return [TimedRow(f"NumPy, {name}", _numpy_player(changes, drop)) for name, drop in drops.items()]


def _numpy_player(changes: dict[str, Any], drop: Drop) -> Callable[[int], None]:
    env = make(changes, 1, "cpu")
    twin = NumpyPacking(env.catalogue, env.bin, episodes_of(env, 0, 200), env.visible_items, drop)
    rng = np.random.default_rng(0)
    return lambda steps: twin.play(steps, rng)


def _our_rows(
    changes: dict[str, Any], num_envs: list[int], device: str, include: tuple[str, ...] = ()
) -> Iterator[TimedRow]:
    threads = str(torch.get_num_threads()) if device == "cpu" else device
    for n in num_envs:
        env = make(changes, n, device, include)
        shown = f", with {', '.join(include)}" if include else ""
        yield TimedRow(f"ours, {n}{shown}", random_steps(env), n, threads, notes=f"kernels {env.kernels.backend}")


def _measure(section: Section, args: argparse.Namespace, device: str) -> None:
    most = args.steps if "whole steps" in section.title else None
    with progress(section.title) as say:
        measure(section.rows, args.seconds, args.repetitions, most, say)
