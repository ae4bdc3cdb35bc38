"""What an item source built, held against what kernels rely on: a source may be a stranger's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.arguments import number, refuse, shown, whole
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
    if not isinstance(c.extent, Tensor) or c.extent.ndim != 3 or not c.extent.numel():
        refuse(where, "extent", "a tensor of shape (items, orientations, 2), none of them 0", c.extent)
    m, o = c.extent.shape[:2]
    Entry(torch.int64, (m, o, 2), Bounds(1, 2**31 - 1)).check(where, "extent", c.extent)
    Entry(torch.float32, (m, o), Bounds(0, torch.finfo(torch.float32).max)).check(where, "height", c.height)
    Entry(torch.float32, (m,), Bounds(0, torch.finfo(torch.float32).max)).check(where, "volume", c.volume)
    for name, largest in (("bounds", c.extent.amax(0)), ("least", c.extent.amin(0))):
        given, wanted = getattr(c, name), tuple(map(tuple, largest.tolist()))
        if given != wanted:
            refuse(where, name, f"those of extent, {shown(wanted)}", given)
    _check_maps(where, c, (m, o))
    if c.unit is not None:
        number(where, "unit", c.unit, above=0)
    most = _SIXTEENTHS * c.extent
    for name, entry in {
        "centre": Entry(torch.float32, (m, o, 2)),
        "plumb": Entry(torch.int32, (m, o, 2), Bounds(0, most)),
        "steady": Entry(torch.bool, (m, o)),
    }.items():
        if getattr(c, name) is not None:
            entry.check(where, name, getattr(c, name))


def _check_maps(where: str, c: Catalogue, rows: tuple[int, int]) -> None:
    if c.top is None and c.bottom is None:
        return
    if (
        not isinstance(c.top, Tensor)
        or c.top.ndim != 4
        or c.top.shape[-2] < c.footprint[0]
        or c.top.shape[-1] < c.footprint[1]
    ):
        refuse(where, "top", f"a tensor of shape (items, orientations, P, Q) with (P, Q) from {c.footprint} on", c.top)
    shape = (*rows, *c.top.shape[-2:])
    Entry(torch.float32, shape).check(where, "top", c.top)
    Entry(torch.float32, shape, Bounds(0, ANY[1])).check(where, "bottom", c.bottom)


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
