"""Policies on a published protocol of bin packing: utilization, items, times, and what each knew of what comes.

Every policy packs the same sequences by the same rules: the 2,000 of the protocol's fixed suite, known by a hash, or
those of a file, such as the published ones (AAAI 2021 reports sequences 1 to 2000 of its: --first 1 --cases 2000).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from torchrl_gpu.allocator import keep_freed_memory
from torchrl_gpu.cli.options import CLASSES_HELP, import_classes
from torchrl_gpu.cli.subcommands import OneLineParser

WHERE = "torchrl-gpu evaluate bpp10"
LEAST = {"cases": 1, "first": 0, "visible": 1, "batch": 1, "timed": 0, "candidates": 1, "depth": 1, "beam": 1}
CANDIDATES, DEPTH, BEAM = 6, 10, 32


def main(argv: list[str]) -> None:
    """Prints the table and writes the JSON."""
    args = _parser().parse_args(argv)
    for name, least in LEAST.items():
        given = getattr(args, name)
        if given is not None and given < least:
            raise ValueError(f"{WHERE}: --{name} must be at least {least}; got {given}")
    for name in ("unit", "misfits"):
        if args.sequences is None and getattr(args, name) is not None:
            raise ValueError(f"{WHERE}: --{name} wants --sequences FILE; got {getattr(args, name)} without one")
    knows = _knowledge(args)
    from rich.console import Console

    from torchrl_gpu import machine
    from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite, protocol_table
    from torchrl_gpu.evaluation.reports import print_whole, write_json

    started = time.perf_counter()
    keep_freed_memory()
    loaded, words = _policies(args)
    suite = ProtocolSuite(
        args.protocol,
        args.cases,
        sequences=args.sequences,
        first=args.first,
        unit=args.unit or "cells",
        misfits=args.misfits or "refuse",
        visible_items=args.visible,
        include=_include(loaded, knows),
        device=args.device,
        batch_size=args.batch,
    )
    status = Console(stderr=True).status(WHERE)

    def say(words: str) -> None:
        status.update(f"{WHERE}: {words}")
        status.start() if words else status.stop()

    suite.say = say
    if "distribution" in knows and suite.foreign:
        wanted = f"a file whose boxes are those of {args.protocol}"
        raise ValueError(f"{WHERE}: --candidates and --knows distribution want {wanted}; got one of {suite.foreign}")
    if knows:
        loaded |= _planners(suite.env, loaded, knows, args)
    try:
        report = suite.compared(_baselines(suite.env, words) | loaded, args.timed)
    finally:
        say("")
    print_whole(protocol_table(report))
    if args.output:
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
        about = {"evaluation": "bpp10", "machine": machine.describe(suite.env.device), "arguments": plain}
        write_json(args.output, about | report | {"elapsed_s": time.perf_counter() - started})
        print(f"Written: {args.output}")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog=WHERE, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    protocols = ("rs", "cut1", "cut2", "discrete125", "free125")
    add("--protocol", required=True, choices=protocols, help="boxes, orientations and the rule of stability")
    add(
        "--policy",
        nargs="+",
        default=["baselines"],
        metavar="POLICY",
        help="baselines (random, first-fit, bph, br, dbl, hm, lsah, macs; `baselines` for all), trained ones by"
        " their protocol, and paths of checkpoints",
    )
    add("--classes", help=CLASSES_HELP)
    add("--sequences", type=Path, help="file of box sequences in place of the fixed suite: .npy, .npz, .pt or .json")
    add("--first", type=int, default=0, help="number of the first sequence, from 0 on")
    add("--cases", type=int, help="sequences of each policy; 2,000 by default, of a file all")
    add("--unit", choices=("cells", "m", "cm", "mm"), help="of the sizes in the file; cells by default")
    add(
        "--misfits",
        choices=("refuse", "skip_boxes", "skip_orders"),
        help="of boxes in the file that fit the bin in no orientation; refuse by default",
    )
    add("--visible", type=int, default=1, help="K, boxes to choose from")
    add("--timed", type=int, default=2, metavar="CASES", help="so many are packed alone for the time of one bin")
    add("--batch", type=int, help="bins side by side; as many as fit into memory by default")
    add(
        "--candidates",
        type=int,
        metavar="M",
        help="policies of afterstate values play once more, the M best placements by what the next item is expected to"
        f" be worth there; {CANDIDATES} by default",
    )
    add(
        "--knows",
        nargs="+",
        default=[],
        choices=("distribution", "boxes", "stream"),
        help="policies of afterstate values play once more for each word, knowing that of the boxes to come: how they"
        " are drawn (as --candidates alone), which there are but not their order, or all of them in order",
    )
    add("--depth", type=int, metavar="D", help=f"boxes of a line where the stream is known; {DEPTH} by default")
    add("--beam", type=int, metavar="W", help=f"lines that go on where the stream is known; {BEAM} by default")
    add("--device", default="auto", help="where all of it runs")
    add("--output", type=Path, help="JSON with the table, every utilization and what decided them")
    return parser


def _policies(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Policies of checkpoints by name, and words of baselines."""
    from torchrl_gpu.envs.packing.protocols import PROTOCOLS
    from torchrl_gpu.policies import PackingPolicy, load_policy
    from torchrl_gpu.policies.packing import BASELINES

    loaded: dict[str, Any] = {}
    words: list[str] = []
    classes = import_classes(WHERE, args.classes)
    trained = [name for name in PackingPolicy.names() if name in PROTOCOLS]
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


