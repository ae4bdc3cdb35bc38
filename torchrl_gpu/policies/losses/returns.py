"""Temporal-difference target and weighted batch mean, shared by all such losses."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor


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
