"""Argument validation: each check returns the plain value or raises a one-line error.

Every error is a ValueError in three parts: where and which argument, what it must be, what came. Numbers of NumPy and
0-dimensional arrays and tensors count as numbers, whole floats as whole numbers; booleans count as neither.

Of tensors only the form is checked: reading values would synchronise with the device. Code that reads their memory
keeps the values within their range.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection, Iterable
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor

INT64 = -(2**63), 2**63 - 1
Value = TypeVar("Value")
Limits = ParamSpec("Limits")

_LONGEST = 80  # characters of a value in a message
_INTEGERS = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64, torch.int64)
)


def refuse(where: str, name: str, wanted: str, value: Any) -> NoReturn:
    """Raises the error: `where: name must be wanted; got value`."""
    raise ValueError(f"{where}: {name} must be {wanted}; got {shown(value)}")


def shown(value: Any) -> str:
    """Short one-line text of any value, for messages; dtype and shape of arrays and tensors."""
    shape = getattr(value, "shape", None)
    if hasattr(value, "dtype") and shape is not None and len(shape):
        return f"{type(value).__name__} of {value.dtype} {tuple(shape)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # also whole numbers of more digits than Python writes, and whatever a stranger's repr does
        text = f"a {type(value).__name__} that cannot be written out"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def whole(where: str, name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """Integer from `low` to `high`, both included."""
    wanted = "a whole number" + ("" if low in (None, INT64[0]) else f", at least {low}")
    plain: Any = _plain(value)
    fraction = isinstance(plain, numbers.Real) and not isinstance(plain, numbers.Integral)
    if not isinstance(plain, numbers.Real) or (fraction and not float(plain).is_integer()):
        refuse(where, name, wanted, value)
    exact: Any = plain
    found = int(exact)
    _check_range(where, name, found, low, high, value)
    return found


def number(
    where: str, name: str, value: Any, low: float | None = None, high: float | None = None, above: float | None = None
) -> float:
    """Finite float from `low` to `high`, both included, and greater than `above`."""
    plain = _plain(value)
    if not isinstance(plain, numbers.Real):
        refuse(where, name, "a finite number", value)
    try:
        found = float(plain)
    except OverflowError:  # a whole number beyond all floats
        found = math.inf
    if not math.isfinite(found):
        refuse(where, name, "a finite number", value)
    if above is not None and found <= above:
        refuse(where, name, f"above {above:g}", value)
    _check_range(where, name, found, low, high, value)
    return found


def optional(
    check: Callable[Concatenate[str, str, Any, Limits], Value],
    where: str,
    name: str,
    value: Any,
    *limits: Limits.args,
    **more: Limits.kwargs,
) -> Value | None:
    """Result of a check of this module, or None for None."""
    return None if value is None else check(where, name, value, *limits, **more)


def check_effect(where: str, wanted: str, **given: tuple[Any, Any]) -> None:
    """Raises ValueError where an option, given as (value, default), is set but has no effect without `wanted`."""
    for name, (value, default) in given.items():
        if value != default:
            raise ValueError(f"{where}: {name} does nothing without {wanted}; got {shown(value)}")


def seed(where: str, name: str, value: Any, low: int = INT64[0]) -> int:
    """Integer that fits 64 bits."""
    return whole(where, name, value, low, INT64[1])


def flag(where: str, name: str, value: Any) -> bool:
    """Boolean, from Python's or NumPy's."""
    plain = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
    if isinstance(plain, bool):
        return plain
    refuse(where, name, "true or false", value)


def choice(where: str, name: str, value: Any, choices: Collection[str]) -> str:
    """String out of `choices`."""
    if not isinstance(value, str) or value not in choices:
        refuse(where, name, f"one of {', '.join(choices)}", value)
    return value


def choices(where: str, name: str, value: Any, known: Collection[str]) -> tuple[str, ...]:
    """Strings out of `known`, from a list or another iterable."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        refuse(where, name, f"a list of words out of {', '.join(known)}", value)
    return tuple(choice(where, name, word, known) for word in value)


def listed(where: str, name: str, wanted: str, value: Any) -> tuple[Any, ...]:
    """Elements of a list, a tuple, or an array or tensor of one axis; `wanted` stands in the error message."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if len(getattr(value, "shape", ())) == 1 and hasattr(value, "tolist"):
        return tuple(value.tolist())
    refuse(where, name, wanted, value)


def pair(where: str, name: str, wanted: str, value: Any, low: int, high: int) -> tuple[int, int]:
    """Two integers from `low` to `high`, such as height and width."""
    found = listed(where, name, wanted, value)
    if len(found) != 2:
        refuse(where, name, wanted, value)
    first, second = (whole(where, name, each, low, high) for each in found)
    return first, second


def tensor(
    where: str,
    name: str,
    value: Any,
    dtype: torch.dtype,
    shape: tuple[int | None, ...],
    device: torch.device | None = None,
    *,
    cast: bool = False,
    contiguous: bool = False,
) -> Tensor:
    """Dense tensor of a given dtype, shape and, where one is named, device; validated without reading its values.

    None in `shape` stands for any length, and as `device` for any that holds data. With `cast` integers of another
    width become int64 where that is wanted, since it loses nothing; with `contiguous` it must be, as tensors written in
    place.
    """
    if (
        isinstance(value, Tensor)
        and (value.dtype, value.shape, value.device, value.layout) == (dtype, shape, device, torch.strided)
        and (not contiguous or value.is_contiguous())
    ):
        return value  # what hot code gets
    if not isinstance(value, Tensor):
        raise ValueError(f"{where}: {name} must be a tensor; got {'none' if value is None else shown(value)}")
    is_meta = value.device.type == "meta" and device is None
    if value.layout != torch.strided or value.is_quantized or is_meta:
        came = "a quantized one" if value.is_quantized else f"one of layout {_word(value.layout)}"
        raise ValueError(f"{where}: {name} must be a dense tensor with data; got {'one without' if is_meta else came}")
    if value.dtype != dtype and not (cast and dtype is torch.int64 and value.dtype in _INTEGERS):
        raise ValueError(f"{where}: {name} must be of dtype {_word(dtype)}; got {_word(value.dtype)}")
    if len(value.shape) != len(shape) or any(w is not None and w != c for w, c in zip(shape, value.shape, strict=True)):
        wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + (",)" if len(shape) == 1 else ")")
        raise ValueError(f"{where}: {name} must have shape {wanted}; got {tuple(value.shape)}")
    if device is not None and value.device != device:
        raise ValueError(f"{where}: {name} must be on {device}; got {value.device}")
    if contiguous and not value.is_contiguous():
        raise ValueError(f"{where}: {name} must be contiguous; got strides {value.stride()}")
    return value if value.dtype is dtype else value.long()


def length(value: object, axis: int = 0) -> int:
    """Size of a tensor along an axis; 0 where there is none, which `tensor` then reports."""
    return value.shape[axis] if isinstance(value, Tensor) and value.ndim > axis else 0


def _word(constant: object) -> str:
    return str(constant).removeprefix("torch.")


def _plain(value: Any) -> Any:
    """Scalar of a 0-dimensional array or tensor, other values unchanged; None for booleans."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, bool) else value


def _check_range(where: str, name: str, found: float, low: float | None, high: float | None, value: Any) -> None:
    if low is not None and found < low:
        refuse(where, name, f"at least {low:,}", value)
    if high is not None and found > high:
        refuse(where, name, f"at most {high:,}", value)
