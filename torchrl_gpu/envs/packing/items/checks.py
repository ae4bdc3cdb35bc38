"""What an item source built, held against what kernels rely on: a source may be a stranger's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.arguments import refuse, shown, whole
from torchrl_gpu.envs.entries import ANY, Bounds, Entry
from torchrl_gpu.envs.packing.items.source import ItemStream, PooledStream, SortedStream
from torchrl_gpu.envs.packing.types import Catalogue

_SIXTEENTHS = 16  # of a cell, see `Catalogue.plumb`


def check_built(where: str, catalogue: Any, stream: Any) -> None:
    """Returns if a catalogue and a stream are what they must be. Reads the device.

    Raises:
        ValueError: They are not; `where` is the first part of the message.
    """
    if not isinstance(catalogue, Catalogue) or not isinstance(stream, ItemStream):
        raise ValueError(f"{where}: want a Catalogue and an ItemStream; got {shown(catalogue)} and {shown(stream)}")
    _check_catalogue(where, catalogue)
    _check_stream(where, stream, catalogue.num_items)


def _check_catalogue(where: str, c: Catalogue) -> None:
    """Looks at values; types, shapes and extents have been checked when the catalogue was made."""
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


def _check_stream(where: str, stream: ItemStream, num_items: int) -> None:
    if isinstance(stream, SortedStream):
        _check_stream(where, stream.episodes, num_items)
    if isinstance(stream, PooledStream):
        sequences = stream.sequences
        shape = tuple(sequences.shape) if isinstance(sequences, Tensor) and sequences.ndim == 2 else (1, 1)
        Entry(torch.int64, shape, Bounds(-1, num_items - 1)).check(where, "sequences", sequences)
        if not len(sequences):
            refuse(where, "sequences", "at least one", sequences)
    whole(where, "the stream's length", stream.length, 0)
