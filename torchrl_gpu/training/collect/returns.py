"""Transitions of played steps: those of each robot, and n-step returns."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase


def per_robot(steps: TensorDictBase, group: tuple[str, ...]) -> TensorDictBase:
    """Steps of every robot by itself, with keys at the root.

    Args:
        steps: Steps (N, T), in which R robots stand under `group`.
        group: Key of the robots.

    Returns:
        Steps (N·R, T).
    """
    robots = steps[group].copy()
    robots["next"] = steps[("next", *group)]
    return robots.transpose(1, 2).flatten(0, 1)


def n_step(steps: TensorDictBase, n: int, gamma: float) -> TensorDictBase:
    """n-step transitions of consecutive steps.

    None crosses the end of an episode. The reward of the transition at t is the sum of gamma^k · r[t+k] over k < m, and
    its `next` is that of step t + m − 1. Here m is n, or the step at which the episode ends, whichever comes first
    (Sutton 1988).

    Args:
        steps: Steps (N, T + n − 1).
        n: Rewards of a transition, at most.
        gamma: Discount of a step.

    Returns:
        Transitions (N, T), with `steps_to_next_obs` (N, T, 1) int64, which is m.
    """
    length = max(0, steps.shape[1] - n + 1)
    reward = steps["next", "reward"]
    done = steps["next", "done"]
    alive = torch.ones_like(done[:, :length])
    total = torch.zeros_like(reward[:, :length])
    count = torch.zeros_like(alive, dtype=torch.int64)
    # A loop over the n rewards of a return and not over the steps: n is small, and all steps of all environments are
    # worked on side by side.
    for k in range(n):
        end = k + length
        gained = gamma**k * reward[:, k:end]
        # Not a product: 0 times infinity is NaN.
        total = total + torch.where(alive, gained, 0.0)
        count = count + alive
        alive = alive & ~done[:, k:end]
    first = torch.arange(length, device=reward.device, dtype=torch.int64)
    last = first + count[..., 0] - 1  # (N, T)
    row = torch.arange(steps.shape[0], device=last.device, dtype=torch.int64)[:, None].expand_as(last)
    following = steps["next"].apply(lambda value: value[row, last], batch_size=last.shape)
    transitions = steps[:, :length].exclude("next")
    transitions["next"] = following.set("reward", total)
    return transitions.set("steps_to_next_obs", count)
