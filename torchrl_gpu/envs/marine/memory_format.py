"""Memory layout of tensors, eager and compiled."""

from __future__ import annotations

import torch
from torch import Tensor


def contiguous_copy(tensor: Tensor) -> Tensor:
    """Contiguous tensor of the same numbers and shape (…), which torch.compile fuses into nothing else.

    torch.compile fuses a plain `contiguous` into the loops that read it, and those then run along the axes of the
    original, one number at a time. It never does so with a tensor of given strides.
    """
    whole = tensor.contiguous()
    return whole.as_strided(whole.shape, whole.stride())


def to_bool(zeros_and_ones: Tensor) -> Tensor:
    """Zeros and ones (…) as bool: what torch.compile makes of a comparison takes twenty times as long on a CPU."""
    return zeros_and_ones.to(torch.uint8).view(torch.bool)
