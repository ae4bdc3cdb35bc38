"""Rewards of actions, ends of episodes, and turns asked for by regulations.

The regulations are those against collisions at sea (COLREGs), and the turns are to starboard.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.types import GOAL_RADIUS, PLACE, Craft, MarineState, Scene

# v3: reward of each radian of a turn to starboard that a rule asks for.
RULE_REWARD = -0.1

# Slower objects count as at rest.
LEAST_SPEED = 0.5  # m/s

# The zone ahead of the other robot in which a meeting is head on.
HEAD_ON_LENGTH = 17.0  # m
HEAD_ON_HALF_WIDTH = 4.5  # m

# The zone on the other robot's port side in which a meeting is a crossing: least and largest distance ahead and aside.
# In front, it ends at the line from the other robot to `CORNER`.
CROSSING_AHEAD = (-9.0, 12.0)  # m
CROSSING_ASIDE = (-17.0, 0.0)  # m
CORNER = (12.0, -7.0)  # m

# Distance to keep from the other robot's hull.
MARGIN = 1.0  # m


class Outcome(NamedTuple):
    """Rewards and ends after an action.

    Attributes:
        reward: Rewards, 0 for robots that were not active.
        arrived: Robots that have arrived, with this action or before.
        collided: Robots that have collided, with this action or before.
        active: Robots that exist and have neither arrived nor collided.
        terminated: Robots whose task has ended; false for robots that do not exist.
        truncated: Robots whose episode was cut off; false for robots that do not exist.
        over: Episodes that are over.
        cut: Episodes that are over by the time limit.
        decided: Episodes that are over because of the robots.
    """

    reward: Tensor  # (R, N)
    arrived: Tensor  # (R, N) bool
    collided: Tensor  # (R, N) bool
    active: Tensor  # (R, N) bool
    terminated: Tensor  # (R, N) bool
    truncated: Tensor  # (R, N) bool
    over: Tensor  # (N,) bool
    cut: Tensor  # (N,) bool
    decided: Tensor  # (N,) bool


def distance(motion: Tensor, scene: Scene) -> Tensor:
    """Return the distance of every robot to its goal, metres, (R, N)."""
    x, y = scene.goal - motion[PLACE]
    return (x * x + y * y).sqrt()


def rewards_and_ends(
    before: MarineState,
    motion: Tensor,
    scene: Scene,
    craft: Craft,
    *,
    touches: Tensor,
    turn: Tensor | None,
    cut: Tensor,
    end_on_collision: bool,
    cut_is_end: bool,
) -> Outcome:
    """Return rewards and ends of an action from the state `before` to `motion`.

    The time limit goes before a collision, and a collision before an arrival.

    Args:
        before: State before the action.
        motion: Motion after the action, as in `MarineState`.
        scene: Goals, cores and obstacles.
        craft: Constants of the version.
        touches: Robots that meet something, (R, N) bool.
        turn: Turn to starboard that a rule asks for, radians, (R, N); None without rules.
        cut: Worlds whose time is up, (N,) bool.
        end_on_collision: Whether a collision ends the episode for all robots.
        cut_is_end: Whether the time limit also counts as an end of the task.
    """
    there = before.active
    counts = before.active & ~cut
    far = distance(motion, scene)
    crash = counts & touches
    home = counts & ~touches & (far <= GOAL_RADIUS)
    reward = craft.step_reward + distance(before.motion, scene) - far
    if turn is not None:
        reward = reward + RULE_REWARD * turn
    # Flags are converted to the reward's dtype: flags times a Python number would have torch's default dtype.
    reward = reward + crash.to(reward) * craft.collision_reward + home.to(reward) * craft.goal_reward
    arrived = before.arrived | home
    collided = before.collided | crash
    active = there & ~crash & ~home
    decided = ~active.any(0)
    if end_on_collision:
        decided = decided | collided.any(0)
    over = cut | decided
    truncated = active & over
    terminated = arrived | collided
    if cut_is_end:
        terminated = terminated | (active & cut)
        decided = decided | cut
    return Outcome(
        reward=reward * there,
        arrived=arrived,
        collided=collided,
        active=active,
        terminated=terminated,
        truncated=truncated,
        over=over,
        cut=cut,
        decided=decided,
    )


def starboard_turn(velocity: Tensor, objects: Tensor, radius: float) -> Tensor:
    """Return the turn to starboard with which a robot should give way.

    It gives way to the nearest object for which a rule asks that. Seen from the object along its course, a robot gives
    way where it comes head on or crosses from the object's port side. It should then head past the object's circle,
    widened by its own radius. In the robot's frame, `velocity` over ground is (R, 2, N), and `objects` are x, y, vx,
    vy, r, nearest first, (R, K, 5, N). Returned are radians (R, N) from 0, where no rule applies, to π.
    """
    x, y, vx, vy, r = objects.unbind(2)  # (R, K, N)
    own_x, own_y = velocity.unsqueeze(2).unbind(1)  # (R, 1, N)
    speed = _norm(vx, vy)
    cos = vx / speed.clamp_min(LEAST_SPEED)
    sin = vy / speed.clamp_min(LEAST_SPEED)
    ahead = -(cos * x + sin * y)
    aside = sin * x - cos * y
    along = cos * own_x + sin * own_y
    across = cos * own_y - sin * own_x
    meets = _gives_way(ahead, aside, along, across)
    distance = _norm(x, y)
    wide = r + MARGIN
    moving = (speed >= LEAST_SPEED) & (_norm(own_x, own_y) >= LEAST_SPEED)
    # Within the circle there is no tangent: such objects are left out below.
    tangent = (distance * distance - wide * wide).clamp_min(0).sqrt()
    # The bearing is measured from the robot's own course.
    bearing = torch.atan2(own_x * y - own_y * x, own_x * x + own_y * y)
    past_circle = torch.atan2(wide, tangent)
    past_own_width = (radius / tangent).atan()
    turn = bearing + past_circle + past_own_width
    turn = (turn + math.pi).remainder(2 * math.pi)
    turn = turn - math.pi
    applies = meets & moving & (distance >= wide)
    turn = torch.where(applies, turn, 0.0)
    nearest = torch.zeros_like(turn[:, 0])
    # From the farthest to the nearest, which so has the last word.
    for of_object in reversed(turn.unbind(1)):
        nearest = torch.where(of_object > 0, of_object, nearest)
    return nearest


def _norm(x: Tensor, y: Tensor) -> Tensor:
    return (x * x + y * y).sqrt()


def _gives_way(ahead: Tensor, aside: Tensor, along: Tensor, across: Tensor) -> Tensor:
    """Return whether a robot meets the other head on, or crosses from its port side.

    Head on is within 45° of the opposite course, and a crossing is within 45° of a course across.
    """
    is_ahead = (ahead >= 0) & (ahead <= HEAD_ON_LENGTH)
    before = is_ahead & (aside.abs() <= HEAD_ON_HALF_WIDTH)
    head_on = before & (across.abs() < -along)
    beside = (aside >= CROSSING_ASIDE[0]) & (aside <= CROSSING_ASIDE[1])
    beside &= (ahead >= CROSSING_AHEAD[0]) & (ahead <= CROSSING_AHEAD[1])
    in_front = aside - CORNER[1] > CORNER[1] / CORNER[0] * (ahead - CORNER[0])
    return head_on | (beside & ~in_front & (across >= along.abs()))
