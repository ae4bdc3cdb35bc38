"""Where items come from: boxes drawn or cut from a full bin, sequences from a file, irregular solids, mesh files."""

from __future__ import annotations

from pathlib import Path

from torchrl_gpu.envs.packing.items.boxes import CutBoxes, RandomBoxes
from torchrl_gpu.envs.packing.items.mesh_files import MESH_SUFFIXES
from torchrl_gpu.envs.packing.items.meshes import MeshItems
from torchrl_gpu.envs.packing.items.procedural import ProceduralSolids
from torchrl_gpu.envs.packing.items.sequences import BoxSequences
from torchrl_gpu.envs.packing.items.source import ItemSource, ItemStream

__all__ = [
    "BoxSequences",
    "CutBoxes",
    "ItemSource",
    "ItemStream",
    "MeshItems",
    "ProceduralSolids",
    "RandomBoxes",
    "item_source",
]

_WORDS = {"random": RandomBoxes, "cut": CutBoxes, "procedural": ProceduralSolids}


def item_source(items: str | ItemSource) -> ItemSource:
    """The item source that a word or a path names.

    Args:
        items: A source, or "random", "cut", "procedural", or a path: of a file of box sequences, of a mesh file, or of
            a folder of mesh files.

    Raises:
        FileNotFoundError: It is neither a word nor an existing file.
        ValueError: The file does not hold box sequences, or no mesh that can be used.
        TypeError: It is something else.
    """
    if isinstance(items, ItemSource):
        return items
    if not isinstance(items, str):
        raise TypeError(f"item_source: want an ItemSource, a word or a path; got {type(items).__name__}")
    if items in _WORDS:
        return _WORDS[items]()
    path = Path(items).expanduser()
    return MeshItems(items) if path.is_dir() or path.suffix.lower() in MESH_SUFFIXES else BoxSequences(items)
