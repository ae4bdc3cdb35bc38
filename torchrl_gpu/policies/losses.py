"""Losses as pure functions.

Only those that TorchRL lacks, or that read the device back in TorchRL.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import huber_loss

Total = Callable[[Tensor], Tensor]
"""Sum a tensor over processes."""


def discounted(batch: TensorDictBase, value: Tensor, gamma: float) -> Tensor:
    """Temporal-difference target: r + γ^m · value, or r after the last step.

    Sutton 1988. A transition that was cut off is bootstrapped: its `next` holds the true last observation.

    Args:
        batch: (B,), with `reward` (B, 1), the return over m steps, and `terminated` (B, 1) bool in `next`; m is
            `steps_to_next_obs` (B, 1), or 1 without that entry.
        value: What is expected from `next` on, (B, U).
        gamma: Discount of a step.

    Returns:
        (B, U).
    """
    reward = batch.get(("next", "reward")).to(value.dtype)
    # Near the end of an episode a return has fewer steps than the others, so that each row may have a discount of its
    # own.
    steps: Tensor | None = batch.get("steps_to_next_obs", None)
    factor = gamma if steps is None else gamma ** steps.to(value.dtype)
    terminated = batch.get(("next", "terminated"))
    return reward + torch.where(terminated, 0.0, factor * value)


def weighted_mean(losses: Tensor, batch: TensorDictBase) -> Tensor:
    """Mean of losses (B,), weighted by `priority_weight` if the batch has it.

    With weights w (B,) it is Σ w·loss / Σ w, as in TorchRL's losses.
    """
    weight: Tensor | None = batch.get("priority_weight", None)
    if weight is None:
        return losses.mean()
    # A loss that does not count may be infinite, and 0 times infinity is NaN.
    losses = torch.where(weight > 0, losses, 0.0)
    # A batch without a row that counts has the loss 0.
    tiny = torch.finfo(weight.dtype).tiny
    return (losses * weight).sum() / weight.sum().clamp_min(tiny)


def quantile_huber(values: Tensor, taus: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss, with every quantile regressed on every target.

    With δ = target − value, an error costs |τ − [δ < 0]| · L(δ) / κ, where L is Huber's loss with threshold κ. The loss
    is the sum over quantiles of the mean over targets. Dabney, Ostrovski, Silver, Munos, ICML 2018, eqs. 2 and 3.

    Args:
        values: Values at `taus`, (…, U).
        taus: Fraction of the distribution below each value, (…, U) or (U,).
        targets: Samples of the distribution to learn, (…, U'); no gradient flows into them.
        kappa: Errors up to which the loss is quadratic.

    Returns:
        (…,).
    """
    # Both (…, U, U').
    target = targets.detach()[..., None, :]
    target, value = torch.broadcast_tensors(target, values[..., None])
    # The loss of torch is not divided by its threshold: with kappa 1 both are the same.
    huber = huber_loss(value, target, reduction="none", delta=kappa)
    is_above = (target < value).to(values.dtype)
    share = (taus[..., None] - is_above).abs()
    return (share * huber / kappa).mean(-1).sum(-1)


def quantile_error(values: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error over all pairs of a quantile and a target.

    It serves as a priority and has no gradient.

    Args:
        values: Quantiles, (…, U).
        targets: (…, U').

    Returns:
        (…,).
    """
    distance = targets[..., None, :] - values[..., None]
    return distance.abs().mean((-2, -1)).detach()


def project(probabilities: Tensor, values: Tensor, support: Tensor) -> Tensor:
    """Project a distribution over any values onto the atoms.

    Each value, clamped to the support, divides its probability between the two nearest atoms in proportion to how near
    they are. Bellemare, Dabney, Munos, ICML 2017, eq. 7.

    Args:
        probabilities, values: (B, Z).
        support: The atoms, evenly spaced and rising, (Z',).

    Returns:
        Probabilities of the atoms, (B, Z').
    """
    # Atoms are evenly spaced.
    span = support[-1] - support[0]
    gap = span / (len(support) - 1)
    inside = torch.maximum(values, support[0])
    inside = torch.minimum(inside, support[-1])
    distance = inside[:, None] - support[:, None]
    distance = distance.abs() / gap
    # An atom gets what is within one gap of it, in proportion: a triangle around each atom. Finding the two atoms next
    # to each value, as in the paper, would need scattered additions.
    near = (1 - distance).clamp_min(0)  # (B, Z', Z)
    return (near * probabilities[:, None]).sum(-1)


def cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Cross entropy (B,) of predicted logits (B, Z) under target probabilities (B, Z)."""
    return -(probabilities * logits.log_softmax(-1)).sum(-1)


def generalized_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """Generalised advantage estimates of trajectories.

    A[t] = δ[t] + γ·λ·A[t+1], with δ[t] = r[t] + γ·V(next[t]) − V[t]. Nothing follows a step that terminates; one that
    is cut off is bootstrapped from its true last observation; later steps count in neither case. Schulman, Moritz,
    Levine, Jordan, Abbeel, ICLR 2016, eq. 16.

    TorchRL's vectorised form splits trajectories by their lengths, which reads the device back; a loop over time does
    not.

    Args:
        reward: (N, T, 1), like all others and the result.
        value, next_value: Of the states acted in and of those that follow, before any reset.
        terminated, done: bool; done is terminated or cut off.
        gamma: Discount of a step.
        lam: λ, from 0 for one step to 1 for the whole trajectory.
    """
    following = torch.where(terminated, 0.0, gamma * next_value)
    delta = reward + following - value
    done = done | terminated
    advantage = torch.zeros_like(delta[:, 0])
    # addcmul takes a tensor, and makes one kernel of a multiplication and an addition.
    carry = torch.full_like(delta[:, 0], gamma * lam)
    advantages = []
    for t in reversed(range(delta.shape[1])):
        # What follows may belong to the next episode. It is selected away, as 0 times infinity is NaN.
        following = torch.where(done[:, t], 0.0, advantage)
        advantage = torch.addcmul(delta[:, t], carry, following)
        advantages.append(advantage)
    return torch.stack(advantages[::-1], 1)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """PPO objective (…): the smaller of ratio · A and clip(ratio, 1 − ε, 1 + ε) · A.

    The ratio is the probability of the action now over that when it was taken, ε is `clip`. Schulman, Wolski, Dhariwal,
    Radford, Klimov, "Proximal Policy Optimization Algorithms", 2017, eq. 7.
    """
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return torch.minimum(ratio * advantage, clipped * advantage)


def standardized(values: Tensor, weight: Tensor | None = None, total: Total | None = None) -> Tensor:
    """Standardised values: minus their mean, divided by their standard deviation.

    Args:
        values: (…).
        weight: 0 for values that do not count, (…); None if all do.
        total: Sums a vector over processes, so that all have one mean and one deviation; None for one process.
    """
    if weight is None:
        weight = torch.ones_like(values)
    else:
        # A value that does not count may be infinite, and 0 times infinity is NaN.
        values = torch.where(weight > 0, values, 0.0)
    # Both sums cross processes in one message, and the squares in a second one: deviations from the common mean are
    # exact where a difference of squares would cancel.
    sums = torch.stack([weight.sum(), (weight * values).sum()])
    if total is not None:
        sums = total(sums)
    count, summed = sums.unbind()
    count = count.clamp_min(1)
    centred = values - summed / count
    squares = (weight * centred.square()).sum()[None]
    if total is not None:
        squares = total(squares)
    deviation = (squares[0] / count).sqrt()
    return centred / deviation.clamp_min(1e-6)
