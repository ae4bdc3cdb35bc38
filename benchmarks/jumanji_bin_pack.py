"""Jumanji's BinPack-v2: how full our search packs the bins of its own generator.

    python benchmarks/jumanji_bin_pack.py --instances 200 --output benchmarks/results/jumanji_bin_pack.json

Each instance is a container of 5,870 × 2,330 × 2,200 mm that `RandomGenerator` cuts into boxes, so that a perfect
packing exists. All boxes are known, and none may be turned. Instance i is that of `PRNGKey(i)`. Every plan is checked
in whole micrometres, and played in Jumanji's environment, whose own measure of the filled volume is kept. A run with
the same output goes on where it stopped. Jumanji comes with the extra `peers`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.parser import OneLineParser, whole
from torchrl_gpu.evaluation.estimates import plus_minus, standard_error
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.lists.box_list import BoxList
from torchrl_gpu.palletizing import blocks
from torchrl_gpu.palletizing.packer import Packer
from torchrl_gpu.palletizing.packing import boxes_of, pack, read_orders
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import Placements
from torchrl_gpu.system import machine
from torchrl_gpu.system.console import progress

# Length, width and height, millimetres.
CONTAINER = (5870, 2330, 2200)
VOLUME = CONTAINER[0] * CONTAINER[1] * CONTAINER[2]
# `pack` centres what stands on a load, by halves of a millimetre, so that millimetres would not be exact.
UM_PER_MM = 1000
# Divides all three sides. Blocks need no cells, but boxes are tested on them whether they fit at all.
_CELL_MM = 10
_INSTANCES_A_WRITE = 10


@dataclass(frozen=True)
class BinPlan:
    """Boxes of one container, P of them.

    Attributes:
        box: Numbers in the instance, (P,) int64.
        corner: Lower corners, micrometres, (P, 3) int64.
        sides: Along x, y and z, micrometres, (P, 3) int64.
    """

    box: np.ndarray
    corner: np.ndarray
    sides: np.ndarray

    @property
    def filled(self) -> float:
        """Share of the container's volume."""
        # Cubic micrometres of a container are too many for 64 bits.
        millimetres = self.sides // UM_PER_MM
        return int(millimetres.prod(1).sum()) / VOLUME


class Jumanji:
    """BinPack-v2 with its default generator, in millimetres."""

    def __init__(self) -> None:
        import jax
        import jumanji

        # jax warns of what jumanji does.
        warnings.simplefilter("ignore")
        self._env = jumanji.make("BinPack-v2", normalize_dimensions=False)
        if tuple(self._env.generator.container_dims) != CONTAINER:
            raise ValueError(f"jumanji: container is {self._env.generator.container_dims}, not {CONTAINER}")
        self._key = jax.random.PRNGKey
        self._reset = jax.jit(self._env.reset)
        self._step = jax.jit(self._env.step)

    def draw(self, seed: int) -> np.ndarray:
        """Sides of the boxes of an instance, millimetres, (B, 3) int64."""
        state, _ = self._reset(self._key(seed))
        is_box = np.asarray(state.items_mask)
        return _columns(state.items, "x_len", "y_len", "z_len")[is_box]

    def play(self, seed: int, plan: BinPlan) -> float:
        """Place the boxes of a plan by Jumanji's actions.

        An action puts a box into the lower corner of an empty maximal space. In a plan that is pushed into the corner
        every box has a neighbour or a wall on its three lower sides, so that such a space exists once those are placed.
        Only where some boxes wait for one another in a ring is there no first one.

        Returns:
            Share of the volume that Jumanji counts as filled; less than the plan's where boxes are left in a ring.
        """
        state, step = self._reset(self._key(seed))
        item = np.flatnonzero(np.asarray(state.items_mask))[plan.box]
        lowest_first = np.lexsort((plan.corner[:, 0], plan.corner[:, 1], plan.corner[:, 2]))
        waiting = lowest_first.tolist()
        while waiting:
            corners = _columns(step.observation.ems, "x1", "y1", "z1") * UM_PER_MM
            allowed = np.asarray(step.observation.action_mask)
            action = None
            for box in waiting:
                spaces = np.flatnonzero((corners == plan.corner[box]).all(1) & allowed[:, item[box]])
                if len(spaces):
                    action = np.array([spaces[0], item[box]], dtype=np.int32)
                    waiting.remove(box)
                    break
            if action is None:
                break
            state, step = self._step(state, action)
        return float(step.extras["volume_utilization"])


