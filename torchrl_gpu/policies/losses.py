"""Losses as pure functions, where TorchRL has none, or one that reads the device back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import huber_loss

Total = Callable[[Tensor], Tensor]
"""Sums a tensor over processes."""


def discounted(batch: TensorDictBase, value: Tensor, gamma: float) -> Tensor:
    """Temporal-difference target: r + γ^m · value where the episode goes on, else r.

    Sutton 1988. A transition that was cut off goes on: its `next` holds the true last observation.

    Args:
        batch: (B,), in `next` `reward` (B, 1), the return over m steps, and `terminated` (B, 1) bool; m is
            `steps_to_next_obs` (B, 1), or 1 where there is none.
        value: What is expected from `next` on, (B, U).
        gamma: Discount of a step.

    Returns:
        (B, U).
    """
    reward = batch.get(("next", "reward")).to(value.dtype)
    steps: Tensor | None = batch.get("steps_to_next_obs", None)
    factor = gamma if steps is None else gamma ** steps.to(value.dtype)
    return reward + torch.where(batch.get(("next", "terminated")), 0.0, factor * value)


def weighted_mean(losses: Tensor, batch: TensorDictBase) -> Tensor:
    """Mean of losses (B,); with `priority_weight` (B,) in the batch Σ w·loss / Σ w, as in TorchRL's losses."""
    weight: Tensor | None = batch.get("priority_weight", None)
    if weight is None:
        return losses.mean()
    losses = torch.where(weight > 0, losses, 0.0)  # 0 times infinity is NaN
    return (losses * weight).sum() / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)


def quantile_huber(values: Tensor, taus: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss: every quantile regressed on every target, summed over quantiles, mean over targets.

    With δ = target − value, an error costs |τ − [δ < 0]| · L(δ) / κ, where L is Huber's loss with threshold κ. Dabney,
    Ostrovski, Silver, Munos, ICML 2018, eqs. 2 and 3.

    Args:
        values: Values at `taus`, (…, U).
        taus: Shares of the distribution below them, (…, U) or (U,).
        targets: Samples of the distribution to learn, (…, U'); no gradient flows into them.
        kappa: Errors up to which the loss is quadratic.

    Returns:
        (…,).
    """
    target, value = torch.broadcast_tensors(targets.detach()[..., None, :], values[..., None])  # (…, U, U')
    huber = huber_loss(value, target, reduction="none", delta=kappa)
    share = (taus[..., None] - (target < value).to(values.dtype)).abs()
    return (share * huber / kappa).mean(-1).sum(-1)


def quantile_error(values: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error (…,) of quantiles (…, U) and targets (…, U') over all pairs: a priority; without gradient."""
    return (targets[..., None, :] - values[..., None]).abs().mean((-2, -1)).detach()


def project(probabilities: Tensor, values: Tensor, support: Tensor) -> Tensor:
    """Projection of a distribution over other values onto the atoms.

    Each value, clamped to the support, gives its probability to the two atoms beside it, the nearer one more.
    Bellemare, Dabney, Munos, ICML 2017, eq. 7.

    Args:
        probabilities, values: (B, Z).
        support: The atoms, evenly spaced and rising, (Z',), as the result has for each row.
    """
    gap = (support[-1] - support[0]) / (len(support) - 1)
    inside = torch.minimum(torch.maximum(values, support[0]), support[-1])
    near = (1 - (inside[:, None] - support[:, None]).abs() / gap).clamp_min(0)  # (B, Z', Z)
    return (near * probabilities[:, None]).sum(-1)


def cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Cross entropy (B,) of predicted logits (B, Z) under target probabilities (B, Z)."""
    return -(probabilities * logits.log_softmax(-1)).sum(-1)


def generalized_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """Generalised advantage estimates: A[t] = δ[t] + γ·λ·A[t+1], with δ[t] = r[t] + γ·V(next[t]) − V[t].

    Nothing follows a step that terminates; one that is cut off is bootstrapped from its true last observation, and in
    both no later step counts. Schulman, Moritz, Levine, Jordan, Abbeel, ICLR 2016, eq. 16. TorchRL's vectorised form
    splits trajectories by their lengths, which reads the device back.

    Args:
        reward: (N, T, 1), as all others and the result.
        value, next_value: Of the states acted in, and of those that follow, before any reset.
        terminated, done: bool; done is terminated or cut off.
        gamma: Discount of a step.
        lam: λ: 0 for one step, 1 for all that was played.
    """
    delta = reward + torch.where(terminated, 0.0, gamma * next_value) - value
    done = done | terminated
    advantage, carry = torch.zeros_like(delta[:, 0]), torch.full_like(delta[:, 0], gamma * lam)
    found = []
    for t in reversed(range(delta.shape[1])):
        following = torch.where(done[:, t], 0.0, advantage)  # of the next episode: 0 times infinity is NaN
        advantage = torch.addcmul(delta[:, t], carry, following)
        found.append(advantage)
    return torch.stack(found[::-1], 1)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The smaller of ratio · A and clip(ratio, 1 − ε, 1 + ε) · A (…), the PPO objective.

    The ratio is the probability of the action now over that when it was taken, ε is `clip`. Schulman, Wolski, Dhariwal,
    Radford, Klimov, "Proximal Policy Optimization Algorithms", 2017, eq. 7.
    """
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def standardized(values: Tensor, weight: Tensor | None = None, total: Total | None = None) -> Tensor:
    """Standardised values: less their mean, over their standard deviation.

    Args:
        values: (…).
        weight: 0 for those that do not count, (…); None where all do.
        total: Sums a vector over processes, whose values then have one mean and one deviation; None for one process.
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
