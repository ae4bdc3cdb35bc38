"""Overlap of packed items, from their shapes in final poses and independent of heightmaps."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from torchrl_gpu.envs.packing.items.columns import enclosed
from torchrl_gpu.envs.packing.plan import PackingPlan


class Overlap(NamedTuple):
    """Deepest overlaps of a plan: between two items, and of an item with the walls."""

    # Overlap of two items, metres: the largest, over the points that they share, of the shortest run of shared points
    # along x, y or z. In whole voxels, and so exact to a voxel.
    items: float
    pair: tuple[int, int] | None  # which two, in order of packing; None if no two overlap
    walls: float  # metres that an item sticks out of the bin, exact
    item: int | None  # which one; None if none does

    @property
    def deepest(self) -> float:
        """The larger of the two overlaps, metres."""
        return max(self.items, self.walls)


class _Voxels(NamedTuple):
    """Occupancy of one item, over the part of the lattice that begins at voxel `low` (3,) int64."""

    low: np.ndarray
    filled: np.ndarray  # (A, B, C) bool


def overlaps(plan: PackingPlan, voxel: float) -> Overlap:
    """The deepest overlap between two items, and between an item and the bin.

    A voxel, of a side of a cell or less, is filled where its centre is inside; ValueError for a side that is not
    positive.
    """
    if not 0 < voxel < math.inf:
        raise ValueError(f"overlaps: voxel must be a positive length in metres; got {voxel}")
    placed = [
        solid.vertices @ pose.rotation.T + pose.position for solid, pose in zip(plan.solids, plan.poses, strict=True)
    ]
    out = [max(0.0, float(-points.min()), float((points - plan.bin_size).max())) for points in placed]
    item = max(range(len(out)), key=out.__getitem__, default=None)
    walls = 0.0 if item is None else out[item]
    voxels = [_filled(points[solid.faces], voxel) for points, solid in zip(placed, plan.solids, strict=True)]
    depth, pair = 0, None
    for i, j in itertools.combinations(range(len(voxels)), 2):
        shared = _shared(voxels[i], voxels[j])
        shortest = np.minimum.reduce([_runs(shared, axis) for axis in range(3)]).max(initial=0)
        if shortest > depth:
            depth, pair = int(shortest), (i, j)
    return Overlap(depth * voxel, pair, walls, item if walls else None)


def _filled(triangles: np.ndarray, voxel: float) -> _Voxels:
    """The voxels of a lattice through the bin's corner whose centres closed surfaces (F, 3, 3) enclose."""
    triangles = triangles / voxel
    low = np.floor(triangles.min((0, 1))).astype(np.int64)
    shape = np.ceil(triangles.max((0, 1))).astype(np.int64) - low
    return _Voxels(low, enclosed(triangles - low, *shape.tolist()))


def _shared(a: _Voxels, b: _Voxels) -> np.ndarray:
    """Voxels that both items fill, (A, B, C) bool over the part of the lattice that both have."""
    low = np.maximum(a.low, b.low)
    high = np.minimum(a.low + a.filled.shape, b.low + b.filled.shape)
    if (high <= low).any():
        return np.zeros((0, 0, 0), dtype=bool)
    cut = []
    for each in (a, b):
        start, stop = low - each.low, high - each.low
        cut.append(each.filled[start[0] : stop[0], start[1] : stop[1], start[2] : stop[2]])
    return cut[0] & cut[1]


def _runs(mask: np.ndarray, axis: int) -> np.ndarray:
    """Length of the run of set voxels along an axis that each voxel belongs to; 0 for voxels that are not set."""
    mask = np.moveaxis(mask, axis, -1)
    at = np.arange(mask.shape[-1])
    before = np.maximum.accumulate(np.where(mask, -1, at), axis=-1)  # the last voxel not set, up to here
    after = np.minimum.accumulate(np.where(mask, mask.shape[-1], at)[..., ::-1], axis=-1)[..., ::-1]
    return np.moveaxis(np.where(mask, after - before - 1, 0), -1, axis)
