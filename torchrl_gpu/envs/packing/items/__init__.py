"""Where items come from: boxes drawn at random, boxes cut from a full bin, sequences from a file, irregular solids."""

from __future__ import annotations

from torchrl_gpu.envs.packing.items.boxes import CutBoxes, RandomBoxes
from torchrl_gpu.envs.packing.items.procedural import ProceduralSolids
from torchrl_gpu.envs.packing.items.sequences import BoxSequences
from torchrl_gpu.envs.packing.items.source import ItemSource, ItemStream

__all__ = ["BoxSequences", "CutBoxes", "ItemSource", "ItemStream", "ProceduralSolids", "RandomBoxes", "item_source"]

_WORDS = {"random": RandomBoxes, "cut": CutBoxes, "procedural": ProceduralSolids}


def item_source(items: str | ItemSource) -> ItemSource:
    """The item source that a word or a path names.

    Args:
        items: A source, or "random", "cut", "procedural", or the path of a file of box sequences.

    Raises:
        FileNotFoundError: It is neither a word nor an existing file.
        ValueError: The file does not hold box sequences.
        TypeError: It is something else.
    """
    if isinstance(items, ItemSource):
        return items
    if not isinstance(items, str):
        raise TypeError(f"item_source: want an ItemSource, a word or a path; got {type(items).__name__}")
    return _WORDS[items]() if items in _WORDS else BoxSequences(items)
