"""Checks of arguments: each returns the plain value or raises a one-line error.

Every error is a ValueError in three parts: where and which argument, what it must be, what came. Numbers of NumPy and
0-dimensional arrays and tensors count as numbers, whole floats as whole numbers; booleans count as neither.

Of tensors only the form is checked: reading values would synchronise with the device. Code that reads their memory
keeps the values within their range.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Concatenate, NoReturn, ParamSpec, SupportsInt, TypeVar, cast

import torch
from torch import Tensor

INT64 = -(2**63), 2**63 - 1
Value = TypeVar("Value")
Limits = ParamSpec("Limits")

# Characters of a value in a message.
_LONGEST = 80
_INTEGERS = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64, torch.int64)
)


def refuse(where: str, name: str, wanted: str, value: object) -> NoReturn:
    """Raise a ValueError: `name` of `where` must be `wanted`, and is `value`."""
    raise ValueError(f"{where}: {name} must be {wanted}; got {shown(value)}")


def shown(value: object) -> str:
    """Short one-line text of a value, for messages.

    Of arrays and tensors it is dtype and shape.
    """
    shape = getattr(value, "shape", None)
    if hasattr(value, "dtype") and shape is not None and len(shape):
        return f"{type(value).__name__} of {value.dtype} {tuple(shape)}"
    # A stranger's `repr` may raise anything, and whole numbers may have more digits than Python writes.
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__} that cannot be written out"
    if len(text) <= _LONGEST:
        return text
    return text[: _LONGEST - 1] + "…"


def whole(where: str, name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Integer from `low` to `high`, both included."""
    wanted = "a whole number" if low in (None, INT64[0]) else f"a whole number, at least {low}"
    plain = _plain(value)
    if not isinstance(plain, numbers.Real):
        refuse(where, name, wanted, value)
    # A float loses digits of large integers, so only fractions are compared as one.
    if not isinstance(plain, numbers.Integral) and not float(plain).is_integer():
        refuse(where, name, wanted, value)
    found = int(cast("SupportsInt", plain))
    _check_range(where, name, found, low, high, value)
    return found


