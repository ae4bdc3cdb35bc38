"""Item sources: where the items of an environment come from.

Boxes are drawn, cut from a full bin, or read from a file; irregular solids are made, or read from mesh files. How items
are placed is in `kernels`, and how they are shown in `render`. Read `source.py` first: it defines `ItemSource`.
"""

from __future__ import annotations

from pathlib import Path

from torchrl_gpu.envs.packing.items.board_cases import BoardCases
from torchrl_gpu.envs.packing.items.boxes import CutBoxes, RandomBoxes
from torchrl_gpu.envs.packing.items.factories import FactoryBoxes
from torchrl_gpu.envs.packing.items.mesh_files import MESH_SUFFIXES
from torchrl_gpu.envs.packing.items.meshes import MeshItems
from torchrl_gpu.envs.packing.items.orders import OrderBoxes
from torchrl_gpu.envs.packing.items.procedural import ProceduralSolids
from torchrl_gpu.envs.packing.items.sequences import BoxSequences
from torchrl_gpu.envs.packing.items.source import ItemSequences, ItemSource
from torchrl_gpu.system.arguments import shown

__all__ = [
    "BoardCases",
    "BoxSequences",
    "CutBoxes",
    "FactoryBoxes",
    "ItemSequences",
    "ItemSource",
    "MeshItems",
    "OrderBoxes",
    "ProceduralSolids",
    "RandomBoxes",
    "item_source",
]

_WORDS = {"random": RandomBoxes, "cut": CutBoxes, "orders": OrderBoxes, "procedural": ProceduralSolids}


def item_source(items: str | Path | ItemSource) -> ItemSource:
    """Return the item source that a word or a path names.

    The words are "random", "cut", "orders" and "procedural".

    A path is that of a file of box sequences, of a mesh file, or of a folder of mesh files. FileNotFoundError where it
    is neither a word nor an existing file; ValueError where the file does not hold what can be used.
    """
    if isinstance(items, ItemSource):
        return items
    if not isinstance(items, (str, Path)) or not str(items):
        raise ValueError(f"item_source: items must be an ItemSource, a word or a path, not {shown(items)}")
    if isinstance(items, str) and items in _WORDS:
        return _WORDS[items]()
    path = Path(items).expanduser()
    return MeshItems(str(items)) if path.is_dir() or path.suffix.lower() in MESH_SUFFIXES else BoxSequences(str(items))
