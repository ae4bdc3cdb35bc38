"""Item sources: a catalogue, and the item sequence of every episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from torchrl_gpu.envs.counter_rng import draw_integers, episode_key
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.envs.state_validation import ANY, Bounds, Entry
from torchrl_gpu.system.arguments import refuse, shown, whole

# Numbers that `draw_bits` draws are below this.
NUM_BITS = 2**32
# Parts of a cell, see `Catalogue.centre_16ths`.
_SIXTEENTHS = 16


class ItemSequences(ABC):
    """Item sequences of all episodes, with random access.

    No generator holds a state: a key and a position decide an item.
    """

    length: int
    """Most items of an episode."""

    @property
    def num_keys(self) -> int | None:
        """Number of keys, which are whole numbers from 0.

        None if any number is a key.
        """
        return None

    @abstractmethod
    def begin(self, seed: int, env: Tensor, episode: Tensor) -> Tensor:
        """Keys (N,) int64 of the episodes `episode` (N,) of the environments `env` (N,)."""

    @abstractmethod
    def items(self, key: Tensor, position: Tensor) -> Tensor:
        """Return catalogue rows at `position` (N, K) of the episodes `key` (N,).

        Shape (N, K), int64; −1 past the end.
        """

    def to(self, device: torch.device) -> ItemSequences:
        """The same on `device`."""
        return self


class DrawnSequences(ItemSequences):
    """Sequences drawn by counter from keys of 32 drawn bits.

    Every episode has its own sequence.
    """

    @property
    def num_keys(self) -> int:
        return NUM_BITS

    def begin(self, seed: int, env: Tensor, episode: Tensor) -> Tensor:
        return episode_key(seed, env, episode)


@dataclass(frozen=True)
class EndlessSequences(DrawnSequences):
    """Items drawn uniformly and independently from a catalogue of `num_types`."""

    num_types: int
    length: int

    def items(self, key: Tensor, position: Tensor) -> Tensor:
        return draw_integers(key[:, None], position, self.num_types, end=self.length)


@dataclass(frozen=True)
class PooledSequences(ItemSequences):
    """Episodes picked from a pool of sequences.

    Attributes:
        sequences: Catalogue rows, (R, T) int64; −1 behind the end of a sequence.
        in_order: Environment i plays sequence i, then i + stride, …; otherwise each episode draws a sequence.
        stride: Sequences between one episode of an environment and its next, if `in_order`.
    """

    sequences: Tensor
    in_order: bool = False
    stride: int = 1

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.sequences.shape[1]

    @property
    def num_keys(self) -> int:
        return len(self.sequences)

    def begin(self, seed: int, env: Tensor, episode: Tensor) -> Tensor:
        if self.in_order:
            return (env + self.stride * episode) % len(self.sequences)
        return draw_integers(episode_key(seed, env, episode), torch.zeros_like(env), len(self.sequences))

    def items(self, key: Tensor, position: Tensor) -> Tensor:
        found = self.sequences[key[:, None], position.clamp_max(self.length - 1)]
        return torch.where(position < self.length, found, -1)

    def to(self, device: torch.device) -> PooledSequences:
        return PooledSequences(self.sequences.to(device), self.in_order, self.stride)


@dataclass(frozen=True)
class SortedSequences(ItemSequences):
    """The episodes of other sequences, each from its largest item to its smallest.

    Items of the same volume keep their order.

    Attributes:
        episodes: The other sequences. A whole episode is drawn and sorted at each look-up.
        volume: Volumes of the catalogue's items, (M,) float32, cubic metres.
    """

    episodes: ItemSequences
    volume: Tensor

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.episodes.length

    @property
    def num_keys(self) -> int | None:
        return self.episodes.num_keys

    def begin(self, seed: int, env: Tensor, episode: Tensor) -> Tensor:
        return self.episodes.begin(seed, env, episode)

    def items(self, key: Tensor, position: Tensor) -> Tensor:
        every = torch.arange(self.length, device=key.device, dtype=torch.int64).expand(len(key), -1)
        items = self.episodes.items(key, every)  # (N, T)
        known = items.clamp(0, len(self.volume) - 1)
        # Behind the end of an episode the row is −1, and so is its volume: it is sorted last.
        of_item = torch.where(items == known, self.volume[known], -1.0)
        ordered = items.gather(1, of_item.sort(dim=1, descending=True, stable=True).indices)
        return torch.where(position < self.length, ordered.gather(1, position.clamp_max(self.length - 1)), -1)

    def to(self, device: torch.device) -> SortedSequences:
        return SortedSequences(self.episodes.to(device), self.volume.to(device))


Built = tuple[Catalogue, ItemSequences]
Labels = list[dict[str, Any]]
Masses = tuple[float, ...] | None


class ItemSource(ABC):
    """Source of an environment's items: builds the catalogue and the item sequences.

    Sizes of the catalogue are known only with the bin and the orientations, so the environment calls `build` once.
    """

    boxes: bool = True
    """Whether every item is a box."""
    unit: str = "m"
    """Of the sizes that the user gave: "cells", "m", "cm" or "mm". Plans and pictures are in it."""

    def reseeded(self, seed: int) -> ItemSource:
        """Return a source of the same kind of items with other episodes.

        A source without a pool of its own returns itself.
        """
        return self

    @property
    def drawn_as(self) -> ItemSource:
        """Source that defines how the items are drawn.

        Itself, or for a file another source with the same items.
        """
        return self

    @abstractmethod
    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        """Build the catalogue and the sequences on the CPU.

        An episode has at most `num_items` items. `num_envs` environments play the sequences.

        Orientations are those of `orientation_set`.
        """

    def solid(self, item: int, bin_: Bin) -> Solid:
        """Return the `Solid` of a row of the catalogue that `build` makes for a bin.

        A source of boxes does not need this method.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no solids")

    def label(self, item: int, bin_: Bin) -> dict[str, object]:
        """Label in plans of a row of the catalogue that `build` makes for a bin."""
        return {"item": item}

    def labels_of(self, number: int, items: Sequence[int], bin_: Bin, orientations: str | float) -> Labels:
        """Labels in plans of items that were placed of a sequence, in that order."""
        return [self.label(item, bin_) for item in items]

    def masses(self, number: int, items: Sequence[int], bin_: Bin, orientations: str | float) -> Masses:
        """Return the kilograms of placed items of a sequence, in that order.

        None if they are not known.
        """
        return None


