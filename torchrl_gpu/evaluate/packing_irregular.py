"""`torchrl-gpu evaluate packing_irregular`: a table for each set of objects and setting, all methods on the same cases.

Options that are not listed go to the config, as in `lightning test`.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchrl_gpu import machine
from torchrl_gpu.allocator import keep_freed_memory
from torchrl_gpu.cli.lightning_cli import PackageCLI, build
from torchrl_gpu.cli.options import resolve_configs
from torchrl_gpu.cli.subcommands import OneLineParser
from torchrl_gpu.console import progress
from torchrl_gpu.device import get_device
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ItemSource
from torchrl_gpu.evaluation.comparison import comparison_data, comparison_table
from torchrl_gpu.evaluation.packing.cases import agreement_data, latencies, pack_cases
from torchrl_gpu.evaluation.packing.objects import HARD_SHAPES, UNSEEN_SEED, Remembered, easy, hard
from torchrl_gpu.evaluation.packing.side_by_side import episode_bytes, num_side_by_side
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.evaluation.reports import print_whole, write_json
from torchrl_gpu.policies.packing.contestants import (
    BOTH,
    DEEPEST,
    LESS_WASTE,
    MANAGER,
    RANDOM,
    RULE,
    WORKER,
    irregular_contestants,
)
from torchrl_gpu.policies.packing.hierarchical import HierarchicalPacker
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.training import HierarchicalPacking
from torchrl_gpu.training.checkpoint import read_archive

WHERE = "torchrl-gpu evaluate packing_irregular"
METHODS = {"random": RANDOM, "dbl": DEEPEST, "hm": RULE, "waste": LESS_WASTE}
METHODS |= {"worker": WORKER, "manager": MANAGER, "both": BOTH}
UNTRAINED = "No --ckpt_path: the rows of the learned methods are left out; untrained networks repeat the rules."
NO_CHOICE = "K = 0: one object is shown, in box order, and passed over if it fits nowhere; no manager."


@dataclass(frozen=True)
class Setting:
    """What a table is about, besides its objects.

    Attributes:
        visible: K; 0 for no choice: one object at a time, passed over where it fits nowhere.
        orientations: As in PackingEnv.
        resolution: Likewise.
    """

    visible: int
    orientations: str | float
    resolution: int | tuple[int, int]

    def changes(self) -> dict[str, Any]:
        """Arguments of the environment."""
        return {
            "visible_items": max(1, self.visible),
            "skip_unplaceable": self.visible == 0,
            "orientations": self.orientations,
            "resolution": self.resolution,
        }


def main(argv: list[str]) -> None:
    """Prints the tables and writes the JSON."""
    args, rest = _parser().parse_known_args(argv)
    _check(args)
    started, device = time.perf_counter(), get_device(args.device)
    keep_freed_memory()
    cli = _built(args, device, rest)
    module, checkpoint = _loaded(cli, args.ckpt_path)
    result = _described(args, cli, device) | {"checkpoint": checkpoint}
    for table in _tables(args, module, result["notes"]):
        result["tables"].append(table)
        result["elapsed_s"] = time.perf_counter() - started
        if args.output:
            write_json(args.output, result)
    if args.output:
        print(f"Written: {args.output}")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog=WHERE, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--ckpt_path", help="checkpoint of a run of the config; without it the learned methods are left out")
    add("--config", default="packing_irregular.yaml", help="of the module: a path, or one that the package ships")
    add("--cases", type=int, default=200, help="packed by each method")
    add("--sets", nargs="+", choices=("easy", "hard"), help="of objects; both, or neither with --meshes")
    add("--shapes", nargs="+", default=list(HARD_SHAPES), help="kinds of objects in the set hard")
    add("--meshes", type=Path, help="folder of mesh files: one more set")
    add("--unit", default="m", help="of the mesh files: m, cm or mm")
    add("--visible", nargs="+", type=int, help="K, objects to choose from; 0 for no choice; the config's by default")
    add("--steps", nargs="+", type=float, help="degrees between orientations; the config's by default")
    add("--resolutions", nargs="+", type=int, help="cells along x and y; the config's by default")
    add("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="rows")
    add("--physics", type=int, default=0, metavar="CASES", help="so many cases of each method are dropped in MuJoCo")
    add("--timed", type=int, default=3, metavar="CASES", help="so many cases are packed alone for the latency")
    add("--batch", type=int, help="cases side by side; as many as fit into memory by default")
    add("--device", default="auto", help="where all of it runs")
    add("--seed", type=int, default=UNSEEN_SEED, help="decides objects and cases")
    add("--output", type=Path, help="JSON with the values of every case")
    return parser


def _check(args: argparse.Namespace) -> None:
    least = {"cases": 1, "visible": 0, "resolutions": 1, "physics": 0, "timed": 0, "batch": 1}
    for name, bound in least.items():
        given = getattr(args, name)
        if given is not None and (min(given) if isinstance(given, list) else given) < bound:
            raise ValueError(f"{WHERE}: --{name} must be at least {bound}; got {given}")
    if args.meshes is not None and not args.meshes.is_dir():
        raise FileNotFoundError(f"{WHERE}: --meshes must be a folder of mesh files; got {args.meshes}")
    if args.physics:
        from torchrl_gpu.envs.packing.physics.scene import load_mujoco

        load_mujoco()


# -- the module and its weights -------------------------------------------------------------------------------------


def _built(args: argparse.Namespace, device: torch.device, rest: list[str]) -> PackageCLI:
    """What the config describes; a checkpoint is checked before anything is built."""
    checkpoint = [] if args.ckpt_path is None else [f"--ckpt_path={args.ckpt_path}"]
    small = ["--model.env.num_envs=1", f"--model.env.device={device}", "--trainer.logger=false"]
    words = ["--config", args.config, *checkpoint, *small, *rest]
    return build("test", resolve_configs(words))


def _loaded(cli: PackageCLI, ckpt_path: str | None) -> tuple[HierarchicalPacking, dict[str, Any] | None]:
    """The module with the checkpoint's weights, and where in training it was saved."""
    module = cli.model
    if not isinstance(module, HierarchicalPacking):
        raise ValueError(f"{WHERE}: want a config whose model is HierarchicalPacking; got {type(module).__name__}")
    module.eval()
    if ckpt_path is None:
        return module, None
    saved = read_archive(Path(ckpt_path), "checkpoint")
    module.load_state_dict(saved["state_dict"])
    return module, {"path": ckpt_path} | {name: saved.get(name) for name in ("global_step", "frames")}


