"""RoboBPP's Physics Pack (arXiv 2512.04415) in PyBullet and MuJoCo.

Plans of pallets are carried out box by box.

The rules are those of `packsim` 0.0.4 (`Pack_Env.place_at` and `main`), whose box, friction and layout are read from
the installed package; its import wants OMPL, so they are carried out here. Of a placement everything is simulated but
the box's way on the conveyor, when what is packed lies still. PyBullet has wheels for Python up to 3.11.

    python benchmarks/robobpp_physics.py --data diverse --policy dbl hm --stability none --output results.json

Every sequence is written when it is done; a run with the same output goes on where it stopped. Plans are made anew: a
row counts for the plan whose hash it has.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from rich.table import Table

from benchmarks import released_rules
from benchmarks.packing_tables import TRAINING_ROWS
from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.parser import OneLineParser, not_negative, positive, whole
from torchrl_gpu.envs.packing.items.board_cases import BoardCases
from torchrl_gpu.envs.packing.items.factories import DATA, SPLITS, FactoryBoxes, data_folder
from torchrl_gpu.envs.packing.physics.creep import Exposure, Footprint
from torchrl_gpu.envs.packing.protocols import BOARD, PALLETS
from torchrl_gpu.envs.packing.types import STABILITY_RULES, Bin
from torchrl_gpu.evaluation.estimates import plus_minus, standard_error
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.system import arguments, machine
from torchrl_gpu.system.console import progress_bar, wide_console

if TYPE_CHECKING:
    from torchrl_gpu.envs import PackingEnv
    from torchrl_gpu.policies.packing.planners.free_places import FreePlaces

HZ = 240
GRAVITY = 9.8
MASS_KG = 0.5
FRICTION = 1.0
# Side of a cell of the plans.
CELL_M = 0.01
_ROUNDING = 1e-6
# A box takes its cells times this: a gap of 0.2 mm a centimetre.
LAYOUT = 1.02
SLAB_M = 0.002
WALL_M = 0.002
# Heights of the middle of the slab, and of what a plan counts from, metres.
SLAB_AT = 0.025
ORIGIN_Z = 0.045
# A box starts at its place and half its height, and this much above. It is lowered by so much in a step.
START_M = -0.002
LOWERED_M = 0.001
# Begins the words of the board's own rules.
_RELEASED = "released-"
# Steps after a placement whose speeds count, and those that follow.
WATCHED = 200
RESTED = 2020
# Displacement along x or y at which a pallet has collapsed, metres.
COLLAPSED_M = {"repetitive": 0.07, BOARD: 0.07, "diverse": 0.04, "boards": 0.07}
# Share of it beyond which a placement that was tried in advance is not made.
FAR = 0.7
# Of these, by how much further a placement moves a box than the one before it did: a pile creeps by itself, too.
GROWTHS = 0.05, 0.1, 0.2, 0.4


class Box(NamedTuple):
    """A box of a plan, metres.

    Attributes:

        sides: True sides, as the box is turned.
        cells: Length and width of its cells.
        corner: That of its cells.
    """

    sides: tuple[float, float, float]
    cells: tuple[float, float]
    corner: tuple[float, float, float]


class Pallet(NamedTuple):
    """A plan, in the order of packing."""

    data: str
    # Of the container, metres.
    size: tuple[float, float, float]
    boxes: tuple[Box, ...]

    def utilization(self, number: int) -> float:
        """Share of the container that the first boxes fill."""
        return float(sum(np.prod(box.sides) for box in self.boxes[:number]) / np.prod(self.size))

    def occupancy(self, number: int) -> float:
        """Occupancy of the plan, the mean over its first placements.

        After each one it is the packed volume over the volume under the heightmap, in cells of 1 cm.
        """
        heightmap = np.zeros([round(side / CELL_M) for side in self.size[:2]])
        packed = total = 0.0
        for box in self.boxes[:number]:
            x, y = np.round(np.array(box.corner[:2]) / CELL_M).astype(int)
            length, width = np.round(np.array(box.cells) / CELL_M).astype(int)
            heightmap[x : x + length, y : y + width] = box.corner[2] + box.sides[2]
            packed += float(np.prod(box.sides))
            total += packed / (float(heightmap.sum()) * CELL_M**2)
        return total / number if number else 0.0

    def exposed_up_to(self, most: float) -> Pallet:
        """Return the plan up to the box that would make its exposure larger than `most`."""
        exposure = Exposure((round(self.size[0] / CELL_M), round(self.size[1] / CELL_M)))
        for number, box in enumerate(self.boxes):
            if exposure.after() > most:
                return self._replace(boxes=self.boxes[:number])
            cells = [round(side / CELL_M) for side in (*box.corner[:2], *box.cells)]
            exposure.add(Footprint(*cells, base=box.corner[2], height=box.sides[2]))
        return self

    def target(self, box: Box) -> np.ndarray:
        """Return the middle of a box's cells as packsim lays them out, metres, (2,).

        It is mirrored in x and y, and counts from the slab's origin.
        """
        corner, cells = np.array(box.corner[:2]), np.array(box.cells)
        return (np.array(self.size[:2]) - corner - cells / 2) * LAYOUT

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()[:16]


# -- plans -----------------------------------------------------------------------------------------------------------


def boxes_of(data: str, split: str, clearance: float) -> dict[str, object]:
    """Arguments of `PackingEnv` for a protocol's boxes with a clearance, metres.

    The board's cases have no split. At the far sides of the container no neighbour can come, so that the bin is longer
    than it by a clearance of whole cells, which every box keeps free.
    """
    items = BoardCases(clearance) if data == BOARD else FactoryBoxes(data, split, clearance)
    kept = round(clearance / CELL_M)
    if not kept or abs(clearance - kept * CELL_M) > _ROUNDING:
        return {"items": items}
    length, width, height = PALLETS[data]["bin_size"]
    cells_x, cells_y = PALLETS[data]["resolution"]
    container = Bin((length, width, height), (cells_x, cells_y))
    further = kept * CELL_M
    longer = Bin((length + further, width + further, height), (cells_x + kept, cells_y + kept))
    if not np.array_equal(items.true_sides(longer), items.true_sides(container)):
        raise ValueError(
            f"robobpp_physics: --clearance must let no box of {data} in that its container does not hold, which"
            f" {clearance} m does"
        )
    return {"items": items, "bin_size": longer.size, "resolution": longer.cells}


def pallets(
    data: str, word: str, rule: Mapping[str, Any], number: int, *, look: float = 0.0, exposure: float = math.inf
) -> list[Pallet]:
    """Plan the first sequences of a protocol's suite by a policy.

    Args:
        data: A protocol.
        word: A policy.
        rule: Arguments of `PackingEnv`.
        number: Sequences.
        look: Weight of `FreePlaces` for boxes of the training rows; 0 without.
        exposure: A plan ends before its exposure to creep is larger, see `Exposure`.
    """
    from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite

    suite = ProtocolSuite(data, number, rule=rule, device="cpu")
    policy = _policy(word, suite.env)
    if look:
        policy = looking(policy, suite.env, look)
    results = suite.play(policy)
    made = zip(results.num_packed.long().tolist(), results.placements, results.placement_z, strict=True)
    planned = [_pallet(data, suite.env, placements[:packed], base[:packed]) for packed, placements, base in made]
    return [plan.exposed_up_to(exposure) for plan in planned]


def released_pallets(name: str, number: int) -> list[Pallet]:
    """Plan the first known cases of the board by a rule of its own."""
    size_m = PALLETS[BOARD]["bin_size"]
    cells_x, cells_y = PALLETS[BOARD]["resolution"]
    source = BoardCases()
    sides = source.sides.reshape(len(source.cases), -1, 3)
    plans = []
    for true_sides in sides[:number]:
        cells = released_rules.in_cells(true_sides)
        made = released_rules.placements(released_rules.RULES[name], cells, (cells_x, cells_y, 100 * size_m[2]))
        boxes = []
        for (placed, base, _), box, (length, width, height) in zip(made, cells, true_sides / 100, strict=False):
            is_turned = (placed.length, placed.width) != box[:2]
            along = (width, length) if is_turned else (length, width)
            corner = (placed.x * CELL_M, placed.y * CELL_M, base * CELL_M)
            covered = (placed.length * CELL_M, placed.width * CELL_M)
            boxes.append(Box((float(along[0]), float(along[1]), float(height)), covered, corner))
        plans.append(Pallet(BOARD, size_m, tuple(boxes)))
    return plans


def looking(policy: object, env: PackingEnv, weight: float) -> FreePlaces:
    """Let a policy look at the places that boxes of the training rows still find."""
    from torchrl_gpu.policies.packing.placement_values import LinearPlacementValues
    from torchrl_gpu.policies.packing.planners.free_places import FreePlaces

    values = getattr(policy, "tables", None)
    if not isinstance(values, LinearPlacementValues):
        raise ValueError("robobpp_physics: --free_places needs a policy of placement weights")
    return FreePlaces(env, values, weight=weight)


def _policy(word: str, env: Any) -> Any:
    from torchrl_gpu.policies import AgentSpace, PackingPolicy, load_policy
    from torchrl_gpu.policies.packing import BASELINES

    if word in BASELINES:
        return BASELINES[word][1](env)
    if word in PackingPolicy.names() or Path(word).suffix == ".safetensors":
        return PackingPolicy.from_pretrained(word, "cpu", space=AgentSpace.of(env))
    return load_policy(word, "cpu")


def _pallet(data: str, env: Any, placements: torch.Tensor, base: torch.Tensor) -> Pallet:
    true = env.items.true_sides(env.bin) / 100
    made = zip(placements.tolist(), base.tolist(), strict=True)
    # Without a clearance at its far sides.
    return Pallet(data, PALLETS[data]["bin_size"], tuple(_box(env, true, *placement, z) for placement, z in made))


def _box(env: Any, true: np.ndarray, item: int, turned: int, x: int, y: int, z: float) -> Box:
    length, width, height = true[item].tolist()
    sides = (width, length, height) if turned else (length, width, height)
    # Those that the board gives the box, without a clearance.
    cells = [math.ceil(side / CELL_M - _ROUNDING) for side in sides[:2]]
    along = (cells[0] * env.cell[0], cells[1] * env.cell[1])
    return Box(sides, along, (x * env.cell[0], y * env.cell[1], z))


class Rehearsal(NamedTuple):
    """Plans whose every placement is the best that moves no box far in an engine."""

    data: str
    # Name or file of a policy that values placements.
    word: str
    rule: Mapping[str, Any]
    # Placements of a box that are tried, the best first. The plan ends where all of them move a box.
    most: int
    engine: str
    # Share of the distance at which a pallet has collapsed. A placement that moves a box further is not made.
    far: float
    # Whether the first placement is made that moves no box by more than the least of `GROWTHS` that any placement
    # keeps.
    gently: bool

    def __call__(self, number: int) -> Pallet:
        """The plan of sequence `number`.

        The pile of the simulation goes on from box to box; the policy sees the planned one. Legal placements that it
        does not value come behind those that it does.
        """
        from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite
        from torchrl_gpu.policies.packing.placements import placed_at

        include, most = ("z_map", "future_items"), COLLAPSED_M[self.data]
        env = ProtocolSuite(self.data, 1, first=number, rule=self.rule, include=include, device="cpu").env
        policy, shown = _policy(self.word, env), env.reset()
        if "action_value" not in policy.out_keys:
            raise ValueError(f"robobpp_physics: --rehearsed needs a policy that values placements, not {self.word}")
        items = torch.cat([shown["item_id"][0], shown["future_items"][0]])[: env.num_items]
        true = env.items.true_sides(env.bin) / 100
        grid = env.bin.grid[0] * env.bin.grid[1]
        # Without a clearance at its far sides.
        empty = Pallet(self.data, PALLETS[self.data]["bin_size"], ())
        with open_pile(self.engine, empty, true[items.numpy()].tolist()) as pile:
            # Of the boxes of the pile, and those that the last box added.
            shifts = growth = np.zeros((0, 2))
            for item in items:
                ranked = policy(shown)["action_value"][0].topk(self.most).indices
                ranked = ranked[shown["action_mask"][0, ranked]]
                base = shown["z_map"].flatten()[ranked]
                tried = placed_at(item.expand(len(ranked)), ranked // grid, ranked % grid, base, env.catalogue, env.bin)
                columns = [each.tolist() for each in tried]
                boxes = [_box(env, true, *row) for row in zip(*columns, strict=True)]
                found = []
                for number, box in enumerate(boxes):
                    moved = pile.tried(box)
                    further = moved - _with_new(shifts) - _with_new(growth)
                    much = sum(further.max() > each * most for each in GROWTHS) if self.gently else 0
                    if moved.max() < self.far * most:
                        found.append((much, number))
                        if much == 0:
                            break
                if not found:
                    break
                much, number = min(found)
                moved = pile.put(boxes[number])
                shifts, growth = moved, moved - _with_new(shifts)
                shown = env.step(shown.set("action", ranked[number, None]))["next"]
                if shown["done"].item():
                    break
        packed = int(env.state.num_packed)
        return _pallet(self.data, env, env.state.placements[0, :packed], env.state.placement_z[0, :packed])


def _with_new(shifts: np.ndarray) -> np.ndarray:
    """Shifts (B, 2) of boxes, and those of a new one, (B + 1, 2): none."""
    return np.vstack([shifts, np.zeros((1, 2))])


# -- PyBullet --------------------------------------------------------------------------------------------------------


def in_bullet(pallet: Pallet) -> JsonObject:
    """Carry out a plan until it is done, or a box has been displaced too far.

    Returns:
        `placed` boxes that count, whether it `collapsed`, the box that did (`fallen`) and how far (`moved_m`), the
        mean of static stability over placements, mean and largest sum of shifts along x and y, `local_mean_m` and
        `local_max_m`, after the last placement that counts, and the height above its plan at which each box was
        released, `released_m`.
    """
    with open_pile("bullet", pallet) as pile:
        moved = np.zeros((1, 2))
        statics = []
        local = np.zeros(1)
        which = None
        placed = len(pallet.boxes)
        for number, box in enumerate(pallet.boxes):
            moved = pile.put(box)
            if moved.max() > COLLAPSED_M[pallet.data]:
                which, placed = int(moved.max(1).argmax()), number
                break
            statics.append(pile.static)
            local = moved.sum(1)
    result = {"placed": placed, "collapsed": which is not None, "fallen": which, "moved_m": float(moved.max())}
    result["static_stability"] = float(np.mean(statics)) if statics else None
    result |= {"local_mean_m": float(local.mean()), "local_max_m": float(local.max())}
    result["released_m"] = pile.released
    return result


@contextmanager
def open_pile(engine: str, pallet: Pallet, sides: Sequence[Sequence[float]] = ()) -> Iterator[Any]:
    """Open an empty pallet in an engine.

    MuJoCo needs the sides of all boxes to come, metres, turned or not.
    """
    if engine == "mujoco":
        yield MujocoPile(pallet, sides)
        return
    import pybullet as bullet

    client = bullet.connect(bullet.DIRECT)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield _BulletPile(bullet, pallet, Path(folder))
    finally:
        bullet.disconnect(client)


class _BulletPile:
    """Boxes on a pallet in PyBullet, lowered one by one."""

    def __init__(self, bullet: Any, pallet: Pallet, folder: Path) -> None:
        models = data_folder().parent / "arm_pybullet_env/arm_envs/models/box"
        self.template = (
            (models / "box-template-tex.urdf").read_text(encoding="utf-8").replace("FILE_PATH0", str(models))
        )
        self.bullet = bullet
        self.pallet = pallet
        self.file = str(folder / "box.urdf")
        # Every box is another one in a file of the same name.
        bullet.setPhysicsEngineParameter(enableFileCaching=0)
        bullet.setTimeStep(1 / HZ)
        bullet.setGravity(0, 0, -GRAVITY)
        floor = bullet.createCollisionShape(bullet.GEOM_BOX, halfExtents=(100, 100, 5))
        bullet.changeDynamics(
            bullet.createMultiBody(0, floor, basePosition=(0, 0, -5.001)), -1, lateralFriction=FRICTION
        )
        length = pallet.size[0] * (2 * LAYOUT - 1) + 2 * WALL_M
        width = pallet.size[1] * (2 * LAYOUT - 1) + 2 * WALL_M
        self._add((length, width, SLAB_M), (pallet.size[0] / 2 + WALL_M, pallet.size[1] / 2 + WALL_M, SLAB_AT), 0)
        self.bodies: list[int] = []
        self.targets = np.zeros((0, 2))
        self.released: list[float] = []
        # Static stability of the last placement.
        self.static = 0.0

    def put(self, box: Box) -> np.ndarray:
        """Lower the next box to its place and wait.

        Returns the shifts of all boxes, (B, 2) metres.
        """
        bullet = self.bullet
        height = box.sides[2]
        x, y = self.pallet.target(box)
        z = ORIGIN_Z + (box.corner[2] + height) * LAYOUT + START_M
        body = self._add(box.sides, (x, y, z), MASS_KG)
        while not bullet.getContactPoints(body):
            z -= LOWERED_M
            bullet.resetBasePositionAndOrientation(body, (x, y, z), (0, 0, 0, 1))
            bullet.stepSimulation()
        self.released.append(round(z - height / 2 - box.corner[2] - SLAB_AT - SLAB_M / 2, 4))
        self.bodies.append(body)
        self.targets = np.vstack([self.targets, (x, y)])
        self.static = _static_stability(bullet, self.bodies)
        for _ in range(RESTED):
            bullet.stepSimulation()
        found = np.array([bullet.getBasePositionAndOrientation(each)[0][:2] for each in self.bodies])
        return np.asarray(np.abs(found - self.targets))

    def tried(self, box: Box) -> np.ndarray:
        """Return the shifts that `put` would give, from a copy of the process.

        PyBullet cannot restore a state without creep.
        """
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                # It is less than a pipe holds.
                os.write(write, self.put(box).tobytes())
            finally:
                # Whatever happens, only the process that was copied goes on.
                os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            found = np.frombuffer(pipe.read()).reshape(-1, 2)
        os.waitpid(child, 0)
        if len(found) != len(self.bodies) + 1:
            raise RuntimeError("robobpp_physics: the process that tried a box ended without its shifts")
        return found

    def _add(self, sides: Sequence[float], where: Sequence[float], mass: float) -> int:
        text = self.template
        for axis, side in enumerate(sides):
            text = text.replace(f"DIM{axis}", str(side)).replace(f"RGBA{axis}", "1")
        Path(self.file).write_text(text.replace("RGBA3", "1"), encoding="utf-8")
        body = self.bullet.loadURDF(self.file, where, (0, 0, 0, 1), useFixedBase=mass == 0)
        self.bullet.changeDynamics(body, -1, mass=mass)
        return int(body)


def _static_stability(bullet: Any, bodies: list[int]) -> float:
    """Return the static stability of a placement, 0 to 1.

    It comes from the largest speeds of any box in the steps that follow.
    """
    linear = angular = 0.0
    for _ in range(WATCHED):
        bullet.stepSimulation()
        for body in bodies:
            along, about = bullet.getBaseVelocity(body)
            linear = max(linear, along[0] ** 2 + along[1] ** 2 + along[2] ** 2)
            angular = max(angular, about[0] ** 2 + about[1] ** 2 + about[2] ** 2)
    return 0.5 * max(0.0, 1 - linear**0.2) + 0.5 * max(0.0, 1 - angular**0.15)


# -- MuJoCo ----------------------------------------------------------------------------------------------------------


def in_mujoco(pallet: Pallet) -> JsonObject:
    """Carry out the same plan in MuJoCo.

    A box enters at its planned place, and all move until they rest.
    """
    pile, moved = MujocoPile(pallet, [box.sides for box in pallet.boxes]), np.zeros((1, 2))
    for number, box in enumerate(pallet.boxes):
        moved = pile.put(box)
        if moved.max() > COLLAPSED_M[pallet.data]:
            return {
                "placed": number,
                "collapsed": True,
                "fallen": int(moved.max(1).argmax()),
                "moved_m": float(moved.max()),
            }
    return {"placed": len(pallet.boxes), "collapsed": False, "fallen": None, "moved_m": float(moved.max())}


class MujocoPile:
    """Boxes of known sides, metres, on a pallet in MuJoCo, put down in this order."""

    def __init__(self, pallet: Pallet, sides: Sequence[Sequence[float]]) -> None:
        from torchrl_gpu.envs.packing.items.solid import Solid
        from torchrl_gpu.envs.packing.physics.scene import model_of
        from torchrl_gpu.envs.packing.plan import PackingPlan, Pose
        from torchrl_gpu.system.extras import load_mujoco

        solids = tuple(Solid.of_box(str(i), np.array(each)) for i, each in enumerate(sides))
        # All are parked.
        poses = (Pose(0, np.eye(3), np.zeros(3)),) * len(solids)
        length, width, height = pallet.size
        slab = length * LAYOUT, width * LAYOUT, height
        plan = PackingPlan(solids, poses, slab, walls=False, masses=(MASS_KG,) * len(solids))
        self.pallet = pallet
        self.sides = sides
        self.targets = np.zeros((0, 2))
        self.model = model_of(plan, friction=FRICTION, parked=True)
        self.data = load_mujoco().MjData(self.model)
        # Results of trials of the next box.
        self.found: dict[Box, tuple[np.ndarray, tuple[np.ndarray, ...]]] = {}

    def put(self, box: Box, seconds: float = 2.0) -> np.ndarray:
        """Put the next box at its place.

        Returns the shifts of all boxes, (B, 2) metres.
        """
        from torchrl_gpu.envs.packing.physics.simulate import run

        if box in self.found:
            moved, after = self.found[box]
            self._set(after)
            self.found = {}
            return moved
        number, target = len(self.targets), self.pallet.target(box)
        # Half the angle of a quarter turn.
        half = 0.0 if tuple(self.sides[number]) == tuple(box.sides) else np.pi / 4
        pose = *target, box.corner[2] + box.sides[2] / 2, np.cos(half), 0.0, 0.0, np.sin(half)
        self.data.qpos[7 * number : 7 * number + 7] = pose
        self.data.qvel[6 * number : 6 * number + 6] = 0.0
        self.targets = np.vstack([self.targets, target])
        run(self.model, self.data, seconds, slice(1, number + 2))
        return np.asarray(np.abs(self.data.xpos[1 : number + 2, :2] - self.targets))

    def tried(self, box: Box) -> np.ndarray:
        """Return the shifts that `put` will give.

        The pile stays unchanged.
        """
        before = self._state()
        moved = self.put(box)
        self.found[box] = moved, self._state()
        self._set(before)
        return moved

    def _state(self) -> tuple[np.ndarray, ...]:
        return self.targets, self.data.qpos.copy(), self.data.qvel.copy(), self.data.qacc_warmstart.copy()

    def _set(self, state: tuple[np.ndarray, ...]) -> None:
        self.targets, self.data.qpos[:], self.data.qvel[:], self.data.qacc_warmstart[:] = state


ENGINES: dict[str, Callable[[Pallet], JsonObject]] = {"bullet": in_bullet, "mujoco": in_mujoco}


# -- all of them -----------------------------------------------------------------------------------------------------


def main(argv: list[str]) -> None:
    args = _parser().parse_args(argv)
    if "bullet" in (*args.engines, args.rehearsed_in) and importlib.util.find_spec("pybullet") is None:
        raise ModuleNotFoundError("robobpp_physics: PyBullet is not installed: pip install pybullet")
    _check_board(args)
    result: JsonObject = {"benchmark": "robobpp_physics", "runs": {}}
    if args.output.exists():
        result |= json.loads(args.output.read_text(encoding="utf-8"))
    result["machine"] = machine.describe(torch.device("cpu"))
    given = {"margin": args.margin, "max_tilt": args.max_tilt}
    given |= {"bearing_tilt": args.bearing_tilt, "fallback": args.fallback}
    rule = {"stability": args.stability} | {name: value for name, value in given.items() if value is not None}
    if args.rehearsed:
        given = {"--free_places": (args.free_places, 0.0), "--exposure": (args.exposure, math.inf)}
        arguments.check_effect("robobpp_physics", "--rehearsed 0", **given)
    how = f"{'gently ' * args.gently}rehearsed {args.rehearsed} in {args.rehearsed_in}"
    tried = [how if args.far == FAR else f"{how} to {args.far:g}"] if args.rehearsed else []
    drawn = [f"clearance {args.clearance} m"] if args.clearance else []
    drawn += [f"free places {args.free_places:g}"] if args.free_places else []
    drawn += [f"exposed up to {args.exposure:g}"] if args.exposure < math.inf else []
    drawn += [TRAINING_ROWS] if args.split == "train" else []
    tasks: list[tuple[str, int, Pallet | Rehearsal, JsonObject, list[str]]] = []
    for data in args.data:
        for word in args.policy:
            name = " / ".join([data, word, *(str(value) for value in rule.values()), *drawn, *tried])
            done = result["runs"].setdefault(name, {})
            of_data = rule | boxes_of(data, args.split, args.clearance)
            number = min(args.sequences, len(BoardCases().cases)) if data == BOARD else args.sequences
            if tried:
                rehearsal = Rehearsal(data, word, of_data, args.rehearsed, args.rehearsed_in, args.far, args.gently)
                plans = [rehearsal] * number
            elif word.startswith(_RELEASED):
                plans = released_pallets(word.removeprefix(_RELEASED), number)
            else:
                plans = pallets(data, word, of_data, number, look=args.free_places, exposure=args.exposure)
            tasks += [(name, i, plan, done.get(str(i), {}), args.engines) for i, plan in enumerate(plans)]
    pool = multiprocessing.get_context("spawn").Pool(args.processes) if args.processes > 1 else nullcontext()
    with pool as workers, progress_bar("robobpp_physics", "pallets") as say:
        found = map(_carry_out, tasks) if workers is None else workers.imap_unordered(_carry_out, tasks)
        for count, (name, i, row) in enumerate(found):
            result["runs"][name][str(i)] = row
            write_json(args.output, result)
            say(count + 1, len(tasks))
    wide_console().print(table(result["runs"]))


def _check_board(args: argparse.Namespace) -> None:
    """Refuse what the board's cases, or its own rules, do not have."""
    if BOARD in args.data and args.split == "train":
        raise ValueError(f"robobpp_physics: {BOARD} has cases of its own and no --split train: leave one out")
    names = [_RELEASED + name for name in released_rules.RULES]
    for word in args.policy:
        if not word.startswith(_RELEASED):
            continue
        if word not in names:
            raise ValueError(f"robobpp_physics: --policy must be one of {', '.join(names)}, or another; got {word}")
        if args.data != [BOARD] or args.stability != "none" or args.rehearsed:
            raise ValueError(f"robobpp_physics: {word} needs --data {BOARD} alone, and knows no rule or rehearsals")