@final
class SameItems(ItemSource):
    """Items and episodes that are built already, to share their catalogue.

    In other orientations they are built anew, by the source that built these.

    Args:
        source: What built them.
        orientations: In which the items were built.
        catalogue: Of the items.
        sequences: Of the episodes.
    """

    def __init__(
        self, source: ItemSource, orientations: str | float, catalogue: Catalogue, sequences: ItemSequences
    ) -> None:
        self.source = source
        self.orientations = orientations
        self.boxes = source.boxes
        self.unit = source.unit
        # The environment that is built with this source sorts by itself.
        episodes = sequences.episodes if isinstance(sequences, SortedSequences) else sequences
        self._made = catalogue, episodes

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        # Principal views of the items, for example, are built in other orientations.
        if orientations != self.orientations:
            return self.source.build(bin_, orientations, num_items, num_envs)
        return self._made

    def to(self, device: torch.device) -> SameItems:
        moved = copy(self)
        moved._made = self._made[0].to(device), self._made[1].to(device)
        return moved

    def solid(self, item: int, bin_: Bin) -> Solid:
        return self.source.solid(item, bin_)

    def labels_of(self, number: int, items: Sequence[int], bin_: Bin, orientations: str | float) -> Labels:
        return self.source.labels_of(number, items, bin_, orientations)

    def masses(self, number: int, items: Sequence[int], bin_: Bin, orientations: str | float) -> Masses:
        return self.source.masses(number, items, bin_, orientations)


def check_built(where: str, catalogue: object, sequences: object) -> None:
    """Validate what `ItemSource.build` returned.

    A ValueError begins with `where`. Reads the device.
    """
    if not isinstance(catalogue, Catalogue) or not isinstance(sequences, ItemSequences):
        came = f"{shown(catalogue)} and {shown(sequences)}"
        raise ValueError(f"{where}: `build` must return a Catalogue and ItemSequences, not {came}")
    # Types, shapes and extents have been checked when the catalogue was made.
    finite = Bounds(0, torch.finfo(torch.float32).max)
    limits = {"height": finite, "volume": finite, "bottom": Bounds(0, ANY[1]), "centre": Bounds()}
    for name, bounds in (limits | {"centre_16ths": Bounds(0, _SIXTEENTHS * catalogue.extent)}).items():
        value = getattr(catalogue, name)
        if value is not None:
            Entry(value.dtype, tuple(value.shape), bounds).check(where, name, value)
    drawn = sequences
    while isinstance(drawn, SortedSequences):
        drawn = drawn.episodes
    if isinstance(drawn, PooledSequences):
        pool = drawn.sequences
        shape = tuple(pool.shape) if isinstance(pool, Tensor) and pool.ndim == 2 else (1, 1)
        Entry(torch.int64, shape, Bounds(-1, catalogue.num_items - 1)).check(where, "sequences", pool)
        if not len(pool):
            refuse(where, "sequences", "at least one", pool)
    whole(where, "the sequences' length", sequences.length, 0)
