"""How tensors lie in memory."""

from __future__ import annotations

import pytest
import torch

from torchrl_gpu.envs.marine.memory_format import contiguous_copy, to_bool


def test_a_contiguous_copy_holds_the_same() -> None:
    turned = torch.arange(12).view(3, 4).t()
    assert not turned.is_contiguous()
    assert contiguous_copy(turned).is_contiguous()
    assert torch.equal(contiguous_copy(turned), turned)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_zero_is_true(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1], [1, 0]], dtype=dtype)
    assert to_bool(values).dtype == torch.bool
    assert to_bool(values).tolist() == [[False, True], [True, False]]