def _knowledge(args: argparse.Namespace) -> list[str]:
    """Of what planners are asked for, in order; ValueError where an option has no use."""
    knows = list(dict.fromkeys(args.knows or (["distribution"] if args.candidates else [])))
    for name, words in (("candidates", ("distribution", "boxes")), ("depth", ("stream",)), ("beam", ("stream",))):
        if getattr(args, name) is not None and not set(words) & set(knows):
            raise ValueError(f"{WHERE}: --{name} wants --knows {' or '.join(words)}; got {' '.join(knows) or 'none'}")
    if knows and args.visible > 1:
        raise ValueError(f"{WHERE}: --candidates and --knows want --visible=1; got {args.visible}")
    return knows


def _planners(env: Any, loaded: dict[str, Any], knows: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Policies of tables that look ahead by what they know of the boxes to come."""
    from torchrl_gpu.policies.packing.expectation import ExpectedPlacement
    from torchrl_gpu.policies.packing.next_items import pretrained_next_items
    from torchrl_gpu.policies.packing.patch_tables import PatchTables
    from torchrl_gpu.policies.packing.stream_search import StreamSearch

    candidates, depth, beam = args.candidates or CANDIDATES, args.depth or DEPTH, args.beam or BEAM
    by_tables = {
        name: tables
        for name, policy in loaded.items()
        if (tables := next((each for each in policy.modules() if isinstance(each, PatchTables)), None)) is not None
    }
    if not by_tables:
        raise ValueError(f"{WHERE}: --candidates and --knows want a policy of afterstate values; got none")
    found: dict[str, Any] = {}
    foretold = pretrained_next_items(env) if "distribution" in knows else None
    for name, tables in by_tables.items():
        for word in knows:
            if word == "distribution":
                ahead = ExpectedPlacement(env, tables, candidates, next_items=foretold)
                found[f"{name}, expecting ({candidates})"] = ahead
            elif word == "boxes":
                boxes = ExpectedPlacement(env, tables, candidates, knows="the boxes but not their order")
                found[f"{name}, expecting what is left ({candidates})"] = boxes
            else:
                found[f"{name}, searching ({depth}, {beam})"] = StreamSearch(env, tables, depth, beam)
    return found


def _include(loaded: dict[str, Any], knows: list[str]) -> list[str]:
    from torchrl_gpu.envs.packing.env import INCLUDED_KEYS

    wanted = {"z_map"} | {str(key) for policy in loaded.values() for key in policy.in_keys}
    wanted |= {"packed_items"} if "distribution" in knows else set()
    wanted |= {"future_items"} if {"boxes", "stream"} & set(knows) else set()
    return [key for key in INCLUDED_KEYS if key in wanted]


def _baselines(env: Any, words: list[str]) -> dict[str, Any]:
    from torchrl_gpu.policies.packing import baselines

    return dict(baselines(env, words))
