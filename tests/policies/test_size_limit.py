from __future__ import annotations

import pytest
import torch
from torch import nn

from torchrl_gpu.policies.size_limit import without_memory


def test_shapes_come_without_memory() -> None:
    made = without_memory(lambda: nn.Linear(10_000, 20_000), "test", 10**9)
    assert made.weight.is_meta
    assert made.weight.shape == (20_000, 10_000)


def test_weights_beyond_the_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="test: want networks of at most 1,000 bytes; got settings of larger ones"):
        without_memory(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(30, 30)), "test", 1_000)


def test_a_pass_beyond_the_limit_is_refused() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            row = torch.zeros(2**15)
            self.outer = row[:, None] * row

    with pytest.raises(ValueError, match="want tensors of at most"):
        without_memory(Wide, "test", 10**9)


def test_layers_without_end_are_refused() -> None:
    with pytest.raises(ValueError, match="operators; got"):
        without_memory(lambda: nn.Sequential(*(nn.Linear(1, 1) for _ in range(10**9))), "test", 10**9)
