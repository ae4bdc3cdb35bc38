"""The sets of objects that irregular packing is evaluated on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from torchrl_gpu.envs.packing.items import ItemSequences, ItemSource, ProceduralSolids
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.kernels import balanced
from torchrl_gpu.envs.packing.types import Bin, Catalogue

HARD_SHAPES = ("bowl", "mug", "l_shape", "u_shape")
HARD_SCALE = 1.1
UNSEEN_SEED = 1_000_003  # that of PackingEpisodes, which training never uses


def easy(items: ItemSource, seed: int) -> ItemSource:
    """Other objects of the kinds and sizes that were trained on; the same ones from a source without a pool."""
    if getattr(items, "seed", None) == seed:
        raise ValueError(f"evaluate: --seed must differ from that of the objects trained on; got {seed}")
    return items.reseeded(seed)


def hard(items: ItemSource, seed: int, shapes: Sequence[str] = HARD_SHAPES) -> ItemSource:
    """Concave objects alone, with sides a tenth longer than those trained on."""
    if not isinstance(items, ProceduralSolids):
        raise ValueError(f"evaluate: the set hard wants a config with ProceduralSolids; got {type(items).__name__}")
    smallest, largest = HARD_SCALE * items.min_size, HARD_SCALE * items.max_size
    return ProceduralSolids(items.num_objects, smallest, largest, items.scale, seed, tuple(shapes))


@final
class Remembered(ItemSource):
    """Another source, each of whose catalogues is made once.

    Args:
        source: Of solids, whose stream is the same for any number of environments.
        device: Where the catalogues stay.
    """

    boxes = False

    def __init__(self, source: ItemSource, device: torch.device) -> None:
        if source.boxes:
            raise ValueError(f"evaluate: want a config with irregular objects; got {type(source).__name__}")
        self.source, self.device = source, device
        self._made: dict[tuple[Bin, str | float, int], tuple[Catalogue, ItemSequences]] = {}

    def build(
        self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int
    ) -> tuple[Catalogue, ItemSequences]:
        """As the source builds them."""
        key = bin_, orientations, num_items
        if key not in self._made:
            catalogue, stream = self.source.build(bin_, orientations, num_items, num_envs)
            self._made[key] = balanced(catalogue.to(self.device), bin_), stream
        return self._made[key]

    def solid(self, item: int, bin_: Bin) -> Solid:
        """The source's."""
        return self.source.solid(item, bin_)
