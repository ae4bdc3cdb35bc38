"""`torchrl-gpu evaluate`: a policy beside its baselines, as a table and as JSON.

They play episodes that the policy never trained on.

Irregular packing has a table for each set of objects and setting, as in Huang et al., RA-L 2023. The name of a shipped
config may stand in place of --config. Options that are not listed go to the config, as in `lightning test`. With `bpp10
--protocol NAME` or `pallets --protocol NAME` in place of a config any policies are compared on a published protocol:
see `bpp10 --help` and `pallets --help`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, cast

from torchrl_gpu.cli.parser import OneLineParser, whole
from torchrl_gpu.system import arguments
from torchrl_gpu.system.allocator import keep_freed_memory
from torchrl_gpu.system.extras import load_mujoco
from torchrl_gpu.tasks import load_part, tasks

if TYPE_CHECKING:
    from torchrl_gpu.evaluation.suite import Suite

WHERE = "torchrl-gpu evaluate"


def main(argv: list[str]) -> None:
    for task in tasks():
        if argv and argv[0] in task.evaluations:
            load_part(task.evaluations[argv[0]])(argv)
            return
    # A first word that is no option is the name of a config.
    args, words = make_config_parser().parse_run(["--config", *argv] if argv and argv[0][0] != "-" else argv)
    _check(args)
    started = time.perf_counter()
    keep_freed_memory()
    suite, tables = _by_config(args, words)
    write_tables(suite, tables, args, Path(args.config).stem, started)


def write_tables(
    suite: Suite, tables: Iterator[dict[str, object]], args: argparse.Namespace, name: str, started: float
) -> None:
    """Make the tables of an evaluation, and write them as JSON if asked to.

    `started` is when the program began, of `time.perf_counter`.
    """
    from torchrl_gpu.evaluation.reports import write_json
    from torchrl_gpu.system import machine
    from torchrl_gpu.system.console import progress

    plain = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    result: dict[str, object] = {"evaluation": name, "arguments": plain}
    result |= {"machine": machine.describe(suite.env.device)}
    with progress(WHERE) as suite.announce:
        # Written after every table, so that a long evaluation that is ended keeps what it has.
        for found in tables:
            result |= found | {"elapsed_s": time.perf_counter() - started}
            if args.output:
                write_json(args.output, result)
    if args.output:
        print(f"Written: {args.output}")


def add_common_options(parser: OneLineParser) -> None:
    add = parser.add_argument
    add("--cases", type=whole(1), help="episodes of each policy; by default all of `test`, or of the protocol")
    add("--batch", type=whole(1), help="episodes side by side; as many as fit into memory by default")
    add("--device", default="auto", help="that everything runs on")
    add("--output", type=Path, help="JSON with the tables and everything that decides them")


def make_config_parser() -> OneLineParser:
    parser = OneLineParser(prog=WHERE, description=__doc__)
    add = parser.add_argument
    parser.add_config()
    add("--ckpt_path", help="checkpoint of a run of the config; without it the weights that a run begins with")
    add_common_options(parser)
    add("--seed", type=int, help="decides the episodes; `data.seed`")
    physics = "cases of each packing policy simulated in MuJoCo, for the share of placements that stand; 0 by default"
    add("--physics", type=whole(0), metavar="CASES", help=physics)
    add = parser.add_argument_group("irregular packing").add_argument
    methods = ("random", "dbl", "hm", "waste", "values", "worker", "manager", "both")
    add("--sets", nargs="+", choices=("easy", "hard"), help="of objects; both, or neither with --meshes")
    add("--shapes", nargs="+", help="kinds of objects in the set hard")
    add("--meshes", type=Path, help="folder of mesh files: one more set")
    add("--unit", help="of the mesh files: m, cm or mm")
    add("--visible", nargs="+", type=whole(0), help="K, objects to choose from; 0: no choice; the config's by default")
    add("--steps", nargs="+", type=float, help="degrees between orientations; the config's by default")
    add("--resolutions", nargs="+", type=whole(1), help="cells along x and y; the config's by default")
    add("--methods", nargs="+", choices=methods, help="rows; all by default")
    add("--timed", type=whole(0), metavar="CASES", help="so many cases are packed alone for the latency; 3 by default")
    return parser


def _check(args: argparse.Namespace) -> None:
    if args.meshes is not None and not args.meshes.is_dir():
        raise FileNotFoundError(f"{WHERE}: --meshes must be a folder of mesh files; got {args.meshes}")
    if args.meshes is None:
        arguments.check_effect(WHERE, "--meshes", **{"--unit": (args.unit, None)})
    if args.physics:
        load_mujoco()


def _by_config(args: argparse.Namespace, words: list[str]) -> tuple[Suite, Iterator[dict[str, object]]]:
    from torchrl_gpu.cli.loading import load_run
    from torchrl_gpu.device import get_device
    from torchrl_gpu.evaluation.suite import TableOptions
    from torchrl_gpu.training.data.episodes import suite_of

    device = get_device(args.device)
    # The suite makes the environments of its batches, so that one is enough here.
    own = ["--model.env.num_envs=1", f"--model.env.device={device}"]
    own += [f"--trainer.accelerator={'cpu' if device.type == 'cpu' else 'gpu'}"]
    own += [f"--trainer.devices={1 if device.index is None else [device.index]}"]
    own += [] if args.seed is None else [f"--data.seed={args.seed}"]
    own += [] if args.batch is None else [f"--data.batch_size={args.batch}"]
    cli, saved = load_run("evaluate", [*own, *words], args.ckpt_path)
    suite = suite_of(cli.model, "test", args.cases)
    result: dict[str, object] = {"config": {"test": cli.config_dump}, "seed": suite.env.seed, "checkpoint": None}
    if saved is not None:
        result["checkpoint"] = {"path": args.ckpt_path} | {name: saved.get(name) for name in ("global_step", "frames")}

    def tables() -> Iterator[dict[str, object]]:
        names = [each.name for each in fields(TableOptions)]
        given = {name: getattr(args, name) for name in names}
        options = TableOptions(**given)
        # The keys are an ordered set.
        notes: dict[str, None] = {}
        made = []
        for table in suite.tables(cli.model, options):
            notes |= dict.fromkeys(cast("list[str]", table.pop("notes", [])))
            made.append(table)
            yield result | {"notes": list(notes), "tables": made}

    return suite, tables()
