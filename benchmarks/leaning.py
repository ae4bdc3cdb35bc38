"""Random piles whose heights differ by millimetres: how many stand in two engines.

    python benchmarks/leaning.py --piles 200 --output benchmarks/results/leaning.json

Every pile is of up to 30 boxes of 8 to 40 cm on a pallet of 60 × 50 cm without walls, at random legal places among the
lowest by the rule `load_bearing`. It falls where a box moves by more than 2 cm when everything is released at once.
Each row is a kind of heights and a rule; a run with the same output goes on where it stopped. PyBullet has no wheel
for every Python: `pip install pybullet`, or `--engines mujoco`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.load_bearing import low_action
from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.parser import OneLineParser, whole
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items.factories import NUM_BITS, WeightedSequences
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.items.source import Built, ItemSource
from torchrl_gpu.envs.packing.physics import plan_of, settle_cases
from torchrl_gpu.envs.packing.physics.scene import FRICTION
from torchrl_gpu.envs.packing.plan import PackingPlan
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.system import machine
from torchrl_gpu.system.console import progress

_BOXES = 30
_PALLET = {"bin_size": (0.6, 0.5, 2.0), "resolution": (60, 50), "walls": False, "include": ("z_map",)}
_KINDS = 1000
_MOST_MOVED_M = 0.02
_SECONDS = 3.0
_STEPS_A_SECOND = 240
# Millimetres by which heights of kinds differ from a multiple of 5 cm.
_NOISE = {"equal": 0, "±1 mm": 1, "±2 mm": 2}
# Kinds of heights, max_tilt and bearing_tilt.
_CASES = [("equal", 0.0, 0.5)]
_CASES += [("±1 mm", 0.0, tilt) for tilt in (0.0, 0.25, 0.5, 1.0, 45.0)]
_CASES += [("±2 mm", 0.0, tilt) for tilt in (0.5, 45.0)]
_CASES += [("any", 0.0, tilt) for tilt in (0.5, 45.0)]
_CASES += [("any", 2.0, tilt) for tilt in (0.5, 1.0, 45.0)]
_CASES += [("any", 4.0, tilt) for tilt in (0.5, 1.0, 2.0, 45.0)]


class MillimetreBoxes(ItemSource):
    """Boxes of whole centimetres and of heights in whole millimetres."""

    unit = "cm"

    def __init__(self, heights: str) -> None:
        draw = np.random.default_rng(0)
        base = draw.integers(8, 41, (_KINDS, 2)) / 100
        if heights == "any":
            height = draw.integers(50, 251, _KINDS) / 1000
        else:
            most = _NOISE[heights]
            height = 0.05 * draw.integers(1, 6, _KINDS) + draw.integers(-most, most + 1, _KINDS) / 1000
        self.sides = np.column_stack([base, height])

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        turned = self.sides[:, [[0, 1, 2], [1, 0, 2]]]
        turned[..., :2] = np.round(turned[..., :2] / bin_.cell)
        catalogue = Catalogue.of_boxes(torch.from_numpy(turned), torch.from_numpy(self.sides.prod(1)))
        below = torch.linspace(0, NUM_BITS, _KINDS + 1, dtype=torch.float64)[1:].long()
        return catalogue, WeightedSequences(below, num_items)

    def solid(self, item: int, bin_: Bin) -> Solid:
        return Solid.of_box(str(item), self.sides[item])


def random_piles(piles: int, heights: str, max_tilt: float, bearing_tilt: float) -> tuple[list[PackingPlan], float]:
    """Plan random piles, and return the mean number of their boxes, too."""
    rule: dict[str, str | float] = {"stability": "load_bearing", "margin": 0.03}
    rule |= {"max_tilt": max_tilt, "bearing_tilt": bearing_tilt}
    source = MillimetreBoxes(heights)
    env = PackingEnv(piles, items=source, num_items=_BOXES, seed=0, device="cpu", **rule, **_PALLET)
    env.reset()
    generator = torch.Generator().manual_seed(0)
    for _ in range(_BOXES):
        action = low_action(env, env.state.legal, generator)
        env.step(env.fake_tensordict().set("action", action))
    return [plan_of(env, index) for index in range(piles)], float(env.num_packed.float().mean())


def falls_in_mujoco(plans: Sequence[PackingPlan]) -> list[bool]:
    """Return which piles lose a box in MuJoCo."""
    return [not bool(case.stable.all()) for case in settle_cases(list(plans), sequential=False)]


def falls_in_bullet(plans: Sequence[PackingPlan]) -> list[bool]:
    """Return which piles lose a box in PyBullet."""
    return [_falls_in_bullet(plan) for plan in plans]


def _falls_in_bullet(plan: PackingPlan) -> bool:
    import pybullet as bullet

    client = bullet.connect(bullet.DIRECT)
    try:
        bullet.setGravity(0, 0, -9.81)
        bullet.setPhysicsEngineParameter(numSolverIterations=200)
        length, width, _ = plan.bin_size
        half = [length / 2, width / 2, 0.1]
        slab = bullet.createCollisionShape(bullet.GEOM_BOX, halfExtents=half)
        floor = bullet.createMultiBody(0, slab, basePosition=[length / 2, width / 2, -0.1])
        bullet.changeDynamics(floor, -1, lateralFriction=FRICTION)
        bodies = []
        starts = []
        for solid, pose in zip(plan.solids, plan.poses, strict=True):
            corners = solid.vertices @ pose.rotation.T + pose.position
            low = corners.min(0)
            sides = corners.max(0) - low
            middle = low + sides / 2
            shape = bullet.createCollisionShape(bullet.GEOM_BOX, halfExtents=(sides / 2).tolist())
            # All are as dense as a full carton.
            body = bullet.createMultiBody(300 * float(sides.prod()), shape, basePosition=middle.tolist())
            bullet.changeDynamics(body, -1, lateralFriction=FRICTION, linearDamping=0, angularDamping=0)
            bodies.append(body)
            starts.append(middle)
        for _ in range(round(_SECONDS * _STEPS_A_SECOND)):
            bullet.stepSimulation()
        ends = [bullet.getBasePositionAndOrientation(body)[0] for body in bodies]
    finally:
        bullet.disconnect(client)
    return bool((np.linalg.norm(np.array(ends) - starts, axis=1) > _MOST_MOVED_M).any())


ENGINES = {"mujoco": falls_in_mujoco, "bullet": falls_in_bullet}


def cases(piles: int, engines: Sequence[str], known: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Judge the piles of all cases that are not known."""
    done = {(row["heights"], row["max_tilt"], row["bearing_tilt"]) for row in known}
    for heights, max_tilt, bearing_tilt in _CASES:
        if (heights, max_tilt, bearing_tilt) in done:
            continue
        plans, boxes = random_piles(piles, heights, max_tilt, bearing_tilt)
        row: JsonObject = {"heights": heights, "max_tilt": max_tilt, "bearing_tilt": bearing_tilt}
        row |= {"piles": piles, "boxes a pile": boxes}
        falls = {engine: ENGINES[engine](plans) for engine in engines}
        row |= {f"fall in {engine}": sum(each) for engine, each in falls.items()}
        row["fall in any"] = int(np.any(list(falls.values()), axis=0).sum())
        yield row


def main(argv: Sequence[str]) -> None:
    args = _parser().parse_args(argv)
    torch.set_num_threads(1)
    rows: list[JsonObject] = []
    if args.output and args.output.exists():
        rows = json.loads(args.output.read_text(encoding="utf-8"))["rows"]
    with progress("leaning") as say:
        for row in cases(args.piles, args.engines, tuple(rows)):
            rows.append(row)
            say(" ".join(f"{name} {value}" for name, value in row.items()))
            if args.output:
                result = {"benchmark": "leaning", "machine": machine.describe(torch.device("cpu")), "rows": rows}
                write_json(args.output, result)
    for row in rows:
        print("  ".join(f"{name}: {value}" for name, value in row.items()))


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="leaning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--piles", type=whole(1), default=200, help="of each case")
    add("--engines", nargs="+", choices=tuple(ENGINES), default=list(ENGINES))
    add("--output", type=Path, help="JSON, to which what it lacks is added")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
