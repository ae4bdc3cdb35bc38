"""PCT's setting 1 (Zhao et al., ICLR 2022).

Boxes of 1 to 5 cells have two turns, and loads are handed down from box to box.

The rule wants a graph of boxes, which no heightmap holds, so that it is no rule of `PackingEnv`: the environment allows
what fits, and this rule decides among that, as the code that was released with the paper (b12c13c, 3f10f8d). Policies
look ahead by the rule `support`. An episode ends when no placement passes, or, as there, when the chosen one fails
after all: the check of a placement is not quite what is carried out.

    python benchmarks/pct_setting1.py --futures 96 --depth 6 --output results.json
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchrl.envs.utils import step_mdp

from torchrl_gpu.cli.parser import OneLineParser, whole
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.evaluation.estimates import plus_minus, standard_error
from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import PackingPolicy
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.planners.expectation import ExpectedPlacement
from torchrl_gpu.system import machine
from torchrl_gpu.system.console import progress_bar

# PCT on its own sequences, per cent.
PRINTED = 76.0
# Share by which the hull of what a box rests on shrinks.
SHRUNK = 0.1
# x grows by this share of y, so that no side of a hull is upright.
SHEAR = 1e-6

# x and y of a centre, and its mass.
Load = list[float]


@dataclass(eq=False)
class Box:
    """A box of the pile, in cells.

    It has a corner (x, y, z) and sides, the boxes that it rests on, and the loads that it bears.
    """

    corner: tuple[int, int, int]
    size: tuple[int, int, int]
    below: list[tuple[Box, tuple[int, int, int, int]]] = field(default_factory=list)
    hull: list[tuple[float, float]] = field(default_factory=list)
    above: dict[Box, Load] = field(default_factory=dict)
    # Its own load and what it bears: one object for all boxes that it hands it to.
    load: Load = field(default_factory=list)

    def __post_init__(self) -> None:
        self.load = self.own()

    def own(self) -> Load:
        (x, y, _), (a, b, c) = self.corner, self.size
        return [x + a / 2, y + b / 2, float(a * b * c)]


class Pile:
    """Boxes of one bin, packed by the rule."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []

    def box(self, corner: tuple[int, int, int], size: tuple[int, int, int]) -> Box:
        """A box that rests on those of the pile whose tops are level with its base."""
        new = Box(corner, size)
        x, y, z = corner
        a, b, _ = size
        for under in self.boxes:
            (u, v, w), (c, d, e) = under.corner, under.size
            area = max(x, u), max(y, v), min(x + a, u + c), min(y + b, v + d)
            if w + e == z and area[0] < area[2] and area[1] < area[3]:
                new.below.append((under, area))
        new.hull = shrunk_hull([area for _, area in new.below])
        return new

    def allows(self, corner: tuple[int, int, int], size: tuple[int, int, int]) -> bool:
        """Return whether the loads can be handed down with one more box.

        Loads on their way are those of the new way alone.
        """
        handed: dict[Box, dict[Box, Load]] = defaultdict(dict)
        path: set[Box] = set()

        def borne(box: Box) -> Load:
            loads = [load for other, load in box.above.items() if other not in path]
            return centre_of([box.own(), *loads, *(load for other, load in handed[box].items() if other in path)])

        def stands(box: Box, load: Load) -> bool:
            if not box.below:
                return True
            if not inside(load, box.hull):
                return False
            path.add(box)
            for (under, _), share in zip(box.below, shares(load, box.below), strict=True):
                handed[under][box] = share
            loads = [borne(under) for under, _ in box.below]
            holds = all(stands(under, on) for (under, _), on in zip(box.below, loads, strict=True))
            path.discard(box)
            return holds

        box = self.box(corner, size)
        return stands(box, box.load)

    def add(self, corner: tuple[int, int, int], size: tuple[int, int, int]) -> bool:
        """Pack a box and hand its load down.

        Returns whether all boxes below bear it; otherwise the box is not packed.
        """

        def stands(box: Box) -> bool:
            if not box.below:
                return True
            if not inside(box.load, box.hull):
                return False
            for (under, _), share in zip(box.below, shares(box.load, box.below), strict=True):
                under.above[box] = share
                under.load[:] = centre_of([under.own(), *under.above.values()])
            return all(stands(under) for under, _ in box.below)

        box = self.box(corner, size)
        if stands(box):
            self.boxes.append(box)
            return True
        return False


