"""Policy-gradient terms: generalised advantages, and the clipped surrogate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]
"""Sums a tensor over processes."""


def generalized_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """Generalised advantage estimates: A[t] = δ[t] + γ·λ·A[t+1], with δ[t] = r[t] + γ·V(next[t]) − V[t].

    Nothing follows a step that terminates; one that is cut off is bootstrapped from its true last observation, and in
    both no later step counts. Schulman, Moritz, Levine, Jordan, Abbeel, ICLR 2016, eq. 16. TorchRL's vectorised form
    splits trajectories by their lengths, which reads the device back.

    Args:
        reward: (N, T, 1).
        value: Of the states acted in, (N, T, 1).
        next_value: Of the states that follow, before any reset, (N, T, 1).
        terminated: (N, T, 1) bool.
        done: Terminated or cut off, (N, T, 1) bool.
        gamma: Discount of a step.
        lam: λ: 0 for one step, 1 for all that was played.

    Returns:
        (N, T, 1).
    """
    delta = reward + torch.where(terminated, 0.0, gamma * next_value) - value
    done = done | terminated
    carry = torch.where(done, 0.0, gamma * lam).to(delta.dtype)
    advantage = torch.zeros_like(delta[:, 0])
    found = []
    for t in reversed(range(delta.shape[1])):
        following = torch.where(done[:, t], 0.0, advantage)  # of the next episode: 0 times infinity is NaN
        advantage = torch.addcmul(delta[:, t], carry[:, t], following)
        found.append(advantage)
    return torch.stack(found[::-1], 1)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The smaller of ratio · A and clip(ratio, 1 − ε, 1 + ε) · A, the PPO objective.

    Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", 2017, eq. 7.

    Args:
        ratio: Probability of the action now over that when it was taken, (…).
        advantage: (…).
        clip: ε.

    Returns:
        (…).
    """
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def standardized(values: Tensor, weight: Tensor | None = None, total: Total | None = None) -> Tensor:
    """Standardised values: less their mean, over their standard deviation.

    Args:
        values: (…).
        weight: 0 for those that do not count, (…); None where all do.
        total: Sums a vector over processes, whose values then have one mean and one deviation; None for one process.

    Returns:
        (…).
    """
    if weight is None:
        weight = torch.ones_like(values)
    else:
        values = torch.where(weight > 0, values, 0.0)  # 0 times infinity is NaN
    sums = torch.stack([weight.sum(), (weight * values).sum()])
    count, summed = (sums if total is None else total(sums)).unbind()
    count = count.clamp_min(1)
    centred = values - summed / count
    squares = (weight * centred.square()).sum()[None]
    return centred / ((squares if total is None else total(squares))[0] / count).sqrt().clamp_min(1e-6)
