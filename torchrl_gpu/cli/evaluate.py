"""`torchrl-gpu evaluate`: a policy beside its baselines on episodes that it never trained on, as a table and as JSON.

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
from typing import TYPE_CHECKING, Any

from torchrl_gpu.cli.parser import OneLineParser, positive, whole
from torchrl_gpu.system import arguments
from torchrl_gpu.system.allocator import keep_freed_memory

if TYPE_CHECKING:
    from torchrl_gpu.envs import PackingEnv
    from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite
    from torchrl_gpu.evaluation.suite import Suite

WHERE, BOXES, PALLETS = "torchrl-gpu evaluate", "bpp10", "pallets"
OF_BOXES = """Policies on a published protocol of bin packing: utilization, items, times, and what each knows ahead.

Every policy packs the same sequences by the same rules: the 2,000 of the protocol's fixed suite, identified by a hash,
or those of a file, such as the published ones (AAAI 2021 reports sequences 1 to 2000 of its: --first 1 --cases 2000).
"""
OF_PALLETS = """Policies on RoboBPP's pallets: utilization, occupancy, boxes, times, and what stands in simulation.

Every policy packs the same 30 sequences of 80 boxes, identified by a hash, up to the first box that has no place. They
are drawn from the test rows in the package `packsim`, which the extra `robobpp` brings; those of the paper are not
public, and its printed rows are of others.
"""
CANDIDATES, DEPTH, BEAM = 6, 10, 32
ALL = 2**31 - 1
_RULE = ("stability", "margin", "max_tilt", "fallback", "friction")  # of the environment


def main(argv: list[str]) -> None:
    by_protocol = argv[:1] in ([BOXES], [PALLETS])
    words: list[str] = []
    if by_protocol:
        args = (_pallet_parser() if argv[0] == PALLETS else _protocol_parser()).parse_args(argv[1:])
        _check_physics(args)
        if args.stability != "load_bearing":
            given = {"--margin": (args.margin, None), "--max_tilt": (args.max_tilt, None)}
            arguments.check_effect(WHERE, "--stability load_bearing", **given)
    else:
        args, words = _config_parser().parse_run(["--config", *argv] if argv and argv[0][0] != "-" else argv)
        _check(args)
    from torchrl_gpu.evaluation.reports import write_json
    from torchrl_gpu.system import machine
    from torchrl_gpu.system.console import progress

    started = time.perf_counter()
    keep_freed_memory()
    suite, tables = _by_protocol(args) if by_protocol else _by_config(args, words)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    result = {"evaluation": argv[0] if by_protocol else Path(args.config).stem, "arguments": plain}
    result |= {"machine": machine.describe(suite.env.device)}
    with progress(WHERE) as suite.say:
        for found in tables:
            result |= found | {"elapsed_s": time.perf_counter() - started}
            if args.output:
                write_json(args.output, result)
    if args.output:
        print(f"Written: {args.output}")


def _add_common(parser: OneLineParser) -> None:
    add = parser.add_argument
    add("--cases", type=whole(1), help="episodes of each policy; by default all of `test`, or of the protocol")
    add("--batch", type=whole(1), help="episodes side by side; as many as fit into memory by default")
    add("--device", default="auto", help="that everything runs on")
    add("--output", type=Path, help="JSON with the tables and everything that decides them")


# -- the policy of a config ------------------------------------------------------------------------------------------


def _config_parser() -> OneLineParser:
    parser = OneLineParser(prog=WHERE, description=__doc__)
    add = parser.add_argument
    parser.add_config()
    add("--ckpt_path", help="checkpoint of a run of the config; without it the weights that a run begins with")
    _add_common(parser)
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
    _check_physics(args)


def _check_physics(args: argparse.Namespace) -> None:
    if args.physics:
        from torchrl_gpu.envs.packing.physics.scene import load_mujoco

        load_mujoco()


def _by_config(args: argparse.Namespace, words: list[str]) -> tuple[Suite[Any, Any], Iterator[dict[str, Any]]]:
    from torchrl_gpu.cli.loading import load_run
    from torchrl_gpu.device import get_device
    from torchrl_gpu.evaluation.suite import TableOptions
    from torchrl_gpu.training.data.episodes import suite_of

    device = get_device(args.device)
    own = ["--model.env.num_envs=1", f"--model.env.device={device}"]  # the suite makes the environments of its batches
    own += [f"--trainer.accelerator={'cpu' if device.type == 'cpu' else 'gpu'}"]
    own += [f"--trainer.devices={1 if device.index is None else [device.index]}"]
    own += [] if args.seed is None else [f"--data.seed={args.seed}"]
    own += [] if args.batch is None else [f"--data.batch_size={args.batch}"]
    cli, saved = load_run("evaluate", [*own, *words], args.ckpt_path)
    suite = suite_of(cli.model, "test", args.cases)
    result: dict[str, Any] = {"config": {"test": cli.config_dump}, "seed": suite.env.seed, "checkpoint": None}
    if saved is not None:
        result["checkpoint"] = {"path": args.ckpt_path} | {name: saved.get(name) for name in ("global_step", "frames")}

    def tables() -> Iterator[dict[str, Any]]:
        options = TableOptions(**{each.name: getattr(args, each.name) for each in fields(TableOptions)})
        notes: dict[str, None] = {}  # an ordered set
        made = []
        for table in suite.tables(cli.model, options):
            notes |= dict.fromkeys(table.pop("notes", ()))
            made.append(table)
            yield result | {"notes": list(notes), "tables": made}

    return suite, tables()


# -- any policies on a protocol --------------------------------------------------------------------------------------


def _protocol_parser() -> OneLineParser:
    parser = OneLineParser(prog=f"{WHERE} {BOXES}", description=OF_BOXES)
    add = parser.add_argument
    protocols = ("rs", "cut1", "cut2", "discrete125", "free125")
    add("--protocol", required=True, choices=protocols, help="boxes, orientations and the rule of stability")
    _add_policies(parser)
    parser.set_defaults(**dict.fromkeys(_RULE), physics=0)
    add("--sequences", type=Path, help="file of box sequences in place of the fixed suite: .npy, .npz, .pt or .json")
    add("--unit", choices=("cells", "m", "cm", "mm"), help="of the sizes in the file; cells by default")
    misfits = "of boxes in the file that fit the bin in no orientation; refuse by default"
    add("--misfits", choices=("refuse", "skip_boxes", "skip_orders"), help=misfits)
    candidates = "policies of afterstate values play once more, choosing among the M best placements by the expected"
    candidates += f" value after the next item; {CANDIDATES} by default"
    add("--candidates", type=whole(1), metavar="M", help=candidates)
    knows = (
        "policies of afterstate values play once more for each word, knowing that of the boxes to come: how they are"
    )
    knows += " drawn (as --candidates alone), which there are but not their order, or all of them in order"
    add("--knows", nargs="+", default=[], choices=("distribution", "boxes", "stream"), help=knows)
    futures = "instead of the expectation over the next item, the mean over so many futures that are drawn"
    add("--futures", type=whole(1), metavar="F", help=futures)
    depth = f"boxes of a future or of a line of the stream, {DEPTH} by default; of a line of visible ones, up to 4"
    add("--depth", type=whole(1), metavar="D", help=depth)
    beam = f"lines that go on where the stream is known, {BEAM} by default; with --visible=K policies of afterstate"
    add("--beam", type=whole(1), metavar="W", help=f"{beam} values play once more and search over the visible boxes")
    return parser


def _pallet_parser() -> OneLineParser:
    parser = OneLineParser(prog=f"{WHERE} {PALLETS}", description=OF_PALLETS)
    add = parser.add_argument
    add("--protocol", required=True, choices=("repetitive", "diverse", "boards"), help="boxes and container")
    _add_policies(parser)
    add("--stability", help="rule for legal placements, as in PackingEnv; none by default, as in the paper's Math Pack")
    add("--margin", type=positive, metavar="METRES", help="of the rule load_bearing; PackingEnv's by default")
    add("--max_tilt", type=positive, metavar="DEGREES", help="of the same rule; 0 by default")
    add("--fallback", metavar="RULE", help="rule for boxes that have no stable place by --stability")
    physics = "simulate the pallets in MuJoCo, or so many, for the share of placements that stand"
    add("--physics", type=whole(0), nargs="?", const=ALL, default=0, metavar="CASES", help=physics)
    friction = "Coulomb's coefficient in that simulation; PackingEnv's by default"
    add("--friction", type=positive, metavar="NUMBER", help=friction)
    parser.set_defaults(sequences=None, unit=None, misfits=None, knows=[])
    parser.set_defaults(candidates=None, futures=None, depth=None, beam=None)
    return parser


def _add_policies(parser: OneLineParser) -> None:
    add = parser.add_argument
    policies = "baselines (random, first-fit, bph, br, dbl, hm, lsah, macs; `baselines` for all), trained ones by their"
    policies += " protocol, and paths of checkpoints"
    add("--policy", nargs="+", default=["baselines"], metavar="POLICY", help=policies)
    parser.add_classes()
    _add_common(parser)
    add("--first", type=whole(0), default=0, help="number of the first sequence, from 0 on")
    add("--visible", type=whole(1), default=1, help="K, boxes to choose from")
    add("--timed", type=whole(0), default=2, metavar="CASES", help="so many are packed alone for the time of one bin")


def _by_protocol(args: argparse.Namespace) -> tuple[ProtocolSuite, Iterator[dict[str, Any]]]:
    for name in ("unit", "misfits"):
        if args.sequences is None and getattr(args, name) is not None:
            raise ValueError(f"{WHERE}: --{name} wants --sequences FILE; got {getattr(args, name)} without one")
    knows = _knowledge(args)
    from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite, protocol_table
    from torchrl_gpu.evaluation.reports import print_whole
    from torchrl_gpu.policies.packing import baselines

    loaded, words = _policies(args)
    suite = ProtocolSuite(
        args.protocol,
        args.cases,
        sequences=args.sequences,
        first=args.first,
        unit=args.unit or "cells",
        misfits=args.misfits or "refuse",
        visible_items=args.visible,
        rule={name: getattr(args, name) for name in _RULE if getattr(args, name) is not None},
        include=_include(loaded, knows),
        device=args.device,
        batch_size=args.batch,
    )
    suite.simulated = args.physics
    loaded = {name: _in_its_bin(policy, suite.env) for name, policy in loaded.items()}
    if "distribution" in knows and suite.foreign:
        wanted = f"a file whose boxes are those of {args.protocol}"
        raise ValueError(f"{WHERE}: --candidates and --knows distribution want {wanted}; got one of {suite.foreign}")
    if knows or (args.visible > 1 and args.beam):
        loaded |= _planners(suite.env, loaded, knows, args)

    def tables() -> Iterator[dict[str, Any]]:
        report = suite.compared({**baselines(suite.env, words), **loaded}, args.timed)
        print_whole(protocol_table(report))
        yield report

    return suite, tables()


def _policies(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from torchrl_gpu.envs.packing.protocols import PALLETS, PROTOCOLS
    from torchrl_gpu.policies import PackingPolicy, load_policy
    from torchrl_gpu.policies.packing import BASELINES
    from torchrl_gpu.policies.registry import import_classes

    loaded: dict[str, Any] = {}
    words: list[str] = []
    classes = import_classes(WHERE, args.classes)
    known_here = PALLETS | {"orders": {}} if args.protocol in PALLETS else PROTOCOLS | PALLETS
    trained = [name for name in PackingPolicy.names() if name.removesuffix("-refined") in known_here]
    for each in args.policy:
        if each == "baselines":
            words += BASELINES
        elif each in BASELINES:
            words.append(each)
        elif each in trained:
            loaded[f"pretrained {each}"] = PackingPolicy.from_pretrained(each, args.device)
        elif Path(each).suffix == ".safetensors":
            loaded[each] = PackingPolicy.from_pretrained(each, args.device)
        elif Path(each).is_file():
            loaded[f"{Path(each).stem} ({each})"] = load_policy(each, args.device, classes=classes)
        else:
            known = ", ".join([*BASELINES, *trained])
            wanted = f"baselines, {known} or the path of a checkpoint"
            raise ValueError(f"{WHERE}: --policy must be {wanted}; got {each!r}")
    return loaded, list(dict.fromkeys(words))


def _in_its_bin(policy: Any, env: PackingEnv) -> Any:
    """A policy; one by placement weights, which fit bins of any size, in that of an environment."""
    from torchrl_gpu.policies import AgentSpace, InferencePolicy, PackingPolicy
    from torchrl_gpu.policies.packing.placement_values import LinearPlacementValues

    if isinstance(policy, InferencePolicy) and isinstance(policy.policy, PackingPolicy):
        policy = policy.policy
    if not isinstance(policy, PackingPolicy) or not isinstance(policy.tables, LinearPlacementValues):
        return policy
    space, values = AgentSpace.of(env), policy.tables
    values = LinearPlacementValues(space, values.weight.tolist(), values.candidates)
    return PackingPolicy(space, values, policy.about).to(env.device)


def _knowledge(args: argparse.Namespace) -> list[str]:
    """Kinds of knowledge that planners have, in order; ValueError where an option has no effect."""
    knows = list(dict.fromkeys(args.knows or (["distribution"] if args.candidates or args.futures else [])))
    if args.visible > 1:
        if knows:
            raise ValueError(f"{WHERE}: --candidates and --knows want --visible=1; got {args.visible}")
        if args.depth and not args.beam:
            raise ValueError(f"{WHERE}: with --visible={args.visible} --depth wants --beam; got {args.depth} alone")
        return []
    wanted = {"candidates": ("distribution", "boxes"), "futures": ("distribution",), "beam": ("stream",)}
    for name, words in (wanted | ({} if args.futures else {"depth": ("stream",)})).items():
        if getattr(args, name) is not None and not set(words) & set(knows):
            raise ValueError(f"{WHERE}: --{name} wants --knows {' or '.join(words)}; got {' '.join(knows) or 'none'}")
    return knows


def _planners(env: PackingEnv, loaded: dict[str, Any], knows: list[str], args: argparse.Namespace) -> dict[str, Any]:
    from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
    from torchrl_gpu.policies.packing.planners.beam_search import StreamSearch, VisibleSearch
    from torchrl_gpu.policies.packing.planners.expectation import ExpectedPlacement
    from torchrl_gpu.policies.packing.planners.next_items import pretrained_next_items

    candidates, depth, beam = args.candidates or CANDIDATES, args.depth or DEPTH, args.beam or BEAM
    by_tables: dict[str, PatchTables] = {}
    for name, policy in loaded.items():
        tables = [each for each in policy.modules() if isinstance(each, PatchTables)]
        by_tables |= {name: tables[0]} if tables else {}
    if not by_tables:
        raise ValueError(f"{WHERE}: --candidates, --knows and --beam want a policy of afterstate values; got none")
    found: dict[str, Any] = {}
    foretold = pretrained_next_items(env) if "distribution" in knows else None
    for name, table in by_tables.items():
        if args.visible > 1:
            search = VisibleSearch(env, table, args.depth, beam)
            found[f"{name}, searching ({search.depth}, {beam})"] = search
        for word in knows:
            if word == "distribution":
                ahead = f"{candidates}, {args.futures} futures of {depth}" if args.futures else f"{candidates}"
                planner = ExpectedPlacement(
                    env, table, candidates, args.futures, depth if args.futures else 1, next_items=foretold
                )
                found[f"{name}, expecting ({ahead})"] = planner
            elif word == "boxes":
                planner = ExpectedPlacement(env, table, candidates, knows="the boxes but not their order")
                found[f"{name}, expecting what is left ({candidates})"] = planner
            else:
                found[f"{name}, searching ({depth}, {beam})"] = StreamSearch(env, table, depth, beam)
    return found


def _include(loaded: dict[str, Any], knows: list[str]) -> list[str]:
    from torchrl_gpu.envs.packing.env import INCLUDED_KEYS

    wanted = {"z_map"} | {str(key) for policy in loaded.values() for key in policy.in_keys}
    wanted |= {"packed_items"} if "distribution" in knows else set()
    wanted |= {"future_items"} if {"boxes", "stream"} & set(knows) else set()
    return [key for key in INCLUDED_KEYS if key in wanted]
