"""`PackingPlan`: shapes and poses, in metres, of the items of a packed bin, for physics, scene export and overlaps."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from torchrl_gpu.envs.packing.items import ItemSource
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.types import Bin, Catalogue


class PackedBins(Protocol):
    """Attributes of a `PackingEnv` that give the items in its bins and their placements."""

    bin: Bin
    catalogue: Catalogue
    items: ItemSource
    orientations: str | float
    walls: bool

    def sequence_number(self, index: int) -> int: ...  # of the items of a bin, in their source

    @property
    def num_packed(self) -> Tensor: ...  # (N,) int64

    @property
    def placements(self) -> Tensor: ...  # (N, T, 4) int32: item, orientation, x and y in cells, in order of placement

    @property
    def placement_z(self) -> Tensor: ...  # (N, T) float32, metres


class Pose(NamedTuple):
    """Pose of a packed item: a point p of its solid is at `rotation @ p + position`, metres from the bin's corner."""

    item: int
    rotation: np.ndarray  # (3, 3) float64
    position: np.ndarray  # (3,) float64, metres

    @property
    def quaternion(self) -> np.ndarray:
        """The rotation as (w, x, y, z), w ≥ 0.

        Float64 (4,).
        """
        return quaternion(self.rotation)


class PackingPlan(NamedTuple):
    """Shapes and poses of the items of one bin, in the order of packing."""

    solids: tuple[Solid, ...]  # shape of each item, in a frame of its own
    poses: tuple[Pose, ...]  # planned pose of each item
    bin_size: tuple[float, float, float]  # length, width and height, metres
    walls: bool = True  # around the bin; a pallet has none
    masses: tuple[float, ...] | None = None  # of each item, kilograms; None for one density of all


def plan_of(env: PackedBins, index: int) -> PackingPlan:
    """Plan of the items now in bin `index` of an environment.

    Reads the device back.
    """
    planned = poses(env, index)
    shapes = {row: solid_of(env, row) for row in {pose.item for pose in planned}}
    items = [pose.item for pose in planned]
    masses = env.items.masses(env.sequence_number(index), items, env.bin, env.orientations)
    return PackingPlan(tuple(map(shapes.__getitem__, items)), tuple(planned), env.bin.size, env.walls, masses)


def solid_of(env: PackedBins, item: int) -> Solid:
    """`Solid` of a row of an environment's catalogue."""
    if env.catalogue.flat:
        p, q = env.catalogue.extent[item, 0].tolist()
        size = np.array([p * env.bin.cell[0], q * env.bin.cell[1], env.catalogue.height[item, 0].item()])
        return Solid.of_box(f"box-{item}", size)
    return env.items.solid(item, env.bin)


def poses(env: PackedBins, index: int) -> list[Pose]:
    """Poses of the items in bin `index` of an environment, in the order of packing.

    Reads the device back.
    """
    rotations = orientation_set(env.orientations, boxes=env.catalogue.flat)
    number = int(env.num_packed[index])
    rows, heights = env.placements[index, :number].tolist(), env.placement_z[index, :number].tolist()
    found = []
    for (item, orientation, x, y), z in zip(rows, heights, strict=True):
        rotation = rotations[orientation]
        corner = np.array([x * env.bin.cell[0], y * env.bin.cell[1], z])
        found.append(Pose(item, rotation, corner - (solid_of(env, item).vertices @ rotation.T).min(0)))
    return found


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """Unit quaternion (w, x, y, z), w ≥ 0, nearest to a rotation matrix (3, 3).

    Float64. Bar-Itzhack 2000.
    """
    r = rotation
    k = np.array(
        [
            [r[0, 0] + r[1, 1] + r[2, 2], r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]],
            [r[2, 1] - r[1, 2], r[0, 0] - r[1, 1] - r[2, 2], r[0, 1] + r[1, 0], r[0, 2] + r[2, 0]],
            [r[0, 2] - r[2, 0], r[0, 1] + r[1, 0], r[1, 1] - r[0, 0] - r[2, 2], r[1, 2] + r[2, 1]],
            [r[1, 0] - r[0, 1], r[0, 2] + r[2, 0], r[1, 2] + r[2, 1], r[2, 2] - r[0, 0] - r[1, 1]],
        ]
    )
    found = np.linalg.eigh(k)[1][:, -1]
    return found if found[0] >= 0 else -found
