"""Pallets: what `pack` reaches, how fast a session answers, the cost of a rule.

The rule is load_bearing.

    python benchmarks/pallets.py --sequences DATA --sections orders --output benchmarks/results/pallets.json

DATA holds `bed-bpp-5.json` (floriankagerer/bed-bpp-env) and `br1/BR1_N_items.csv` (fontanf/packingsolver), which are no
part of this repository; the list of 6,212 boxes comes with the extra `robobpp`. Rows are written as they are measured;
a run with the same output goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from rich.table import Table

from benchmarks.packing_solver import solve_order
from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.parser import OneLineParser, whole
from torchrl_gpu.envs.packing.items.factories import data_folder
from torchrl_gpu.envs.packing.physics.scene import FRICTION
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite
from torchrl_gpu.evaluation.reports import without_noise, write_json
from torchrl_gpu.lists.box_list import BoxList
from torchrl_gpu.palletizing.blocks import pack_blocks
from torchrl_gpu.palletizing.layer_bounds import bar_bound, line_bound
from torchrl_gpu.palletizing.layer_patterns import best_pattern
from torchrl_gpu.palletizing.lengths import sides_of
from torchrl_gpu.palletizing.packer import Packer
from torchrl_gpu.palletizing.packing import boxes_of, pack, read_orders
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import simulate
from torchrl_gpu.palletizing.search import search
from torchrl_gpu.palletizing.sessions import PackingSessions
from torchrl_gpu.policies.packing import baselines
from torchrl_gpu.system import machine
from torchrl_gpu.system.allocator import keep_freed_memory
from torchrl_gpu.system.console import progress, wide_console

RULES = ("none", "support", "load_bearing")
CONTAINER = "587x233x220cm"
# Tries that an order has where nobody says how many.
_DEFAULT = "default"
# Boxes, kinds of them, and how they may be turned.
MIXED = (
    (1_000, 20, "yaw"),
    (1_000, 20, "axis"),
    (1_000, 100, "yaw"),
    (1_000, 1_000, "yaw"),
    (10_000, 200, "yaw"),
)
# Sides of a layer and of a box, and the most boxes, which upper bounds prove. Five blocks miss those of the literature
# by one (Birgin, Lobato and Morabito 2010).
LAYERS = [
    (1200, 800, 400, 300, 8),
    (1200, 1000, 400, 333, 9),
    (1200, 800, 171, 133, 42),
    (1200, 800, 126, 77, 97),
    (1200, 1200, 156, 103, 88),
]
LAYERS += [
    (43, 26, 7, 3, 53),
    (49, 28, 8, 3, 57),
    (57, 34, 7, 4, 69),
    (63, 44, 8, 5, 69),
    (61, 35, 10, 3, 71),
]
LAYERS += [
    (67, 37, 11, 3, 75),
    (67, 40, 11, 3, 81),
    (74, 49, 11, 4, 82),
    (93, 46, 13, 4, 82),
    (106, 59, 13, 5, 96),
]
LAYERS += [
    (141, 71, 13, 8, 96),
    (74, 46, 7, 5, 97),
    (86, 52, 9, 5, 99),
]
Row = JsonObject
# What its rows have in common, and the measurement of the rest of them.
Task = tuple[Row, Callable[[], list[Row]]]


def orders(args: argparse.Namespace) -> Iterator[Task]:
    """Orders one box at a time and as a whole, and what stands in simulation."""
    found = read_orders(args.sequences / "bed-bpp-5.json", None)
    for rule in ("load_bearing", "support"):
        for policy in ("orders", "dbl"):
            options = {"policy": policy, "stability": rule, "visible": 1}
            yield {"policy": policy, "rule": rule}, partial(_packed, found, "eur", "fallen", **options)
    for policy, turns in (("whole orders", "yaw"), ("whole orders, `axis`", "axis")):
        options = {"visible": "all", "turns": turns}
        yield {"policy": policy, "rule": "load_bearing"}, partial(_packed, found, "eur", "fallen", **options)


def factory(args: argparse.Namespace) -> Iterator[Task]:
    """All orders of a list of 3,353 rows."""
    found = read_orders(data_folder() / "time_series" / "pg_test.xlsx", None)
    for policy in ("orders", "dbl"):
        yield {"policy": policy}, partial(_packed, found, "repetitive", "at least", policy=policy, visible=1)
    yield {"policy": "whole orders"}, partial(_packed, found, "repetitive", "at least", visible="all")


def _packed(found: BoxList, pallet: str, name: str, **options: str | int) -> list[Row]:
    """Count boxes, pallets and a value of `PalletPlans.orders`.

    Seconds of the processor are added, without those of a simulation.
    """
    began = time.process_time()
    plans = pack(found, pallet, device="cpu", **options)  # type: ignore[arg-type]
    seconds = time.process_time() - began
    if name == "fallen":
        plans = simulate(plans, FRICTION, lambda words: None)
    totals: Row = {"boxes": 0, "pallets": 0, name: 0}
    for order in plans.orders():
        for each in totals:
            totals[each] += order[each]
    return [totals | {"s": seconds}]


def mixed(args: argparse.Namespace) -> Iterator[Task]:
    """Pack made-up orders whole, and count what falls."""
    for boxes, kinds, turns in MIXED:
        key = {"boxes": boxes, "kinds": kinds, "turns": turns}
        yield key, partial(_mixed, boxes, kinds, turns)


def _mixed(boxes: int, kinds: int, turns: str) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "orders.csv")
        write_mixed_order(path, boxes, kinds)
        found = read_orders(path)
    began = time.process_time()
    plans = pack(found, "eur", turns=turns, device="cpu")
    seconds = time.process_time() - began
    (order,) = simulate(plans, FRICTION, lambda words: None).orders()
    return [{name: order[name] for name in ("pallets", "at least", "fallen")} | {"s": seconds}]


def write_mixed_order(path: Path, boxes: int, kinds: int) -> None:
    """Write an order of boxes of some kinds, 15 to 40 cm a side in whole centimetres."""
    draw = np.random.default_rng(0)
    sides = 10 * draw.integers(15, 41, (kinds, 3))
    drawn = sides[draw.integers(0, kinds, boxes)]
    lines = [",".join(map(str, row)) for row in drawn.tolist()]
    path.write_text("length mm,width mm,height mm\n" + "\n".join(lines) + "\n", encoding="utf-8")


def layers(args: argparse.Namespace) -> Iterator[Task]:
    """Count boxes of one article on a layer, beside upper bounds."""
    for length, width, along, across, known in LAYERS:
        key = {"layer": f"{length} × {width}", "box": f"{along} × {across}", "best known": known}
        yield key, partial(_layer, length, width, along, across)


def _layer(length: int, width: int, along: int, across: int) -> list[Row]:
    by_bars = bar_bound(np.array([length]), np.array([width]), along, across)
    bound = min(int(by_bars[0]), line_bound(length, width, along, across))
    began = time.process_time()
    number = best_pattern(length / 1000, width / 1000, along / 1000, across / 1000).number
    return [{"boxes": number, "at most": bound, "s": time.process_time() - began}]


def solver(args: argparse.Namespace) -> Iterator[Task]:
    """Count containers beside PackingSolver.

    It knows no rule of stability, so that there is none here either.
    """
    orders = read_orders(args.sequences / "bed-bpp-5.json")
    for number, name in enumerate(orders.orders):
        yield {"list": f"BED-BPP {name}"}, partial(_beside_solver, orders, number, "eur", "yaw", args.limit)
    for problem in range(1, 6):
        found = read_orders(args.sequences / "br1" / f"BR1_{problem}_items.csv", "cm")
        yield {"list": f"BR1 {problem}"}, partial(_beside_solver, found, 0, CONTAINER, "axis", args.limit)


def _beside_solver(found: BoxList, number: int, pallet: str, turns: str, limit: float) -> list[Row]:
    began = time.process_time()
    plans = pack(found, pallet, turns=turns, stability="none", device="cpu")
    seconds = time.process_time() - began
    order = plans.orders()[number]
    theirs = solve_order(found, number, plans.pallet, turns, limit)
    row = {"boxes": len(found.sizes[number]), "at least": order["at least"], "pallets": order["pallets"]}
    return [row | {"s": seconds, "solver": theirs, "limit": limit}]


def containers(args: argparse.Namespace) -> Iterator[Task]:
    """Fill containers with all boxes visible.

    A row holds the share of the first container that is filled, per cent.
    """
    for by, tries in (("blocks", _DEFAULT), ("search", args.tries)):
        for problem in range(1, 6):
            path = args.sequences / "br1" / f"BR1_{problem}_items.csv"
            yield {"by": by, "tries": tries, "problem": problem}, partial(_container, path, by, tries)


def _container(path: Path, by: str, tries: int | str) -> list[Row]:
    found, began = read_orders(path, "cm"), time.process_time()
    container = Pallet(*sides_of(CONTAINER), cell=0.01)
    packer = Packer(container, turns="axis", device="cpu")
    prepared = packer.prepare(boxes_of(found))
    # Without layers: those of one box leave the first container less full.
    boxes = np.arange(len(prepared.row))
    placed = (
        pack_blocks(packer, prepared, boxes) if isinstance(tries, str) else search(packer, prepared, [boxes], tries)
    )
    filled = float(placed.sides[placed.pallet == 0].prod(1).sum()) / container.volume
    return [{"filled": 100 * filled, "s": time.process_time() - began}]


def sessions(args: argparse.Namespace) -> Iterator[Task]:
    """Time the answers of a packing session on a EUR pallet, processor time.

    The boxes of the orders are offered one at a time.
    """
    found = read_orders(args.sequences / "bed-bpp-5.json", None)
    for grid in (10, 20):
        for policy in ("orders", "dbl", "hm"):
            yield {"grid": grid, "policy": policy}, partial(_session, found.sizes, grid, policy, args.repeats)


def _session(loads: list[np.ndarray], grid: int, policy: str, repeats: int) -> list[Row]:
    found, row = [_answered(loads, grid, policy) for _ in range(repeats)], {}
    for do in ("offer", "confirm", "undo"):
        best = min((each[do] for each in found), key=np.median)
        row |= {do: float(np.median(best)), f"{do} p99": float(np.percentile(best, 99))}
    return [row]


def _answered(loads: list[np.ndarray], grid: int, policy: str) -> dict[str, list[float]]:
    """Time every answer in milliseconds.

    A pallet is closed when a box has no room. One box after another is undone before.
    """
    took: dict[str, list[float]] = {"open": [], "offer": [], "confirm": [], "undo": [], "close": []}
    with tempfile.TemporaryDirectory() as folder:
        cell = PackingSessions(folder, device="cpu")

        def ask(do: str, **given: object) -> Row:
            message = json.dumps({"do": do, "session": "a", **given})
            began = time.process_time()
            done, answer = cell.answer(message)
            took[do].append(1000 * (time.process_time() - began))
            assert done, answer
            return answer

        for load in loads:
            ask("open", pallet="eur", grid=grid, policy=policy)
            for sides in load.tolist():
                if ask("offer", boxes=[{"sides": sides}])["box"] is not None:
                    ask("confirm")
            ask("undo")
            ask("close")
    return took


def steps(args: argparse.Namespace) -> Iterator[Task]:
    """Time a step of pallets of 134 × 125 cells in a batch, by each rule in turn.

    It is processor time.
    """
    yield {"pallets": args.pallets}, partial(_steps, args.pallets, args.boxes, args.repeats)


def _steps(pallets: int, boxes: int, repeats: int) -> list[Row]:
    envs = {rule: make_protocol("repetitive", pallets, stability=rule, device="cpu", seed=0) for rule in RULES}
    best = dict.fromkeys(RULES, np.full(boxes, np.inf))
    for _ in range(repeats):
        for rule, env in envs.items():
            env.set_seed(0)
            (policy,) = baselines(env, ["dbl"]).values()
            shown, took = env.reset(), []
            for _ in range(boxes):
                shown = policy(shown)
                began = time.process_time()
                _, shown = env.step_and_maybe_reset(shown)
                took.append(1000 * (time.process_time() - began))
            # Of the same step in every repeat.
            best[rule] = np.minimum(best[rule], took)
    means = {rule: float(each.mean()) for rule, each in best.items()}
    return [{"rule": rule, "ms": mean, "ratio": mean / means["none"]} for rule, mean in means.items()]


def evaluated(args: argparse.Namespace) -> Iterator[Task]:
    """Yield pallets of up to 80 boxes of `repetitive`, evaluated with dbl."""
    for rule in ("none", "load_bearing"):
        yield {"rule": rule, "cases": args.cases}, partial(_evaluated, rule, args.cases, args.repeats)


def _evaluated(rule: str, cases: int, repeats: int) -> list[Row]:
    found = []
    for _ in range(repeats):
        suite = ProtocolSuite("repetitive", cases, rule={"stability": rule}, device="cpu")
        began, worked = time.perf_counter(), time.process_time()
        (score,) = suite.compare_all(baselines(suite.env, ["dbl"]))["policies"]
        took = {"s": time.perf_counter() - began, "core s": time.process_time() - worked}
        found.append({"filled": 100 * score["utilization"]} | took)
    return [min(found, key=lambda row: row["s"])]


_ORDERS = {"policy": "`--policy`", "rule": "`--stability`", "boxes": "boxes", "pallets": "pallets"}
_ORDERS |= {"fallen": "boxes that fall", "s": "s"}
_FACTORY = {"policy": "`--policy`", "boxes": "boxes", "pallets": "pallets", "at least": "at least", "s": "s"}
_MIXED = {"boxes": "boxes", "kinds": "kinds drawn from", "turns": "`--turns`", "pallets": "pallets"}
_MIXED |= {"at least": "at least", "fallen": "boxes that fall", "s": "s"}
_LAYERS = {"layer": "layer", "box": "box", "best known": "best known", "boxes": "boxes", "at most": "at most", "s": "s"}
_SOLVER = {"list": "list", "boxes": "boxes", "at least": "at least", "pallets": "containers", "s": "s of its file"}
_SOLVER |= {"solver": "PackingSolver's", "limit": "its limit, s"}
_CONTAINERS = {
    "by": "by",
    "tries": "`--tries`",
    "problem": "BR1",
    "filled": "% of the first one",
    "s": "s",
}
_SESSIONS = {"grid": "`grid`", "policy": "`policy`"}
_SESSIONS |= {"offer": "offer, ms", "offer p99": "offer, p99"}
_SESSIONS |= {"confirm": "confirm, ms", "confirm p99": "confirm, p99"}
_SESSIONS |= {"undo": "undo, ms", "undo p99": "undo, p99"}
_STEPS = {"rule": "`stability`", "pallets": "pallets", "ms": "ms a step", "ratio": "× none"}
_EVALUATED = {"rule": "`stability`", "cases": "pallets", "filled": "% filled", "s": "s", "core s": "s of processors"}

# What measures each section, and the titles of its columns.
Section = tuple[Callable[[argparse.Namespace], Iterator[Task]], dict[str, str]]
SECTIONS: dict[str, Section] = {
    "orders": (orders, _ORDERS),
    "factory": (factory, _FACTORY),
    "mixed": (mixed, _MIXED),
    "layers": (layers, _LAYERS),
    "solver": (solver, _SOLVER),
}
SECTIONS |= {
    "containers": (containers, _CONTAINERS),
    "sessions": (sessions, _SESSIONS),
    "steps": (steps, _STEPS),
    "evaluated": (evaluated, _EVALUATED),
}


def main(argv: list[str]) -> None:
    args = _parser().parse_args(argv)
    # The commands do so, too.
    keep_freed_memory()
    result: JsonObject = {"benchmark": "pallets", "sections": []}
    if args.output and args.output.exists():
        result = json.loads(args.output.read_text(encoding="utf-8"))
    console = wide_console()
    for name in args.sections:
        measure, columns = SECTIONS[name]
        kept = {each["title"]: each for each in result["sections"]}
        before = [] if name not in kept else list(kept[name]["rows"])
        section = {"title": name, "columns": columns, "machine": kept.get(name, {}).get("machine")}
        rows: list[Row] = []
        with progress("pallets") as say:
            for key, measured in measure(args):
                say(f"{name}: {', '.join(map(str, key.values()))}")
                known = [row for row in before if key.items() <= row.items()]
                before = [row for row in before if row not in known]
                if args.again or not known:
                    known = without_noise([key | row for row in measured()])
                    section["machine"] = machine.describe(torch.device("cpu"))
                rows += known
                # Rows of other options stay.
                section["rows"] = [*rows, *before]
                kept[name] = section
                result["sections"] = [kept[each] for each in SECTIONS if each in kept]
                if args.output:
                    write_json(args.output, result)
        console.print(_table(section))


def _table(section: JsonObject) -> Table:
    shown = Table(*section["columns"].values(), title=section["title"], title_justify="left")
    for row in section["rows"]:
        shown.add_row(
            *(f"{row[key]:,.4g}" if isinstance(row[key], float) else str(row[key]) for key in section["columns"])
        )
    return shown


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="pallets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sequences", type=Path, default=Path("sequences"), help="folder of the lists")
    add("--sections", nargs="+", choices=tuple(SECTIONS), default=list(SECTIONS), help="all by default")
    add("--tries", type=whole(1), default=64, help="of a container")
    add("--limit", type=float, default=20.0, help="seconds that PackingSolver has for an order")
    add("--repeats", type=whole(1), default=3, help="of what is timed, of which the best count")
    add("--pallets", type=whole(1), default=64, help="of a step")
    add("--boxes", type=whole(1), default=60, help="steps")
    add("--cases", type=whole(1), default=1000, help="pallets that are evaluated")
    add("--again", action="store_true", help="measure rows that the output has")
    add("--output", type=Path, help="JSON, to which what it lacks is added")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
