"""Closed surfaces cut by vertical columns.

The columns give volume, centre of mass and voxels of the enclosed points.

A point is inside where the surfaces wind about it more often outward than inward. So the overlap of two solids counts
once, and a hollow, whose surface is inside out, does not count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchrl_gpu.envs.packing.rotations import turn

# Surfaces that columns pass: at least so many of each part, and at most so many in all.
_PER_PART = 64
_MOST_PASSED = 4_000_000
# Solids are turned askew: faces along the columns would count for whole columns, with ten times the error.
_ASKEW = turn(20, 10, 35)


class Crossings(NamedTuple):
    """Intersections of columns with surfaces, all (C,).

    Attributes:
        x: Number of the column along x, int64.
        y: Number of the column along y, int64.
        z: Height, float64.
        enters: +1 where a rising ray enters the solid, −1 where it leaves, int64.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    enters: np.ndarray


def union(triangles: np.ndarray, columns: int = 160, parts: int = 1) -> tuple[float, np.ndarray]:
    """Return volume and centre of mass of the union of solids.

    The solids are within closed surfaces (F, 3, 3), outward by the right hand.

    There are `columns` along x and y; more where they would hardly meet the `parts`, fewer where they would pass
    surfaces too often.
    """
    triangles = triangles @ _ASKEW.T
    low = triangles.min((0, 1))
    high = triangles.max((0, 1))
    ax, ay = (triangles[:, 1, :2] - triangles[:, 0, :2]).T
    bx, by = (triangles[:, 2, :2] - triangles[:, 0, :2]).T
    # A column costs time for every surface that it passes, so their mean number decides how many columns there are.
    per_column = np.abs(ax * by - ay * bx).sum() / 2 / max((high - low)[:2].prod(), 1e-300)
    passed = np.clip(columns**2 * per_column, parts * _PER_PART, _MOST_PASSED)
    columns = round(np.clip((passed / max(per_column, 1e-300)) ** 0.5, 8, 20 * columns))
    side = np.append((high - low)[:2] / columns, 1.0)
    found = crossings((triangles - low) / side, columns, columns)
    order = np.lexsort((found.z, found.y, found.x))
    x = found.x[order]
    y = found.y[order]
    z = found.z[order]
    enters = found.enters[order]
    # Every column ends outside, so one sum serves all columns, one after the other.
    inside = np.cumsum(enters)[:-1] > 0
    length = np.where(inside, np.diff(z), 0.0)
    total = length.sum()
    if total <= 0:
        return 0.0, _ASKEW.T @ low
    middles = np.stack([x[:-1] + 0.5, y[:-1] + 0.5, (z[:-1] + z[1:]) / 2], 1)
    return float(total * side.prod()), _ASKEW.T @ (low + side * (length @ middles) / total)


def voxelised(triangles: np.ndarray, longest: int = 32) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the voxels whose centres closed surfaces (F, 3, 3) enclose.

    `longest` voxels lie along the longest side.

    Returned are their mask (A, B, C), the corner (3,) of the first one, and the side of one.
    """
    size = np.ptp(triangles.reshape(-1, 3), 0)
    side = size.max() / longest
    shape = np.maximum(1, np.ceil(size / side - 1e-6)).astype(int)
    corner = triangles.min((0, 1)) - (shape * side - size) / 2
    return enclosed((triangles - corner) / side, *shape.tolist()), corner, float(side)


def enclosed(triangles: np.ndarray, a: int, b: int, c: int) -> np.ndarray:
    """Return the mask (A, B, C) of the voxels whose centres surfaces enclose.

    The closed surfaces (F, 3, 3) are in units of voxels.
    """
    found = crossings(triangles, a, b)
    # The first voxel whose centre lies above.
    first = np.clip(np.ceil(found.z - 0.5), 0, c).astype(int)
    winding = np.zeros((a, b, c + 1), dtype=np.int32)
    np.add.at(winding, (found.x, found.y, first), found.enters)
    return winding.cumsum(2)[:, :, :-1] > 0


def crossings(triangles: np.ndarray, columns_x: int, columns_y: int) -> Crossings:
    """Return the intersections of columns with triangles (F, 3, 3).

    Coordinates are in units of columns, and the axis of column i is at i + 0.5.

    Every edge is cut the same way for the two triangles that share it, and ends are half open, so that a closed surface
    is left as often as entered.
    """
    triangles = triangles - [0.5, 0.5, 0.0]
    order = triangles[:, :, 0].argsort(1)
    # Corners in the order of x, (F, 3) each.
    by_x = np.take_along_axis(triangles, order[:, :, None], 1)
    a, b, c = np.moveaxis(by_x, 1, 0)
    owner, x = _between(a[:, 0], c[:, 0], columns_x)
    near = (x <= b[owner, 0])[:, None]
    start = np.where(near, a[owner], b[owner])
    stop = np.where(near, b[owner], c[owner])
    across = _at(x, a[owner], c[owner])
    along = _at(x, start, stop)
    in_order = (across[:, 0] <= along[:, 0])[:, None]
    low = np.where(in_order, across, along)
    high = np.where(in_order, along, across)
    chord, y = _between(low[:, 0], high[:, 0], columns_y)
    share = (y - low[chord, 0]) / (high[chord, 0] - low[chord, 0])
    z = low[chord, 1] + share * (high[chord, 1] - low[chord, 1])
    ux, uy = (triangles[:, 1, :2] - triangles[:, 0, :2]).T
    vx, vy = (triangles[:, 2, :2] - triangles[:, 0, :2]).T
    faces_down = np.where(ux * vy - uy * vx < 0, 1, -1)
    return Crossings(x[chord], y, z, faces_down[owner][chord])


def _between(low: np.ndarray, high: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Enumerate the whole numbers k, 0 ≤ k < count, with low < k ≤ high.

    Returns the index of the interval of each number, and the number.
    """
    first = np.maximum(np.floor(low).astype(int) + 1, 0)
    number = np.maximum(np.minimum(np.floor(high).astype(int), count - 1) - first + 1, 0)
    owner = np.repeat(np.arange(len(low)), number)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(number) - number - first, number)


def _at(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Points (y, z) at which segments from a to b (S, 3) pass x, (S, 2)."""
    share = (x - a[:, 0]) / np.maximum(b[:, 0] - a[:, 0], 1e-300)
    return a[:, 1:] + share[:, None] * (b[:, 1:] - a[:, 1:])
