"""Shapes and poses of the items of a packed bin, in metres.

Physics, scene export and overlaps read them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from torchrl_gpu.envs.packing.items import ItemSource
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.types import Bin, Catalogue


class PackedBins(Protocol):
    """What a `PackingEnv` tells of the items in its bins and their placements."""

    bin: Bin
    catalogue: Catalogue
    items: ItemSource
    orientations: str | float
    walls: bool

    def sequence_number(self, index: int) -> int:
        """Return the number of a bin's items in their source."""

    @property
    def num_packed(self) -> Tensor:
        """(N,) int64."""

    @property
    def placements(self) -> Tensor:
        """Item, orientation, x and y in cells, in order of placement, (N, T, 4) int32."""

    @property
    def placement_z(self) -> Tensor:
        """Metres, (N, T) float32."""


class Pose(NamedTuple):
    """Pose of a packed item.

    A point p of its solid is at `rotation @ p + position`, metres from the bin's corner.

    Attributes:
        item: Row of the catalogue.
        rotation: (3, 3) float64.
        position: Metres, (3,) float64.
    """

    item: int
    rotation: np.ndarray
    position: np.ndarray

    @property
    def quaternion(self) -> np.ndarray:
        """The rotation as (w, x, y, z), w ≥ 0, float64."""
        return quaternion(self.rotation)


class PackingPlan(NamedTuple):
    """Shapes and poses of the items of one bin, in the order of packing.

    Attributes:
        solids: Shape of each item, in a frame of its own.
        poses: Planned pose of each item.
        bin_size: Length, width and height, metres.
        walls: Whether there are walls around the bin; a pallet has none.
        masses: Of each item, kilograms; None for one density of all.
    """

    solids: tuple[Solid, ...]
    poses: tuple[Pose, ...]
    bin_size: tuple[float, float, float]
    walls: bool = True
    masses: tuple[float, ...] | None = None


def plan_of(env: PackedBins, index: int) -> PackingPlan:
    """Return the plan of the items now in bin `index` of an environment.

    This reads the device back.
    """
    planned = poses(env, index)
    items = [pose.item for pose in planned]
    shapes = {row: solid_of(env, row) for row in set(items)}
    solids = tuple(shapes[row] for row in items)
    masses = env.items.masses(env.sequence_number(index), items, env.bin, env.orientations)
    return PackingPlan(solids, tuple(planned), env.bin.size, env.walls, masses)


def solid_of(env: PackedBins, item: int) -> Solid:
    """Return the solid of a row of an environment's catalogue."""
    if env.catalogue.flat:
        p, q = env.catalogue.extent[item, 0].tolist()
        cell_x, cell_y = env.bin.cell
        height = env.catalogue.height[item, 0].item()
        size = np.array([p * cell_x, q * cell_y, height])
        return Solid.of_box(f"box-{item}", size)
    return env.items.solid(item, env.bin)


def poses(env: PackedBins, index: int) -> list[Pose]:
    """Return the poses of the items in bin `index`, in the order of packing.

    This reads the device back.
    """
    rotations = orientation_set(env.orientations, boxes=env.catalogue.flat)
    cell_x, cell_y = env.bin.cell
    number = int(env.num_packed[index])
    rows = env.placements[index, :number].tolist()
    heights = env.placement_z[index, :number].tolist()
    found = []
    for (item, orientation, x, y), z in zip(rows, heights, strict=True):
        rotation = rotations[orientation]
        corner = np.array([x * cell_x, y * cell_y, z])
        turned = solid_of(env, item).vertices @ rotation.T
        found.append(Pose(item, rotation, corner - turned.min(0)))
    return found


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """Return the unit quaternion (w, x, y, z), w ≥ 0, nearest to a rotation.

    The rotation is (3, 3), the quaternion float64. It is the eigenvector of the largest eigenvalue of a symmetric
    matrix: Bar-Itzhack, JGCD 23(6), 2000. The shorter formula, from the trace, loses digits near half turns.
    """
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = rotation
    k = np.zeros((4, 4))
    k[0] = xx + yy + zz, zy - yz, xz - zx, yx - xy
    k[1] = zy - yz, xx - yy - zz, xy + yx, xz + zx
    k[2] = xz - zx, xy + yx, yy - xx - zz, yz + zy
    k[3] = yx - xy, xz + zx, yz + zy, zz - xx - yy
    found = np.linalg.eigh(k)[1][:, -1]
    return found if found[0] >= 0 else -found
