"""Cache of mesh heightmaps, in the process and, where one is given, in a folder."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

from torchrl_gpu.envs.packing.items.rasterise import Heightmaps
from torchrl_gpu.envs.packing.items.segments import EDGE
from torchrl_gpu.envs.state_validation import ANY, Bounds, Entry
from torchrl_gpu.system.files import write_whole

_LOG = logging.getLogger(__name__)
# Version of the heightmaps and of the files. Another number makes all of them again.
_VERSION = 1
_MOST_BYTES = 1 << 30

_kept: OrderedDict[tuple[str, str], Heightmaps] = OrderedDict()


def cache_key(digest: str, scale: float, rotations: np.ndarray, cell: tuple[float, float]) -> str:
    """Return the key of a mesh's heightmaps.

    It is a hash of content, scale, orientations and size of a cell.
    """
    numbers = np.array([scale, *cell, EDGE, *np.round(rotations, 12).ravel() + 0.0])
    return hashlib.sha256(f"{_VERSION} {digest} ".encode() + numbers.tobytes()).hexdigest()


def forget() -> None:
    """Drop the heightmaps that this process holds, but none in files."""
    _kept.clear()


class MeshCache:
    """Cache of heightmaps by key, in the process and in a folder, if given.

    All caches of the process share a gibibyte.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise ValueError(f"MeshCache: {folder}: the cache must be a folder, not a file")
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str, num_orientations: int, device: torch.device) -> Heightmaps | None:
        """Heightmaps of a key, or None. An invalid file counts as none, and is logged."""
        found = _kept.get((key, str(device)))
        in_file = self.folder is not None and self._path(key).is_file()
        if found is None:
            found = self._read(key, num_orientations, device) if in_file else None
        elif self.folder is not None and not in_file:
            self._write(key, found)
        if found is not None:
            # It is now the last to be evicted.
            _keep(key, found)
        return found

    def put(self, key: str, maps: Heightmaps) -> None:
        """Stores heightmaps."""
        _keep(key, maps)
        if self.folder is not None:
            self._write(key, maps)

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.pt"

    def _write(self, key: str, maps: Heightmaps) -> None:
        held = {"key": key} | {name: value.cpu() for name, value in maps._asdict().items()}
        write_whole(self._path(key), lambda file: torch.save(held, file))

    def _read(self, key: str, num_orientations: int, device: torch.device) -> Heightmaps | None:
        try:
            held = torch.load(self._path(key), weights_only=True, map_location=device)
            return _checked(held, key, num_orientations)
        except Exception as error:
            # A broken or foreign file can make the reader raise anything.
            reason = str(error).strip().split("\n")[0][:200]
            _LOG.warning("MeshCache: %s: made again: %s", self._path(key), reason)
            return None


def _keep(key: str, maps: Heightmaps) -> None:
    # The dictionary is in the order of use: what was used last stands at its end, and its front is evicted.
    _kept[key, str(maps.top.device)] = maps
    _kept.move_to_end((key, str(maps.top.device)))
    total = sum(bytes_of(each) for each in _kept.values())
    while total > _MOST_BYTES and len(_kept) > 1:
        total -= bytes_of(_kept.popitem(last=False)[1])


def bytes_of(maps: Heightmaps) -> int:
    """Return the bytes of the tensors of some heightmaps."""
    return sum(value.numel() * value.element_size() for value in maps)


def _checked(held: object, key: str, num_orientations: int) -> Heightmaps:
    if not isinstance(held, dict) or held.get("key") != key:
        raise ValueError("it has another key")
    extent = Entry(torch.int64, (num_orientations, 2), Bounds(1)).check("it", "extent", held.get("extent"))
    shape = (num_orientations, *extent.amax(0).tolist())
    top = Entry(torch.float32, shape, Bounds(0, torch.finfo(torch.float32).max)).check("it", "top", held.get("top"))
    bottom = Entry(torch.float32, shape, Bounds(0, ANY[1])).check("it", "bottom", held.get("bottom"))
    material = bottom.isfinite()
    heights = torch.where(material, top - bottom, -top)
    if not torch.where(material, heights >= 0, heights == 0).all():
        raise ValueError("its tops lie under its bottoms")
    return Heightmaps(top, bottom, extent)
