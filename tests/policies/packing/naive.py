"""The baselines in NumPy, one bin and one placement at a time: what the batched ones must agree with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from tensordict import TensorDictBase

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels import reference


@dataclass
class Candidate:
    """One legal placement in one bin; heights in whole multiples of the bin's tolerance."""

    action: int
    x: int
    y: int
    size: tuple[int, int]  # cells
    z: int
    top: int
    before: np.ndarray  # (X, Y) metres
    after: np.ndarray  # (X, Y) metres


def candidates(env: PackingEnv, row: TensorDictBase) -> Iterator[Candidate]:
    """The legal placements of one environment, by action."""
    heightmap, legal = row["box_heightmap"].numpy(), row["legal_mask"].numpy()
    for action, (k, o, gx, gy) in enumerate(np.ndindex(legal.shape)):
        if not legal[k, o, gx, gy]:
            continue
        top, bottom = reference.item_maps(env.catalogue, int(row["item_id"][k]), o)
        x, y = (
            min(g * env.grid_step, cells - size)
            for g, cells, size in zip((gx, gy), env.bin.cells, top.shape, strict=True)
        )
        z = float(row["z_map"][k, o, gx, gy])
        after = heightmap.copy()
        reference.place_item(after, top, bottom, x, y, np.float32(z))
        ends = (levels(env, z), levels(env, z) + levels(env, top.max()))
        yield Candidate(action, x, y, top.shape, int(ends[0]), int(ends[1]), heightmap, after)


def levels(env: PackingEnv, metres: np.ndarray | float) -> np.ndarray:
    """Heights in whole multiples of the tolerance."""
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
    """Least half surface of the box around the pile and the item, in squares of the tolerance; then as `deepest`."""
    cover = c.before > env.bin.tolerance
    cover[c.x : c.x + c.size[0], c.y : c.y + c.size[1]] = True
    sides = []
    for axis in (0, 1):
        at = np.flatnonzero(cover.any(1 - axis))
        sides.append((at[-1] + 1 - at[0]) * env.bin.cell[axis] / env.bin.tolerance)
    return round(sides[0] * sides[1] + c.top * (sides[0] + sides[1])), c.z, c.x + c.y


def most_space(env: PackingEnv, c: Candidate) -> tuple[int, ...]:
    """Most accessible space, over blocks of cells; then as `deepest`."""
    blocks = [-(-cells // 10) for cells in env.bin.cells]
    starts = [range(0, cells, block) for cells, block in zip(env.bin.cells, blocks, strict=True)]
    coarse = [[c.after[x : x + blocks[0], y : y + blocks[1]].max() for y in starts[1]] for x in starts[0]]
    space = accessible(levels(env, np.array(coarse)), round(env.bin.size[2] / env.bin.tolerance))
    return -space, c.z, c.x + c.y


def accessible(heights: np.ndarray, ceiling: int) -> int:
    """Between two heights that occur, the open cells stay the same."""
    breaks = sorted({0, ceiling, *(int(h) for h in heights.flat if h < ceiling)})
    return sum((high - low) * largest_rectangle(heights <= low) for low, high in itertools.pairwise(breaks))


def largest_rectangle(open_: np.ndarray) -> int:
    """Cells of the largest rectangle of true cells, by trying every pair of rows and running along them."""
    best = 0
    for first in range(len(open_)):
        for last in range(first, len(open_)):
            run = 0
            for free in open_[first : last + 1].all(0):
                run = run + 1 if free else 0
                best = max(best, run * (last + 1 - first))
    return best


def choose(env: PackingEnv, found: Iterable[Candidate], score: Score, most: int | None = None) -> int:
    """The action of the least score, the lowest of equals; of the `most` deepest-bottom-left placements alone."""
    if most is not None:
        found = sorted(found, key=lambda c: (*deepest(env, c), c.action))[:most]
    return min(((*score(env, c), c.action) for c in found), default=(0,))[-1]


def largest_item(env: PackingEnv, row: TensorDictBase) -> int | None:
    """The slot of the largest item that has a legal placement, the first of equals."""
    fits = [k for k, legal in enumerate(row["legal_mask"]) if legal.any()]
    return max(fits, key=lambda k: (float(env.catalogue.volume[row["item_id"][k]]), -k), default=None)
