"""Box sequences from a file: the user's own orders."""

from __future__ import annotations

import json
import math
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from torchrl_gpu import arguments
from torchrl_gpu.envs.packing.items.boxes import box_catalogue, cell_volume, pad_sequences
from torchrl_gpu.envs.packing.items.source import ItemSequences, ItemSource, PooledSequences
from torchrl_gpu.envs.packing.types import Bin, Catalogue

UNITS = ("cells", "m", "mm")
MOST_BYTES = 2**30  # of a file, unpacked
MOST_NUMBERS = 2**27  # of all episodes
MOST_SIZE = 1e9  # of a side, in any unit
_UNREADABLE = (
    ValueError,
    TypeError,
    OSError,
    EOFError,
    RuntimeError,
    AttributeError,
    OverflowError,
    RecursionError,
    MemoryError,
    KeyError,
    IndexError,
    NotImplementedError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
)


class BoxSequences(ItemSource):
    """Sequences of boxes read from a file.

    Args:
        path: `.npy`, `.npz` (its only array, or the one named "sequences"), `.pt` (a tensor) of shape (episodes, items,
            3), short episodes padded with zeros; `.json` or `.pt`: nested lists (or tuples) of that shape, in which
            episodes may differ in length; or `.json` of orders, {order: {"item_sequence": {place: {"length/mm",
            "width/mm", "height/mm"}}}}, always in millimetres. A `.pt` file is read with `weights_only`.
        unit: "cells", "m" or "mm". Sides are rounded up to whole cells; volumes stay those of the true sizes.
        in_order: Environment i plays episode i, then i + num_envs, …; else each episode draws one.

    Boxes that fill the whole bin, as the published sequences of Zhao et al. (AAAI 2021) have one at each end, mark the
    end of an episode and are not packed: those behind the last smaller box of an episode that has one.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no box sequences: wrong rank, negative or non-finite sizes, a zero before the padding, a
            pickle.
    """

    def __init__(self, path: str, unit: str = "cells", in_order: bool = False) -> None:
        arguments.choice("BoxSequences", "unit", unit, UNITS)
        if not isinstance(path, (str, Path)):
            arguments.refuse("BoxSequences", "path", "that of a file", path)
        self.path = Path(path).expanduser()
        self.in_order = arguments.flag("BoxSequences", "in_order", in_order)
        self.names, self.episodes, self.unit = _read(self.path, unit)

    @property
    def num_sequences(self) -> int:
        """Episodes in the file."""
        return len(self.episodes)

    def build(
        self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int
    ) -> tuple[Catalogue, ItemSequences]:
        """One catalogue row for each size that occurs."""
        metres = {"m": 1.0, "mm": 1e-3}.get(self.unit)
        cell = np.ones(3) if metres is None else np.array([*bin_.cell, bin_.cell[0]]) / metres
        whole = np.array(bin_.size) / np.array([*bin_.cell, bin_.cell[0]]) * cell  # the bin in the unit of the file
        episodes = [_without_marks(episode, whole) for episode in self.episodes]
        sizes = np.unique(np.concatenate(episodes), axis=0)
        row = {tuple(size): i for i, size in enumerate(sizes.tolist())}
        if metres is None:
            if (sizes != sizes.round()).any():
                raise ValueError(f"{self._where}: sizes in cells must be whole numbers; got {sizes[sizes % 1 != 0][0]}")
            cells, volume = sizes, cell_volume(sizes, bin_)
        else:
            cells = np.ceil(sizes * metres / np.array([*bin_.cell, bin_.cell[0]]) - 1e-6)
            volume = (sizes * metres).prod(-1)
        catalogue = box_catalogue(cells, volume, bin_, orientations)
        rows = [[row[tuple(size)] for size in episode[:num_items].tolist()] for episode in episodes]
        return catalogue, PooledSequences(pad_sequences(rows), self.in_order, num_envs)

    @property
    def _where(self) -> str:
        return f"BoxSequences: {self.path}"


