"""Sequences of boxes cut from a full bin when they are read.

Every episode has fresh boxes, which are cut in batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs.counter_rng import TRITON_DRAWS, draw_bits
from torchrl_gpu.envs.packing.items.source import NUM_BITS, DrawnSequences
from torchrl_gpu.system.tracing import is_traced
from torchrl_gpu.system.triton_kernels import load_kernels

Cells = tuple[int, int, int]
# Keys (N, 2), the index of the key that was read last (N,), and rows of `sizes` (N, 2, T).
Kept = tuple[Tensor, Tensor, Tensor]
TRITON_CUTS = "torchrl_gpu.envs.packing.items.triton_cuts"
# Pieces that a bin may be cut into: support is computed for every pair.
MOST_FRESH_PIECES = 1024
# Pairs of pieces, or numbers of layers, worked on at once. More do not fit the cache of a core.
_CHUNK = {"cpu": 1 << 21}
# The same for other devices.
_MOST_PAIRS = 1 << 26


class Pieces(NamedTuple):
    """Bins cut into boxes, in the order in which the boxes arrive.

    Each is a packing of the whole bin. Sizes are 0 behind the last piece.
    """

    corner: Tensor  # (B, T, 3) int64, cells
    size: Tensor  # (B, T, 3) int64, cells
    number: Tensor  # (B,) int64, pieces


@dataclass(frozen=True)
class CutSequences(DrawnSequences):
    """Box sequences cut from a full bin by a key.

    The same key gives the same sequence in any batch.

    A box with sides above `max_side` is cut across one of them drawn uniformly, at a place drawn uniformly that leaves
    at least `min_side`, until there is none.

    Layers arrive by the height of their base, equal ones as they were finished, as in the generator released with Zhao
    et al., AAAI 2021. A list of boxes to be cut, at first the bin, is walked from its front, again and again. Of the
    box at hand an axis with a long side is drawn, and a length from 1 to that side. Where a part would be shorter than
    `min_side` the box stays as it is. Else it leaves the list and its parts, along x and y the one of the drawn length
    first, along z the lower one, whose height is the rest, go to the end of the list, or to the finished ones; the box
    that follows it is passed over until the next walk. A box that stays takes a step too; there are `steps` of them,
    and when no more are left than the bin may still need, lengths are drawn only from those that can be cut. With
    10×10×10 cells and sides 2–5 there are 144, of which none of 20,000 sequences took more than 94.

    A stack arrives in a random order in which all boxes that support a box precede it, each box that could be next
    being equally likely: box i comes at the time max(those that support it) + E_i with independent exponential E_i,
    since these have no memory. Times are compared as exp(−time), products of uniform numbers.

    What is drawn is drawn by counter, so that every device gives the same sequences. Those that were read last are
    cached, on a CPU with a compiler and on CUDA with Triton; elsewhere every look-up cuts again.

    Attributes:
        whole: Sides of the bin, cells.
        min_side: Smallest side of a box, cells.
        max_side: Largest side of a box, cells.
        by_layers: True for layers (CUT-1), False for a stack (CUT-2).
        num_items: Most boxes of an episode; the others are left out.
    """

    whole: Cells
    min_side: int
    max_side: int
    by_layers: bool
    num_items: int
    recent: list[Kept] = field(default_factory=list, compare=False, repr=False)
    recent_on_device: dict[tuple[torch.device, int], Kept] = field(default_factory=dict, compare=False, repr=False)

    @property
    def length(self) -> int:  # type: ignore[override]
        return min(self.num_items, self.most_pieces)

    @cached_property
    def most_pieces(self) -> int:
        """Maximum number of boxes that the bin may be cut into, T."""
        return math.prod(most_parts(side, self.min_side, self.max_side) for side in self.whole)

    @cached_property
    def rounds(self) -> int:
        """Maximum number of successive cuts: of a box, and then of its parts."""
        return sum(most_cuts(side, self.min_side, self.max_side) for side in self.whole)

    @cached_property
    def steps(self) -> int:
        """Number of steps of the walk that cuts layers.

        For `most_pieces` the mean number where cuts fail most often, and 16.
        """
        # The shortest side that is cut has the smallest share of lengths that can be cut.
        shortest = self.max_side + 1
        return -(-self.most_pieces * shortest // (shortest - 2 * self.min_side + 1)) + 16

    @cached_property
    def num_sides(self) -> Cells:
        """Numbers of lengths of the sides of a box, along each axis of the bin.

        Lengths begin at `min_side`.
        """
        x, y, z = self.whole
        return self._num_lengths(x), self._num_lengths(y), self._num_lengths(z)

    def _num_lengths(self, side: int) -> int:
        return min(side, self.max_side) - self.min_side + 1

    def sizes(self) -> list[Cells]:
        """Return every box that may occur, cells.

        The place of a box here is the row that `items` returns.
        """
        low = self.min_side
        x, y, z = self.num_sides
        return list(itertools.product(range(low, low + x), range(low, low + y), range(low, low + z)))

    def items(self, key: Tensor, position: Tensor) -> Tensor:
        inside = position < self.length
        position = position.clamp(0, max(self.length - 1, 0))
        if native.runs_on(key):
            found = self._looked_up(key, position)
        elif self._runs_in_triton(key):
            found = self._looked_up_on_cuda(key, position)
        else:
            found = self.rows(key).gather(1, position)
        return torch.where(inside, found, -1)

    def rows(self, key: Tensor) -> Tensor:
        """Return the rows of `sizes` of the boxes of whole sequences.

        Shape (B, T), int64; −1 behind the last.
        """
        if native.runs_on(key):
            return native.cut_boxes(key, self.numbers)[1]
        _, size, _ = self.cut(key)
        x, y, z = (size - self.min_side).unbind(-1)
        row = (x * self.num_sides[1] + y) * self.num_sides[2] + z
        return torch.where(size[..., 0] > 0, row, -1)

    def cut(self, key: Tensor) -> Pieces:
        """Cut the sequences of keys (B,).

        The pieces hold the corner that each box was cut from.
        """
        if self.by_layers:
            cut = self._walked
            numbers = 8 * self.steps
        else:
            cut = self._stacked
            numbers = self.most_pieces**2
        width = max(1, _CHUNK.get(key.device.type, _MOST_PAIRS) // numbers)
        parts = [cut(each) for each in key.split(width)]
        return Pieces(*(torch.cat(each) for each in zip(*parts, strict=True)))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers that describe the cuts to a kernel.

        Sides of the bin, smallest and largest side, whether by layers, most pieces, and steps or rounds.
        """
        turns = self.steps if self.by_layers else self.rounds
        return (*self.whole, self.min_side, self.max_side, int(self.by_layers), self.most_pieces, turns)

    def _looked_up(self, key: Tensor, position: Tensor) -> Tensor:
        """Return the rows of `sizes` at places (N, K) of the sequences of keys (N,).

        Each of the N caches its last two sequences.
        """
        try:
            # Only one thread at a time can hold the cache.
            kept = self.recent.pop()
        except IndexError:
            kept = None
        if kept is None or len(kept[0]) != len(key):
            kept = self.nothing_kept(len(key), key.device)
        found = native.cut_items(key, position, self.numbers, *kept)
        self.recent[:] = [kept]
        return found

    def _runs_in_triton(self, key: Tensor) -> bool:
        # The kernel holds a side in 12 bits.
        small = max(self.whole) < 1 << 12
        return small and key.is_cuda and not is_traced() and _kernels(key.device) is not None

    def _looked_up_on_cuda(self, key: Tensor, position: Tensor) -> Tensor:
        kernels = _kernels(key.device)
        assert kernels is not None
        found: Tensor = kernels.items(self, key, position, self.kept_on(key.device, len(key)))
        return found

    def kept_on(self, device: torch.device, rows: int) -> Kept:
        """The cache of so many rows on a device."""
        at = device, rows
        # The cache is never freed: a captured graph continues to write there.
        if at not in self.recent_on_device:
            self.recent_on_device[at] = self.nothing_kept(rows, device)
        return self.recent_on_device[at]

    def nothing_kept(self, rows: int, device: torch.device) -> Kept:
        """Empty cache of the last two sequences of each row."""
        return (
            torch.full((rows, 2), -1, dtype=torch.int64, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.zeros(rows, 2, self.most_pieces, dtype=torch.int64, device=device),
        )

    # -- layers -----------------------------------------------------------------------------------------------------

    def _walked(self, key: Tensor) -> Pieces:
        """Cut layers.

        The list is a linked one: boxes that leave it stay in memory, unlinked.
        """
        most = self.most_pieces
        device = key.device
        rows = len(key)
        # Places of a list: place 0 stands before the first box, and two at the end are never read.
        places = most + 2
        # Boxes to be cut, then those that are finished.
        boxes = torch.zeros(rows, 2 * places, 6, dtype=torch.int64, device=device)
        # A bin that is small enough is a piece.
        is_whole = max(self.whole) <= self.max_side
        for axis, side in enumerate(self.whole):
            boxes[:, places if is_whole else 1, 3 + axis] = side
        following = torch.arange(1, places + 1, device=device, dtype=torch.int64).repeat(rows, 1)
        # The place before the box at hand.
        before = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        # End of the list.
        end = before + (1 if is_whole else 2)
        finished = before + int(is_whole)
        cuts = before
        counter = torch.arange(2 * self.steps, device=device, dtype=torch.int64)
        drawn = draw_bits(key, counter[:, None]).view(self.steps, 2, rows, 1).unbind()
        for step, (axis_draw, length_draw) in enumerate(drawn):
            here = following.gather(1, before)
            # Corner and size.
            box = boxes.gather(1, here[..., None].expand(-1, 1, 6))[:, 0]  # (B, 6)
            must = self.steps - step <= most - 1 - cuts
            first, second, cuttable = self._parts(box, axis_draw, length_draw, must)
            is_cut = cuttable & (here < end)
            parts = torch.stack([first, second], 1)  # (B, 2, 6)
            is_long = (parts[..., 3:] > self.max_side).any(2)  # (B, 2)
            listed = torch.cat([end, end + is_long[:, :1]], 1)
            done = torch.cat([finished, finished + ~is_long[:, :1]], 1) + places
            target = torch.where(is_long, listed, done)
            # Where no box is cut, this writes to places that are still free.
            boxes.scatter_(1, target[..., None].expand(-1, 2, 6), parts)
            end = end + (is_long & is_cut).sum(1, keepdim=True)
            finished = finished + (~is_long & is_cut).sum(1, keepdim=True)
            cuts = cuts + is_cut
            after = following.gather(1, here)
            following.scatter_(1, before, torch.where(is_cut, after, here))
            before = torch.where(is_cut, after, here)
            before = torch.where(following.gather(1, before) < end, before, 0)
        made = boxes[:, places : places + most]
        number = torch.arange(most, device=device, dtype=torch.int64)
        base = torch.where(number < finished, made[..., 2], max(self.whole))
        order = base.argsort(dim=1, stable=True)
        made = made.gather(1, order[..., None].expand(-1, -1, 6))
        made = torch.where((number < finished)[..., None], made, 0)
        return Pieces(made[..., :3], made[..., 3:], finished[:, 0])

    def _parts(
        self, box: Tensor, axis_draw: Tensor, length_draw: Tensor, must: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cut boxes (B, 6) into two parts (B, 6), with a mask (B, 1) of valid cuts.

        Under `must` all long boxes are cut.
        """
        corner, size = box.split(3, 1)
        long = size > self.max_side
        which = axis_draw * long.sum(1, keepdim=True) >> 32
        # At most one axis of a box is true.
        across = long & (long.cumsum(1) - 1 == which)  # (B, 3)
        side = (size * across).sum(1, keepdim=True)
        number = torch.where(must, side - 2 * self.min_side + 1, side)
        length = torch.where(must, self.min_side, 1) + (length_draw * number >> 32)
        low = torch.where(across[:, 2:], side - length, length)
        cuttable = (length >= self.min_side) & (side - length >= self.min_side)
        first = torch.cat([corner, torch.where(across, low, size)], 1)
        second = torch.cat([corner + across * low, torch.where(across, side - low, size)], 1)
        return first, second, cuttable

    # -- stacks -----------------------------------------------------------------------------------------------------

    def _stacked(self, key: Tensor) -> Pieces:
        most, device = self.most_pieces, key.device
        corner = torch.zeros(3, len(key), 1, dtype=torch.int64, device=device)
        size = torch.stack([torch.full((len(key), 1), side, dtype=torch.int64, device=device) for side in self.whole])
        count = torch.ones_like(key)
        for turn in range(self.rounds):
            corner, size, count = self._halved(key, turn, corner, size, count)
        number = torch.arange(size.shape[2], device=device, dtype=torch.int64)
        drawn = draw_bits(key[:, None], number + 2 * self.rounds * most)
        uniform = (drawn.double() + 0.5) / NUM_BITS  # (B, T)
        early = torch.where(number < count[:, None], self._earliness(corner, size, uniform), -1.0)
        order = early.argsort(dim=1, descending=True, stable=True)
        order = order.expand(3, -1, -1)
        corner = corner.gather(2, order).permute(1, 2, 0)
        size = size.gather(2, order).permute(1, 2, 0)
        return Pieces(corner, size, count)

    def _halved(
        self, key: Tensor, turn: int, corner: Tensor, size: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cut every box with a long side once.

        The second halves go behind the other boxes, (3, B, W) to (3, B, W').
        """
        width = size.shape[2]
        wider = min(2 * width, self.most_pieces)
        counter = 2 * (turn * self.most_pieces + torch.arange(width, device=key.device, dtype=torch.int64))
        long = size > self.max_side
        number = long.sum(0)  # (B, W)
        which = draw_bits(key[:, None], counter) * number >> 32
        # At most one axis of a box is true.
        across = long & (long.cumsum(0) - 1 == which)  # (3, B, W)
        length = (size * across).sum(0)
        places = (length - 2 * self.min_side + 1).clamp_min(0)
        at = self.min_side + (draw_bits(key[:, None], counter + 1) * places >> 32)
        halves = number > 0
        target = torch.where(halves, count[:, None] + halves.cumsum(1) - 1, wider).expand_as(size)

        def laid(first: Tensor, second: Tensor) -> Tensor:
            room = first.new_zeros(3, len(key), wider + 1 - width)
            return torch.cat([first, room], 2).scatter(2, target, second)[..., :wider]

        corner = laid(corner, corner + across * at)
        size = laid(torch.where(across, at, size), torch.where(across, length - at, size))
        return corner, size, count + halves.sum(1)

    def _earliness(self, corner: Tensor, size: Tensor, uniform: Tensor) -> Tensor:
        """Order of arrival of each box of a stack as exp(−time), (B, T) float64."""
        # A bin has at most 4,096 cells a side, so that 16 bits are enough.
        x, y, z = corner.short()
        p, q, h = size.short()
        # Every box, and its possible supports.
        below = (z + h)[:, None, :] == z[:, :, None]  # (B, T, T)
        for first, extent in ((x, p), (y, q)):
            last = first + extent
            below = below & (first[:, None, :] < last[:, :, None]) & (first[:, :, None] < last[:, None, :])
        early = uniform
        for _ in range(most_parts(self.whole[2], self.min_side, self.max_side) - 1):
            early = uniform * torch.where(below, early[:, None, :], 1.0).amin(2)
        return early


def _kernels(device: torch.device) -> ModuleType | None:
    """Return the Triton kernels that cut on a device, or None if torch does."""
    return load_kernels("cutting boxes", TRITON_CUTS, device, parts=(TRITON_DRAWS,))


@cache
def most_parts(side: int, min_side: int, max_side: int) -> int:
    """Maximum number of parts that a side may be cut into."""
    return _most(side, min_side, max_side, 1, lambda parts, others: parts + others)


@cache
def most_cuts(side: int, min_side: int, max_side: int) -> int:
    """Maximum number of successive cuts of a side: itself, and then its longer part."""
    return _most(side, min_side, max_side, 0, lambda shorter, longer: 1 + longer)


def _most(side: int, min_side: int, max_side: int, whole: int, joined: Callable[..., np.ndarray]) -> int:
    """Return the maximum over all ways to cut a side.

    It is `whole` without a cut, else `joined` of two parts, the shorter first.
    """
    most = np.full(side + 1, whole, dtype=np.int64)
    # Shorter sides come first: a longer side is computed from them.
    for each in range(max_side + 1, side + 1):
        shorter = np.arange(min_side, each // 2 + 1)
        most[each] = joined(most[shorter], most[each - shorter]).max()
    return int(most[side])
