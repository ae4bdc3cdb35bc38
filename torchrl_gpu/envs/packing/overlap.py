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


Voxels = tuple[np.ndarray, np.ndarray]
"""First voxel (3,) int64 of a part of the lattice, and those of it that an item fills, (A, B, C) bool."""


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


def _filled(triangles: np.ndarray, voxel: float) -> Voxels:
    """The voxels of a lattice through the bin's corner whose centres closed surfaces (F, 3, 3) enclose."""
    triangles = triangles / voxel
    low = np.floor(triangles.min((0, 1))).astype(np.int64)
    shape = np.ceil(triangles.max((0, 1))).astype(np.int64) - low
    return low, enclosed(triangles - low, *shape.tolist())


def _shared(a: Voxels, b: Voxels) -> np.ndarray:
    """Voxels that both items fill.

    Shape (A, B, C) bool over the part of the lattice that both have.
    """
    low = np.maximum(a[0], b[0])
    high = np.maximum(np.minimum(a[0] + a[1].shape, b[0] + b[1].shape), low)
    in_a, in_b = (filled[tuple(map(slice, low - first, high - first))] for first, filled in (a, b))
    return in_a & in_b


def _runs(mask: np.ndarray, axis: int) -> np.ndarray:
    """Length of the run of set voxels along an axis that each voxel belongs to.

    0 for voxels that are not set.
    """
    mask = np.moveaxis(mask, axis, -1)
    at = np.arange(mask.shape[-1])
    before = np.maximum.accumulate(np.where(mask, -1, at), axis=-1)  # the last voxel not set, up to here
    after = np.minimum.accumulate(np.where(mask, mask.shape[-1], at)[..., ::-1], axis=-1)[..., ::-1]
    return np.moveaxis(np.where(mask, after - before - 1, 0), -1, axis)
