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

# An action lasts `SUBSTEPS` substeps of `DT`.
DT = 0.05  # s
SUBSTEPS = 10
GOAL_RADIUS = 2.0  # m
CORE_RADIUS = 0.5  # m
OBSTACLE_RADIUS = 1.0  # m

# A robot sees at most this many objects of a kind.
NEAREST = 5

# Both coordinates of an object that is missing: so far away, nothing detects it and it moves no water.
FAR = 1e5  # m

QUIRKS = ("lagged_velocity", "still_start", "late_limit", "terminal_limit", "touching_cores", "fewer_objects")
"""Faults of the released code, described in `docs/environments/marine-reference.md`."""


@dataclass(frozen=True)
class Craft:
    """Constants of a version of the task.

    Attributes:
        version: "v2" or "v3".
        side: Side of the map, metres.
        clear_radius: Radius around starts and goals inside which nothing else begins, metres.
        edge_speed: Least and largest speed of the water at the edge of a core, m/s.
        radius: Radius of a robot in collisions, metres.
        detection_radius: Radius of a robot when another one detects it, metres.
        sight: Range of detection, to the edge of the detected object, metres.
        step_reward: Reward of every action.
        collision_reward: Reward of a collision.
        goal_reward: Reward of an arrival.
        num_actions: Number of discrete actions.
        idle: The discrete action that does nothing.
        observation_size: Length of a robot's observation vector.
        num_seen: Most objects that a robot sees.
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


# Half the diagonal of a hull, from its length and width in metres.
_V2_HALF_DIAGONAL = 0.5 * math.hypot(1.0, 0.5)
_V3_HALF_DIAGONAL = 0.5 * math.hypot(5.0, 2.5)

_V2 = Craft(
    version="v2",
    side=50.0,
    clear_radius=5.0,
    edge_speed=(5.0, 10.0),
    radius=0.8,
    detection_radius=_V2_HALF_DIAGONAL,
    sight=15.0,
    step_reward=-1.0,
    collision_reward=-50.0,
    goal_reward=100.0,
    num_actions=9,
    idle=4,
    observation_size=4 + 7 * NEAREST,
    num_seen=2 * NEAREST,
)
_V3 = Craft(
    version="v3",
    side=55.0,
    clear_radius=10.0,
    edge_speed=(3.0, 3.0),
    radius=_V3_HALF_DIAGONAL,
    detection_radius=_V3_HALF_DIAGONAL,
    sight=20.0,
    step_reward=-0.1,
    collision_reward=-5.0,
    goal_reward=10.0,
    num_actions=25,
    idle=0,
    observation_size=7 + 5 * NEAREST,
    num_seen=NEAREST,
)
CRAFTS = {"v2": _V2, "v3": _V3}


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
        """Return views of `MarineState.scene`, (2R + 3C + 3M, N)."""
        r, c, m = sizes
        goal, core, circulation, obstacle, radius = rows.split((2 * r, 2 * c, c, 2 * m, m))
        n = rows.shape[-1]
        return Scene(
            goal=goal.view(2, r, n),
            core=core.view(2, c, 1, n),
            circulation=circulation.view(c, 1, n),
            obstacle=obstacle.view(2, m, n),
            obstacle_radius=radius,
        )

    def join(self) -> Tensor:
        """Return one tensor of all parts, (2R + 3C + 3M, N)."""
        return torch.cat([part.flatten(0, -2) for part in self])


# Rows of `MarineState.motion`. Places are metres, velocities m/s in the frame of the map, angles radians.
PLACE = slice(0, 2)
HEADING = 2
# The observed velocity over ground.
VELOCITY = slice(3, 5)
# The velocity of the water at the robot's place.
DRIFT = slice(5, 7)
# v2: the speed through the water, along the heading.
SPEED = 7
# v3: the observed yaw rate.
YAW_RATE = 7
# v3: the velocity through the water, and the yaw rate.
WATER = slice(8, 11)
# v3: the thrusts of the left and the right thruster, newtons.
THRUST = slice(11, 13)
MOTION_SIZE = {"v2": 8, "v3": 13}


@dataclass
class MarineState:
    """Full state of a batch of worlds, with its last observations.

    Attributes:
        scene: Static parts, (2R + 3C + 3M, N), see `Scene`.
        motion: Motion of the robots, (`MOTION_SIZE`, R, N), rows as named above.
        exists: Robots that the world has.
        active: Robots that exist and have neither arrived nor collided.
        arrived: Robots that have reached their goals.
        collided: Robots that have met something.
        energy: Energy spent in this episode.
        score: Sum of the rewards of this episode.
        observation: Last observation vectors.
        object_mask: 1 where a slot of the observation holds an object, else 0.
        clearance: Distance from the hull to the nearest detected object.
        step_count: Actions of this episode so far.
        episode: Number of episodes that have started.
        level: Row of the curriculum.
        next_level: Row of the curriculum for the next episode.
        key: Key of this episode's sensor noise.
    """

    scene: Tensor
    motion: Tensor
    exists: Tensor  # (R, N) bool
    active: Tensor  # (R, N) bool
    arrived: Tensor  # (R, N) bool
    collided: Tensor  # (R, N) bool
    energy: Tensor  # (R, N)
    score: Tensor  # (R, N)
    observation: Tensor  # (N, R, F)
    object_mask: Tensor  # (N, R, num_seen)
    clearance: Tensor  # (R, N), metres
    step_count: Tensor  # (N,) int64
    episode: Tensor  # (N,) int64
    level: Tensor  # (N,) int64
    next_level: Tensor  # (N,) int64
    key: Tensor  # (N,) int64


class After(NamedTuple):
    """Robots and their sensor readings after an action.

    Attributes:
        motion: As in `MarineState`, like all fields without a shape here.
        energy: Energy of the action alone, also for robots that are not active.
        touches: Robots whose hull meets something.
        turn: Turn to starboard that a rule asks for, radians, (R, N); None in v2.
    """

    motion: Tensor
    energy: Tensor
    observation: Tensor
    object_mask: Tensor
    clearance: Tensor
    touches: Tensor  # (R, N) bool
    turn: Tensor | None


class Derived(NamedTuple):
    """Outputs of an environment that are derived from a state.

    A kernel writes them together with the state.

    Attributes:
        object_mask: Slots of the observation that hold an object.
        action_mask: Actions that a robot may take, (N, R, A) bool; None for continuous actions.
        success: Worlds whose robots have all arrived.
        done: Robots whose episode has ended with this step, (R, N) bool; None after a reset.
    """

    object_mask: Tensor  # (N, R, num_seen) bool
    action_mask: Tensor | None
    success: Tensor  # (N,) bool
    done: Tensor | None


def contiguous_copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy that torch.compile does not fuse with its readers.

    torch.compile fuses a plain `contiguous` into the loops that read it, and those then run along the axes of the
    original, one number at a time. It never does so with a tensor of given strides.
    """
    whole = tensor.contiguous()
    return whole.as_strided(whole.shape, whole.stride())


def to_bool(zeros_and_ones: Tensor) -> Tensor:
    """Convert zeros and ones (…) to bool.

    The code that torch.compile generates for a comparison takes twenty times as long on a CPU.
    """
    return zeros_and_ones.to(torch.uint8).view(torch.bool)
