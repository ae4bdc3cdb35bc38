"""Random piles whose heights differ by millimetres: how many stand in two engines.

    python benchmarks/leaning.py --piles 200 --output benchmarks/results/leaning.json

Every pile is of up to 30 boxes of 8 to 40 cm on a pallet of 60 × 50 cm without walls, at random legal places among the
lowest by the rule `load_bearing`. It falls where a box moves by more than 2 cm when everything is released at once.
Each row is a kind of heights and a rule; a run with the same output goes on where it stopped, adds the verdict of
statics to rows of older runs, and measures those anew that lack one of its engines. PyBullet has no wheel for every
Python: `pip install pybullet`, or `--engines mujoco`.

What falls in PyBullet at its 240 steps a second is released once more at 960.

Statics judge besides (`equilibrium.py`): whether forces exist that hold every box where it is planned. Boxes touch
where their heights differ by 0.1 mm at most, so that a box on uneven heights stands on the highest alone, or, in the
columns "within 1.5 mm", by as much as the rule allows a level box. On each pile one place is tried, too, that the rule
refuses: among the lowest, for the box at hand, at a random number of boxes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.equilibrium import EXACT_GAP, BoxPile, pile_of, stands
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
from torchrl_gpu.envs.packing.stability.load_bearing import CONTACT_GAP
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
# What falls in PyBullet is judged again at shorter steps: a high stack of which nothing is wrong sways at long ones.
_SHORT_STEPS_A_SECOND = 960
# Boxes below a place that is tried, from the first number up to the second: fewer leave little to refuse, and more
# than that do not fit on every pile.
_BELOW_TRIED = (3, 16)
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


class RandomPiles(NamedTuple):
    """Piles of one row.

    Attributes:
        plans: Of every pile.
        boxes: Mean number of boxes of a pile.
        refused: Piles as they were when a place was tried that the rule refuses, the refused box last. A pile on which
            all places were allowed, or which had ended, is not among them.
    """

    plans: list[PackingPlan]
    boxes: float
    refused: list[PackingPlan]


def random_piles(piles: int, heights: str, max_tilt: float, bearing_tilt: float) -> RandomPiles:
    """Plan random piles by the rule, and what it refuses on them."""
    rule: dict[str, str | float] = {"stability": "load_bearing", "margin": 0.03}
    rule |= {"max_tilt": max_tilt, "bearing_tilt": bearing_tilt}
    source = MillimetreBoxes(heights)
    env = PackingEnv(piles, items=source, num_items=_BOXES, seed=0, device="cpu", **rule, **_PALLET)
    free = PackingEnv(piles, items=source, num_items=_BOXES, seed=0, device="cpu", **_PALLET)
    env.reset()
    free.reset()
    generator = torch.Generator().manual_seed(0)
    # The piles are the same whether places are tried or not.
    trying = torch.Generator().manual_seed(1)
    tried_at = torch.randint(*_BELOW_TRIED, (piles,), generator=trying)
    going = torch.ones(piles, dtype=torch.bool)
    refused = []
    for step in range(_BOXES):
        rows = ((tried_at == step) & going).nonzero().flatten().tolist()
        if rows:
            refused += _refused_plans(env, free, rows, trying)
        action = low_action(env, env.state.legal, generator)
        going &= action >= 0
        env.step(env.fake_tensordict().set("action", action))
    plans = [plan_of(env, index) for index in range(piles)]
    return RandomPiles(plans, float(env.num_packed.float().mean()), refused)


def _refused_plans(
    env: PackingEnv, free: PackingEnv, rows: Sequence[int], generator: torch.Generator
) -> list[PackingPlan]:
    """Return the piles of `rows` after one refused placement each.

    The box fits where it is put, among the lowest places. `free` is an environment of the same boxes without a rule. A
    row where the rule refuses nothing gives no pile.
    """
    s = env.state
    z_map, fits = env.kernels.drop_map(s.heightmap, s.item_id, env.catalogue, env.bin.dropped)
    action = low_action(env, fits & ~s.legal, generator)
    same = {name: value for name, value in env.state_dict().items() if name != "bears"}
    free.load_state_dict(same | {"z_map": z_map, "legal": fits})
    free.step(free.fake_tensordict().set("action", action))
    return [plan_of(free, row) for row in rows if action[row] >= 0]


def falls_in_mujoco(plans: Sequence[PackingPlan]) -> list[bool]:
    """Return which piles lose a box in MuJoCo."""
    return [not bool(case.stable.all()) for case in settle_cases(list(plans), sequential=False)]


def falls_in_bullet(plans: Sequence[PackingPlan], steps_a_second: int = _STEPS_A_SECOND) -> list[bool]:
    """Return which piles lose a box in PyBullet."""
    return [_falls_in_bullet(plan, steps_a_second) for plan in plans]


def _falls_in_bullet(plan: PackingPlan, steps_a_second: int) -> bool:
    import pybullet as bullet

    client = bullet.connect(bullet.DIRECT)
    try:
        bullet.setGravity(0, 0, -9.81)
        bullet.setTimeStep(1 / steps_a_second)
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
        for _ in range(round(_SECONDS * steps_a_second)):
            bullet.stepSimulation()
        ends = [bullet.getBasePositionAndOrientation(body)[0] for body in bodies]
    finally:
        bullet.disconnect(client)
    return bool((np.linalg.norm(np.array(ends) - starts, axis=1) > _MOST_MOVED_M).any())


ENGINES = {"mujoco": falls_in_mujoco, "bullet": falls_in_bullet}


def by_statics(made: RandomPiles) -> JsonObject:
    """Judge piles and refused places by statics, and return the columns of a row."""
    piles = [pile_of(plan) for plan in made.plans]
    tried = [pile_of(plan) for plan in made.refused]
    before = [_without_last(pile) for pile in tried]
    row: JsonObject = {"refused places": len(tried)}
    for gap, words in ((EXACT_GAP, ""), (CONTACT_GAP, " within 1.5 mm")):
        row[f"statics infeasible{words}"] = sum(not stands(pile, gap=gap) for pile in piles)
        row[f"refused on what stands{words}"] = sum(stands(pile, gap=gap) for pile in before)
        row[f"refused and would stand{words}"] = sum(stands(pile, gap=gap) for pile in tried)
    return row


def _without_last(pile: BoxPile) -> BoxPile:
    return BoxPile(pile.low[:-1], pile.sides[:-1], pile.weight[:-1], pile.pallet)


def cases(piles: int, engines: Sequence[str], known: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Judge the piles of all cases that are not known by all engines."""
    wanted = {f"fall in {engine}" for engine in engines}
    done = {_case(row) for row in known if wanted <= row.keys()}
    for case in _CASES:
        if case in done:
            continue
        made = random_piles(piles, *case)
        heights, max_tilt, bearing_tilt = case
        row: JsonObject = {"heights": heights, "max_tilt": max_tilt, "bearing_tilt": bearing_tilt}
        row |= {"piles": piles, "boxes a pile": made.boxes}
        falls = {engine: ENGINES[engine](made.plans) for engine in engines}
        row |= {f"fall in {engine}": sum(each) for engine, each in falls.items()}
        in_any = np.any(list(falls.values()), axis=0)
        row["fall in any"] = int(in_any.sum())
        fallen_piles = [pile_of(plan) for plan, fell in zip(made.plans, in_any, strict=True) if fell]
        row["fall in any though statics hold"] = sum(stands(pile) for pile in fallen_piles)
        if "bullet" in falls:
            fallen = [plan for plan, fell in zip(made.plans, falls["bullet"], strict=True) if fell]
            row["fall in bullet at short steps, too"] = sum(falls_in_bullet(fallen, _SHORT_STEPS_A_SECOND))
        yield row | by_statics(made)


