"""Constants of the two kinds of craft, and the state of a batch of worlds.

Tensors of a state have the environments last, (…, N), so that every operator of a step runs along N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.levels import Sizes

DT = 0.05  # s, one substep
SUBSTEPS = 10  # of an action
GOAL_RADIUS = 2.0  # m
CORE_RADIUS = 0.5  # m
OBSTACLE_RADIUS = 1.0  # m
NEAREST = 5  # objects of a kind that a robot sees
FAR = 1e5  # m, both coordinates of what is not there: nothing detects it and it moves no water

QUIRKS = ("lagged_velocity", "still_start", "late_limit", "terminal_limit", "touching_cores", "fewer_objects")
"""Faults of the released code, described in `docs/environments/marine-reference.md`."""


@dataclass(frozen=True)
class Craft:
    """Constants of a version, v2 or v3; lengths are metres.

    Attributes:
        version: "v2" or "v3".
        side: Of the map.
        clear_radius: Around starts and goals, where nothing else begins.
        edge_speed: Least and largest speed of the water at the edge of a core, m/s.
        radius: Of a robot that collides.
        detection_radius: Of a robot that is detected.
        sight: Range of detection, to the edge of what is detected.
        step_reward, collision_reward, goal_reward: Of an action, and of how it ended.
        num_actions: Number of discrete actions.
        idle: The discrete action that does nothing.
        observation_size: Numbers that a robot observes.
        num_seen: Objects that it sees at most.
    """

    version: str
    side: float
    clear_radius: float
    edge_speed: tuple[float, float]
    radius: float
    detection_radius: float
    sight: float
    step_reward: float
    collision_reward: float
    goal_reward: float
    num_actions: int
    idle: int
    observation_size: int
    num_seen: int


_LENGTHS = {"v2": (1.0, 0.5), "v3": (5.0, 2.5)}  # of a hull, metres

CRAFTS = {
    "v2": Craft(
        version="v2",
        side=50.0,
        clear_radius=5.0,
        edge_speed=(5.0, 10.0),
        radius=0.8,
        detection_radius=0.5 * math.hypot(*_LENGTHS["v2"]),
        sight=15.0,
        step_reward=-1.0,
        collision_reward=-50.0,
        goal_reward=100.0,
        num_actions=9,
        idle=4,
        observation_size=4 + 3 * NEAREST + 4 * NEAREST,
        num_seen=2 * NEAREST,
    ),
    "v3": Craft(
        version="v3",
        side=55.0,
        clear_radius=10.0,
        edge_speed=(3.0, 3.0),
        radius=0.5 * math.hypot(*_LENGTHS["v3"]),
        detection_radius=0.5 * math.hypot(*_LENGTHS["v3"]),
        sight=20.0,
        step_reward=-0.1,
        collision_reward=-5.0,
        goal_reward=10.0,
        num_actions=25,
        idle=0,
        observation_size=7 + 5 * NEAREST,
        num_seen=NEAREST,
    ),
}


class Scene(NamedTuple):
    """Static parts of a batch of worlds: views of one tensor.

    Attributes:
        goal: (2, R, N), metres.
        core: (2, C, 1, N), metres.
        circulation: (C, 1, N), circulation over 2π, m²/s; positive for a core that turns from x to −y ("clockwise").
        obstacle: (2, M, N), metres.
        obstacle_radius: (M, N), metres.
    """

    goal: Tensor
    core: Tensor
    circulation: Tensor
    obstacle: Tensor
    obstacle_radius: Tensor

    @staticmethod
    def split(rows: Tensor, sizes: Sizes) -> Scene:
        """Views of `MarineState.scene`, (2R + 3C + 3M, N)."""
        r, c, m = sizes
        goal, core, circulation, obstacle, radius = rows.split((2 * r, 2 * c, c, 2 * m, m))
        n = rows.shape[-1]
        flowing = core.view(2, c, 1, n), circulation.view(c, 1, n)
        return Scene(goal.view(2, r, n), *flowing, obstacle.view(2, m, n), radius)

    def joined(self) -> Tensor:
        """Tensor of all parts, (rows of all parts, N)."""
        return torch.cat([part.flatten(0, -2) for part in self])


# Rows of `MarineState.motion`. Places are metres, velocities m/s in the frame of the map, angles radians.
PLACE = slice(0, 2)
HEADING = 2
VELOCITY = slice(3, 5)  # over ground, as it is observed
DRIFT = slice(5, 7)  # of the water at the robot's place
SPEED = 7  # v2: through the water, along the heading
YAW_RATE = 7  # v3: as it is observed
WATER = slice(8, 11)  # v3: velocity through the water, and yaw rate
THRUST = slice(11, 13)  # v3: left and right, newtons
MOTION_SIZE = {"v2": 8, "v3": 13}


@dataclass
class MarineState:
    """Full state of a batch of worlds, with its last observations."""

    scene: Tensor  # (2R + 3C + 3M, N), see `Scene`
    motion: Tensor  # (MOTION_SIZE, R, N)
    exists: Tensor  # (R, N) bool, robots that this world has
    active: Tensor  # (R, N) bool, those that have neither arrived nor collided
    arrived: Tensor  # (R, N) bool
    collided: Tensor  # (R, N) bool
    energy: Tensor  # (R, N), spent in this episode
    score: Tensor  # (R, N), sum of the rewards of this episode
    observation: Tensor  # (N, R, F)
    object_mask: Tensor  # (N, R, num_seen) of 0 and 1
    clearance: Tensor  # (R, N), metres
    step_count: Tensor  # (N,) int64
    episode: Tensor  # (N,) int64, episodes begun
    level: Tensor  # (N,) int64, row of the curriculum
    next_level: Tensor  # (N,) int64, that of the episode after this one
    key: Tensor  # (N,) int64, names the noise of this episode
