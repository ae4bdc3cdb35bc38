"""Cosine embedding of quantile fractions τ."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from torchrl_gpu.policies.weights import float32, register_settings

# Pairs of a row and a τ that are computed at once. A core's cache holds no more; a GPU's memory does.
_AT_ONCE = {"cpu": 1 << 10}
_AT_ONCE_ELSEWHERE = 1 << 20


@final
class TauEmbedding(nn.Module):
    """Features of quantile fractions τ, which multiply those of the state.

    They are cosines cos(π·i·τ), i from 0, in one layer.

    Dabney, Ostrovski, Silver, Munos, ICML 2018, eq. 4.
    """

    def __init__(self, num_features: int, num_cosines: int = 64) -> None:
        super().__init__()
        self.layer = nn.Linear(num_cosines, num_features)
        self.frequency: Tensor
        register_settings(self, frequency=math.pi * float32(range(num_cosines)))

    def forward(self, taus: Tensor) -> Tensor:
        """Features (…, U, F) of fractions (…, U)."""
        cosines = torch.cos(taus[..., None] * self.frequency)
        features = self.layer(cosines)
        return relu(features, inplace=True)


def in_parts(taus: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Split fractions (…, U) into parts of the size that is best computed at once.

    Each part is for `rows` rows.
    """
    # An exported graph is for any number of rows.
    if torch.compiler.is_exporting():
        return (taus,)
    # Rows times fractions that fit a cache, or at least one fraction at a time.
    pairs = _AT_ONCE.get(taus.device.type, _AT_ONCE_ELSEWHERE)
    return taus.split(max(1, pairs // max(1, rows)), -1)
