"""A packed bin as physics, scenes and checks see it: shapes and poses instead of heightmaps."""

from __future__ import annotations

from typing import NamedTuple

from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.poses import PackedBins, Pose, poses, solid_of


class PackingPlan(NamedTuple):
    """The items of one bin, in the order in which they are packed.

    Attributes:
        solids: Shape of each item, in a frame of its own.
        poses: Where each is to be.
        bin_size: Length, width and height, metres.
    """

    solids: tuple[Solid, ...]
    poses: tuple[Pose, ...]
    bin_size: tuple[float, float, float]


def plan_of(env: PackedBins, index: int) -> PackingPlan:
    """What bin `index` of an environment holds now; reads the device back."""
    planned = poses(env, index)
    shapes = {row: solid_of(env, row) for row in {pose.item for pose in planned}}
    return PackingPlan(tuple(shapes[pose.item] for pose in planned), tuple(planned), env.bin.size)
