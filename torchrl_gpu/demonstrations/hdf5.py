"""Demonstrations in HDF5: those of robomimic, and Minari's.

robomimic (`docs/datasets/overview`): a group `data` of groups `demo_N`, each with `actions` and a group `obs`. Minari
(`docs/content/dataset_standards`): groups `episode_N`, each with `actions` and `observations`, which have one row more:
what followed the last action.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from torchrl_gpu.arguments import shown
from torchrl_gpu.demonstrations.rows import Demonstrations, from_arrays, joined_episodes
from torchrl_gpu.demonstrations.untrusted import (
    MOST_FRAMES,
    Arrays,
    check_file,
    checked,
    most_bytes,
    reading,
    refuse,
)
from torchrl_gpu.streaming.codecs.extras import load

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_BYTES = 2**33  # of all that is read
_MOST_EPISODES = 10**6
_MOST_DEEP = 4  # groups in each other
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}  # that come with h5py; others load a plug-in
_DEMO, _EPISODE = re.compile(r"demo_(\d{1,9})"), re.compile(r"episode_(\d{1,9})")


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as HDF5 does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == _SIGNATURE


def read_hdf5(path: Path) -> Demonstrations:
    """Demonstrations of a file of robomimic or Minari; observations by their own names, or `observation` for one.

    Only plain arrays in the file itself are read: neither links to other files nor what a plug-in would unpack. What
    the file says of shapes is held against limits before anything is read. Pictures stay uint8.

    Raises:
        ValueError: The file is none, is broken, or something in it is not as it must be; the message names file, entry
            and row.
        ModuleNotFoundError: h5py is not installed.
    """
    check_file(path, path)
    if not is_hdf5(path):
        refuse(path, "an HDF5 file", "one that begins otherwise")
    h5py = load("h5py", "hdf5", "demonstrations")
    with reading(path, "an HDF5 file that can be read to its end"), h5py.File(path, "r") as file:
        reader = _Reader(h5py, path)
        if (data := reader.child(file, "data", "")) is not None and isinstance(data, h5py.Group):
            return reader.demonstrations(data, _DEMO, "obs", 0)
        return reader.demonstrations(file, _EPISODE, "observations", 1)


class _Reader:
    """Reads plain arrays of one file.

    Args:
        h5py: The module.
        path: Of the file, in messages.
    """

    def __init__(self, h5py: Any, path: Path) -> None:
        self.h5py, self.path, self.left = h5py, path, min(_MOST_BYTES, most_bytes() // 2)  # whole, and by episode

    def demonstrations(self, root: Any, pattern: re.Pattern[str], observed: str, more: int) -> Demonstrations:
        """All episodes of a group, in the order of their numbers.

        Args:
            root: The group.
            pattern: Of the names of episodes.
            observed: Name of the observations of an episode.
            more: Rows of observations behind that of the last action.
        """
        if len(root) > _MOST_EPISODES:
            refuse(self.path, f"at most {_MOST_EPISODES:,} episodes", f"{len(root):,}")
        found = {int(match[1]): name for name in root if (match := pattern.fullmatch(name))}
        if not found:
            wanted = "groups data/demo_0, … of robomimic or episode_0, … of Minari"
            refuse(self.path, wanted, shown(sorted(root)[:5]))
        names = [found[number] for number in sorted(found)]
        episodes = [(f"{self.path}: {name}", self._episode(root, name, observed, more)) for name in names]
        lengths = [len(arrays["action"]) for _, arrays in episodes]
        return from_arrays(joined_episodes(episodes), lengths, str(self.path), {"format": observed})

    def _episode(self, root: Any, name: str, observed: str, more: int) -> Arrays:
        episode, where = self.child(root, name, ""), f"{self.path}: {name}"
        if not isinstance(episode, self.h5py.Group):
            refuse(where, "a group", shown(episode))
        action, shown_ = self.child(episode, "actions", name), self.child(episode, observed, name)
        if not isinstance(action, self.h5py.Dataset) or shown_ is None:
            refuse(where, f"actions and {observed}", shown(sorted(episode)[:8]))
        rows = self._array(action, f"{name}/actions")
        if not len(rows):
            refuse(f"{where}/actions", "a row or more", "none")
        arrays = {"action": rows}
        self._collect(shown_, f"{name}/{observed}", () if observed == "obs" else ("observation",), arrays, 0)
        if len(arrays) == 1:
            refuse(f"{where}/{observed}", "observations", "none")
        for key, values in arrays.items():
            behind = 0 if key == "action" else more
            if len(values) != len(rows) + behind:
                refuse(f"{where}: {key}", f"{len(rows) + behind} rows, as actions have {len(rows)}", f"{len(values)}")
        return {key: values[: len(rows)] for key, values in arrays.items()}

    def _collect(self, found: Any, place: str, key: tuple[str, ...], arrays: Arrays, deep: int) -> None:
        """All arrays of a group by their names, joined by dots."""
        if isinstance(found, self.h5py.Dataset):
            name = ".".join(key)
            if name in arrays:
                refuse(f"{self.path}: {place}", "observations of different names, none of them action", name)
            arrays[name] = self._array(found, place)
            return
        if deep >= _MOST_DEEP or len(found) > 1000:
            refuse(f"{self.path}: {place}", f"at most {_MOST_DEEP} groups in each other, of 1,000", "more")
        for name in sorted(found):
            self._collect(self.child(found, name, place), f"{place}/{name}", (*key, name), arrays, deep + 1)

    def child(self, group: Any, name: str, place: str) -> Any:
        """What a group holds under a name, if it lies in this file; None where there is nothing."""
        link = group.get(name, getlink=True)
        if link is None:
            return None
        if not isinstance(link, self.h5py.HardLink):
            wanted = "what lies in the file itself, no link to elsewhere"
            refuse(f"{self.path}: {place}/{name}".replace(": /", ": "), wanted, type(link).__name__)
        return group[name]

    def _array(self, dataset: Any, place: str) -> np.ndarray:
        where, kind = f"{self.path}: {place}", dataset.dtype
        if kind.kind not in "biuf" or kind.hasobject or kind.itemsize > 8 or dataset.shape is None:
            refuse(where, "rows of numbers or flags", f"{shown(str(kind))} {dataset.shape}")
        if not 1 <= dataset.ndim <= 5 or dataset.shape[0] > MOST_FRAMES:
            refuse(where, f"at most {MOST_FRAMES:,} rows of a few axes", f"shape {dataset.shape}")
        if dataset.external or dataset.is_virtual:
            refuse(where, "values that lie in the file itself", "others")
        plan = dataset.id.get_create_plist()
        for i in range(plan.get_nfilters()):
            if (code := plan.get_filter(i)[0]) not in _FILTERS:
                refuse(where, f"values packed by {', '.join(_FILTERS.values())} or not at all", f"filter {code}")
        if dataset.chunks is not None and math.prod(dataset.chunks) * kind.itemsize > _MOST_BYTES // 8:
            refuse(where, "chunks that fit into memory", f"{dataset.chunks}")
        is_picture = kind == np.uint8 and dataset.ndim > 2  # which stays as small as it is
        self.left -= math.prod(dataset.shape) * (1 if is_picture else 8)
        if self.left < 0:
            refuse(where, "arrays that fit into memory", f"{-self.left:,} bytes too many, with shape {dataset.shape}")
        return dataset[()] if is_picture else checked(dataset[()], where)