def _without_marks(episode: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """An episode (items, 3) without the boxes as large as the bin (3,) at its end, which mark it."""
    smaller = ~np.isclose(episode, whole, rtol=1e-6, atol=0).all(1)
    return episode[: int(np.nonzero(smaller)[0][-1]) + 1] if smaller.any() else episode


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
            _check_size(path)
            return _READERS[suffix](file)
    except _UNREADABLE as error:
        reason = re.split(r"\.\s|\n", str(error).strip())[0][:100] or type(error).__name__
        raise ValueError(
            f"{where}: want numbers only, no pickled objects; got a file that fails with: {reason}"
        ) from error


def _check_size(path: Path) -> None:
    """ValueError if a file, or what is packed in it, is larger than any that is meant."""
    size = path.stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = max(size, sum(info.file_size for info in archive.infolist()))
    if size > MOST_BYTES:
        raise ValueError(f"{size:,} bytes, more than {MOST_BYTES:,}")


def _read_tensor(file: BinaryIO) -> Any:
    loaded = torch.load(file, weights_only=True, map_location="cpu")
    if isinstance(loaded, (list, tuple)):
        return list(loaded)
    if not isinstance(loaded, torch.Tensor):
        raise TypeError(f"a {type(loaded).__name__} in place of a tensor or of lists")
    if loaded.numel() > MOST_NUMBERS:  # of a small storage, by strides of 0
        raise ValueError(f"{loaded.numel():,} numbers, more than {MOST_NUMBERS:,}")
    return loaded.detach().numpy()


def _read_npz(file: BinaryIO) -> np.ndarray:
    with zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        name = "sequences" if "sequences" in names else names[0] if len(names) == 1 else None
        if name is None:
            raise ValueError(f'neither one array nor one named "sequences" but {names}')
        with archive.open(f"{name}.npy") as inner:
            return _read_npy(inner)


def _read_npy(file: Any) -> np.ndarray:
    file.seek(0)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if math.prod(shape) > MOST_NUMBERS or dtype.itemsize > 16:  # before any memory is taken for it
        raise ValueError(f"{dtype} {shape}, more than {MOST_NUMBERS:,} numbers")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


_READERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
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
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(
            f'{where}: want "item_sequence" of items with "length/mm", "width/mm" and "height/mm"; got what fails with'
            f" {type(error).__name__}: {str(error)[:120]}"
        ) from error


def _episodes(raw: Any, where: str) -> list[np.ndarray]:
    if isinstance(raw, np.ndarray):
        if raw.ndim != 3 or raw.shape[-1] != 3 or raw.dtype.kind not in "iuf":
            raise ValueError(f"{where}: want numbers of shape (episodes, items, 3); got {raw.dtype} {raw.shape}")
        return [episode.astype(np.float64) for episode in raw]
    if not isinstance(raw, list):
        raise ValueError(f"{where}: want a list of episodes; got {type(raw).__name__}")
    if len(raw) > MOST_NUMBERS // 3:
        raise ValueError(f"{where}: want at most {MOST_NUMBERS // 3:,} episodes; got {len(raw):,}")
    return [_listed(episode, f"{where}: episode {i}") for i, episode in enumerate(raw)]


def _listed(episode: Any, where: str) -> np.ndarray:
    wanted = f"{where}: want items of three numbers each"
    if isinstance(episode, (torch.Tensor, np.ndarray)):
        episode = episode.tolist()
    try:
        sizes = np.array(episode, dtype=np.float64)
    except OverflowError as error:
        raise ValueError(f"{wanted}; got a number beyond all floats") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{wanted}; got a ragged list or other values") from error
    if len(sizes.shape) == 1 and not sizes.size:
        return sizes.reshape(0, 3)
    if sizes.ndim != 2 or sizes.shape[1] != 3:
        raise ValueError(f"{wanted}; got shape {sizes.shape}")
    if not all(type(side) in (int, float) for item in episode for side in item):
        raise ValueError(f"{wanted}; got other values")
    return sizes


def _checked(sizes: np.ndarray, where: str) -> np.ndarray:
    """Sizes without their padding."""
    if not np.isfinite(sizes).all():
        raise ValueError(f"{where}: sizes must be finite; got {sizes[~np.isfinite(sizes).all(1)][0].tolist()}")
    if (sizes > MOST_SIZE).any():
        bad = sizes[(sizes > MOST_SIZE).any(1)][0].tolist()
        raise ValueError(f"{where}: sizes must be at most {MOST_SIZE:g}; got {bad}")
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
