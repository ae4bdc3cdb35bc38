"""`torchrl-gpu evaluate bpp10` and `evaluate pallets`: published protocols."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torchrl_gpu.cli.evaluate import WHERE, add_common_options, write_tables
from torchrl_gpu.cli.parser import OneLineParser, not_negative, positive, whole
from torchrl_gpu.system import arguments
from torchrl_gpu.system.allocator import keep_freed_memory
from torchrl_gpu.system.extras import load_mujoco

if TYPE_CHECKING:
    from torchrl_gpu.envs import PackingEnv
    from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite
    from torchrl_gpu.policies import InferencePolicy, PackingPolicy
    from torchrl_gpu.policies.policy import Policy

    # Trained policies by the names of their rows.
    Loaded = dict[str, InferencePolicy | PackingPolicy]

BOXES = "bpp10"
PALLETS = "pallets"
OF_BOXES = """Policies on a published protocol of bin packing: utilization, items, times, and what each knows ahead.

Every policy packs the same sequences by the same rules: the 2,000 of the protocol's fixed suite, identified by a hash,
or those of a file, such as the published ones (AAAI 2021 reports sequences 1 to 2000 of its: --first 1 --cases 2000).
"""
OF_PALLETS = """Policies on RoboBPP's pallets: utilization, occupancy, boxes, times, and what stands in simulation.

