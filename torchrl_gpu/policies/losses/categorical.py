"""Categorical distributions over fixed values, the atoms."""

from __future__ import annotations

import torch
from torch import Tensor


def project(probabilities: Tensor, values: Tensor, support: Tensor) -> Tensor:
    """Projection of a distribution over other values onto the atoms.

    Each value, clamped to the support, gives its probability to the two atoms beside it, the nearer one more.
    Bellemare, Dabney, Munos, ICML 2017, eq. 7.

    Args:
        probabilities: (B, Z).
        values: (B, Z).
        support: The atoms, evenly spaced and rising, (Z',).

    Returns:
        (B, Z').
    """
    gap = (support[-1] - support[0]) / (len(support) - 1)
    inside = torch.minimum(torch.maximum(values, support[0]), support[-1])
    near = (1 - (inside[:, None] - support[:, None]).abs() / gap).clamp_min(0)  # (B, Z', Z)
    return (near * probabilities[:, None]).sum(-1)


def cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Cross entropy (B,) of predicted logits (B, Z) under target probabilities (B, Z)."""
    return -(probabilities * logits.log_softmax(-1)).sum(-1)
