"""The baselines in NumPy, one bin and one placement at a time.

The batched ones must agree with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from tensordict import TensorDictBase

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels import reference


@dataclass
class Candidate:
    """One legal placement in one bin.

    Heights are whole multiples of the bin's tolerance.
    """

    action: int
    x: int
    y: int
    size: tuple[int, int]  # cells
    z: int
    top: int
    before: np.ndarray  # (X, Y) metres
    after: np.ndarray  # (X, Y) metres


def candidates(env: PackingEnv, row: TensorDictBase) -> Iterator[Candidate]:
    heightmap, legal = row["box_heightmap"].numpy(), row["legal_mask"].numpy()
    for action, (k, o, gx, gy) in enumerate(np.ndindex(legal.shape)):
        if not legal[k, o, gx, gy]:
            continue
        top, bottom = reference.item_maps(env.catalogue, int(row["item_id"][k]), o)
        x = min(gx * env.grid_step, env.bin.cells[0] - top.shape[0])
        y = min(gy * env.grid_step, env.bin.cells[1] - top.shape[1])
        z = float(row["z_map"][k, o, gx, gy])
        after = heightmap.copy()
        reference.place_item(after, top, bottom, x, y, np.float32(z))
        ends = (levels(env, z), levels(env, z) + levels(env, top.max()))
        yield Candidate(action, x, y, top.shape, int(ends[0]), int(ends[1]), heightmap, after)


def levels(env: PackingEnv, metres: np.ndarray | float) -> np.ndarray:
    return np.round(np.asarray(metres, dtype=np.float64) / env.bin.tolerance).astype(np.int64)


Score = Callable[[PackingEnv, Candidate], tuple[int, ...]]


def deepest(env: PackingEnv, c: Candidate) -> tuple[int, ...]:
    """Least z, then x + y."""
    return c.z, c.x + c.y


def flattest(env: PackingEnv, c: Candidate) -> tuple[int, ...]:
    """Least sum of the heightmap after the placement, in cells, then x + y."""
    growth = (c.after.astype(np.float64) - c.before).sum()
    return round(growth / min(env.bin.cell)), c.x + c.y


def smallest_surface(env: PackingEnv, c: Candidate) -> tuple[int, ...]:
    """Least half surface of the box around the pile and the item.

    In squares of the tolerance, and then as `deepest`.
    """
    cover = c.before > env.bin.tolerance
    cover[c.x : c.x + c.size[0], c.y : c.y + c.size[1]] = True
    sides = []
    for axis in (0, 1):
        at = np.flatnonzero(cover.any(1 - axis))
        sides.append((at[-1] + 1 - at[0]) * env.bin.cell[axis] / env.bin.tolerance)
    return round(sides[0] * sides[1] + c.top * (sides[0] + sides[1])), c.z, c.x + c.y


def most_space(env: PackingEnv, c: Candidate) -> tuple[int, ...]:
    """Most accessible space, over blocks of cells.

    Then as `deepest`.
    """
    blocks = [-(-cells // 10) for cells in env.bin.cells]
    starts = [range(0, cells, block) for cells, block in zip(env.bin.cells, blocks, strict=True)]
    coarse = []
    for x in starts[0]:
        rows = c.after[x : x + blocks[0]]
        coarse.append([rows[:, y : y + blocks[1]].max() for y in starts[1]])
    space = accessible(levels(env, np.array(coarse)), round(env.bin.size[2] / env.bin.tolerance))
    return -space, c.z, c.x + c.y


def first_found(env: PackingEnv, c: Candidate) -> tuple[int, ...]:
    return ()


def first_space(env: PackingEnv, c: Candidate) -> tuple[int, ...]:
    """Place of the lowest empty maximal space that holds the item.

    Base, y and x, and then as `deepest`.
    """
    found = [base for base, _, _ in spaces_of(env, c)]
    return (0, min(found), c.y, c.x) if found else (1, *deepest(env, c))


def roomiest_space(env: PackingEnv, c: Candidate) -> tuple[int, ...]:
    """Volume of the space and the sizes that fit into it.

    The number of sizes, and 10 if all fit, in levels, and then as `deepest`.
    """
    ceiling, cell = round(env.bin.size[2] / env.bin.tolerance), round(min(env.bin.cell) / env.bin.tolerance)
    extents = env.catalogue.extent[:, 0].tolist()
    heights = env.catalogue.height[:, 0].tolist()
    sizes = [(*extent, int(levels(env, height))) for extent, height in zip(extents, heights, strict=True)]
    found = []
    for base, p, q in spaces_of(env, c):
        number = sum(x <= p and y <= q and z <= ceiling - base for x, y, z in sizes)
        found.append(p * q * (ceiling - base) + cell * (number + 10 * (number == len(sizes))))
    return (0, -max(found), *deepest(env, c)) if found else (1, *deepest(env, c))


def spaces_of(env: PackingEnv, c: Candidate) -> list[tuple[int, int, int]]:
    """Return the empty maximal spaces that begin at a placement.

    Base and extents of those that hold its item.
    """
    ceiling = round(env.bin.size[2] / env.bin.tolerance)
    found = maximal_spaces(levels(env, c.before), ceiling)
    high = c.top - c.z
    spaces = []
    for x0, x1, y0, y1, base in found:
        begins_here = (x0, y0) == (c.x, c.y)
        holds = x1 - x0 >= c.size[0] and y1 - y0 >= c.size[1]
        if begins_here and holds and base + high <= ceiling:
            spaces.append((base, x1 - x0, y1 - y0))
    return spaces


def maximal_spaces(heights: np.ndarray, ceiling: int) -> list[tuple[int, int, int, int, int]]:
    """Return x0, x1, y0, y1 and base of each maximal space.

    In cells from x0 to below x1, and every wall stands against a cell that is higher.
    """
    return _maximal_spaces(heights.tobytes(), heights.shape, ceiling)


@cache
def _maximal_spaces(raw: bytes, shape: tuple[int, int], ceiling: int) -> list[tuple[int, int, int, int, int]]:
    h = np.pad(np.frombuffer(raw, dtype=np.int64).reshape(shape), 1, constant_values=ceiling + 1)
    found = []
    for x0, x1 in itertools.combinations(range(1, shape[0] + 2), 2):
        for y0, y1 in itertools.combinations(range(1, shape[1] + 2), 2):
            base = int(h[x0:x1, y0:y1].max())
            across = [h[x0 - 1, y0:y1], h[x1, y0:y1]]
            along = [h[x0:x1, y0 - 1], h[x0:x1, y1]]
            walls = across + along
            if base < ceiling and all(wall.max() > base for wall in walls):
                found.append((x0 - 1, x1 - 1, y0 - 1, y1 - 1, base))
    return found


def accessible(heights: np.ndarray, ceiling: int) -> int:
    """Between two heights that occur, the open cells stay the same."""
    breaks = sorted({0, ceiling, *(int(h) for h in heights.flat if h < ceiling)})
    return sum((high - low) * largest_rectangle(heights <= low) for low, high in itertools.pairwise(breaks))


def largest_rectangle(open_: np.ndarray) -> int:
    """Return the cells of the largest rectangle of true cells.

    By trying every pair of rows and running along them.
    """
    best = 0
    for first in range(len(open_)):
        for last in range(first, len(open_)):
            run = 0
            for free in open_[first : last + 1].all(0):
                run = run + 1 if free else 0
                best = max(best, run * (last + 1 - first))
    return best


def choose(env: PackingEnv, found: Iterable[Candidate], score: Score, most: int | None = None) -> int:
    """Return the action of the least score, the lowest of equals.

    Only the `most` deepest-bottom-left placements count.
    """
    if most is not None:
        found = sorted(found, key=lambda c: (*deepest(env, c), c.action))[:most]
    return min(((*score(env, c), c.action) for c in found), default=(0,))[-1]


def largest_item(env: PackingEnv, row: TensorDictBase) -> int | None:
    """The slot of the largest item that has a legal placement, the first of equals."""
    fits = [k for k, legal in enumerate(row["legal_mask"]) if legal.any()]
    return max(fits, key=lambda k: (float(env.catalogue.volume[row["item_id"][k]]), -k), default=None)
