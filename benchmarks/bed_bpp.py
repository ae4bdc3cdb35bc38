"""BED-BPP's own score of our policies: boxes on stable pallets below 2 m.

    python benchmarks/bed_bpp.py --sequences bed-bpp-5.json --output benchmarks/results/bed_bpp.json

The file is an excerpt of the data set (floriankagerer/bed-bpp-env, MIT), and no part of this repository. The score is
that of `PackingPlanEvaluator.writeToFile` there (`rating_algorithm`), which the leaderboard prints: over all orders,
the boxes that lie below 2 m on pallets that are stable, divided by the boxes of all orders. An order has one pallet or
roll container; of one that is not stable no box counts. It is stable if no box moves by more than 1 cm along z when all
of them are released at once in a rigid body simulation (Kagerer et al., IJRR 42(11), 2023).

The evaluator simulates in Blender. Here it is MuJoCo, with the weights of the boxes, on a flat slab without walls: the
evaluator's roll container has none either.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from rich.table import Table

from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.parser import OneLineParser
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.physics.scene import FRICTION, model_of
from torchrl_gpu.envs.packing.plan import PackingPlan, Pose
from torchrl_gpu.evaluation.reports import without_noise, write_json
from torchrl_gpu.lists.box_list import BoxList
from torchrl_gpu.palletizing.packing import pack, read_orders
from torchrl_gpu.palletizing.plan import LoadedPallet
from torchrl_gpu.system import machine
from torchrl_gpu.system.console import progress, wide_console
from torchrl_gpu.system.extras import load_mujoco

# Length, width and most height of what an order is packed on, millimetres.
TARGETS = {"euro-pallet": "1200x800x2000", "rollcontainer": "800x700x2000"}
# Largest movement along z of a box on a stable pallet, `kpi_definition.yaml` of the data set's repository.
MOST_FALLEN_M = 0.01
SECONDS = 10.0
ONLINE = "one box at a time"
OFFLINE = "whole order"
# Best rows of floriankagerer.github.io/leaderboard, of all orders of the data set.
PRINTED = (
    {"task": ONLINE, "policy": "PCT, printed", "score": 0.197204},
    {"task": OFFLINE, "policy": "sisyphus, printed", "score": 0.724553},
)


class Method(NamedTuple):
    """A way to pack an order. Boxes come one at a time if there is a policy."""

    rule: str
    policy: str | None = None

    @property
    def key(self) -> JsonObject:
        return {
            "task": OFFLINE if self.policy is None else ONLINE,
            "policy": "`pack`" if self.policy is None else f"`{self.policy}`",
            "rule": f"`{self.rule}`",
        }


METHODS = (
    Method("load_bearing", "orders"),
    Method("load_bearing", "dbl"),
    Method("support", "orders"),
    Method("support", "dbl"),
    Method("none", "dbl"),
    Method("load_bearing"),
)
COLUMNS = {"task": "boxes known", "policy": "policy", "rule": "rule", "below": "boxes below 2 m"}
COLUMNS |= {"stable": "stable pallets", "score": "score"}
ORDER_COLUMNS = {"order": "order", "target": "target", "boxes": "boxes", "task": "boxes known", "policy": "policy"}
ORDER_COLUMNS |= {"rule": "rule", "below": "boxes below 2 m", "fallen_mm": "largest movement along z, mm"}


def read_each_order(path: Path) -> dict[str, tuple[str, BoxList]]:
    """Read the target and the boxes of each order of a file of the data set.

    Raises:
        ValueError: An order has another target than a pallet or a roll container, or cannot be read.
    """
    orders = json.loads(path.read_text(encoding="utf-8"))
    found = {}
    for name, order in orders.items():
        target = order["properties"]["target"]
        if target not in TARGETS:
            raise ValueError(f"{path}: order {name}: target must be one of {', '.join(TARGETS)}, not {target!r}")
        with tempfile.TemporaryDirectory() as folder:
            # Orders of different targets cannot be packed in one call.
            alone = Path(folder, "order.json")
            alone.write_text(json.dumps({name: order}), encoding="utf-8")
            found[name] = target, read_orders(alone)
    return found


def pack_one_pallet(boxes: BoxList, target: str, method: Method) -> LoadedPallet:
    """Pack an order onto the one pallet that counts.

    Of boxes that come one at a time it holds those before the first that has no place below 2 m. `pack` uses as many
    pallets as an order takes: there it is the one with the most boxes.
    """
    if method.policy is None:
        plans = pack(boxes, TARGETS[target], visible="all", stability=method.rule, device="cpu")
    else:
        plans = pack(boxes, TARGETS[target], visible=1, policy=method.policy, stability=method.rule, device="cpu")
    loaded = plans.pallets()
    return loaded[0] if method.policy is not None else max(loaded, key=lambda each: len(each.placed.box))


def packing_plan(boxes: BoxList, loaded: LoadedPallet, target: str) -> PackingPlan:
    """Make the plan of a pallet, with the weights of its boxes."""
    sides_mm = TARGETS[target].split("x")
    length = float(sides_mm[0]) / 1000
    width = float(sides_mm[1]) / 1000
    height = float(sides_mm[2]) / 1000
    placed = loaded.placed
    solids = tuple(Solid.of_box(f"box-{i}", sides) for i, sides in enumerate(placed.sides))
    poses = tuple(Pose(i, np.eye(3), corner) for i, corner in enumerate(placed.corner))
    masses = tuple(np.concatenate(boxes.weights)[placed.box].tolist())
    return PackingPlan(solids, poses, (length, width, height), False, masses)


def largest_movement(plan: PackingPlan, seconds: float = SECONDS) -> float:
    """Release all boxes of a plan at once, and return the largest movement along z.

    Metres, from the beginning to the end.
    """
    mj = load_mujoco()
    model = model_of(plan, friction=FRICTION)
    data = mj.MjData(model)
    mj.mj_kinematics(model, data)
    # Body 0 is the world.
    before = data.xpos[1:, 2].copy()
    mj.mj_step(model, data, round(seconds / model.opt.timestep))
    moved = np.abs(data.xpos[1:, 2] - before)
    # What has left the finite numbers has not stayed.
    return float(np.nan_to_num(moved, nan=np.inf).max(initial=0.0))


def measure(name: str, target: str, boxes: BoxList, method: Method) -> JsonObject:
    """Pack an order, and simulate its pallet."""
    loaded = pack_one_pallet(boxes, target, method)
    moved = largest_movement(packing_plan(boxes, loaded, target))
    row = {"order": name, "target": target, "boxes": len(boxes.sizes[0])}
    return row | method.key | {"below": len(loaded.placed.box), "fallen_mm": 1000 * moved}


def score(rows: list[JsonObject]) -> JsonObject:
    """Return the score of a method over its rows of all orders."""
    stable = [row for row in rows if row["fallen_mm"] <= 1000 * MOST_FALLEN_M]
    boxes = sum(row["boxes"] for row in rows)
    return {
        "below": sum(row["below"] for row in rows),
        "stable": f"{len(stable)} of {len(rows)}",
        "score": sum(row["below"] for row in stable) / boxes,
    }


def main(argv: list[str]) -> None:
    args = _parser().parse_args(argv)
    orders = read_each_order(args.sequences)
    rows = []
    scores: list[Mapping[str, object]] = []
    with progress("bed_bpp") as say:
        for method in METHODS:
            say(", ".join(map(str, method.key.values())))
            found = [measure(name, target, boxes, method) for name, (target, boxes) in orders.items()]
            rows += found
            scores.append(method.key | score(found))
    scores += PRINTED
    sections = [
        {"title": "score", "columns": COLUMNS, "rows": scores},
        {"title": "orders", "columns": ORDER_COLUMNS, "rows": rows},
    ]
    # Of the file only its name: folders are of one machine.
    words = ["python", "benchmarks/bed_bpp.py", "--sequences", args.sequences.name]
    words += ["--output", "benchmarks/results/bed_bpp.json"]
    result = {"benchmark": "bed_bpp", "command": shlex.join(words)}
    result |= {"machine": machine.describe(torch.device("cpu")), "sections": sections}
    if args.output:
        write_json(args.output, without_noise(result))
    wide_console().print(_table(scores))


def _table(scores: list[Mapping[str, object]]) -> Table:
    shown = Table(*COLUMNS.values(), title="BED-BPP", title_justify="left")
    for row in scores:
        cells = [row.get(key, "") for key in COLUMNS]
        shown.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in cells))
    return shown


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="bed_bpp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sequences", type=Path, required=True, help="file of orders in the data set's own form")
    add("--output", type=Path, help="JSON with every order, the scores and the machine")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
