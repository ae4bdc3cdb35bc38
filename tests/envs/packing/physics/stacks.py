"""Plans of boxes for tests of physics, and of all that looks at poses.

The bin is 0.4 × 0.4 × 0.3 m.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.plan import PackingPlan, Pose
from torchrl_gpu.envs.packing.rotations import turn

BIN = (0.4, 0.4, 0.3)
Box = tuple[Sequence[float], Sequence[float]]


def plan_of_boxes(*boxes: Box, bin_size: tuple[float, float, float] = BIN) -> PackingPlan:
    """Boxes given as (lower corner, sides), metres, in order."""
    solids = tuple(Solid.of_box(f"box-{i}", np.array(sides)) for i, (_, sides) in enumerate(boxes))
    poses = tuple(Pose(i, np.eye(3), np.array(corner)) for i, (corner, _) in enumerate(boxes))
    return PackingPlan(solids, poses, bin_size)


def prism(sides: int, radius: float, height: float, name: str = "prism") -> Solid:
    """An upright prism over a regular polygon, its base at height 0 about the origin."""
    angle = 2 * np.pi * np.arange(sides) / sides
    ring = radius * np.stack([np.cos(angle), np.sin(angle)], 1)
    vertices = np.concatenate([np.c_[ring, np.zeros(sides)], np.c_[ring, np.full(sides, height)]])
    i = np.arange(sides)
    j = (i + 1) % sides
    walls = np.concatenate([np.stack([i, j, j + sides], 1), np.stack([i, j + sides, i + sides], 1)])
    fan = np.arange(1, sides - 1)
    base = np.stack([np.zeros_like(fan), fan + 1, fan], 1)
    lid = np.stack([np.zeros_like(fan), fan, fan + 1], 1) + sides
    area = sides / 2 * radius**2 * np.sin(2 * np.pi / sides)
    centre = np.array([0.0, 0.0, height / 2])
    return Solid(name, (vertices,), vertices, np.concatenate([walls, base, lid]), centre, float(area * height))


def turned(solid: Solid, roll: float, pitch: float, yaw: float, corner: Sequence[float]) -> Pose:
    """A solid turned by degrees, the lower corner of its bounds at a point."""
    rotation = turn(roll, pitch, yaw)
    return Pose(0, rotation, np.array(corner) - (solid.vertices @ rotation.T).min(0))
