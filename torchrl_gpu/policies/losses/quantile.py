"""Quantile regression."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss


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