def _columns(tree: object, *names: str) -> np.ndarray:
    """Some fields of a tree of arrays side by side, int64."""
    return np.stack([np.asarray(getattr(tree, name)) for name in names], 1).astype(np.int64)


def pack_as_users_do(found: BoxList, tries: int) -> Placements:
    """Plan by `pack`: full layers first, and blocks for the rest."""
    pallet = "x".join(str(side) for side in CONTAINER) + "mm"
    return pack(found, pallet, tries=tries, turns="fixed", stability="none", device="cpu").placed


def pack_blocks_alone(found: BoxList, tries: int) -> Placements:
    """Plan by blocks without layers before them."""
    length, width, height = CONTAINER
    pallet = Pallet(length / 1000, width / 1000, height / 1000, cell=_CELL_MM / 1000)
    packer = Packer(pallet, turns="fixed", stability="none", device="cpu")
    prepared = packer.prepare(boxes_of(found))
    return blocks.pack_blocks(packer, prepared, np.arange(len(found.sizes[0])), tries=tries)


SEARCHES: dict[str, Callable[[BoxList, int], Placements]] = {"pack": pack_as_users_do, "blocks": pack_blocks_alone}


def list_of(sizes: np.ndarray) -> BoxList:
    """The list of boxes (B, 3), millimetres, as a user would write it."""
    lines = ["length mm,width mm,height mm"]
    for length, width, height in sizes.tolist():
        lines.append(f"{length},{width},{height}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "orders.csv")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return read_orders(path)


def fullest_bin(placed: Placements) -> BinPlan:
    """The fullest container of a plan, from its corner."""
    volume = np.bincount(placed.pallet, weights=placed.sides.prod(1))
    mine = placed.rows(placed.pallet == volume.argmax())
    # A load that leaves room stands in the middle of its pallet.
    corner = mine.corner - mine.corner.min(0)
    return BinPlan(mine.box, _micrometres(corner), _micrometres(mine.sides))


def _micrometres(lengths: np.ndarray) -> np.ndarray:
    return np.round(1_000_000 * lengths).astype(np.int64)


def check(plan: BinPlan, sizes: np.ndarray) -> None:
    """Check a plan against the rules of BinPack.

    Args:
        plan: Of one container.
        sizes: Of the boxes of the instance, millimetres, (B, 3).

    Raises:
        ValueError: A box is placed twice, turned, outside the container or inside another box.
    """
    if len(np.unique(plan.box)) < len(plan.box):
        raise ValueError("plan: a box is placed twice")
    if (plan.sides != sizes[plan.box] * UM_PER_MM).any():
        raise ValueError("plan: a box is turned")
    upper = plan.corner + plan.sides
    if (plan.corner < 0).any() or (upper > np.array(CONTAINER) * UM_PER_MM).any():
        raise ValueError("plan: a box is outside the container")
    overlaps = (plan.corner[:, None] < upper) & (plan.corner < upper[:, None])
    pairs = np.triu(overlaps.all(2), 1)
    if pairs.any():
        one, other = np.argwhere(pairs)[0].tolist()
        raise ValueError(f"plan: boxes {plan.box[one]} and {plan.box[other]} overlap")


def hanging(plan: BinPlan) -> int:
    """Boxes of a plan that touch neither the floor nor the top of a box."""
    upper = plan.corner + plan.sides
    starts_before = plan.corner[:, None, :2] < upper[:, :2]
    ends_behind = plan.corner[:, :2] < upper[:, None, :2]
    touches = plan.corner[:, None, 2] == upper[:, 2]
    stands = (touches & (starts_before & ends_behind).all(2)).any(1) | (plan.corner[:, 2] == 0)
    return int((~stands).sum())


def push_into_corner(plan: BinPlan) -> BinPlan:
    """Push all boxes along x, y and z as far as they go.

    Each then touches a neighbour or a wall on its lower sides.
    """
    corner = plan.corner.copy()
    is_moved = True
    while is_moved:
        is_moved = False
        for box in range(len(corner)):
            for axis in range(3):
                first_free = _first_free(corner, plan.sides, box, axis)
                if first_free < corner[box, axis]:
                    corner[box, axis] = first_free
                    is_moved = True
    return BinPlan(plan.box, corner, plan.sides)


def _first_free(corner: np.ndarray, sides: np.ndarray, box: int, axis: int) -> int:
    """Least coordinate that a box can be pushed to along an axis, micrometres."""
    upper = corner + sides
    across = [other for other in range(3) if other != axis]
    starts_before = corner[:, across] < upper[box, across]
    ends_behind = corner[box, across] < upper[:, across]
    is_below = upper[:, axis] <= corner[box, axis]
    in_the_way = (starts_before & ends_behind).all(1) & is_below
    return int(upper[in_the_way, axis].max(initial=0))


def measure(jumanji: Jumanji, search: str, tries: int, seed: int) -> JsonObject:
    """Plan, check and play an instance."""
    sizes = jumanji.draw(seed)
    found = list_of(sizes)
    began = time.process_time()
    placed = SEARCHES[search](found, tries)
    seconds = time.process_time() - began
    plan = fullest_bin(placed)
    check(plan, sizes)
    pushed = push_into_corner(plan)
    check(pushed, sizes)
    return {
        "filled": round(plan.filled, 6),
        "played": round(jumanji.play(seed, pushed), 6),
        "boxes left": len(sizes) - len(plan.box),
        "hanging": hanging(plan),
        "seconds": round(seconds, 4),
    }


def _row_of(rows: list[JsonObject], search: str, tries: int) -> JsonObject:
    """The row of a search with so many tries, which is added where there is none."""
    for row in rows:
        if row["search"] == search and row["tries"] == tries:
            return row
    added: JsonObject = {"search": search, "tries": tries}
    rows.append(added)
    return added


def _line_of(row: JsonObject) -> str:
    filled = torch.tensor(row["filled"], dtype=torch.float64)
    error = standard_error(filled)
    mean = f"{100 * float(filled.mean()):.2f}{plus_minus(error and 100 * error, '.2f')}"
    full = sum(boxes == 0 for boxes in row["boxes left"])
    seconds = np.mean(row["seconds"])
    gaps = [abs(one - other) for one, other in zip(row["filled"], row["played"], strict=True)]
    # Jumanji counts in float32.
    played = sum(gap < 1e-5 for gap in gaps)
    return (
        f"{row['search']}, {row['tries']:,} tries: {mean}% of {len(filled)} instances, {full} of them full,"
        f" {played} played in Jumanji to the same share, {sum(row['hanging'])} boxes hang; {seconds:.2f} s each"
    )


def main(argv: Sequence[str]) -> None:
    args = _parser().parse_args(argv)
    torch.set_num_threads(1)
    rows: list[JsonObject] = []
    if args.output and args.output.exists():
        rows = json.loads(args.output.read_text(encoding="utf-8"))["rows"]
    about = {"benchmark": "jumanji_bin_pack", "machine": machine.describe(torch.device("cpu"))}
    save = partial(_save, args.output, about)
    jumanji = Jumanji()
    with progress("BinPack-v2") as say:
        for search in args.searches:
            for tries in args.tries:
                row = _row_of(rows, search, tries)
                for seed in range(len(row.get("filled", [])), args.instances):
                    say(f"{search}, {tries:,} tries, instance {seed}")
                    for name, value in measure(jumanji, search, tries, seed).items():
                        row.setdefault(name, []).append(value)
                    if (seed + 1) % _INSTANCES_A_WRITE == 0:
                        save(rows)
                save(rows)
    for row in rows:
        print(_line_of(row))


def _save(output: Path | None, about: JsonObject, rows: list[JsonObject]) -> None:
    if output:
        write_json(output, about | {"rows": rows})


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="jumanji_bin_pack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--instances", type=whole(1), default=200)
    add("--searches", nargs="+", choices=tuple(SEARCHES), default=list(SEARCHES))
    add("--tries", nargs="+", type=whole(1), default=[1, 4, 16, 128, 1024], help="of every container")
    add("--output", type=Path, help="JSON, to which what it lacks is added")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
