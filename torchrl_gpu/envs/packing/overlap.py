"""Overlap of packed items, from their shapes in final poses.

Heightmaps are not read.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from torchrl_gpu.envs.packing.items.columns import enclosed
from torchrl_gpu.envs.packing.plan import PackingPlan


class Overlap(NamedTuple):
    """Deepest overlaps of a plan: between two items, and of an item with the walls.

    Attributes:
        items: Overlap of two items, metres: the largest, over the points that they share, of the shortest run of shared
            points along x, y or z. In whole voxels, and so exact to a voxel.
        pair: Numbers of the two in the order of packing, None if no two overlap.
        walls: How far an item sticks out of the bin, metres, exact.
        item: Number of that item, None if none does.
    """

    items: float
    pair: tuple[int, int] | None
    walls: float
    item: int | None

    @property
    def deepest(self) -> float:
        """The larger of the two overlaps, metres."""
        return max(self.items, self.walls)


Voxels = tuple[np.ndarray, np.ndarray]
"""First voxel (3,) int64 of a part of the lattice, and those of it that an item fills, (A, B, C) bool."""


def overlaps(plan: PackingPlan, voxel: float) -> Overlap:
    """Return the deepest overlap between two items, and between an item and the bin.

    Args:
        plan: The items and the bin.
        voxel: Side of a voxel, metres, of a cell or less. A voxel is filled where its centre is inside.

    Raises:
        ValueError: The side is not positive.
    """
    if not 0 < voxel < math.inf:
        raise ValueError(f"overlaps: voxel must be a positive length in metres, not {voxel}")
    placed = []
    for solid, pose in zip(plan.solids, plan.poses, strict=True):
        placed.append(solid.vertices @ pose.rotation.T + pose.position)

    walls = 0.0
    sticking_out = None
    for number, points in enumerate(placed):
        out = max(float(-points.min()), float((points - plan.bin_size).max()))
        if out > walls:
            walls = out
            sticking_out = number

    voxels = []
    for points, solid in zip(placed, plan.solids, strict=True):
        voxels.append(_filled(points[solid.faces], voxel))
    depth = 0
    pair = None
    for i, j in itertools.combinations(range(len(voxels)), 2):
        shared = _shared(voxels[i], voxels[j])
        runs = np.minimum.reduce([_runs(shared, axis) for axis in range(3)])
        shortest = int(runs.max(initial=0))
        if shortest > depth:
            depth = shortest
            pair = (i, j)
    return Overlap(depth * voxel, pair, walls, sticking_out)


def _filled(triangles: np.ndarray, voxel: float) -> Voxels:
    """Return the voxels of a lattice whose centres closed surfaces (F, 3, 3) enclose.

    The lattice goes through the bin's corner.
    """
    triangles = triangles / voxel
    low = np.floor(triangles.min((0, 1))).astype(np.int64)
    shape = np.ceil(triangles.max((0, 1))).astype(np.int64) - low
    return low, enclosed(triangles - low, *shape.tolist())


def _shared(a: Voxels, b: Voxels) -> np.ndarray:
    """Voxels that both items fill.

    Shape (A, B, C) bool over the part of the lattice that both have.
    """
    low = np.maximum(a[0], b[0])
    end_of_a = a[0] + a[1].shape
    end_of_b = b[0] + b[1].shape
    high = np.maximum(np.minimum(end_of_a, end_of_b), low)
    return _part(a, low, high) & _part(b, low, high)


def _part(voxels: Voxels, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return which voxels from `low` to below `high` an item fills."""
    first, filled = voxels
    return filled[tuple(map(slice, low - first, high - first))]


def _runs(mask: np.ndarray, axis: int) -> np.ndarray:
    """Length of the run of set voxels along an axis that each voxel belongs to.

    0 for voxels that are not set.
    """
    mask = np.moveaxis(mask, axis, -1)
    at = np.arange(mask.shape[-1])
    # The last voxel that is not set before each voxel, and the first after it.
    before = np.maximum.accumulate(np.where(mask, -1, at), axis=-1)
    from_end = np.where(mask, mask.shape[-1], at)[..., ::-1]
    after = np.minimum.accumulate(from_end, axis=-1)[..., ::-1]
    return np.moveaxis(np.where(mask, after - before - 1, 0), -1, axis)