def _carry_out(
    task: tuple[str, int, Pallet | Rehearsal, JsonObject, list[str]],
) -> tuple[str, int, JsonObject]:
    name, i, plan, done, engines = task
    pallet = plan(i) if isinstance(plan, Rehearsal) else plan
    row = {"sha256": pallet.sha256, "boxes": len(pallet.boxes), "math": pallet.utilization(len(pallet.boxes))}
    row |= done if done.get("sha256") == pallet.sha256 else {}
    for engine in [each for each in engines if each not in row]:
        began = time.perf_counter()
        found = ENGINES[engine](pallet)
        utilization = pallet.utilization(found["placed"])
        row[engine] = found | {"utilization": utilization, "seconds": time.perf_counter() - began}
    for engine in ENGINES:
        if engine in row:
            row[engine]["occupancy"] = pallet.occupancy(row[engine]["placed"])
    return name, i, row


def table(runs: Mapping[str, Mapping[str, Any]]) -> Table:
    """Show the Physics Pack of every run by each engine.

    It also shows how often both engines give the same result for a pallet.
    """
    shown = Table(title="RoboBPP, Physics Pack", title_justify="left")
    for column in ("data / policy / rule", "Math", "engine", "pallets", "Physics", "collapsed", "static", "cm", "s"):
        shown.add_column(column, no_wrap=True)
    for name, rows in runs.items():
        for engine in ENGINES:
            found = [row[engine] for row in rows.values() if engine in row]
            if not found:
                continue
            static = [each["static_stability"] for each in found if each.get("static_stability") is not None]
            local = [100 * each["local_mean_m"] for each in found if "local_mean_m" in each]
            seconds = [each["seconds"] for each in found]
            planned = _share([row["math"] for row in rows.values() if engine in row])
            carried_out = _share([each["utilization"] for each in found])
            collapsed = str(sum(each["collapsed"] for each in found))
            means = [_mean(static), _mean(local), f"{np.mean(seconds):.1f}"]
            shown.add_row(name, planned, engine, str(len(found)), carried_out, collapsed, *means)
        both = [row for row in rows.values() if set(ENGINES) <= row.keys()]
        if both:
            same = sum(row["bullet"]["placed"] == row["mujoco"]["placed"] for row in both)
            shown.add_row(name, "", "the same box falls", f"{same} of {len(both)}")
    return shown


