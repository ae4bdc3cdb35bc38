"""The loop on a GPU's registers does the operations that are counted; checked by Triton's interpreter, on the CPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
NAME = "benchmarks.kernels.triton_ceiling"


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)  # elsewhere it must be compiled


def by_torch(out: Tensor, rounds: int) -> tuple[Tensor, int]:
    """The same, and the subtractions with a maximum behind them."""
    first, second, operations = out, out + 1, 0
    for _ in range(rounds):
        for step in range(8):
            first = torch.maximum(first, second - (step + 1))
            second = torch.maximum(second, first - (step + 2))
            operations += 2
    return first + second, operations


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_it_does_what_is_counted(dtype: torch.dtype, interpreted: ModuleType) -> None:
    out = torch.arange(2048).to(dtype)
    wanted, operations = by_torch(out, 3)
    interpreted.launch(out, 3)
    assert torch.equal(out, wanted)
    assert interpreted.operations(3) == operations
