"""Validation of state dicts: dtype, shape and bounds of every tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from tensordict import NestedKey
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec

from torchrl_gpu.system import arguments
from torchrl_gpu.system.arguments import shown

Limit = float | Tensor | None
ANY = -torch.inf, torch.inf
"""Bounds of numbers that may be infinite, but not NaN."""

# Levels of nested mappings that are looked into, and names that a message lists.
_DEEPEST = 8
_MOST_NAMES = 20


class Bounds(NamedTuple):
    """Lower and upper bound, both inclusive.

    They are numbers, or tensors that broadcast against the value; None sets no limit. Floats must also be finite,
    unless a limit is infinite.
    """

    low: Limit = None
    high: Limit = None

    def violated(self, value: Tensor) -> Tensor:
        """Return a mask of the elements out of bounds, bool, of the shape of `value`."""
        out = torch.zeros_like(value, dtype=torch.bool)
        if value.dtype == torch.bool:
            return out
        if self.low is None and self.high is None and value.is_floating_point():
            out = ~value.isfinite()
        # Compared as "not within", so that NaN is out of bounds.
        if self.low is not None or value.is_floating_point():
            low = _limit_on(value.device, self.low, -torch.inf)
            out = out | ~(value >= low)
        if self.high is not None or value.is_floating_point():
            high = _limit_on(value.device, self.high, torch.inf)
            out = out | ~(value <= high)
        return out

    def at(self, index: tuple[int, ...], shape: torch.Size) -> str:
        """Say in words what the limits of one element are."""
        low = _limit_at(self.low, index, shape)
        high = _limit_at(self.high, index, shape)
        if low is None and high is None:
            return "finite"
        if high is None:
            return f"at least {_number(low)}"
        if low is None:
            return f"at most {_number(high)}"
        return f"from {_number(low)} to {_number(high)}"


def _limit_on(device: torch.device, limit: Limit, otherwise: float) -> float | Tensor:
    """Return a limit on a device, or `otherwise` if there is none."""
    if isinstance(limit, Tensor):
        return limit.to(device)
    return otherwise if limit is None else limit


def _limit_at(limit: Limit, index: tuple[int, ...], shape: torch.Size) -> float | None:
    """Return the limit of one element of a value of a shape."""
    if isinstance(limit, Tensor):
        return limit.expand(shape)[index].item()
    return limit


class Entry(NamedTuple):
    """Required dtype, shape and bounds of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    bounds: Bounds = Bounds()

    def check(self, where: str, name: str, value: object) -> Tensor:
        """Return a validated tensor: dense, of this dtype and shape, and within bounds.

        Reads the device.
        """
        tensor = arguments.tensor(where, name, value, self.dtype, self.shape)
        violated = self.bounds.violated(tensor)
        if bool(violated.any()):
            index = tuple(int(i) for i in violated.nonzero()[0])
            place = f" at {list(index)}" if index else ""
            limits = self.bounds.at(index, tensor.shape)
            raise ValueError(f"{where}: {name} must be {limits}; got {_number(tensor[index].item())}{place}")
        return tensor

    def behind(self, *leading: int) -> Entry:
        """Return the same requirement with leading axes."""
        return self._replace(shape=(*leading, *self.shape))


def check_entries(
    where: str, given: object, wanted: Mapping[NestedKey, Entry], strict: bool = True, more: bool = False
) -> dict[NestedKey, Tensor]:
    """Return validated tensors of the wanted keys, from a nested mapping of names.

    If `strict`, every wanted key must be present, and no other. `more` allows others, which are left out.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}: must be a mapping of names to tensors, not {shown(given)}")
    flat = flat_entries(given)
    has_missing = bool(set(wanted) - set(flat))
    has_unknown = bool(set(flat) - set(wanted))
    if strict and (has_missing or (has_unknown and not more)):
        raise ValueError(f"{where}: the entries must be {_names(wanted)}, not {_names(flat)}")
    return {key: entry.check(where, _name(key), flat[key]) for key, entry in wanted.items() if key in flat}


def entries_of(spec: Composite, batch_dims: int | None = None) -> dict[NestedKey, Entry]:
    """Return what each leaf of a TorchRL spec requires: dtype, shape and bounds.

    The first `batch_dims` axes are left out of the shape. NaN is never allowed.
    """
    first = batch_dims or 0
    entries: dict[NestedKey, Entry] = {}
    for key in spec.keys(True, True):
        leaf = spec[key]
        entries[key] = Entry(leaf.dtype, tuple(leaf.shape[first:]), _bounds_of(leaf, first))
    return entries


def _bounds_of(leaf: TensorSpec, batch_dims: int) -> Bounds:
    if isinstance(leaf, Categorical):
        return Bounds(0, int(leaf.space.n) - 1)
    if isinstance(leaf, Bounded):
        first = (0,) * batch_dims
        return Bounds(leaf.space.low[first], leaf.space.high[first])
    return Bounds(*ANY) if leaf.dtype.is_floating_point else Bounds()


def flat_entries(given: Mapping[object, object], above: tuple[str, ...] = ()) -> dict[NestedKey, object]:
    """Return the leaves of a nested mapping by TorchRL's nested keys."""
    out: dict[NestedKey, object] = {}
    for name, value in given.items():
        # A file may nest deeper than Python can call.
        if isinstance(value, Mapping) and len(above) < _DEEPEST:
            out |= flat_entries(value, (*above, str(name)))
        else:
            out[(*above, str(name)) if above else str(name)] = value
    return out


def _names(keys: Iterable[NestedKey]) -> list[str]:
    names = sorted(_name(key) for key in keys)
    num_left_out = len(names) - _MOST_NAMES
    return names if num_left_out <= 0 else [*names[:_MOST_NAMES], f"… {num_left_out} more"]


def _name(key: NestedKey) -> str:
    return key if isinstance(key, str) else "/".join(key)


def _number(value: object) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)
