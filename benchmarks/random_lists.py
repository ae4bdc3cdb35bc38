"""Random order lists: how many default pallets stand, in MuJoCo and in PyBullet.

    python benchmarks/random_lists.py --lists 1000 --output benchmarks/results/random_lists.json

Every list is one order, drawn from its number: 10 to 80 boxes of 2 to 25 kinds, sides of 8 to 60 cm in whole
millimetres, weights of 100 to 600 kg/m³. A run with the same output goes on where it stopped. PyBullet has no wheel for
every Python: `pip install pybullet`, or `--engines mujoco`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.parser import OneLineParser, whole
from torchrl_gpu.envs.packing.physics.scene import FRICTION
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.palletizing.packing import pack, read_orders
from torchrl_gpu.palletizing.plan import LoadedPallet, PalletPlans, simulate
from torchrl_gpu.system import machine
from torchrl_gpu.system.console import progress

# Lists of one row of the result.
_LISTS_A_ROW = 20
# What counts as fallen, as in the simulation of `pack`: metres from the plan.
_MOST_MOVED_M = 0.02
_SECONDS = 3.0
_STEPS_A_SECOND = 240


def write_list(path: Path, number: int) -> None:
    """Write the list of a number."""
    draw = np.random.default_rng(number)
    kinds = int(draw.integers(2, 26))
    sides = draw.integers(80, 601, (kinds, 3))
    density = draw.uniform(100, 600, kinds)
    kilograms = np.maximum(density * sides.prod(1) * 1e-9, 0.1)
    drawn = draw.integers(0, kinds, int(draw.integers(10, 81)))
    lines = ["length mm,width mm,height mm,weight kg"]
    for kind in drawn.tolist():
        length, width, height = sides[kind].tolist()
        lines.append(f"{length},{width},{height},{kilograms[kind]:.2f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fallen_in_mujoco(plans: PalletPlans) -> list[int]:
    """Boxes of each pallet that fall in MuJoCo."""
    verdicts = simulate(plans, FRICTION, lambda words: None).verdicts
    assert verdicts is not None
    return [len(verdict.fallen) for verdict in verdicts]


def fallen_in_bullet(plans: PalletPlans) -> list[int]:
    """Boxes of each pallet that fall in PyBullet."""
    weights = np.concatenate(plans.found.weights)
    return [_fallen_in_bullet(pallet, weights[pallet.placed.box]) for pallet in plans.pallets()]


def _fallen_in_bullet(pallet: LoadedPallet, weights: np.ndarray) -> int:
    import pybullet as bullet

    client = bullet.connect(bullet.DIRECT)
    try:
        bullet.setGravity(0, 0, -9.81)
        bullet.setPhysicsEngineParameter(numSolverIterations=200)
        floor = bullet.createCollisionShape(bullet.GEOM_BOX, halfExtents=[2, 2, 0.1])
        bullet.changeDynamics(
            bullet.createMultiBody(0, floor, basePosition=[0.6, 0.4, -0.1]), -1, lateralFriction=FRICTION
        )
        middles = pallet.placed.corner + pallet.placed.sides / 2
        bodies = []
        for middle, sides, kilograms in zip(middles, pallet.placed.sides, weights, strict=True):
            shape = bullet.createCollisionShape(bullet.GEOM_BOX, halfExtents=(sides / 2).tolist())
            body = bullet.createMultiBody(float(kilograms), shape, basePosition=middle.tolist())
            bullet.changeDynamics(body, -1, lateralFriction=FRICTION, linearDamping=0, angularDamping=0)
            bodies.append(body)
        for _ in range(round(_SECONDS * _STEPS_A_SECOND)):
            bullet.stepSimulation()
        ends = [bullet.getBasePositionAndOrientation(body)[0] for body in bodies]
    finally:
        bullet.disconnect(client)
    moved = np.linalg.norm(np.array(ends) - middles, axis=1)
    return int((moved > _MOST_MOVED_M).sum())


ENGINES: dict[str, Callable[[PalletPlans], list[int]]] = {"mujoco": fallen_in_mujoco, "bullet": fallen_in_bullet}


def measure(first: int, engines: Sequence[str]) -> JsonObject:
    """Pack and judge the lists of one row."""
    row: JsonObject = {"lists": _LISTS_A_ROW, "boxes": 0, "pallets": 0, "pack s": 0.0}
    for engine in engines:
        row |= {_pallets_in(engine): 0, _boxes_in(engine): 0}
    for number in range(first, first + _LISTS_A_ROW):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "orders.csv")
            write_list(path, number)
            found = read_orders(path)
        began = time.process_time()
        plans = pack(found, "eur", device="cpu")
        row["pack s"] += time.process_time() - began
        row["boxes"] += len(plans.placed.box)
        row["pallets"] += len(plans.pallets())
        for engine in engines:
            fallen = ENGINES[engine](plans)
            row[_pallets_in(engine)] += sum(boxes > 0 for boxes in fallen)
            row[_boxes_in(engine)] += sum(fallen)
    return row


def _pallets_in(engine: str) -> str:
    return f"pallets that lose boxes in {engine}"


def _boxes_in(engine: str) -> str:
    return f"boxes that fall in {engine}"


def main(argv: Sequence[str]) -> None:
    args = _parser().parse_args(argv)
    torch.set_num_threads(1)
    rows: list[JsonObject] = []
    if args.output and args.output.exists():
        rows = json.loads(args.output.read_text(encoding="utf-8"))["rows"]
    known = {row["first"] for row in rows}
    with progress("random lists") as say:
        for first in range(args.first, args.first + args.lists, _LISTS_A_ROW):
            if first in known:
                continue
            say(f"lists from {first}")
            rows.append({"first": first} | measure(first, args.engines))
            result = {"benchmark": "random_lists", "machine": machine.describe(torch.device("cpu")), "rows": rows}
            if args.output:
                write_json(args.output, result)
    for name in list(rows[0])[1:]:
        total = sum(row.get(name, 0) for row in rows)
        print(f"{name}: {total:,.6g}")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="random_lists", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--lists", type=whole(1), default=1000)
    add("--first", type=whole(0), default=0, help="number of the first list: two runs share the work")
    add("--engines", nargs="+", choices=tuple(ENGINES), default=list(ENGINES))
    add("--output", type=Path, help="JSON, to which what it lacks is added")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
