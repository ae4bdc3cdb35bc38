"""A policy beside its baselines on episodes that it never trained on: a table, and JSON with all that decided it.

Of irregular packing a table for each set of objects and setting, as in Huang et al., RA-L 2023. The name of a shipped
config may stand in place of --config. Options that are not listed go to the config, as in `lightning test`. With `bpp10
--protocol NAME` in place of a config any policies are compared on a published protocol: see `bpp10 --help`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from torchrl_gpu import arguments
from torchrl_gpu.allocator import keep_freed_memory
from torchrl_gpu.cli.options import check_arguments, check_checkpoint_path
from torchrl_gpu.cli.subcommands import OneLineParser

WHERE = "torchrl-gpu evaluate"
OF_IRREGULAR = ("sets", "shapes", "meshes", "unit", "visible", "steps", "resolutions", "methods", "physics", "timed")


def main(argv: list[str]) -> None:
    """Prints the tables and writes the JSON."""
    if argv[:1] == ["bpp10"]:
        from torchrl_gpu import evaluate_protocol

        evaluate_protocol.main(argv[1:])
        return
    parser = _parser()
    args, rest = parser.parse_known_args(["--config", *argv] if argv and argv[0][0] != "-" else argv)
    _check(args)
    check_arguments(rest, (action.dest for action in parser._actions))
    from rich.console import Console

    from torchrl_gpu.evaluation.reports import write_json
    from torchrl_gpu.play.loading import load_run
    from torchrl_gpu.training.data import suite_of

    started = time.perf_counter()
    keep_freed_memory()
    cli, saved = load_run("evaluate", _words(args, rest), args.ckpt_path)
    suite = suite_of(cli.model, "test", args.cases)
    status = Console(stderr=True).status(WHERE)

    def say(words: str) -> None:
        status.update(f"{WHERE}: {words}")
        status.start() if words else status.stop()

    suite.say, result = say, _described(args, cli, suite.env)
    if saved is not None:
        result["checkpoint"] = {"path": args.ckpt_path} | {name: saved.get(name) for name in ("global_step", "frames")}
    options = argparse.Namespace(**{name: getattr(args, name) for name in OF_IRREGULAR})
    try:
        for table in suite.tables(cli.model, options):
            result["notes"] += [line for line in table.pop("notes", ()) if line not in result["notes"]]
            result["tables"].append(table)
            result["elapsed_s"] = time.perf_counter() - started
            if args.output:
                write_json(args.output, result)
    finally:
        say("")
    if args.output:
        print(f"Written: {args.output}")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog=WHERE, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    parser.add_config()
    add(
        "--ckpt_path", help="checkpoint of a run of the config; without it the weights are those that a run begins with"
    )
    add("--cases", type=int, help="episodes of each policy; those of the config's `test` by default")
    add("--batch", type=int, help="episodes side by side; as many as fit into memory by default")
    add("--seed", type=int, help="decides the episodes; `data.seed`")
    add("--device", default="auto", help="where all of it runs")
    add("--output", type=Path, help="JSON with the tables and what decided them")
    add = parser.add_argument_group("irregular packing").add_argument
    methods = ("random", "dbl", "hm", "waste", "values", "worker", "manager", "both")
    add("--sets", nargs="+", choices=("easy", "hard"), help="of objects; both, or neither with --meshes")
    add("--shapes", nargs="+", help="kinds of objects in the set hard")
    add("--meshes", type=Path, help="folder of mesh files: one more set")
    add("--unit", help="of the mesh files: m, cm or mm")
    add("--visible", nargs="+", type=int, help="K, objects to choose from; 0 for no choice; the config's by default")
    add("--steps", nargs="+", type=float, help="degrees between orientations; the config's by default")
    add("--resolutions", nargs="+", type=int, help="cells along x and y; the config's by default")
    add("--methods", nargs="+", choices=methods, help="rows; all by default")
    add("--physics", type=int, metavar="CASES", help="so many cases of each method are dropped in MuJoCo; 0 by default")
    add("--timed", type=int, metavar="CASES", help="so many cases are packed alone for the latency; 3 by default")
    return parser


def _check(args: argparse.Namespace) -> None:
    least = {"cases": 1, "visible": 0, "resolutions": 1, "physics": 0, "timed": 0, "batch": 1}
    for name, bound in least.items():
        given = getattr(args, name)
        if given is not None and (min(given) if isinstance(given, list) else given) < bound:
            raise ValueError(f"{WHERE}: --{name} must be at least {bound}; got {given}")
    if args.meshes is not None and not args.meshes.is_dir():
        raise FileNotFoundError(f"{WHERE}: --meshes must be a folder of mesh files; got {args.meshes}")
    if args.meshes is None:
        arguments.check_effect(WHERE, "--meshes", **{"--unit": (args.unit, None)})
    check_checkpoint_path(args.ckpt_path or "")
    if args.physics:
        from torchrl_gpu.envs.packing.physics.scene import load_mujoco

        load_mujoco()


def _words(args: argparse.Namespace, rest: list[str]) -> list[str]:
    """Of the command line, for the config: one environment, since the suite makes those that it plays in."""
    from torchrl_gpu.device import get_device

    device = get_device(args.device)
    words = ["--config", args.config, "--model.env.num_envs=1", f"--model.env.device={device}"]
    words += [f"--trainer.accelerator={'cpu' if device.type == 'cpu' else 'gpu'}"]
    words += [f"--trainer.devices={1 if device.index is None else [device.index]}"]
    data = {"seed": args.seed, "batch_size": args.batch}
    return [*words, *(f"--data.{name}={value}" for name, value in data.items() if value is not None), *rest]


def _described(args: argparse.Namespace, cli: Any, env: Any) -> dict[str, Any]:
    from torchrl_gpu import machine

    plain = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    about = {"evaluation": Path(args.config).stem, "machine": machine.describe(env.device), "arguments": plain}
    return about | {
        "config": {"test": cli.config_dump},
        "seed": env.seed,
        "notes": [],
        "checkpoint": None,
        "tables": [],
        "elapsed_s": 0.0,
    }
