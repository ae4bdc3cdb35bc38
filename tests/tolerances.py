"""Tolerances of results of the same sum in another order, by dtype.

This is the one table that parity tests read.
"""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Assert the same shape and dtype, and nearly the same values.

    The largest error is at most the dtype's tolerance, relative to the largest value above 1.
    """
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if not actual.numel():
        return
    scale = expected.abs().amax().clamp_min(1)
    error = (actual - expected).abs().amax() / scale
    assert error <= TOLERANCE[actual.dtype], f"largest error {error:.3g}, allowed {TOLERANCE[actual.dtype]:.3g}"
