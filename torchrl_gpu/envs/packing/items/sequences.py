"""Box sequences from a file: the user's own orders."""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from torchrl_gpu.envs.packing.items.boxes import box_catalogue, cell_volume, pad_sequences
from torchrl_gpu.envs.packing.items.source import ItemSource, ItemStream, PooledStream
from torchrl_gpu.envs.packing.types import Bin, Catalogue

UNITS = ("cells", "m", "mm")
_UNREADABLE = (
    ValueError,
    TypeError,
    OSError,
    EOFError,
    RuntimeError,
    AttributeError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)


class BoxSequences(ItemSource):
    """Sequences of boxes read from a file.

    Args:
        path: `.npy`, `.npz` (its only array, or the one named "sequences"), `.pt` (a tensor, read with
            `weights_only`) of shape (episodes, items, 3), short episodes padded with zeros; or `.json`: nested lists of
            that shape, in which episodes may differ in length, or orders as {order: {"item_sequence": {place:
            {"length/mm", "width/mm", "height/mm"}}}}, always in millimetres.
        unit: "cells", "m" or "mm". Sides are rounded up to whole cells; volumes stay those of the true sizes.
        in_order: Environment i plays episode i, then i + num_envs, …; else each episode draws one.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no box sequences: wrong rank, negative or non-finite sizes, a zero before the padding, a
            pickle.
    """

    def __init__(self, path: str, unit: str = "cells", in_order: bool = False) -> None:
        if unit not in UNITS:
            raise ValueError(f"BoxSequences: unit must be one of {', '.join(UNITS)}; got {unit!r}")
        self.path, self.in_order = Path(path).expanduser(), in_order
        self.names, self.episodes, self.unit = _read(self.path, unit)

    @property
    def num_sequences(self) -> int:
        """Episodes in the file."""
        return len(self.episodes)

    def build(
        self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int
    ) -> tuple[Catalogue, ItemStream]:
        """One catalogue row for each size that occurs."""
        metres = {"m": 1.0, "mm": 1e-3}.get(self.unit)
        sizes = np.unique(np.concatenate(self.episodes), axis=0)
        row = {tuple(size): i for i, size in enumerate(sizes.tolist())}
        if metres is None:
            if (sizes != sizes.round()).any():
                raise ValueError(f"{self._where}: sizes in cells must be whole numbers; got {sizes[sizes % 1 != 0][0]}")
            cells, volume = sizes, cell_volume(sizes, bin_)
        else:
            cells = np.ceil(sizes * metres / np.array([*bin_.cell, bin_.cell[0]]) - 1e-6)
            volume = (sizes * metres).prod(-1)
        catalogue = box_catalogue(cells, volume, bin_, orientations)
        rows = [[row[tuple(size)] for size in episode[:num_items].tolist()] for episode in self.episodes]
        return catalogue, PooledStream(pad_sequences(rows), self.in_order, num_envs)

    @property
    def _where(self) -> str:
        return f"BoxSequences: {self.path}"


def _read(path: Path, unit: str) -> tuple[list[str], list[np.ndarray], str]:
    """Names, sizes (items, 3) float64 and unit of every episode of a file."""
    where = f"BoxSequences: {path}"
    if not path.is_file():
        raise FileNotFoundError(f"{where}: want a file of box sequences; there is none")
    raw = _load(path, where)
    if isinstance(raw, dict):
        episodes = {str(name): _order(order, f"{where}: order {name}") for name, order in raw.items()}
        names, sizes, unit = list(episodes), list(episodes.values()), "mm"
    else:
        sizes = _episodes(raw, where)
        names = [str(i) for i in range(len(sizes))]
    if not sizes:
        raise ValueError(f"{where}: want at least one episode; got none")
    return names, [_checked(s, f"{where}: episode {n}") for n, s in zip(names, sizes, strict=True)], unit


def _load(path: Path, where: str) -> Any:
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise ValueError(f"{where}: want a .npy, .npz, .json or .pt file; got {suffix or 'no suffix'!r}")
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on what is odd about a file that is refused anyway
            return _READERS[suffix](file)
    except _UNREADABLE as error:
        reason = re.split(r"\.\s|\n", str(error).strip())[0] or type(error).__name__
        raise ValueError(
            f"{where}: want numbers only, no pickled objects; got a file that fails with: {reason}"
        ) from error


def _read_tensor(file: BinaryIO) -> np.ndarray:
    return torch.load(file, weights_only=True, map_location="cpu").numpy()


def _read_array(file: BinaryIO) -> np.ndarray:
    loaded = np.load(file, allow_pickle=False)
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        return loaded
    name = "sequences" if "sequences" in loaded.files else loaded.files[0] if len(loaded.files) == 1 else None
    if name is None:
        raise ValueError(f'neither one array nor one named "sequences" but {loaded.files}')
    return loaded[name]


_READERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".npy": _read_array,
    ".npz": _read_array,
    ".pt": _read_tensor,
    ".pth": _read_tensor,
    ".json": json.load,
}


def _order(order: Any, where: str) -> np.ndarray:
    try:
        items = order["item_sequence"]
        items = list(items.values()) if isinstance(items, dict) else items
        sizes = [[item[f"{side}/mm"] for side in ("length", "width", "height")] for item in items]
        return np.array(sizes, dtype=np.float64).reshape(len(sizes), 3)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'{where}: want "item_sequence" of items with "length/mm", "width/mm" and "height/mm"; got what fails with'
            f" {type(error).__name__}: {error}"
        ) from error


def _episodes(raw: Any, where: str) -> list[np.ndarray]:
    if isinstance(raw, np.ndarray):
        if raw.ndim != 3 or raw.shape[-1] != 3 or raw.dtype.kind not in "iuf":
            raise ValueError(f"{where}: want numbers of shape (episodes, items, 3); got {raw.dtype} {raw.shape}")
        return [episode.astype(np.float64) for episode in raw]
    if not isinstance(raw, list):
        raise ValueError(f"{where}: want a list of episodes; got {type(raw).__name__}")
    return [_listed(episode, f"{where}: episode {i}") for i, episode in enumerate(raw)]


def _listed(episode: Any, where: str) -> np.ndarray:
    try:
        sizes = np.array(episode, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: want items of three numbers each; got a ragged list or other values") from error
    if sizes.ndim != 2 or sizes.shape[1] != 3:
        raise ValueError(f"{where}: want items of three numbers each; got shape {sizes.shape}")
    return sizes


def _checked(sizes: np.ndarray, where: str) -> np.ndarray:
    """Sizes without their padding."""
    if not np.isfinite(sizes).all():
        raise ValueError(f"{where}: sizes must be finite; got {sizes[~np.isfinite(sizes).all(1)][0].tolist()}")
    if (sizes < 0).any():
        raise ValueError(f"{where}: sizes must not be negative; got {sizes[(sizes < 0).any(1)][0].tolist()}")
    used = np.atleast_1d((sizes > 0).any(1))
    length = len(sizes) - int(np.argmax(used[::-1])) if used.any() else 0
    if length == 0:
        raise ValueError(f"{where}: want at least one box; got {'zeros only' if len(sizes) else 'none'}")
    if (sizes[:length] == 0).any():
        bad = sizes[:length][(sizes[:length] == 0).any(1)][0]
        raise ValueError(f"{where}: zeros may only pad the end of an episode; got {bad.tolist()} before it")
    return sizes[:length]