# -- tables ---------------------------------------------------------------------------------------------------------


def _tables(args: argparse.Namespace, module: HierarchicalPacking, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Each as data, once it is printed."""
    trained, device = module.env, module.env.device
    assert isinstance(trained, PackingEnv)
    if args.ckpt_path is None:
        _note(UNTRAINED, notes)
    resolutions = args.resolutions or [trained.resolution]
    turns = [_orientations(step) for step in args.steps] if args.steps else [trained.orientations]
    for name, source in _sets(args, trained.items, device).items():
        for resolution, orientations in itertools.product(resolutions, turns):
            items = Remembered(source, device)
            for visible in args.visible or [trained.visible_items]:
                if visible == 0:
                    _note(NO_CHOICE, notes)
                yield _table(args, module, name, items, Setting(visible, orientations, resolution))


def _orientations(step: float) -> str | float:
    return "cube" if step == 90 else step  # the same turns, and in the order that was trained with


def _sets(args: argparse.Namespace, items: ItemSource, device: torch.device) -> dict[str, ItemSource]:
    makers: dict[str, Callable[[], ItemSource]] = {
        "easy": lambda: easy(items, args.seed),
        "hard": lambda: hard(items, args.seed, args.shapes),
    }
    names = args.sets if args.sets or args.meshes else list(makers)
    made = {name: makers[name]() for name in names or ()}
    if args.meshes:
        from torchrl_gpu.envs.packing.items import MeshItems

        folder = str(args.meshes)
        made["meshes"] = MeshItems(folder, unit=args.unit, skip_invalid=True, device=device, seed=args.seed)
    return made


def _note(line: str, notes: list[str]) -> None:
    if line not in notes:
        notes.append(line)
        Console().print(line, soft_wrap=True)


def _table(
    args: argparse.Namespace, module: HierarchicalPacking, name: str, items: Remembered, setting: Setting
) -> dict[str, Any]:
    """Packs, prints, and returns what is to be written."""
    with progress(name) as say:
        say("making objects")
        one = _environment(args, module, items, setting)
        policies = _policies(args, module, one)
        env = one.like(_batch_size(args, one, policies))
        alone = latencies(env, policies, args.timed, say) if args.timed else {}
        outcomes = pack_cases(env, policies, args.cases, args.physics, say)
    methods = {row: outcome.columns() | _latency(alone, row) for row, outcome in outcomes.items()}
    agreement = agreement_data(outcomes)
    title = _title(name, env, setting, args.cases)
    print()
    print_whole(comparison_table(methods, title, RULE))
    if agreement:
        print_whole(agreement_table(agreement))
    episodes = PackingSuite(env).describe() | {"items": type(items.source).__name__}
    data: dict[str, Any] = {"title": title, "set": name, "objects": _arguments_of(items.source), "episodes": episodes}
    data |= {"setting": {"K": setting.visible, **setting.changes()}, "cases": args.cases, "batch": env.num_envs}
    return data | {"reference": RULE, "methods": comparison_data(methods, RULE), "agreement": agreement}


def _environment(
    args: argparse.Namespace, module: HierarchicalPacking, items: Remembered, setting: Setting
) -> PackingEnv:
    fixed = {"items": items, "seed": args.seed, "first_env": 0, "order": "box", "stability_judge": "com"}
    env = module.env.like(1, **fixed, **setting.changes())
    assert isinstance(env, PackingEnv)
    return env


def _batch_size(args: argparse.Namespace, env: PackingEnv, policies: Mapping[str, Policy]) -> int:
    """Cases side by side: as many as were asked for, else as fit into memory."""
    if args.batch is not None:
        return min(args.cases, args.batch)
    per_case = max(episode_bytes(env, policy) for policy in policies.values())
    return num_side_by_side(args.cases, per_case, env.device)


def _policies(args: argparse.Namespace, module: HierarchicalPacking, env: PackingEnv) -> dict[str, Any]:
    packer = module.policy_for(env)
    assert isinstance(packer, HierarchicalPacker)
    every = irregular_contestants(env, packer, learned=args.ckpt_path is not None)
    wanted = {METHODS[word] for word in args.methods}
    if not wanted & every.keys():
        raise ValueError(f"{WHERE}: --methods must name a row that there is; got {' '.join(args.methods)}")
    return {name: policy for name, policy in every.items() if name in wanted}


def _latency(alone: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {"ms/object": alone[name]} if name in alone else {}


def _title(name: str, env: PackingEnv, setting: Setting, cases: int) -> str:
    cells = "×".join(str(side) for side in env.bin.cells)
    shown = f"K = {setting.visible} of {env.num_items} objects, {env.num_orientations} orientations, {cells} cells"
    return f"{name}: {shown}, {cases} cases"


def agreement_table(agreement: list[dict[str, Any]]) -> Table:
    """Verdicts of the rule `com` beside those of physics."""
    counts = ("placements", "both_hold", "only_com_holds", "only_physics_holds", "none_holds")
    shown = Table(title="S com against S physics, placement by placement", title_justify="left")
    for column in ("method", "agree", *(name.replace("_", " ") for name in counts)):
        shown.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for row in agreement:
        share = "–" if row["share"] is None else f"{row['share']:.1%}"
        shown.add_row(row["method"], share, *(str(row[name]) for name in counts))
    return shown


# -- what is written ------------------------------------------------------------------------------------------------


def _described(args: argparse.Namespace, cli: PackageCLI, device: torch.device) -> dict[str, Any]:
    return {
        "evaluation": "packing_irregular",
        "machine": machine.describe(device),
        "arguments": _plain(vars(args)),
        "config": json.loads(cli.parser.dump(cli.config, format="json")),
        "seed": args.seed,
        "notes": [],
        "tables": [],
        "elapsed_s": 0.0,
    }


def _arguments_of(source: ItemSource) -> dict[str, Any]:
    """What an item source was made with."""
    names = list(inspect.signature(type(source)).parameters)
    return _plain({name: getattr(source, name) for name in names})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON takes them."""
    return {k: v if isinstance(v, int | float | str | list | tuple | None) else str(v) for k, v in values.items()}
