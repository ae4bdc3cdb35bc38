"""What tensors are taken for arguments, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchrl_gpu.native.arguments import argument, exact, length, shape_of, written

CPU = torch.device("cpu")


def test_what_is_wanted_is_given_back_itself() -> None:
    for dtype in (torch.float32, torch.int64, torch.bool):
        value = torch.zeros(2, 3, dtype=dtype)
        assert argument("here", "it", value, dtype, (2, 3), CPU) is value
        assert written("here", "it", value, dtype, (2, 3), CPU) is value
        assert argument("here", "it", value.T, dtype, (3, 2), CPU).shape == (3, 2)  # strides are no matter


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32])
def test_integers_become_int64(dtype: torch.dtype) -> None:
    came = argument("here", "it", torch.tensor([1, 2, 100]).to(dtype), torch.int64, (3,), CPU)
    assert came.dtype == torch.int64
    assert came.tolist() == [1, 2, 100]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.zeros(2), r"\(2,\) float32 on cpu"),
        (torch.zeros(2, dtype=torch.bool), r"\(2,\) bool on cpu"),
        (torch.zeros(3, dtype=torch.int64), r"\(3,\) int64 on cpu"),
        (torch.zeros(2, 1, dtype=torch.int64), r"\(2, 1\) int64 on cpu"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), r"\(2,\) int64 on meta"),
        ([0, 0], "list"),
        (None, "NoneType"),
    ],
)
def test_what_is_not_wanted_is_told(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=rf"^here: want it \(2,\) int64 on cpu; got {said}$"):
        argument("here", "it", value, torch.int64, (2,), CPU)


def test_where_nothing_may_be_cast_another_width_is_refused() -> None:
    exact("here", "it", torch.zeros(2).long(), torch.int64, (2,), CPU)
    with pytest.raises(ValueError, match=r"^here: want it \(2,\) int64 on cpu; got \(2,\) int32 on cpu$"):
        exact("here", "it", torch.zeros(2).int(), torch.int64, (2,), CPU)


def test_what_is_written_is_neither_cast_nor_copied() -> None:
    for value in (torch.zeros(2, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)[::2]):
        with pytest.raises(ValueError, match=r"^here: want it \(2,\) int64 on cpu, contiguous; got "):
            written("here", "it", value, torch.int64, (2,), CPU)


def test_what_is_no_tensor_has_no_shape() -> None:
    assert shape_of([1, 2]) == ()
    assert length(None) == length(torch.tensor(1)) == length(torch.zeros(2), 1) == 0
    assert length(torch.zeros(2, 3), 1) == 3
