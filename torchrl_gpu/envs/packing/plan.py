"""`PackingPlan`: shapes and poses of all packed items, for physics, scene export and overlap checks."""

from __future__ import annotations

from typing import NamedTuple

from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.poses import PackedBins, Pose, poses, solid_of


class PackingPlan(NamedTuple):
    """Shapes and poses of the items of one bin, in the order of packing.

    Attributes:
        solids: Shape of each item, in a frame of its own.
        poses: Planned pose of each item.
        bin_size: Length, width and height, metres.
    """

    solids: tuple[Solid, ...]
    poses: tuple[Pose, ...]
    bin_size: tuple[float, float, float]


def plan_of(env: PackedBins, index: int) -> PackingPlan:
    """Plan of the items now in bin `index` of an environment; reads the device back."""
    planned = poses(env, index)
    shapes = {row: solid_of(env, row) for row in {pose.item for pose in planned}}
    return PackingPlan(tuple(shapes[pose.item] for pose in planned), tuple(planned), env.bin.size)
