"""`python -m benchmarks.kernels`: z-maps of all backends, NumPy and `unfold`.

Under the rates stands the floor that the hardware sets.

Bytes and operations are counted; the rates that bound them are measured in the same turns. Parity with the reference
comes first: nothing is timed while it fails.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import torch

from benchmarks import report
from benchmarks.kernels import ceilings as kernel_ceilings
from benchmarks.kernels import parity as kernel_parity
from benchmarks.kernels import report as kernel_report
from benchmarks.kernels.rows import UNFOLD_ENVS, Backends, backends, numpy_row, our_row, row_name, step_rows, unfold_row
from benchmarks.kernels.workloads import Workload, boxes, pebbles, procedural
from benchmarks.packing import parity
from benchmarks.packing.settings import irregular
from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.packing.bench import TimedRow
from torchrl_gpu.cli.parser import OneLineParser
from torchrl_gpu.device import get_device
from torchrl_gpu.envs.packing.kernels import BACKENDS

WORKLOADS = ("irregular", "boxes", "steps")


def main(argv: list[str]) -> int:
    """Print the tables and write the JSON.

    Returns 1 where parity fails, and then nothing is timed.
    """
    args = _parser().parse_args(argv)
    if args.footprint > args.resolution:
        most = f"--footprint must be at most --resolution, {args.resolution}"
        raise ValueError(f"python -m benchmarks.kernels: {most}; got {args.footprint}")
    device = get_device(args.device)
    measurement = report.Measurement("kernels", args, device)
    used = backends(args.backends, device)
    measurement.result["missing"] = [f"ours {name}: {reason}" for name, reason in used.missing.items()]
    for check in _parity(args, used):
        measurement.check(**check)
    if measurement.refused("the rate of a kernel that gives another result means nothing"):
        return 1
    _measure(measurement, used)
    kernel_report.show(measurement.finish())
    return 0


def _parser() -> OneLineParser:
    parser = report.parser("python -m benchmarks.kernels", __doc__, seconds=2.0)
    add = parser.add_argument
    add("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="what to measure")
    add("--backends", nargs="+", choices=list(BACKENDS), default=["eager", "compiled", "triton"], help="ours")
    counts: dict[str, tuple[int | list[int], str]] = {}
    counts |= {
        "irregular_envs": ([1, 64], "batches of irregular items"),
        "box_envs": ([64, 1024, 65536], "batches of bpp10"),
        "step_envs": ([1024, 4096], "batches of whole steps of bpp10"),
        "irregular_step_envs": ([1, 4], "batches of whole steps of irregular items"),
    }
    counts |= {
        "footprint": (50, "irregular: cells along each side of an item"),
        "resolution": (200, "irregular: cells along x and y of the bin"),
        "grid_step": (4, "irregular: cells between placements"),
        "visible": (20, "irregular: visible objects of whole steps"),
    }
    report.add_counts(parser, counts)
    return parser


def _irregular_workload(args: argparse.Namespace, num_envs: int) -> Workload:
    return pebbles(num_envs, 1, side=args.footprint, resolution=args.resolution, step=args.grid_step)


def _parity(args: argparse.Namespace, used: Backends) -> Iterator[JsonObject]:
    """Compare every backend with the reference.

    The items are those that are timed, in fewer environments.
    """
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


def _step_parity(args: argparse.Namespace, used: Backends) -> Iterator[JsonObject]:
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


def rows_of(sections: Iterable[report.Section]) -> list[TimedRow]:
    """Return the rows of all sections."""
    rows: list[TimedRow] = []
    for section in sections:
        rows += section.rows
    return rows


def _measure(measurement: report.Measurement, used: Backends) -> None:
    """Measure every section.

    All rows take turns with the ceilings, so that a share is of what the machine did at that time.
    """
    args, device = measurement.args, measurement.device
    rows, missing = kernel_ceilings.ceiling_rows(device)
    sections = [
        report.Section("ceilings of this machine", "as noted", rows, missing),
        *_map_sections(args, device, used),
    ]
    measurement.take_turns("z-maps", rows_of(sections))
    if "steps" in args.workloads:
        steps = list(_step_sections(args, used))
        measurement.take_turns("whole steps", rows_of(steps))
        sections += steps
    ceilings = kernel_ceilings.measured(rows)
    measurement.result["sections"] = [kernel_report.as_data(each, ceilings) for each in sections]


def _map_sections(args: argparse.Namespace, device: torch.device, used: Backends) -> Iterator[report.Section]:
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


def _section(title: str, workloads: list[Workload], used: Backends) -> report.Section:
    """NumPy on the largest batch, and our backends on each."""
    section = report.Section(title, "z-maps/s", [numpy_row(workloads[-1])])
    for workload in workloads:
        section.rows += [our_row(name, device, workload) for name, device in used.running.items()]
        section.missing |= {row_name(name, workload.num_envs): why for name, why in used.missing.items()}
    return section


def _step_sections(args: argparse.Namespace, used: Backends) -> Iterator[report.Section]:
    solids = irregular(args.visible, 60, args.resolution, args.grid_step)
    for title, changes, num_envs in (
        ("bpp10", {}, args.step_envs),
        (f"irregular, {args.visible} visible objects", solids, args.irregular_step_envs),
    ):
        missing = {}
        for n in num_envs:
            missing |= {row_name(name, n): why for name, why in used.missing.items()}
        rows = list(step_rows(changes, num_envs, used.running))
        yield report.Section(f"whole steps of {title}, random legal actions", "environment steps/s", rows, missing)
