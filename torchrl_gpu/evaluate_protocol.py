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
from torchrl_gpu.cli.subcommands import OneLineParser

WHERE = "torchrl-gpu evaluate bpp10"


def main(argv: list[str]) -> None:
    """Prints the table and writes the JSON."""
    args = _parser().parse_args(argv)
    for name, least in (("cases", 1), ("first", 0), ("visible", 1), ("batch", 1), ("timed", 0), ("candidates", 1)):
        given = getattr(args, name)
        if given is not None and given < least:
            raise ValueError(f"{WHERE}: --{name} must be at least {least}; got {given}")
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
        unit=args.unit,
        visible_items=args.visible,
        include=_include(loaded),
        device=args.device,
        batch_size=args.batch,
    )
    status = Console(stderr=True).status(WHERE)

    def say(words: str) -> None:
        status.update(f"{WHERE}: {words}")
        status.start() if words else status.stop()

    suite.say = say
    if args.candidates:
        loaded |= _expecting(suite.env, loaded, args.candidates)
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
    add("--sequences", type=Path, help="file of box sequences in place of the fixed suite: .npy, .npz, .pt or .json")
    add("--first", type=int, default=0, help="number of the first sequence, from 0 on")
    add("--cases", type=int, help="sequences of each policy; 2,000 by default, of a file all")
    add("--unit", default="cells", choices=("cells", "m", "mm"), help="of the sizes in the file")
    add("--visible", type=int, default=1, help="K, boxes to choose from")
    add("--timed", type=int, default=2, metavar="CASES", help="so many are packed alone for the time of one bin")
    add("--batch", type=int, help="bins side by side; as many as fit into memory by default")
    add(
        "--candidates",
        type=int,
        metavar="M",
        help="policies of afterstate values play once more, the M best placements by what the next item is expected to"
        " be worth there",
    )
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
            loaded[f"{Path(each).stem} ({each})"] = load_policy(each, args.device)
        else:
            known = ", ".join([*BASELINES, *trained])
            wanted = f"baselines, {known} or the path of a checkpoint"
            raise ValueError(f"{WHERE}: --policy must be {wanted}; got {each!r}")
    return loaded, list(dict.fromkeys(words))


def _expecting(env: Any, loaded: dict[str, Any], candidates: int) -> dict[str, Any]:
    """Policies of tables that look one item ahead."""
    from torchrl_gpu.policies.packing.expectation import ExpectedPlacement
    from torchrl_gpu.policies.packing.patch_tables import PatchTables

    found = {}
    for name, policy in loaded.items():
        tables = next((each for each in policy.modules() if isinstance(each, PatchTables)), None)
        if tables is not None:
            found[f"{name}, expecting ({candidates})"] = ExpectedPlacement(env, tables, candidates)
    if not found:
        raise ValueError(f"{WHERE}: --candidates wants a policy of afterstate values; got none")
    return found


def _include(loaded: dict[str, Any]) -> list[str]:
    from torchrl_gpu.envs.packing.env import LARGE_KEYS

    wanted = {"z_map"} | {str(key) for policy in loaded.values() for key in policy.in_keys}
    return [key for key in LARGE_KEYS if key in wanted]


def _baselines(env: Any, words: list[str]) -> dict[str, Any]:
    from torchrl_gpu.policies.packing import baselines

    return dict(baselines(env, words))
