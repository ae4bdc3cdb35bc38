"""Undersides of a catalogue in bytes, made once on the device.

The kernel of irregular items reads them. Where bins are at most 255 units high, a byte holds how far below 255 units a
cell of an item's underside lies, and 0 where it has no material. An orientation's cells lie in the order of the phases
of the grid step, in which they are visited, and those of V orientations that are worked out together lie in one word: a
cell costs one load.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from torchrl_gpu.envs.packing.types import Bin, Catalogue

# Units of a height, and of the bin.
MOST_UNITS = 255
# Cells worked out at a time.
_CHUNK = 2**24


class Undersides(NamedTuple):
    """Undersides of M items in G groups of V orientations.

    They lie by phases of the grid step S; A and B are P / S and Q / S. Groups are of neighbouring orientations in the
    order of `split.Split`.

    Attributes:
        words: Byte v is 255 less the units of orientation v, 0 for no material, (M, G, S, S, A, B) int32.
        spans: Of each row the first cell with material, and in the high half one past the last, (M, G, S, S, A) int32.
        blocks: Byte v is the largest among the S × S cells of a block, (M, G, A, B) int32.
    """

    words: Tensor
    spans: Tensor
    blocks: Tensor


def fit_bytes(catalogue: Catalogue, bin_: Bin) -> bool:
    """Return whether heights of the bin fit bytes."""
    return catalogue.unit is not None and bin_.size[2] <= MOST_UNITS * catalogue.unit * (1 + 1e-6)


def undersides(catalogue: Catalogue, bin_: Bin, variants: int) -> Undersides:
    """Return the `Undersides` of a catalogue.

    They are made at the first call and kept as long as its bottoms are. Making them reads nothing back. A call within
    the capture of a CUDA graph must not be the first.
    """
    assert catalogue.bottom is not None
    assert catalogue.unit is not None
    kept = _KEPT.setdefault(catalogue.bottom, {})
    key = bin_.step, variants, catalogue.unit, catalogue.bottom._version
    if key not in kept:
        kept[key] = _make(catalogue.bottom, catalogue.extent, catalogue.unit, bin_.step, variants)
    return kept[key]


_KEPT: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _make(bottom: Tensor, extent: Tensor, unit: float, step: int, variants: int) -> Undersides:
    items, orientations, rows, columns = bottom.shape
    groups = orientations // variants
    length = -(-rows // step)
    width = -(-columns // step)
    phases = items, groups, step, step, length, width
    words = torch.empty(phases, dtype=torch.int32, device=bottom.device)
    spans = torch.empty(phases[:-1], dtype=torch.int32, device=bottom.device)
    blocks = torch.empty((items, groups, length, width), dtype=torch.int32, device=bottom.device)
    order = _order(extent) if variants > 1 else None
    few = max(1, _CHUNK // (orientations * rows * columns))
    for first in range(0, items, few):
        part = slice(first, first + few)
        some = bottom[part]
        if order is not None:
            some = some.gather(1, order[part, :, None, None].expand_as(some))
        depth = torch.nan_to_num(some / unit, nan=MOST_UNITS, posinf=MOST_UNITS).round()
        byte = (MOST_UNITS - depth).clamp(0, MOST_UNITS).to(torch.int32)
        byte = torch.nn.functional.pad(byte, (0, width * step - columns, 0, length * step - rows))
        byte = byte.view(-1, groups, variants, length, step, width, step)
        # (m, G, S, S, A, B)
        word = _joined(byte).permute(0, 1, 3, 5, 2, 4)
        words[part] = word
        spans[part] = _spans(word != 0)
        blocks[part] = _joined(byte.amax((4, 6)))
    return Undersides(words, spans, blocks)


def _joined(byte: Tensor) -> Tensor:
    """Return words of the bytes of V orientations, without their axis (m, G, V, …)."""
    word = byte[:, :, 0].clone()
    for v in range(1, byte.shape[2]):
        word |= byte[:, :, v] << (8 * v)
    return word


def _order(extent: Tensor) -> Tensor:
    """Return the orientations of each item by extent, (M, O), as `split_kernel` does."""
    key = extent[..., 0] * 32768 + extent[..., 1]
    return key.argsort(dim=1, stable=True)


def _spans(material: Tensor) -> Tensor:
    """Return the first cell with material of each row (…, B), 0 for none.

    The high half is one past the last.
    """
    place = torch.arange(material.shape[-1], dtype=torch.int32, device=material.device)
    end = torch.where(material, place + 1, 0).amax(-1)
    first = torch.where(material, place, material.shape[-1]).amin(-1)
    return torch.where(end > 0, first | (end << 16), 0).to(torch.int32)
