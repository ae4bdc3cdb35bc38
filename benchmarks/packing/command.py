"""`python -m benchmarks.packing`: PackingEnv, NumPy and Jumanji's BinPack.

Parity comes first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
import torch

from benchmarks import report
from benchmarks.packing import jumanji_rows, parity
from benchmarks.packing.drops import drop_rows
from benchmarks.packing.numpy_packing import Drop, NumpyPacking
from benchmarks.packing.settings import BPP10, Changes, episodes_of, irregular, make
from torchrl_gpu.cli.packing.bench import TimedRow, ceilings, random_steps
from torchrl_gpu.cli.parser import OneLineParser
from torchrl_gpu.device import get_device

SETTINGS = ("bpp10", "irregular")
_DROP_ENVS = (1, 64)
_BATCHES = [1, 64, 1024]
_PEER_BATCHES = [1, 64, 512, 1024]


def main(argv: list[str]) -> int:
    """Print the table and write the JSON.

    Where parity fails nothing is timed, and the exit status is 1.
    """
    args = _parser().parse_args(argv)
    device = get_device(args.device)
    measurement = report.Measurement("packing", args, device)
    for check in _parity(args, str(device)):
        measurement.check(**check)
    if measurement.refused():
        return 1
    sections = list(_sections(args, str(device)))
    has_jumanji = any(_has_jumanji(section) for section in sections)
    if args.peers and "bpp10" in args.settings and not has_jumanji:
        measurement.result["missing"].append(f"Jumanji BinPack-v2: {jumanji_rows.MISSING}")
    for each in sections:
        measurement.take_turns(each.title, each.rows)
        measurement.result["sections"].append(report.section(each.title, each.unit, each.rows))
    report.show(measurement.finish())
    return 0


def _has_jumanji(section: report.Section) -> bool:
    return any(row.name.startswith("Jumanji") for row in section.rows)


def _parser() -> OneLineParser:
    parser = report.parser("python -m benchmarks.packing", __doc__, seconds=5.0)
    add = parser.add_argument
    add("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="what to measure")
    report.add_counts(parser, {"num_envs": (_BATCHES, "batches of bpp10")})
    of_irregular: dict[str, tuple[int | list[int], str]] = {
        "num_objects": (20, "irregular: visible objects, of 50 to pack"),
        "resolution": (200, "irregular: cells along x and y"),
        "grid_step": (4, "irregular: cells between placements"),
    }
    report.add_counts(parser, of_irregular)
    report.add_counts(parser, {"peer_batches": (_PEER_BATCHES, "batches of Jumanji")})
    report.add_counts(parser, {"parity_steps": (40, "steps of bpp10 compared before anything is timed")})
    add("--no-peers", dest="peers", action="store_false", help="leave Jumanji out")
    return parser


def _parity(args: argparse.Namespace, device: str) -> Iterator[dict[str, object]]:
    """Compare each setting, and give the arguments of `Measurement.check`."""
    boxes = BPP10 if "bpp10" in args.settings else {}
    for name, changes in boxes.items():
        found = parity.difference(changes, num_envs=3, steps=args.parity_steps, device=device, drops=parity.BOX_DROPS)
        yield {"setting": name, "num_envs": 3, "steps": args.parity_steps, "difference": found}
    # One visible object alone, as the loop takes a second for each.
    if "irregular" in args.settings:
        changes = irregular(1, 60, args.resolution, args.grid_step)
        found = parity.difference(changes, num_envs=1, steps=3, device=device, drops=parity.DROPS)
        yield {"setting": "irregular, 1 visible object", "num_envs": 1, "steps": 3, "difference": found}


def _sections(args: argparse.Namespace, device: str) -> Iterator[report.Section]:
    yield report.Section("ceilings of this machine", "as noted", ceilings(torch.device(device)))
    if "bpp10" in args.settings:
        peers = jumanji_rows.jumanji_rows(args.peer_batches) if args.peers else []
        for name, changes in BPP10.items():
            rows = [*_numpy_rows(changes, parity.BOX_DROPS), *_our_rows(changes, args.num_envs, device)]
            if name == "bpp10":
                largest = args.num_envs[-1:]
                rows += [*_our_rows(changes, largest, device, ("z_map",)), *peers]
            yield report.Section(name, "environment steps/s", rows)
    if "irregular" in args.settings:
        one = irregular(1, 60, args.resolution, args.grid_step)
        cells = f"{args.resolution}×{args.resolution} cells"
        title = f"irregular, z-maps and legality of one object in 24 orientations, {cells}"
        yield report.Section(title, "objects/s", drop_rows(one, _DROP_ENVS, device))
        changes = irregular(args.num_objects, 60, args.resolution, args.grid_step)
        rows = [*_numpy_rows(changes, parity.DROPS), *_our_rows(changes, [1], device)]
        yield report.Section(f"irregular, whole steps, {args.num_objects} visible objects", "environment steps/s", rows)


def _numpy_rows(changes: Changes, drops: dict[str, Drop]) -> list[TimedRow]:
    return [TimedRow(f"NumPy, {name}", _numpy_player(changes, drop)) for name, drop in drops.items()]


def _numpy_player(changes: Changes, drop: Drop) -> Callable[[int], None]:
    env = make(changes, 1, "cpu")
    twin = NumpyPacking(env.catalogue, env.bin, episodes_of(env, 0, 200), env.visible_items, drop)
    rng = np.random.default_rng(0)
    return lambda steps: twin.play(steps, rng)


def _our_rows(changes: Changes, num_envs: list[int], device: str, include: tuple[str, ...] = ()) -> Iterator[TimedRow]:
    threads = str(torch.get_num_threads()) if device == "cpu" else device
    for n in num_envs:
        env = make(changes, n, device, include)
        shown = f", with {', '.join(include)}" if include else ""
        yield TimedRow(f"ours, {n}{shown}", random_steps(env), n, threads, notes=f"kernels {env.kernels.backend}")