def _case(row: JsonObject) -> tuple[str, float, float]:
    return row["heights"], row["max_tilt"], row["bearing_tilt"]


def add_statics(row: JsonObject) -> JsonObject:
    """Return a row of an older run with the columns of statics.

    Raises:
        ValueError: The piles of then can no longer be drawn.
    """
    made = random_piles(row["piles"], *_case(row))
    if made.boxes != row["boxes a pile"]:
        raise ValueError(
            f"leaning: the row {_case(row)} has {row['boxes a pile']} boxes a pile, and its piles now have "
            f"{made.boxes}: take it out of the output, so that it is measured anew"
        )
    return row | by_statics(made)


def main(argv: Sequence[str]) -> None:
    args = _parser().parse_args(argv)
    torch.set_num_threads(1)
    rows: list[JsonObject] = []
    if args.output and args.output.exists():
        rows = json.loads(args.output.read_text(encoding="utf-8"))["rows"]
    with progress("leaning") as say:
        for number, row in enumerate(rows):
            if "refused places" in row:
                continue
            rows[number] = add_statics(row)
            say(_line(rows[number]))
            _write(args.output, rows)
        for row in cases(args.piles, args.engines, tuple(rows)):
            rows = [each for each in rows if _case(each) != _case(row)]
            rows.append(row)
            rows.sort(key=lambda each: _CASES.index(_case(each)))
            say(_line(row))
            _write(args.output, rows)
    for row in rows:
        print("  ".join(f"{name}: {value}" for name, value in row.items()))


def _line(row: JsonObject) -> str:
    return " ".join(f"{name} {value}" for name, value in row.items())


def _write(output: Path | None, rows: Sequence[JsonObject]) -> None:
    if output:
        write_json(output, {"benchmark": "leaning", "machine": machine.describe(torch.device("cpu")), "rows": rows})


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="leaning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--piles", type=whole(1), default=200, help="of each case")
    add("--engines", nargs="+", choices=tuple(ENGINES), default=list(ENGINES))
    add("--output", type=Path, help="JSON, to which what it lacks is added")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
