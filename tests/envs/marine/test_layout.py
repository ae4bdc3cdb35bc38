"""How tensors lie in memory."""

from __future__ import annotations

import pytest
import torch

from torchrl_gpu.envs.marine.layout import flags, settled


def test_what_is_settled_is_contiguous_and_the_same() -> None:
    turned = torch.arange(12).view(3, 4).t()
    assert not turned.is_contiguous()
    assert settled(turned).is_contiguous()
    assert torch.equal(settled(turned), turned)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flags_are_what_is_not_zero(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1], [1, 0]], dtype=dtype)
    assert flags(values).dtype == torch.bool
    assert flags(values).tolist() == [[False, True], [True, False]]