def _mean(values: list[float]) -> str:
    return f"{np.mean(values):.2f}" if values else "–"


def _share(values: list[float]) -> str:
    each = torch.tensor(values, dtype=torch.float64)
    return f"{each.mean():.1%}{plus_minus(standard_error(each), '.1%')}"


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="robobpp_physics", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data",
        nargs="+",
        choices=(*DATA, BOARD),
        default=list(DATA),
        help="protocols; the three factories by default",
    )
    add("--split", choices=SPLITS, default="test", help="rows that sequences are drawn from")
    policies = "baselines by their words, shipped policies, paths, or the board's own rules for repetitive-board:"
    policies += " " + ", ".join(_RELEASED + name for name in released_rules.RULES)
    add("--policy", nargs="+", default=["dbl"], help=policies)
    add("--stability", choices=STABILITY_RULES, default="none", help="rule for legal placements")
    add("--margin", type=not_negative, help="metres, of the rule load_bearing")
    add("--max_tilt", type=not_negative, help="degrees, of the same rule")
    add("--bearing_tilt", type=not_negative, help="degrees, of the same rule")
    add("--clearance", type=not_negative, default=0.0, help="metres that stay free between boxes along x and y")
    look = "weight of the lowest places that boxes of the training rows find after a placement, see FreePlaces"
    add("--free_places", type=positive, default=0.0, metavar="WEIGHT", help=look)
    exposure = "ends a plan before its boxes have, on average, more levels below them times boxes after them"
    add("--exposure", type=positive, default=math.inf, metavar="MOST", help=exposure)
    add("--fallback", help="rule for boxes that have no stable place")
    add("--rehearsed", type=whole(0), default=0, help="best placements that are simulated before one is made")
    add("--rehearsed_in", choices=tuple(ENGINES), default="mujoco", help="engine of these simulations")
    add("--far", type=positive, default=FAR, help="share of the distance at which a pallet ends, for these")
    add("--gently", action="store_true", help="of these, makes the first that moves the pile little")
    add(
        "--engines",
        nargs="+",
        choices=tuple(ENGINES),
        default=list(ENGINES),
        help="bullet: minutes a pallet; mujoco: a second",
    )
    add("--sequences", type=whole(1), default=30, help="of each protocol, its first ones")
    add("--processes", type=whole(1), default=1, help="pallets that are carried out at a time")
    add("--output", type=Path, required=True, help="JSON, which a run with the same output adds to")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