Every policy packs the same 30 sequences of 80 boxes, identified by a hash, up to the first box that has no place. They
are drawn from the test rows in the package `packsim`, which the extra `robobpp` brings; those of the paper are not
public, and its printed rows are of others. `repetitive-board` plays the 22 of the paper's 30 cases that are known, of
which 17 lie in the training rows and 5 in the test rows.
"""
CANDIDATES = 6
DEPTH = 10
BEAM = 32
ALL = 2**31 - 1
# Options of the environment.
_RULE = ("stability", "margin", "max_tilt", "bearing_tilt", "fallback", "friction")


def main(argv: list[str]) -> None:
    """Run `evaluate` for a protocol, whose kind the first word says."""
    word = argv[0]
    parser = make_pallet_parser() if word == PALLETS else make_protocol_parser()
    args = parser.parse_args(argv[1:])
    if args.physics:
        load_mujoco()
    if args.stability != "load_bearing":
        given = {"--margin": (args.margin, None), "--max_tilt": (args.max_tilt, None)}
        given["--bearing_tilt"] = (args.bearing_tilt, None)
        arguments.check_effect(WHERE, "--stability load_bearing", **given)
    started = time.perf_counter()
    keep_freed_memory()
    suite, tables = _by_protocol(args)
    write_tables(suite, tables, args, word, started)


def make_protocol_parser() -> OneLineParser:
    parser = OneLineParser(prog=f"{WHERE} {BOXES}", description=OF_BOXES)
    add = parser.add_argument
    protocols = ("rs", "cut1", "cut2", "discrete125", "free125")
    add("--protocol", required=True, choices=protocols, help="boxes, orientations and the rule of stability")
    _add_policies(parser)
    # Options of the other protocol, which code below reads of both.
    parser.set_defaults(**dict.fromkeys(_RULE), physics=0, free_places=None)
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


def make_pallet_parser() -> OneLineParser:
    parser = OneLineParser(prog=f"{WHERE} {PALLETS}", description=OF_PALLETS)
    add = parser.add_argument
    protocols = ("repetitive", "repetitive-board", "diverse", "boards")
    add("--protocol", required=True, choices=protocols, help="boxes and container")
    _add_policies(parser)
    add("--stability", help="rule for legal placements, as in PackingEnv; none by default, as in the paper's Math Pack")
    add("--margin", type=not_negative, metavar="METRES", help="of the rule load_bearing; PackingEnv's by default")
    add("--max_tilt", type=not_negative, metavar="DEGREES", help="of the same rule; 0 by default")
    leans = "slope up to which what leans bears load, of the same rule; PackingEnv's by default"
    add("--bearing_tilt", type=not_negative, metavar="DEGREES", help=leans)
    add("--fallback", metavar="RULE", help="rule for boxes that have no stable place by --stability")
    physics = "simulate the pallets in MuJoCo, or so many, for the share of placements that stand"
    add("--physics", type=whole(0), nargs="?", const=ALL, default=0, metavar="CASES", help=physics)
    friction = "Coulomb's coefficient in that simulation; PackingEnv's by default"
    add("--friction", type=positive, metavar="NUMBER", help=friction)
    look = "policies of placement weights play once more, and look at the places that boxes of the training rows still"
    look += " find: what a bin height counts; 2 is a good one"
    add("--free_places", type=positive, metavar="WEIGHT", help=look)
    parser.set_defaults(sequences=None, unit=None, misfits=None, knows=[])
    parser.set_defaults(candidates=None, futures=None, depth=None, beam=None)
    return parser


def _add_policies(parser: OneLineParser) -> None:
    add = parser.add_argument
    policies = "baselines (random, first-fit, bph, br, dbl, hm, lsah, macs; `baselines` for all), trained ones by their"
    policies += " protocol, and paths of checkpoints"
    add("--policy", nargs="+", default=["baselines"], metavar="POLICY", help=policies)
    parser.add_classes()
    add_common_options(parser)
    add("--first", type=whole(0), default=0, help="number of the first sequence, from 0 on")
    add("--visible", type=whole(1), default=1, help="K, boxes to choose from")
    add("--timed", type=whole(0), default=2, metavar="CASES", help="so many are packed alone for the time of one bin")


def _by_protocol(args: argparse.Namespace) -> tuple[ProtocolSuite, Iterator[dict[str, object]]]:
    for name in ("unit", "misfits"):
        if args.sequences is None and getattr(args, name) is not None:
            raise ValueError(f"{WHERE}: --{name} {getattr(args, name)} has no effect without --sequences FILE")
    knows = _knowledge(args)
    from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite, board_table, protocol_table
    from torchrl_gpu.evaluation.reports import print_whole
    from torchrl_gpu.policies.packing import baselines

    loaded, words = _policies(args)
    rule = {name: getattr(args, name) for name in _RULE if getattr(args, name) is not None}
    unit = args.unit or "cells"
    misfits = args.misfits or "refuse"
    suite = ProtocolSuite(
        args.protocol,
        args.cases,
        sequences=args.sequences,
        first=args.first,
        unit=unit,
        misfits=misfits,
        visible_items=args.visible,
        rule=rule,
        include=_include(loaded, knows),
        device=args.device,
        batch_size=args.batch,
    )
    suite.simulated = args.physics
    loaded = {name: _in_its_bin(policy, suite.env) for name, policy in loaded.items()}
    compared: dict[str, Policy] = {**loaded}
    if "distribution" in knows and suite.foreign:
        raise ValueError(
            f"{WHERE}: --candidates and --knows distribution know the boxes of {args.protocol}, and the file has"
            f" {suite.foreign}"
        )
    if knows or (args.visible > 1 and args.beam):
        compared |= _planners(suite.env, loaded, knows, args)
    if args.free_places is not None:
        compared |= _looking(suite.env, loaded, args.free_places)

    def tables() -> Iterator[dict[str, object]]:
        policies: dict[str, Policy] = {**baselines(suite.env, words), **compared}
        report = suite.compare_all(policies, args.timed)
        print_whole(protocol_table(report))
        if suite.board_cases:
            print_whole(board_table(report))
        yield report

    return suite, tables()


def _policies(args: argparse.Namespace) -> tuple[Loaded, list[str]]:
    from torchrl_gpu.envs.packing.protocols import PALLETS, PROTOCOLS
    from torchrl_gpu.policies import PackingPolicy, load_policy
    from torchrl_gpu.policies.packing import BASELINES
    from torchrl_gpu.policies.registry import import_classes

    loaded: Loaded = {}
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
            raise ValueError(f"{WHERE}: --policy must be baselines, {known} or the path of a checkpoint; got {each!r}")
    return loaded, list(dict.fromkeys(words))


def _in_its_bin(policy: InferencePolicy | PackingPolicy, env: PackingEnv) -> InferencePolicy | PackingPolicy:
    """Return a policy that fits the bin of an environment.

    Only placement weights fit bins of any size, and so have to be told. Others are returned as they are.
    """
    from torchrl_gpu.policies import AgentSpace, InferencePolicy, PackingPolicy
    from torchrl_gpu.policies.packing.placement_values import LinearPlacementValues

    if isinstance(policy, InferencePolicy) and isinstance(policy.policy, PackingPolicy):
        policy = policy.policy
    if not isinstance(policy, PackingPolicy) or not isinstance(policy.tables, LinearPlacementValues):
        return policy
    space, values = AgentSpace.of(env), policy.tables
    values = LinearPlacementValues(space, values.weight.tolist(), values.candidates)
    return PackingPolicy(space, values, policy.about).to(env.device)


def _looking(env: PackingEnv, loaded: Loaded, weight: float) -> dict[str, Policy]:
    """Return policies that look at free places, by the names of their rows."""
    from torchrl_gpu.policies.packing.placement_values import LinearPlacementValues
    from torchrl_gpu.policies.packing.planners.free_places import FreePlaces

    looking: dict[str, Policy] = {}
    for name, policy in loaded.items():
        for each in policy.modules():
            if isinstance(each, LinearPlacementValues):
                looking[f"{name}, free places"] = FreePlaces(env, each, weight=weight)
    if not looking:
        given = ", ".join(loaded) or "none of these"
        raise ValueError(
            f"{WHERE}: --free_places needs a policy of placement weights, such as --policy diverse; got {given}"
        )
    return looking


def _knowledge(args: argparse.Namespace) -> list[str]:
    """Return the kinds of knowledge that planners have, in order.

    ValueError where an option has no effect.
    """
    by_default = ["distribution"] if args.candidates or args.futures else []
    knows = list(dict.fromkeys(args.knows or by_default))
    if args.visible > 1:
        if knows:
            raise ValueError(f"{WHERE}: --candidates and --knows need --visible=1, not {args.visible}")
        if args.depth and not args.beam:
            raise ValueError(
                f"{WHERE}: with --visible={args.visible} --depth {args.depth} has no effect without --beam"
            )
        return []
    wanted = {"candidates": ("distribution", "boxes"), "futures": ("distribution",), "beam": ("stream",)}
    if not args.futures:
        wanted["depth"] = ("stream",)
    for name, words in wanted.items():
        if getattr(args, name) is not None and not set(words) & set(knows):
            given = " ".join(knows) or "none"
            raise ValueError(f"{WHERE}: --{name} has no effect with --knows {given}; it needs {' or '.join(words)}")
    return knows


def _planners(env: PackingEnv, loaded: Loaded, knows: list[str], args: argparse.Namespace) -> dict[str, Policy]:
    from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
    from torchrl_gpu.policies.packing.planners.beam_search import StreamSearch, VisibleSearch
    from torchrl_gpu.policies.packing.planners.expectation import ExpectedPlacement
    from torchrl_gpu.policies.packing.planners.next_items import pretrained_next_items

    candidates = args.candidates or CANDIDATES
    depth = args.depth or DEPTH
    beam = args.beam or BEAM
    # Planners look ahead by values of bins, which only these policies have.
    by_tables: dict[str, PatchTables] = {}
    for name, policy in loaded.items():
        tables = [each for each in policy.modules() if isinstance(each, PatchTables)]
        if tables:
            by_tables[name] = tables[0]
    if not by_tables:
        raise ValueError(
            f"{WHERE}: --candidates, --knows and --beam are for policies of afterstate values, and --policy names none"
        )
    found: dict[str, Policy] = {}
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


# What no policy reads is not computed.
def _include(loaded: Loaded, knows: list[str]) -> list[str]:
    from torchrl_gpu.envs.packing.env import INCLUDED_KEYS

    wanted = {"z_map"}
    for policy in loaded.values():
        wanted.update(map(str, policy.in_keys))
    if "distribution" in knows:
        wanted.add("packed_items")
    if {"boxes", "stream"} & set(knows):
        wanted.add("future_items")
    return [key for key in INCLUDED_KEYS if key in wanted]