def centre_of(loads: list[Load]) -> Load:
    """Combine loads into one.

    Shares by least squares may be negative. Loads without any mass in all have no place.
    """
    mass = sum(load[2] for load in loads)
    if mass == 0:
        return [math.nan, math.nan, 0.0]
    return [sum(load[0] * load[2] for load in loads) / mass, sum(load[1] * load[2] for load in loads) / mass, mass]


def shares(load: Load, below: list[tuple[Box, tuple[int, int, int, int]]]) -> list[Load]:
    """Parts of a load that each box below bears, at the middle of what it touches.

    One bears all of it where the centre lies. Else two share it by the lever, and more by the least squares of the
    levers of every two.
    """
    x, y, mass = load
    if len(below) == 1:
        return [load]
    over = [left < x < right and front < y < back for _, (left, front, right, back) in below]
    if any(over):
        return [load if place == over.index(True) else [x, y, 0.0] for place in range(len(below))]
    middle = np.array([[(a[0] + a[2]) / 2, (a[1] + a[3]) / 2] for _, a in below])
    centre = np.array([x, y])
    if len(below) == 2:
        line = middle[0] - middle[1]
        line = line / np.linalg.norm(line) ** 2
        part = [abs(np.dot(centre - middle[1], line)), abs(np.dot(centre - middle[0], line))]
    else:
        pairs = list(itertools.combinations(range(len(below)), 2))
        levers, wanted = np.zeros((len(pairs) + 1, len(below))), np.zeros(len(pairs) + 1)
        for row, (i, j) in zip(levers, pairs, strict=False):
            line = middle[i] - middle[j]
            arm = np.dot(centre - middle[i], line)
            if arm != 0:
                row[i], row[j] = 1.0, -abs(np.dot(centre - middle[j], line)) / arm
        levers[-1] = wanted[-1] = 1.0
        part = np.linalg.lstsq(levers, wanted, rcond=None)[0].tolist()
    return [[*each, mass * share] for each, share in zip(middle.tolist(), part, strict=True)]


def shrunk_hull(areas: list[tuple[int, int, int, int]]) -> list[tuple[float, float]]:
    """Return corners of the convex hull of rectangles, a tenth nearer to their mean."""
    if not areas:
        return []
    corners = set()
    for left, front, right, back in areas:
        for x in (left, right):
            corners |= {(x + SHEAR * y, float(y)) for y in (front, back)}
    hull = np.array(list(half_hull(sorted(corners)))[:-1] + list(half_hull(sorted(corners, reverse=True)))[:-1])
    return [(x, y) for x, y in (hull - (hull - hull.mean(0)) * SHRUNK).tolist()]


