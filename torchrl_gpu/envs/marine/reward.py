"""Rewards of actions, ends of episodes, and the turns to starboard that collision regulations (COLREGs) ask for."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.types import GOAL_RADIUS, PLACE, Craft, MarineState, Scene

RULE_REWARD = -0.1  # v3, per radian of a turn to starboard that a rule asks for
LEAST_SPEED = 0.5  # m/s: slower objects count as at rest
HEAD_ON_LENGTH, HEAD_ON_HALF_WIDTH = 17.0, 4.5  # m, of the zone ahead of the other
CROSSING_AHEAD, CROSSING_ASIDE = (-9.0, 12.0), (-17.0, 0.0)  # m, of the zone to the other's port side
CORNER = (12.0, -7.0)  # m: in front, that zone ends at the line from the other to this point
MARGIN = 1.0  # m, kept from the other's hull


class Outcome(NamedTuple):
    """Rewards and ends after an action."""

    reward: Tensor  # (R, N), 0 for robots that were not active
    arrived: Tensor  # (R, N) bool, with this action or before
    collided: Tensor  # likewise
    active: Tensor  # (R, N) bool, robots that have neither arrived nor collided
    terminated: Tensor  # (R, N) bool; false for robots that do not exist
    truncated: Tensor  # likewise
    over: Tensor  # (N,) bool, episodes that are over
    cut: Tensor  # (N,) bool, over by the time limit
    decided: Tensor  # (N,) bool, over by what robots did


def distance(motion: Tensor, scene: Scene) -> Tensor:
    """Distance of every robot to its goal, metres, (R, N)."""
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
    """Rewards and ends of an action, which led from the state `before` to `motion`.

    The time limit goes before a collision, and a collision before an arrival.

    Robots that meet something are in `touches`, (R, N) bool; `turn` is what a rule asks for, radians to starboard
    (R, N), or None where no rule counts. Where the time is up, `cut` (N,) is true, which `cut_is_end` reports as an end
    of the task, too; `end_on_collision` ends the episode for all.
    """
    there, counts = before.active, before.active & ~cut
    far = distance(motion, scene)
    crash = counts & touches
    home = counts & ~touches & (far <= GOAL_RADIUS)
    reward = craft.step_reward + distance(before.motion, scene) - far
    if turn is not None:
        reward = reward + RULE_REWARD * turn
    # By numbers of the reward's own dtype: flags times a Python number are of torch's default dtype.
    reward = reward + crash.to(reward) * craft.collision_reward + home.to(reward) * craft.goal_reward
    arrived, collided, active = before.arrived | home, before.collided | crash, there & ~crash & ~home
    decided = ~active.any(0)
    if end_on_collision:
        decided = decided | collided.any(0)
    over = cut | decided
    truncated = active & over
    terminated = arrived | collided
    if cut_is_end:
        terminated, decided = terminated | (active & cut), decided | cut
    return Outcome(reward * there, arrived, collided, active, terminated, truncated, over, cut, decided)


def starboard_turn(velocity: Tensor, objects: Tensor, radius: float) -> Tensor:
    """Turn to starboard that a robot should make for the nearest object to which a rule makes it give way.

    Seen from the object along its course, a robot gives way where it comes head on or crosses from the object's port
    side. It should then head past the object's circle, widened by its own radius. In the robot's frame, `velocity` over
    ground is (R, 2, N), and `objects` are x, y, vx, vy, r, nearest first, (R, K, 5, N). Returned are radians (R, N)
    from 0, where no rule applies, to π.
    """
    x, y, vx, vy, r = objects.unbind(2)  # (R, K, N)
    own_x, own_y = velocity.unsqueeze(2).unbind(1)  # (R, 1, N)
    speed = _norm(vx, vy)
    cos, sin = vx / speed.clamp_min(LEAST_SPEED), vy / speed.clamp_min(LEAST_SPEED)
    ahead, aside = -(cos * x + sin * y), sin * x - cos * y
    along, across = cos * own_x + sin * own_y, cos * own_y - sin * own_x
    meets = _gives_way(ahead, aside, along, across)
    distance, wide = _norm(x, y), r + MARGIN
    moving = (speed >= LEAST_SPEED) & (_norm(own_x, own_y) >= LEAST_SPEED)
    tangent = (distance * distance - wide * wide).clamp_min(0).sqrt()
    bearing = torch.atan2(own_x * y - own_y * x, own_x * x + own_y * y)  # from the own course
    turn = bearing + torch.atan2(wide, tangent) + (radius / tangent).atan()
    turn = (turn + math.pi).remainder(2 * math.pi) - math.pi
    turn = torch.where(meets & moving & (distance >= wide), turn, 0.0)
    nearest = torch.zeros_like(turn[:, 0])
    for of_object in reversed(turn.unbind(1)):
        nearest = torch.where(of_object > 0, of_object, nearest)
    return nearest


def _norm(x: Tensor, y: Tensor) -> Tensor:
    return (x * x + y * y).sqrt()


def _gives_way(ahead: Tensor, aside: Tensor, along: Tensor, across: Tensor) -> Tensor:
    """True where a robot is before the other, or on its port side, and within 45° of the opposite course or across."""
    before = (ahead >= 0) & (ahead <= HEAD_ON_LENGTH) & (aside.abs() <= HEAD_ON_HALF_WIDTH)
    head_on = before & (across.abs() < -along)
    beside = (aside >= CROSSING_ASIDE[0]) & (aside <= CROSSING_ASIDE[1])
    beside &= (ahead >= CROSSING_AHEAD[0]) & (ahead <= CROSSING_AHEAD[1])
    in_front = aside - CORNER[1] > CORNER[1] / CORNER[0] * (ahead - CORNER[0])
    return head_on | (beside & ~in_front & (across >= along.abs()))
