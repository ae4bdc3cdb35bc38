"""The sets of objects that irregular packing is evaluated on."""

from __future__ import annotations

from collections.abc import Sequence

from torchrl_gpu.envs.packing.items import ItemSource, ProceduralSolids

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