def half_hull(points: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Return the chain of a hull along sorted points (Andrew, 1979).

    It has no corner on a straight line.
    """
    chain: list[tuple[float, float]] = []
    for x, y in points:
        while len(chain) > 1:
            (a, b), (c, d) = chain[-2:]
            if (y - d) / (x - c) > (d - b) / (c - a):
                break
            chain.pop()
        chain.append((x, y))
    return iter(chain)


def inside(load: Load, hull: list[tuple[float, float]]) -> bool:
    """True where a load's centre lies inside, and on the line of no side."""
    x = load[0]
    y = load[1]
    odd = False
    for (a, b), (c, d) in zip(hull, [hull[-1], *hull[:-1]], strict=True):
        if (a - x) * (y - d) - (b - y) * (x - c) == 0:
            return False
        if (b < y <= d or d < y <= b) and a + (y - b) / (d - b) * (c - a) < x:
            odd = not odd
    return odd


def legal_of(pile: Pile, env: PackingEnv, row: int) -> Tensor:
    """Return the placements of the visible box that environment and pile allow.

    They are (1, O, Gx, Gy) bool.
    """
    legal, z_map = env.state.legal[row].clone(), env.state.z_map[row]
    for _, turn, x, y in legal.nonzero().tolist():
        corner = x, y, round(float(z_map[0, turn, x, y]))
        legal[0, turn, x, y] = pile.allows(corner, sides_of(env, row, turn))
    return legal


def sides_of(env: PackingEnv, row: int, turn: int) -> tuple[int, int, int]:
    sides = env.item_sizes[env.state.item_id[row, 0], turn, :3].tolist()
    length, width, height = map(round, sides)
    return length, width, height


def pack(env: PackingEnv, policy: ExpectedPlacement | PackingPolicy, number: int) -> tuple[list[float], int]:
    """Pack the first episodes of `number` rows.

    Returns the shares that they fill, and how many end by a placement that failed after all.
    """
    piles, failed = [Pile() for _ in range(number)], 0
    filled, going = [0.0] * number, set(range(number))
    observation = env.reset()
    with torch.no_grad():
        while going:
            legal = torch.zeros_like(env.state.legal)
            for row in going:
                legal[row] = legal_of(piles[row], env, row)
            chosen = policy(observation.set("legal_mask", legal))
            for row in list(going):
                action = int(chosen["action"][row])
                turn, x, y = np.unravel_index(action, env.state.legal.shape[2:])
                corner = int(x), int(y), round(float(env.state.z_map[row, 0, turn, x, y]))
                if not legal[row].any():
                    going.remove(row)
                elif piles[row].add(corner, sides_of(env, row, int(turn))):
                    filled[row] += float(env.catalogue.volume[env.state.item_id[row, 0]] / env.bin.volume)
                else:
                    failed += 1
                    going.remove(row)
            there = torch.tensor([row in going for row in range(env.num_envs)])
            chosen["action"] = torch.where(there, chosen["action"], -1)
            stepped = env.step(chosen)
            going -= set(stepped["next", "done"].flatten().nonzero().flatten().tolist())
            observation = step_mdp(stepped)
    return filled, failed


def main() -> None:
    parser = OneLineParser(prog="benchmarks.pct_setting1", description=__doc__)
    parser.add_argument("--sequences", type=whole(1), default=2000, help="of the suite of discrete125")
    parser.add_argument("--candidates", type=whole(1), default=6)
    parser.add_argument("--futures", type=whole(1), help="of the last two candidates; without, the policy alone")
    parser.add_argument("--depth", type=whole(1), default=1, help="boxes of a future")
    parser.add_argument("--batch", type=whole(1), default=250, help="sequences side by side")
    parser.add_argument("--output", type=Path, help="JSON")
    args = parser.parse_args()
    suite = ProtocolSuite("discrete125", args.sequences, rule={"stability": "none"}, device="cpu")
    policy: ExpectedPlacement | PackingPolicy = PackingPolicy.from_pretrained("discrete125", "cpu")
    if args.futures:
        tables = next(each for each in policy.modules() if isinstance(each, PatchTables))
        policy = ExpectedPlacement(make_protocol("discrete125", 1), tables, args.candidates, args.futures, args.depth)
    started = time.monotonic()
    found = []
    failed = 0
    with progress_bar("packing", "sequences") as show:
        for first in range(0, args.sequences, args.batch):
            number = min(args.batch, args.sequences - first)
            env = suite.like(number)
            suite.begin(env, first)
            filled, ends = pack(env, policy, number)
            found, failed = found + filled, failed + ends
            show(len(found), args.sequences)
    shares = torch.tensor(found, dtype=torch.float64)
    seconds, error = time.monotonic() - started, standard_error(shares)
    mean = f"{100 * float(shares.mean()):.2f}{plus_minus(error and 100 * error, '.2f')}"
    print(f"{mean}% of {len(found)} sequences (PCT prints {PRINTED}); {seconds:.0f} s")
    print(f"{failed} ended by a placement that passed and failed after all")
    if args.output:
        about = {"benchmark": "pct_setting1", "machine": machine.describe(torch.device("cpu")), "printed": PRINTED}
        options = {name: getattr(args, name) for name in ("candidates", "futures", "depth")}
        rows = {"failed": failed, "seconds": seconds, "utilizations": [round(each, 6) for each in found]}
        write_json(args.output, about | options | {"utilization": float(shares.mean()), "error": error} | rows)


if __name__ == "__main__":
    main()
