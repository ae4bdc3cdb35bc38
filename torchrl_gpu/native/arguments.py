"""What tensors an operator takes, checked where they enter it.

Types, shapes and devices only: to look at values would make a device wait. Whoever reads memory holds what it finds
there within its range.
"""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64, torch.int64)
)


def argument(
    where: str, name: str, value: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> Tensor:
    """`value`; integers of another width are cast where int64 is wanted, since that loses nothing.

    Raises:
        ValueError: It is no tensor, or one of another type, shape or device.
    """
    if isinstance(value, Tensor) and value.shape == shape and value.device == device:
        if value.dtype is dtype:
            return value
        if dtype is torch.int64 and value.dtype in _INTEGERS:
            return value.long()
    raise ValueError(f"{where}: want {name} {_described(dtype, shape, device)}; got {describe(value)}")


def exact(
    where: str, name: str, value: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> None:
    """Nothing, where `value` is what is wanted without a cast.

    Raises:
        ValueError: As `argument`, or it is of another width.
    """
    if argument(where, name, value, dtype, shape, device) is not value:
        raise ValueError(f"{where}: want {name} {_described(dtype, shape, device)}; got {describe(value)}")


def written(
    where: str, name: str, value: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> Tensor:
    """`value`, which is written in place: neither a cast nor a copy would do.

    Raises:
        ValueError: As `argument`, or it is not contiguous.
    """
    if argument(where, name, value, dtype, shape, device) is value and value.is_contiguous():
        return value
    came = f"{describe(value)}, strides {value.stride()}"
    raise ValueError(f"{where}: want {name} {_described(dtype, shape, device)}, contiguous; got {came}")


def shape_of(value: object) -> tuple[int, ...]:
    """The shape of a tensor; () of what is none, which `argument` then says."""
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def length(value: object, axis: int = 0) -> int:
    """Size along an axis; 0 where there is none, which `argument` then says."""
    return value.shape[axis] if isinstance(value, Tensor) and value.ndim > axis else 0


def describe(value: object) -> str:
    """Type, shape and device of a tensor, for a message."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return _described(value.dtype, tuple(value.shape), value.device)


def _described(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> str:
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')} on {device}"
