"""Pallets of RoboBPP with `FreePlaces` and without.

Both pack the same sequences of the training rows. The filled share is that of the plan, no engine is asked. The time of
a decision is that of one pallet at a time on one core, without the environment's step.

    OMP_NUM_THREADS=1 python benchmarks/free_places.py --output benchmarks/results/free_places.json
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from rich.table import Table

from benchmarks.result_types import JsonObject
from benchmarks.robobpp_physics import boxes_of, looking
from torchrl_gpu.cli.parser import OneLineParser, whole
from torchrl_gpu.envs.packing.protocols import PALLETS
from torchrl_gpu.evaluation.estimates import plus_minus, standard_error
from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import AgentSpace, PackingPolicy
from torchrl_gpu.system import machine
from torchrl_gpu.system.console import progress_bar, wide_console


class Case(NamedTuple):
    """A way to pack one of the data.

    Attributes:
        name: Its key among the results.
        data: Protocol, and policy.
        rule: Arguments of `PackingEnv` besides those of the protocol.
        clearance: Metres between boxes.
        weight: Of `FreePlaces`.
    """

    name: str
    data: str
    rule: dict[str, object]
    clearance: float
    weight: float


_STANDS: dict[str, object] = {"stability": "load_bearing", "margin": 0.03}
_ANYTHING: dict[str, object] = {"stability": "none"}
# Of `diverse` as it ships, of boards that lean a little, more, and so far that long ones find a place anyway.
_LEANING = {"max_tilt": 3.0}
_LEVEL = {"max_tilt": 1.0}
_TILTED = {"max_tilt": 4.0, "bearing_tilt": 4.0}
_STEEP = {"max_tilt": 8.0, "bearing_tilt": 8.0}
CASES = [Case("repetitive", "repetitive", _STANDS, 0.01, 2.0)]
CASES += [Case("diverse", "diverse", _STANDS | _LEANING, 0, 2.0)]
CASES += [Case("boards, 1 degree", "boards", _STANDS | _LEVEL, 0, 5.0)]
CASES += [Case("boards, 4 degrees", "boards", _STANDS | _TILTED, 0, 5.0)]
CASES += [Case("boards, 8 degrees", "boards", _STANDS | _STEEP, 0, 5.0)]
CASES += [Case("repetitive, Math Pack", "repetitive", _ANYTHING, 0, 2.0)]
CASES += [Case("diverse, Math Pack", "diverse", _ANYTHING, 0, 2.0)]
CASES += [Case("boards, Math Pack", "boards", _ANYTHING, 0, 5.0)]
# Sequences that are packed one at a time for the time of a decision.
TIMED = 2


def compare(case: Case, sequences: int) -> JsonObject:
    """Pack sequences both ways."""
    rule = case.rule | boxes_of(case.data, "train", case.clearance)
    suite = ProtocolSuite(case.data, sequences, rule=rule, include=("z_map",), device="cpu")
    plain = PackingPolicy.from_pretrained(case.data, "cpu", space=AgentSpace.of(suite.env))
    policies = {"by weights": plain, "free places": looking(plain, suite.env, case.weight)}
    report = suite.compare_all(policies, TIMED)
    # Shares of the container, which the bin is longer than by the clearance.
    share = suite.env.bin.volume / math.prod(PALLETS[case.data]["bin_size"])
    filled = {}
    rows = {}
    for row in report["policies"]:
        each = torch.tensor(row["utilizations"], dtype=torch.float64) * share
        filled[row["policy"]] = each
        rows[row["policy"]] = {
            "utilization": float(each.mean()),
            "error": standard_error(each),
            "boxes": row["num_packed"],
            "decision_ms": row["decision_alone_ms"],
        }
    gain = filled["free places"] - filled["by weights"]
    paired = {"gain": float(gain.mean()), "gain_error": standard_error(gain), "weight": case.weight}
    return {"data": case.data, "sequences": sequences, **paired, "policies": rows}


def table(cases: JsonObject) -> Table:
    """Show the filled share with and without, and what a decision takes."""
    shown = Table(title="Free places", title_justify="left")
    for column in ("case", "by weights", "free places", "gain, points", "ms", "ms"):
        shown.add_column(column, no_wrap=True)
    for name, row in cases.items():
        of = row["policies"]
        shares = [f"{each['utilization']:.1%}{plus_minus(each['error'], '.1%')}" for each in of.values()]
        times = [f"{each['decision_ms']:.1f}" for each in of.values()]
        gain = f"{100 * row['gain']:.1f}{plus_minus(100 * row['gain_error'], '.1f')}"
        shown.add_row(name, *shares, gain, *times)
    return shown


def main() -> None:
    parser = OneLineParser(prog="free_places", description=__doc__)
    add = parser.add_argument
    names = [case.name for case in CASES]
    add("--case", nargs="+", choices=names, default=names, help="all by default")
    add("--sequences", type=whole(2), default=30, help="of the training rows")
    add("--output", type=Path, required=True, help="JSON, which a run with the same output adds to")
    args = parser.parse_args()
    result: JsonObject = {"benchmark": "free_places", "cases": {}}
    if args.output.exists():
        result |= json.loads(args.output.read_text(encoding="utf-8"))
    result["machine"] = machine.describe(torch.device("cpu"))
    chosen = [case for case in CASES if case.name in args.case]
    with progress_bar("free_places", "cases") as say:
        for number, case in enumerate(chosen):
            result["cases"][case.name] = compare(case, args.sequences)
            write_json(args.output, result)
            say(number + 1, len(chosen))
    wide_console().print(table(result["cases"]))


if __name__ == "__main__":
    main()
