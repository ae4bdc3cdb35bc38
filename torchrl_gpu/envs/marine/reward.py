"""Rewards of actions, and ends of episodes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from torchrl_gpu.envs.marine.types import GOAL_RADIUS, PLACE, Craft, MarineState, Scene

RULE_REWARD = -0.1  # v3, per radian of a turn to starboard that a rule asks for


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

    Args:
        before, motion, scene, craft: Of the scene only the goals are used.
        touches: (R, N) bool, robots that meet something.
        turn: Radians to starboard that a rule asks for, (R, N); None where no rule counts.
        cut: (N,) bool, the time is up.
        end_on_collision: Whether a collision ends the episode for all.
        cut_is_end: Whether the time limit is reported as an end of the task, too.
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
