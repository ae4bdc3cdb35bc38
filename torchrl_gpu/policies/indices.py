"""Whole numbers in order, as tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def indices(number: int, device: torch.device) -> Tensor:
    """Whole numbers from 0 to below `number`, (number,) int64."""
    return torch.arange(number, device=device, dtype=torch.int64)
