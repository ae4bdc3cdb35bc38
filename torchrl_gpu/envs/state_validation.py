"""Validation of state dicts, such as those of checkpoints, against dtype, shape and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from tensordict import NestedKey
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec

from torchrl_gpu.system import arguments
from torchrl_gpu.system.arguments import shown

Limit = float | Tensor | None
ANY = -torch.inf, torch.inf
"""Bounds of numbers that may be infinite, but not NaN."""


class Bounds(NamedTuple):
    """Lower and upper bound, both inclusive; numbers, or tensors that broadcast against the value. None: no limit.

    Floats must also be finite, unless a limit is infinite.
    """

    low: Limit = None
    high: Limit = None

    def violated(self, value: Tensor) -> Tensor:
        """Mask of the elements out of bounds; bool, of the shape of `value`."""
        out = torch.zeros_like(value, dtype=torch.bool)
        if value.dtype == torch.bool:
            return out
        if self.low is None and self.high is None and value.is_floating_point():
            out = ~value.isfinite()
        low, high = (limit.to(value.device) if isinstance(limit, Tensor) else limit for limit in self)
        low, high = (-torch.inf if low is None else low), (torch.inf if high is None else high)
        if self.low is not None or value.is_floating_point():
            out = out | ~(value >= low)
        if self.high is not None or value.is_floating_point():
            out = out | ~(value <= high)
        return out

    def at(self, index: tuple[int, ...], shape: torch.Size) -> str:
        """Text of the limits of one element, for messages."""
        low, high = (limit.expand(shape)[index].item() if isinstance(limit, Tensor) else limit for limit in self)
        if low is None and high is None:
            return "finite"
        if high is None:
            return f"at least {_number(low)}"
        return f"at most {_number(high)}" if low is None else f"from {_number(low)} to {_number(high)}"


class Entry(NamedTuple):
    """Required dtype, shape and bounds of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    bounds: Bounds = Bounds()

    def check(self, where: str, name: str, value: Any) -> Tensor:
        """Validated tensor: dense, with data, of this dtype and shape, every element in bounds. Reads the device."""
        tensor = arguments.tensor(where, name, value, self.dtype, self.shape)
        violated = self.bounds.violated(tensor)
        if bool(violated.any()):
            index = tuple(int(i) for i in violated.nonzero()[0])
            place = f" at {list(index)}" if index else ""
            limits, came = self.bounds.at(index, tensor.shape), tensor[index].item()
            raise ValueError(f"{where}: {name} must be {limits}; got {_number(came)}{place}")
        return tensor

    def behind(self, *leading: int) -> Entry:
        """The same requirement with leading axes."""
        return self._replace(shape=(*leading, *self.shape))


def check_entries(
    where: str, given: Any, wanted: Mapping[NestedKey, Entry], strict: bool = True, more: bool = False
) -> dict[NestedKey, Tensor]:
    """Validated tensors of the wanted keys, out of a mapping of names, nested ones included.

    If `strict`, every wanted key must be present, and no other, unless there may be `more`, which are left out.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}: want a mapping of names to tensors; got {shown(given)}")
    flat = flat_entries(given)
    if strict and (set(wanted) - set(flat) or (not more and set(flat) != set(wanted))):
        raise ValueError(f"{where}: want the entries {_names(wanted)}; got {_names(flat)}")
    return {key: entry.check(where, _name(key), flat[key]) for key, entry in wanted.items() if key in flat}


def entries_of(spec: Composite, batch_dims: int | None = None) -> dict[NestedKey, Entry]:
    """Required dtype, shape without `batch_dims`, and bounds of every leaf of a TorchRL spec; NaN is never allowed."""
    first = batch_dims or 0
    leaves = {key: spec[key] for key in spec.keys(True, True)}
    return {key: Entry(leaf.dtype, tuple(leaf.shape[first:]), _bounds_of(leaf, first)) for key, leaf in leaves.items()}


def _bounds_of(leaf: TensorSpec, batch_dims: int) -> Bounds:
    if isinstance(leaf, Categorical):
        return Bounds(0, int(leaf.space.n) - 1)
    if isinstance(leaf, Bounded):
        first = (0,) * batch_dims
        return Bounds(leaf.space.low[first], leaf.space.high[first])
    return Bounds(*ANY) if leaf.dtype.is_floating_point else Bounds()


def flat_entries(given: Mapping[Any, Any], above: tuple[str, ...] = ()) -> dict[NestedKey, Any]:
    """Leaves of a nested mapping by TorchRL's nested keys."""
    out: dict[NestedKey, Any] = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and len(above) < 8:
            out |= flat_entries(value, (*above, str(name)))
        else:
            out[(*above, str(name)) if above else str(name)] = value
    return out


def _names(keys: Mapping[NestedKey, Any]) -> list[str]:
    names = sorted(_name(key) for key in keys)
    return names if len(names) <= 20 else [*names[:20], f"… {len(names) - 20} more"]


def _name(key: NestedKey) -> str:
    return key if isinstance(key, str) else "/".join(key)


def _number(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)
