"""`python -m benchmarks.kernels`: z-maps of every backend beside NumPy and `unfold`, and the floor under them.

Bytes and operations are counted; the rates that bound them are measured in the same turns. Parity with the reference
comes first: nothing is timed while it fails.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.kernels import ceilings as kernel_ceilings
from benchmarks.kernels import parity as kernel_parity
from benchmarks.kernels import report as kernel_report
from benchmarks.kernels import sweep as kernel_sweep
from benchmarks.kernels.report import Section
from benchmarks.kernels.rows import (
    UNFOLD_ENVS,
    Backends,
    backends,
    numpy_row,
    our_row,
    row_name,
    step_rows,
    unfold_row,
)
from benchmarks.kernels.workloads import Workload, boxes, pebbles, procedural
from benchmarks.packing import parity
from benchmarks.packing.settings import irregular
from torchrl_gpu import machine
from torchrl_gpu.allocator import keep_freed_memory
from torchrl_gpu.bench.timing import measure
from torchrl_gpu.cli.subcommands import OneLineParser
from torchrl_gpu.console import progress
from torchrl_gpu.device import get_device
from torchrl_gpu.envs.packing.kernels import BACKENDS

WORKLOADS = ("irregular", "boxes", "steps")
_NO_PLOTS = "want matplotlib for --plot; got none: the extra brings it, pip install 'torchrl_gpu[plots]'"
_COUNTS = (
    "irregular_envs",
    "box_envs",
    "step_envs",
    "irregular_step_envs",
    "sweep_envs",
    "footprint",
    "resolution",
    "grid_step",
    "visible",
    "repetitions",
)


def main(argv: list[str]) -> int:
    """Prints the tables and writes JSON and plot; 1 where parity fails, and then nothing is timed."""
    args = _parser().parse_args(argv)
    device = get_device(args.device)
    _check(args, device)
    started, kept = time.perf_counter(), keep_freed_memory()
    used = backends(args.backends, device)
    lines = kernel_sweep.lines(args)
    checks = [*_parity(args, used), *kernel_sweep.parity(lines, used)]
    if failed := [check for check in checks if check["difference"]]:
        report.refuse(failed, why="the rate of a kernel that gives another result means nothing")
        return 1
    result: dict[str, Any] = {
        "benchmark": "kernels",
        "machine": machine.describe(device) | {"keeps_freed_memory": kept},
        "arguments": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
        "parity": checks,
        "missing": [f"ours {name}: {reason}" for name, reason in used.missing.items()],
    }
    result |= _measured(args, device, used, lines)
    result |= {"elapsed_s": time.perf_counter() - started} | machine.gpu_use(device)
    _publish(result, args)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m benchmarks.kernels", description=__doc__)
    add = parser.add_argument
    add("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="what to measure")
    add("--backends", nargs="+", choices=list(BACKENDS), default=["eager", "compiled", "triton"], help="ours")
    add("--device", default="auto", help="of eager and unfold; NumPy and compiled run on the CPU, triton on a GPU")
    add("--irregular_envs", nargs="+", type=int, default=[1, 64], help="batches of irregular items")
    add("--box_envs", nargs="+", type=int, default=[64, 1024, 65536], help="batches of bpp10")
    add("--step_envs", nargs="+", type=int, default=[1024, 4096], help="batches of whole steps of bpp10")
    add("--irregular_step_envs", nargs="+", type=int, default=[1, 4], help="batches of whole steps of irregular items")
    add("--footprint", type=int, default=50, help="irregular: cells along each side of an item")
    add("--resolution", type=int, default=200, help="irregular: cells along x and y of the bin")
    add("--grid_step", type=int, default=4, help="irregular: cells between placements")
    add("--visible", type=int, default=20, help="irregular: visible objects of whole steps")
    add("--seconds", type=float, default=2.0, help="for each row, over all repetitions")
    add("--repetitions", type=int, default=5, help="turns; the median and the range are shown")
    add("--sweep", action="store_true", help="also cost against number of environments, resolution, footprint, K")
    add("--axes", nargs="+", choices=list(kernel_sweep.AXES), help="axes of the sweep, which this turns on")
    add("--sweep_envs", type=int, help="environments of the other axes; 4 on a CPU and 64 on a GPU by default")
    add("--point_seconds", type=float, default=5.0, help="the longest that a row of one point of the sweep may take")
    add("--memory_gib", type=float, help="the most that one may hold; by default half of what is free")
    add("--output", type=Path, help="JSON with every raw timing")
    add("--plot", type=Path, help="picture of the sweep, which this turns on")
    return parser


def _check(args: argparse.Namespace, device: torch.device) -> None:
    """Completes the arguments, and refuses those that mean nothing."""
    args.sweep_envs = args.sweep_envs if args.sweep_envs is not None else (64 if device.type == "cuda" else 4)
    if args.sweep or args.axes or args.plot:
        args.sweep, args.axes = True, args.axes or list(kernel_sweep.AXES)
    for name in _COUNTS:
        given = getattr(args, name)
        least = min(given) if isinstance(given, list) else given
        if least < 1:
            raise ValueError(f"python -m benchmarks.kernels: --{name} must be at least 1; got {least}")
    for name in ("seconds", "point_seconds", "memory_gib"):
        given = getattr(args, name)
        if given is not None and not 0 < given < float("inf"):
            raise ValueError(f"python -m benchmarks.kernels: --{name} must be positive; got {given}")
    if args.footprint > args.resolution:
        most = f"--footprint must be at most --resolution, {args.resolution}"
        raise ValueError(f"python -m benchmarks.kernels: {most}; got {args.footprint}")
    if args.plot and find_spec("matplotlib") is None:
        raise ValueError(f"python -m benchmarks.kernels: {_NO_PLOTS}")


def _irregular_workload(args: argparse.Namespace, num_envs: int) -> Workload:
    return pebbles(num_envs, 1, side=args.footprint, resolution=args.resolution, step=args.grid_step)


def _parity(args: argparse.Namespace, used: Backends) -> Iterator[dict[str, Any]]:
    """Of every backend with the reference, on the items that are timed, in fewer environments."""
    compared: dict[str, Workload] = {}
    if "irregular" in args.workloads:
        compared["irregular"] = _irregular_workload(args, 1)
        compared["irregular, objects mixed"] = procedural(1, 1, resolution=args.resolution, step=args.grid_step)
    if "boxes" in args.workloads:
        compared["boxes"] = boxes(16)
    for setting, workload in compared.items():
        for check in kernel_parity.checks(workload, used.running):
            yield check | {"setting": f"{setting}, {check['row']}"}
    if "steps" in args.workloads:
        yield from _step_parity(args, used)


def _step_parity(args: argparse.Namespace, used: Backends) -> Iterator[dict[str, Any]]:
    """Of whole steps with those of the NumPy path."""
    solids = irregular(1, 60, args.resolution, args.grid_step)
    drops = {"windows": parity.DROPS["windows"]}
    for name, device in used.running.items():
        for setting, changes, num_envs, steps in (("bpp10", {}, 3, 20), ("irregular", solids, 1, 2)):
            found = parity.difference(
                changes | {"backend": name}, num_envs=num_envs, steps=steps, device=str(device), drops=drops
            )
            row = f"ours {name}"
            yield {"setting": f"steps of {setting}, {row}", "row": row, "num_envs": num_envs, "difference": found}


def _measured(
    args: argparse.Namespace, device: torch.device, used: Backends, lines: list[kernel_sweep.Line]
) -> dict[str, Any]:
    """Every section, and the sweep where one is wanted."""
    rows, missing = kernel_ceilings.ceiling_rows(device)
    first = [Section("ceilings of this machine", "as noted", rows, missing), *_map_sections(args, device, used)]
    _take_turns("z-maps", first, args)
    sections, ceilings = first, kernel_ceilings.measured(rows)
    if "steps" in args.workloads:
        steps = list(_step_sections(args, used))
        _take_turns("whole steps", steps, args)
        sections = sections + steps
    result: dict[str, Any] = {"sections": [kernel_report.as_data(each, ceilings) for each in sections]}
    if lines:
        bounds = kernel_ceilings.bounding(rows)
        with progress("sweep") as say:
            result["sweep"] = kernel_sweep.run(lines, used, device, lambda: kernel_ceilings.again(bounds), args, say)
    return result


def _take_turns(title: str, sections: list[Section], args: argparse.Namespace) -> None:
    """All rows with each other, the ceilings too: a share is of what the machine did at that time."""
    with progress(title) as say:
        measure([row for each in sections for row in each.rows], args.seconds, args.repetitions, on_row=say)


def _map_sections(args: argparse.Namespace, device: torch.device, used: Backends) -> Iterator[Section]:
    cells = f"{args.resolution}×{args.resolution} cells, grid step {args.grid_step}, 24 orientations"
    if "irregular" in args.workloads:
        title = f"irregular: {cells}, footprints {args.footprint}×{args.footprint}"
        section = _section(title, [_irregular_workload(args, n) for n in args.irregular_envs], used)
        unfold = dict.fromkeys(min(n, UNFOLD_ENVS) for n in args.irregular_envs)
        section.rows[1:1] = [unfold_row(_irregular_workload(args, n), device) for n in unfold]
        yield section
        mixed = procedural(max(args.irregular_envs), 1, resolution=args.resolution, step=args.grid_step)
        section = _section(f"irregular, objects mixed: {cells}, 60 procedural solids", [mixed], used)
        section.rows[1:1] = [unfold_row(mixed.first(1), device)]
        yield section
    if "boxes" in args.workloads:
        yield _section("boxes: bpp10, 10×10 cells, 2 orientations", [boxes(n) for n in args.box_envs], used)


def _section(title: str, workloads: list[Workload], used: Backends) -> Section:
    """NumPy on the largest batch, and our backends on each."""
    section = Section(title, "z-maps/s", [numpy_row(workloads[-1])])
    for workload in workloads:
        section.rows += [our_row(name, device, workload) for name, device in used.running.items()]
        section.missing |= {row_name(name, workload.num_envs): why for name, why in used.missing.items()}
    return section


def _step_sections(args: argparse.Namespace, used: Backends) -> Iterator[Section]:
    solids = irregular(args.visible, 60, args.resolution, args.grid_step)
    for title, changes, num_envs in (
        ("bpp10", {}, args.step_envs),
        (f"irregular, {args.visible} visible objects", solids, args.irregular_step_envs),
    ):
        missing = {row_name(name, n): why for n in num_envs for name, why in used.missing.items()}
        rows = list(step_rows(changes, num_envs, used.running))
        yield Section(f"whole steps of {title}, random legal actions", "environment steps/s", rows, missing)


def _publish(result: dict[str, Any], args: argparse.Namespace) -> None:
    kernel_report.show(result)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"Written: {args.output}")
    if args.plot:
        from benchmarks.kernels import plot as kernel_plot

        args.plot.parent.mkdir(parents=True, exist_ok=True)
        kernel_plot.draw(result, args.plot)
        print(f"Written: {args.plot}")
