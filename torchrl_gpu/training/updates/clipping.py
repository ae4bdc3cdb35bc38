"""Clipping of gradients, whether or not they are scaled, without a host read."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def clip_gradients(weights: Iterable[Tensor], max_norm: float, scaler: GradScaler | None = None) -> None:
    """Clips the gradients of some weights to a norm, in place.

    Lightning's `clip_gradients`, in modules that step their own optimizer, takes the scaled gradients of float16 for
    the true ones: they are unscaled only when the optimizer steps.

    Args:
        weights: With gradients; those without are left.
        max_norm: Of all of them together, unscaled.
        scaler: What the loss was scaled by.
    """
    weights = [weight for weight in weights if weight.grad is not None]
    norm = get_total_norm(weight.grad for weight in weights if weight.grad is not None)
    if scaler is not None and scaler.is_enabled() and scaler._scale is not None:
        norm = norm / scaler._scale  # `get_scale` would read it back
    clip_grads_with_norm_(weights, max_norm, norm)
