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
    """Constants of a version, v2 or v3; lengths are metres."""

    version: str  # "v2" or "v3"
    side: float  # of the map
    clear_radius: float  # around starts and goals, where nothing else begins
    edge_speed: tuple[float, float]  # least and largest speed of the water at the edge of a core, m/s
    radius: float  # of a robot that collides
    detection_radius: float  # of a robot that is detected
    sight: float  # range of detection, to the edge of what is detected
    step_reward: float  # of an action
    collision_reward: float
    goal_reward: float
    num_actions: int  # discrete ones
    idle: int  # the discrete action that does nothing
    observation_size: int  # numbers that a robot observes
    num_seen: int  # objects that it sees at most


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
    """Static parts of a batch of worlds: views of one tensor."""

    goal: Tensor  # (2, R, N), metres
    core: Tensor  # (2, C, 1, N), metres
    # (C, 1, N), circulation over 2π, m²/s; positive for a core that turns from x to −y ("clockwise")
    circulation: Tensor
    obstacle: Tensor  # (2, M, N), metres
    obstacle_radius: Tensor  # (M, N), metres

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


class After(NamedTuple):
    """Robots and their sensor readings after an action; shapes as in `MarineState`."""

    motion: Tensor
    energy: Tensor  # of the action, also where a robot is not active
    observation: Tensor
    object_mask: Tensor
    clearance: Tensor
    touches: Tensor  # (R, N) bool, true where the hull meets something
    turn: Tensor | None  # v3: what a rule asks for, radians to starboard (R, N)


class Shown(NamedTuple):
    """What an environment shows of a state besides its tensors, as a kernel writes it together with the state."""

    object_mask: Tensor  # (N, R, num_seen) bool
    action_mask: Tensor | None  # (N, R, A) bool; None where actions are continuous
    success: Tensor  # (N,) bool, all robots have arrived
    done: Tensor | None  # (R, N) bool, robots whose episode has ended with this step; None after a reset


def contiguous_copy(tensor: Tensor) -> Tensor:
    """Contiguous tensor of the same numbers and shape (…), which torch.compile fuses into nothing else.

    torch.compile fuses a plain `contiguous` into the loops that read it, and those then run along the axes of the
    original, one number at a time. It never does so with a tensor of given strides.
    """
    whole = tensor.contiguous()
    return whole.as_strided(whole.shape, whole.stride())


def to_bool(zeros_and_ones: Tensor) -> Tensor:
    """Zeros and ones (…) as bool: what torch.compile makes of a comparison takes twenty times as long on a CPU."""
    return zeros_and_ones.to(torch.uint8).view(torch.bool)
