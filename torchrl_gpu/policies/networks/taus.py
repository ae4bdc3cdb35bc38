"""Shares of a distribution as features."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


@final
class TauEmbedding(nn.Module):
    """Features of shares τ: cosines cos(π·i·τ), i from 0, through one layer.

    Dabney, Ostrovski, Silver, Munos, ICML 2018, eq. 4.

    Args:
        num_features: Features of each share, which multiply those of the state.
        num_cosines: Cosines.
    """

    def __init__(self, num_features: int, num_cosines: int = 64) -> None:
        super().__init__()
        self.layer = nn.Linear(num_cosines, num_features)
        self.frequency: Tensor
        self.register_buffer("frequency", math.pi * torch.arange(num_cosines), persistent=False)

    def forward(self, taus: Tensor) -> Tensor:
        """Features (…, U, F) of shares (…, U)."""
        return relu(self.layer(torch.cos(taus[..., None] * self.frequency)))