def number(
    where: str,
    name: str,
    value: object,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> float:
    """Finite float from `low` to `high`, both included, and greater than `above`."""
    plain = _plain(value)
    if not isinstance(plain, numbers.Real):
        refuse(where, name, "a finite number", value)
    # A whole number may be beyond all floats.
    try:
        found = float(plain)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        refuse(where, name, "a finite number", value)
    if above is not None and found <= above:
        refuse(where, name, f"above {above:g}", value)
    _check_range(where, name, found, low, high, value)
    return found


def optional(
    check: Callable[Concatenate[str, str, object, Limits], Value],
    where: str,
    name: str,
    value: object,
    *limits: Limits.args,
    **more: Limits.kwargs,
) -> Value | None:
    """Result of a check of this module, or None where the value is None."""
    return None if value is None else check(where, name, value, *limits, **more)


def check_effect(where: str, wanted: str, **given: tuple[object, object]) -> None:
    """Raise ValueError where an option is set that has no effect without `wanted`.

    Options are given by name as (value, default).
    """
    for name, (value, default) in given.items():
        if value != default:
            raise ValueError(f"{where}: {name} does nothing without {wanted}; got {shown(value)}")


def seed(where: str, name: str, value: object, low: int = INT64[0]) -> int:
    """Integer that fits 64 bits."""
    return whole(where, name, value, low, INT64[1])


def flag(where: str, name: str, value: object) -> bool:
    """Boolean, from Python's or NumPy's."""
    plain = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
    if isinstance(plain, bool):
        return plain
    refuse(where, name, "true or false", value)


def choice(where: str, name: str, value: object, choices: Collection[str]) -> str:
    """String out of `choices`."""
    if not isinstance(value, str) or value not in choices:
        refuse(where, name, f"one of {', '.join(choices)}", value)
    return value


def choices(where: str, name: str, value: object, known: Collection[str]) -> tuple[str, ...]:
    """Strings out of `known`, from a list or another iterable."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        refuse(where, name, f"a list of words out of {', '.join(known)}", value)
    return tuple(choice(where, name, word, known) for word in value)


def listed(where: str, name: str, wanted: str, value: object) -> tuple[Any, ...]:
    """Elements of a list, a tuple, or an array or tensor of one axis.

    `wanted` stands in the error message.
    """
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if len(getattr(value, "shape", ())) == 1 and hasattr(value, "tolist"):
        return tuple(value.tolist())
    refuse(where, name, wanted, value)


def pair(where: str, name: str, wanted: str, value: object, low: int, high: int) -> tuple[int, int]:
    """Two integers from `low` to `high`, such as height and width."""
    found = listed(where, name, wanted, value)
    if len(found) != 2:
        refuse(where, name, wanted, value)
    first = whole(where, name, found[0], low, high)
    second = whole(where, name, found[1], low, high)
    return first, second


def tensor(
    where: str,
    name: str,
    value: object,
    dtype: torch.dtype,
    shape: tuple[int | None, ...],
    device: torch.device | None = None,
    *,
    cast: bool = False,
    contiguous: bool = False,
) -> Tensor:
    """Dense tensor of a given form, checked without reading its values.

    Args:
        where: Beginning of the error message.
        name: Of the argument.
        value: What was given.
        dtype: Its dtype.
        shape: Its shape; None stands for any length.
        device: Its device; None for any that holds data.
        cast: Let integers of another width become int64 where that is the dtype, since that loses nothing.
        contiguous: Whether it must be contiguous, as tensors written in place must.
    """
    # What hot code is given passes here.
    if isinstance(value, Tensor):
        form = value.dtype, value.shape, value.device, value.layout
        if form == (dtype, shape, device, torch.strided) and (not contiguous or value.is_contiguous()):
            return value
    if not isinstance(value, Tensor):
        raise ValueError(f"{where}: {name} must be a tensor; got {'none' if value is None else shown(value)}")
    oddity = _oddity(value, device)
    if oddity:
        raise ValueError(f"{where}: {name} must be a dense tensor with data; got {oddity}")
    if value.dtype != dtype and not (cast and dtype is torch.int64 and value.dtype in _INTEGERS):
        raise ValueError(f"{where}: {name} must be of dtype {_word(dtype)}; got {_word(value.dtype)}")
    if not _fits(value.shape, shape):
        raise ValueError(f"{where}: {name} must have shape {_shape_words(shape)}; got {tuple(value.shape)}")
    if device is not None and value.device != device:
        raise ValueError(f"{where}: {name} must be on {device}; got {value.device}")
    if contiguous and not value.is_contiguous():
        raise ValueError(f"{where}: {name} must be contiguous; got strides {value.stride()}")
    return value if value.dtype is dtype else value.long()


def _oddity(value: Tensor, device: torch.device | None) -> str:
    """Words for a tensor that is not dense or has no data, else ""."""
    if value.device.type == "meta" and device is None:
        return "one without"
    if value.is_quantized:
        return "a quantized one"
    if value.layout != torch.strided:
        return f"one of layout {_word(value.layout)}"
    return ""


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    if len(shape) != len(wanted):
        return False
    return all(least is None or least == found for least, found in zip(wanted, shape, strict=True))


def _shape_words(shape: Sequence[int | None]) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"


def length(value: object, axis: int = 0) -> int:
    """Size of a tensor along an axis, or 0 for what `tensor` would refuse."""
    return value.shape[axis] if isinstance(value, Tensor) and value.ndim > axis else 0


def _word(constant: object) -> str:
    return str(constant).removeprefix("torch.")


def _plain(value: object) -> object:
    """Scalar of a 0-dimensional array or tensor, None for booleans, else the value."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, bool) else value


def _check_range(where: str, name: str, found: float, low: float | None, high: float | None, value: object) -> None:
    if low is not None and found < low:
        refuse(where, name, f"at least {low:,}", value)
    if high is not None and found > high:
        refuse(where, name, f"at most {high:,}", value)
