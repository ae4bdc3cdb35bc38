"""The sets of objects that irregular packing is evaluated on, and items that several environments share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ItemSource, ItemStream, ProceduralSolids
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.items.source import SortedStream
from torchrl_gpu.envs.packing.types import Bin, Catalogue

HARD_SHAPES = ("bowl", "mug", "l_shape", "u_shape")
HARD_SCALE = 1.1


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
class CachedItems(ItemSource):
    """The items and episodes of another environment, none of them made again: its catalogue is shared.

    Args:
        env: The other one; one that is built with this source differs from it in no argument that decides its items.
    """

    def __init__(self, env: PackingEnv) -> None:
        self.source, self.boxes = env.items, env.items.boxes
        # The environment that asks sorts by itself.
        stream = env.stream if env.order == "sequence" else cast("SortedStream", env.stream).episodes
        self._made = env.catalogue, stream

    def build(
        self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int
    ) -> tuple[Catalogue, ItemStream]:
        """Those of the other environment."""
        return self._made

    def solid(self, item: int, bin_: Bin) -> Solid:
        """The source's."""
        return self.source.solid(item, bin_)
