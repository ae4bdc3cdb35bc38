"""Overlap of packed items, from their shapes in final poses and independent of heightmaps."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from torchrl_gpu.envs.packing.items.columns import crossings
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

    A voxel, of a side of a cell or less, is filled where its centre is inside.

    Raises:
        ValueError: The side is not positive.
    """
    if not 0 < voxel < math.inf:
        raise ValueError(f"overlaps: voxel must be a positive length in metres; got {voxel}")
    placed = [
        solid.vertices @ pose.rotation.T + pose.position for solid, pose in zip(plan.solids, plan.poses, strict=True)
    ]
    walls, item = _sticking_out(placed, plan.bin_size)
    voxels = [_filled(points[solid.faces], voxel) for points, solid in zip(placed, plan.solids, strict=True)]
    depth, pair = 0, None
    for i, j in itertools.combinations(range(len(voxels)), 2):
        shared = _thickness(_shared(voxels[i], voxels[j]))
        if shared > depth:
            depth, pair = shared, (i, j)
    return Overlap(depth * voxel, pair, walls, item)


def _sticking_out(surfaces: list[np.ndarray], size: tuple[float, float, float]) -> tuple[float, int | None]:
    out = [max(0.0, float(-triangles.min()), float((triangles - size).max())) for triangles in surfaces]
    worst = max(range(len(out)), key=out.__getitem__, default=None)
    return (0.0, None) if worst is None or out[worst] == 0 else (out[worst], worst)


def _filled(triangles: np.ndarray, voxel: float) -> _Voxels:
    """The voxels of a lattice through the bin's corner whose centres closed surfaces (F, 3, 3) enclose."""
    triangles = triangles / voxel
    low = np.floor(triangles.min((0, 1))).astype(np.int64)
    columns_x, columns_y, levels = (np.ceil(triangles.max((0, 1))).astype(np.int64) - low).tolist()
    found = crossings(triangles - low, columns_x, columns_y)
    first = np.clip(np.ceil(found.z - 0.5), 0, levels).astype(np.int64)  # the first voxel with its centre above
    winding = np.zeros((columns_x, columns_y, levels + 1), dtype=np.int32)
    np.add.at(winding, (found.x, found.y, first), found.enters)
    return _Voxels(low, winding.cumsum(2)[:, :, :-1] > 0)


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


def _thickness(shared: np.ndarray) -> int:
    """Overlap in voxels: the largest, over shared voxels, of the shortest run of them along x, y or z."""
    if not shared.any():
        return 0
    return int(np.minimum.reduce([_runs(shared, axis) for axis in range(3)]).max())


def _runs(mask: np.ndarray, axis: int) -> np.ndarray:
    """Length of the run of set voxels along an axis that each voxel belongs to; 0 for voxels that are not set."""
    mask = np.moveaxis(mask, axis, -1)
    at = np.arange(mask.shape[-1])
    before = np.maximum.accumulate(np.where(mask, -1, at), axis=-1)  # the last voxel not set, up to here
    after = np.minimum.accumulate(np.where(mask, mask.shape[-1], at)[..., ::-1], axis=-1)[..., ::-1]
    return np.moveaxis(np.where(mask, after - before - 1, 0), -1, axis)
