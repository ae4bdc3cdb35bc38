"""Validation of what an item source built, before kernels rely on it: a source may be third-party code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.items.source import ItemSequences, PooledSequences, SortedSequences
from torchrl_gpu.envs.packing.types import Catalogue
from torchrl_gpu.envs.state_validation import ANY, Bounds, Entry
from torchrl_gpu.system.arguments import refuse, shown, whole

_SIXTEENTHS = 16  # of a cell, see `Catalogue.plumb`


def check_built(where: str, catalogue: Any, given: Any) -> None:
    """Validates a catalogue and item sequences; a ValueError, whose message begins with `where`. Reads the device."""
    if not isinstance(catalogue, Catalogue) or not isinstance(given, ItemSequences):
        raise ValueError(f"{where}: want a Catalogue and ItemSequences; got {shown(catalogue)} and {shown(given)}")
    _check_catalogue(where, catalogue)
    _check_sequences(where, given, catalogue.num_items)


def _check_catalogue(where: str, c: Catalogue) -> None:
    """Validates values; types, shapes and extents have been checked when the catalogue was made."""
    largest = torch.finfo(torch.float32).max
    for name, bounds in {
        "height": Bounds(0, largest),
        "volume": Bounds(0, largest),
        "bottom": Bounds(0, ANY[1]),
        "centre": Bounds(),
        "plumb": Bounds(0, _SIXTEENTHS * c.extent),
    }.items():
        value = getattr(c, name)
        if value is not None:
            Entry(value.dtype, tuple(value.shape), bounds).check(where, name, value)


def _check_sequences(where: str, given: ItemSequences, num_items: int) -> None:
    if isinstance(given, SortedSequences):
        _check_sequences(where, given.episodes, num_items)
    if isinstance(given, PooledSequences):
        pool = given.sequences
        shape = tuple(pool.shape) if isinstance(pool, Tensor) and pool.ndim == 2 else (1, 1)
        Entry(torch.int64, shape, Bounds(-1, num_items - 1)).check(where, "sequences", pool)
        if not len(pool):
            refuse(where, "sequences", "at least one", pool)
    whole(where, "the sequences' length", given.length, 0)
