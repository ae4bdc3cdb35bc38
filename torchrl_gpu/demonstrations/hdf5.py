"""Demonstrations in HDF5: those of robomimic, and Minari's.

robomimic (`docs/datasets/overview`): a group `data` of groups `demo_N`, each with `actions` and a group `obs`. Minari
(`docs/content/dataset_standards`): groups `episode_N`, each with `actions` and `observations`, which have one row more:
what followed the last action.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from torchrl_gpu.demonstrations.recordings import BadParts
from torchrl_gpu.demonstrations.transitions import Demonstrations, from_episodes
from torchrl_gpu.demonstrations.untrusted import MOST_FRAMES, Arrays, check_file, checked, reading, refuse, room_of
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system.arguments import shown

_LOG = logging.getLogger(__name__)
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_EPISODES, _MOST_ENTRIES, _MOST_AGAIN = 10**6, 1000, 10_000
_MOST_CHUNK = 1 << 20  # bytes of packed names, which HDF5 keeps unpacked between two of them
_MOST_LETTERS = 64  # of the name of an episode
_MOST_DEEP = 4  # groups in each other
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}  # that come with h5py; others load a plug-in
_PACKERS = {1, 32000}
_DEMO, _EPISODE = re.compile(r"demo_(\d{1,9})"), re.compile(r"episode_(\d{1,9})")


def read_hdf5(path: Path, entries: Collection[str] | None, bad: BadParts) -> Demonstrations:
    """Demonstrations of a file of robomimic or Minari; observations by their own names, or `observation` for one.

    Only plain arrays in the file itself are read: no links to other files, nothing that needs a plug-in. Shapes are
    validated before anything is read. Pictures stay uint8. `about["masks"]` has the indices of the episodes of
    robomimic's groups `mask/NAME`, such as `train` and `valid`. `entries` are the wanted observations, and `action`.
    """
    check_file(path, path)
    with path.open("rb") as file:
        if file.read(8) != _SIGNATURE:
            refuse(path, "an HDF5 file", "one that begins otherwise")
    h5py = load("h5py", "hdf5", "demonstrations")
    with reading(path, "an HDF5 file that can be read to its end"), h5py.File(path, "r") as file:
        reader = _Reader(h5py, path, entries, bad)
        if (data := reader.child(file, "data", "")) is not None and isinstance(data, h5py.Group):
            return reader.demonstrations(file, data, _DEMO, "obs", 0)
        return reader.demonstrations(file, file, _EPISODE, "observations", 1)


class _Reader:
    """Reads plain arrays of one file; the arguments are those of `read_hdf5`."""

    def __init__(self, h5py: Any, path: Path, entries: Collection[str] | None, bad: BadParts) -> None:
        self.h5py, self.path, self.entries, self.bad = h5py, path, entries, bad
        self.size = path.stat().st_size
        self.left = room_of(self.size) // 2  # bytes: they are held together and by episode
        self.seen: set[int] = set()  # addresses of visited objects
        self.again = 0  # repeated visits

    def demonstrations(
        self, file: Any, root: Any, pattern: re.Pattern[str], observed: str, more: int
    ) -> Demonstrations:
        """All episodes of the group `root`, in the order of their numbers.

        Observations are the member `observed` of an episode, and have `more` rows behind that of the last action.
        """
        if len(root) > _MOST_EPISODES:
            refuse(self.path, f"at most {_MOST_EPISODES:,} episodes", f"{len(root):,}")
        found = {int(match[1]): name for name in root if (match := pattern.fullmatch(name))}
        if not found:
            wanted = "groups data/demo_0, … of robomimic or episode_0, … of Minari"
            refuse(self.path, wanted, shown(sorted(root)[:5]))
        names, episodes = {f"{self.path}: {found[number]}": found[number] for number in sorted(found)}, []
        for where, name in names.items():
            with self.bad.guard(where):
                episodes.append((where, self._episode(root, name, observed, more)))
        out, kept = from_episodes(episodes, self.bad, str(self.path), {"format": observed})
        number_of = {names[where]: number for number, where in enumerate(kept)}
        if masks := self._masks(file, set(found.values())):
            out.about["masks"] = {key: [number_of[m] for m in each if m in number_of] for key, each in masks.items()}
        return out

    def _masks(self, file: Any, known: Collection[str]) -> dict[str, list[str]]:
        """Names of episodes by the names of robomimic's masks: the members of the group `mask`.

        ValueError for a name that is not among the known ones. A mask of another form is left out and logged.
        """
        masks: dict[str, list[str]] = {}
        group = self._member(file, "mask")
        if not isinstance(group, self.h5py.Group):
            return masks
        if len(group) > _MOST_ENTRIES:
            refuse(f"{self.path}: mask", f"at most {_MOST_ENTRIES:,} masks", f"{len(group):,}")
        for name in sorted(group):
            where = f"{self.path}: {shown(f'mask/{name}')}"
            found = self._member(group, name)
            if not self._holds_names(found):
                _LOG.warning("demonstrations: %s is left out: it is no list of names in the file itself", where)
                continue
            if len(found) > len(known):
                refuse(where, f"names of at most the {len(known):,} episodes", f"{len(found):,}")
            masks[name] = [self._episode_name(found[i], known, where) for i in range(len(found))]
        return masks

    def _member(self, group: Any, name: str) -> Any:
        """The member `name` that lies in this file; None for a link to elsewhere, or without one."""
        return group[name] if isinstance(group.get(name, getlink=True), self.h5py.HardLink) else None

    def _holds_names(self, found: Any) -> bool:
        """True for one row of strings, of a fixed length or each of its own."""
        if not isinstance(found, self.h5py.Dataset) or found.ndim != 1 or not self._lies_plain(found):
            return False
        chunk = 0 if found.chunks is None else math.prod(found.chunks) * found.dtype.itemsize
        return self.h5py.check_string_dtype(found.dtype) is not None and chunk <= _MOST_CHUNK

    def _episode_name(self, value: Any, known: Collection[str], where: str) -> str:
        # One string is read at a time: those of variable length may all be the same large one of the file.
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        name = text[: _MOST_LETTERS + 1].rstrip(" \0")
        if name not in known:
            refuse(where, "names of episodes of this file", shown(name))
        return name

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
        if missing := sorted(set(self.entries or ()) - set(arrays)):
            there = shown(sorted(shown_)[:8]) if isinstance(shown_, self.h5py.Group) else "one array"
            refuse(f"{where}/{observed}", f"an entry {missing[0]}", there)
        if len(arrays) == 1:
            refuse(f"{where}/{observed}", "observations", "none")
        for key, values in arrays.items():
            behind = 0 if key == "action" else more
            if len(values) != len(rows) + behind:
                refuse(f"{where}: {key}", f"{len(rows) + behind} rows, as actions have {len(rows)}", f"{len(values)}")
        return {key: values[: len(rows)] for key, values in arrays.items()}

    def _collect(self, found: Any, place: str, key: tuple[str, ...], arrays: Arrays, deep: int) -> None:
        """Adds the wanted arrays of a group by their names joined by dots."""
        name = ".".join(key)
        if isinstance(found, self.h5py.Dataset):
            if self.entries is None or name in self.entries:
                if name in arrays:
                    refuse(f"{self.path}: {place}", "observations of different names, none of them action", name)
                arrays[name] = self._array(found, place)
            return
        if not isinstance(found, self.h5py.Group) or deep >= _MOST_DEEP or len(found) > _MOST_ENTRIES:
            refuse(f"{self.path}: {place}", f"at most {_MOST_DEEP} groups in each other, of {_MOST_ENTRIES:,}", "more")
        for inner in sorted(found):
            prefix = ".".join((*key, inner, ""))
            if self.entries is None or any(f"{each}.".startswith(prefix) for each in self.entries):
                self._collect(self.child(found, inner, place), f"{place}/{inner}", (*key, inner), arrays, deep + 1)

    def child(self, group: Any, name: str, place: str) -> Any:
        """The member `name` of a group, which must be in this file; None without one."""
        link = group.get(name, getlink=True)
        if link is None:
            return None
        where = f"{self.path}: {place}/{name}".replace(": /", ": ")
        if not isinstance(link, self.h5py.HardLink):
            refuse(where, "what lies in the file itself, no link to elsewhere", type(link).__name__)
        found = group[name]
        address = self.h5py.h5o.get_info(found.id).addr
        self.again += address in self.seen
        self.seen.add(address)
        if self.again > _MOST_AGAIN:  # links in groups that are linked often multiply
            refuse(where, f"at most {_MOST_AGAIN:,} links to what other links lead to", "more")
        return found

    def _lies_plain(self, dataset: Any) -> bool:
        """True if values lie in the file itself, unpacked or packed once by a filter that comes with h5py."""
        if dataset.external or dataset.is_virtual:
            return False
        plan = dataset.id.get_create_plist()
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        return set(filters) <= set(_FILTERS) and len({*filters} & _PACKERS) == sum(each in _PACKERS for each in filters)

    def _array(self, dataset: Any, place: str) -> np.ndarray:
        where, kind = f"{self.path}: {place}", dataset.dtype
        if kind.kind not in "biuf" or kind.hasobject or kind.itemsize > 8 or dataset.shape is None:
            wanted = "rows of numbers or flags" + (", or entries that leave it out" if self.entries is None else "")
            refuse(where, wanted, f"{shown(str(kind))} {dataset.shape}")
        if not 1 <= dataset.ndim <= 5 or dataset.shape[0] > MOST_FRAMES:
            refuse(where, f"at most {MOST_FRAMES:,} rows of a few axes", f"shape {dataset.shape}")
        if not self._lies_plain(dataset):
            wanted = f"values that lie in the file itself, packed by {', '.join(_FILTERS.values())} or not at all"
            refuse(where, wanted, "others")
        is_picture = kind == np.uint8 and dataset.ndim > 2  # which stays as small as it is
        needed = math.prod(dataset.shape) * (1 if is_picture else 8)
        chunk = 0 if dataset.chunks is None else math.prod(dataset.chunks) * kind.itemsize
        if max(needed, chunk) > self.left:
            came = f"{max(needed, chunk) - self.left:,} bytes too many, with shape {dataset.shape}"
            refuse(where, "arrays that fit into memory", f"{came} of a file of {self.size:,} bytes")
        self.left -= needed
        return dataset[()] if is_picture else checked(dataset[()], where)
