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
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from torchrl_gpu.demonstrations.recordings import BadParts
from torchrl_gpu.demonstrations.transitions import Demonstrations, from_episodes
from torchrl_gpu.demonstrations.untrusted import (
    MOST_FRAMES,
    Arrays,
    check_file,
    check_rows,
    fail,
    reading,
    refuse,
    room_of,
)
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system.arguments import shown

_LOG = logging.getLogger(__name__)
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_EPISODES = 10**6
# Members of a group, and groups in each other.
_MOST_ENTRIES = 1000
_MOST_DEEP = 4
# Links to objects that other links lead to.
_MOST_AGAIN = 10_000
# Bytes of packed names, which HDF5 keeps unpacked between two of them.
_MOST_CHUNK = 1 << 20
# Letters of the name of an episode.
_MOST_LETTERS = 64
_MOST_AXES = 5
_MOST_ITEM_BYTES = 8
# Names that are quoted in an error.
_MOST_QUOTED = 8
# Filters that come with h5py. Any other would load a plug-in, which is code.
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
_PACKERS = {1, 32000}

H5: TypeAlias = Any
"""An object of h5py, which brings no types, or that module."""


class _Layout(NamedTuple):
    """How a file names its episodes and observations.

    Attributes:
        episode: Names of episodes, with their number.
        observations: The member of an episode that has them.
        rows_behind: Rows of observations behind that of the last action.
    """

    episode: re.Pattern[str]
    observations: str
    rows_behind: int


_ROBOMIMIC = _Layout(re.compile(r"demo_(\d{1,9})"), "obs", 0)
_MINARI = _Layout(re.compile(r"episode_(\d{1,9})"), "observations", 1)


def read_hdf5(path: Path, entries: Collection[str] | None, bad: BadParts) -> Demonstrations:
    """Read a file of robomimic or Minari.

    Observations have their own names, or `observation` if there is one. Only plain arrays in the file itself are read:
    no links to other files, nothing that needs a plug-in. Shapes are validated before anything is read. Pictures stay
    uint8. `about["masks"]` has the indices of the episodes of robomimic's groups `mask/NAME`, such as `train` and
    `valid`.

    Args:
        path: Of the file.
        entries: The wanted observations, and `action`; None for all.
        bad: What to do with a bad episode.
    """
    check_file(path, path)
    with path.open("rb") as file:
        if file.read(len(_SIGNATURE)) != _SIGNATURE:
            fail(path, "it does not begin like an HDF5 file")
    h5py = load("h5py", "hdf5", "demonstrations")
    with reading(path, "an HDF5 file"), h5py.File(path, "r") as file:
        reader = _Reader(h5py, path, entries, bad)
        data = reader.child(file, "data", "")
        if data is not None and isinstance(data, h5py.Group):
            return reader.demonstrations(file, data, _ROBOMIMIC)
        return reader.demonstrations(file, file, _MINARI)


class _Reader:
    """Reads plain arrays of one file.

    The arguments are those of `read_hdf5`.

    Attributes:
        left: Bytes that may still be read. Arrays are held by episode and all together.
        seen: Addresses of visited objects.
        again: Visits of objects that were visited before.
    """

    def __init__(self, h5py: H5, path: Path, entries: Collection[str] | None, bad: BadParts) -> None:
        self.h5py = h5py
        self.path = path
        self.entries = entries
        self.bad = bad
        self.size = path.stat().st_size
        self.left = room_of(self.size) // 2
        self.seen: set[int] = set()
        self.again = 0

    def demonstrations(self, file: H5, root: H5, layout: _Layout) -> Demonstrations:
        """Return all episodes of the group `root`, in the order of their numbers."""
        if len(root) > _MOST_EPISODES:
            refuse(self.path, f"at most {_MOST_EPISODES:,} episodes", f"{len(root):,}")
        found: dict[int, str] = {}
        for name in root:
            match = layout.episode.fullmatch(name)
            if match is not None:
                found[int(match[1])] = name
        if not found:
            wanted = "groups data/demo_0, … of robomimic or episode_0, … of Minari"
            refuse(self.path, wanted, shown(sorted(root)[:5]))
        # By number, as demo_10 stands before demo_2 in the order of names.
        names = {f"{self.path}: {found[number]}": found[number] for number in sorted(found)}
        episodes: list[tuple[str, Arrays]] = []
        for where, name in names.items():
            with self.bad.guard(where):
                episodes.append((where, self._episode(root, name, layout)))
        facts = {"format": layout.observations}
        path = str(self.path)
        out, kept = from_episodes(episodes, self.bad, path, facts)
        masks = self._masks(file, set(found.values()))
        if masks:
            number_of = {names[where]: number for number, where in enumerate(kept)}
            out.about["masks"] = {key: _numbers_of(members, number_of) for key, members in masks.items()}
        return out

    # -- masks ---------------------------------------------------------------------------------------------------------

    def _masks(self, file: H5, known: Collection[str]) -> dict[str, list[str]]:
        """Return names of episodes by the names of robomimic's masks.

        Masks are the members of the group `mask`. A mask of another form is left out and logged.

        Raises:
            ValueError: A name is not among the known ones.
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

    def _member(self, group: H5, name: str) -> H5:
        """Return the member `name` that lies in this file.

        None for a link to elsewhere, or without one.
        """
        link = group.get(name, getlink=True)
        return group[name] if isinstance(link, self.h5py.HardLink) else None

    def _holds_names(self, found: H5) -> bool:
        """Return whether there is one row of strings, of any length each."""
        if not isinstance(found, self.h5py.Dataset) or found.ndim != 1 or not self._lies_plain(found):
            return False
        is_text = self.h5py.check_string_dtype(found.dtype) is not None
        return is_text and _chunk_bytes(found) <= _MOST_CHUNK

    def _episode_name(self, value: object, known: Collection[str], where: str) -> str:
        # One string is read at a time: those of variable length may all be the same large one of the file.
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        name = text[: _MOST_LETTERS + 1].rstrip(" \0")
        if name not in known:
            refuse(where, "names of episodes of this file", shown(name))
        return name

    # -- episodes ------------------------------------------------------------------------------------------------------

    def _episode(self, root: H5, name: str, layout: _Layout) -> Arrays:
        episode = self.child(root, name, "")
        where = f"{self.path}: {name}"
        if not isinstance(episode, self.h5py.Group):
            refuse(where, "a group", shown(episode))
        action = self.child(episode, "actions", name)
        observations = self.child(episode, layout.observations, name)
        if not isinstance(action, self.h5py.Dataset) or observations is None:
            refuse(where, f"actions and {layout.observations}", shown(sorted(episode)[:_MOST_QUOTED]))
        rows = self._array(action, f"{name}/actions")
        if not len(rows):
            fail(f"{where}/actions", "it has no rows")
        # Nothing may be named like the action.
        arrays = {"action": rows}
        key = () if layout.observations == "obs" else ("observation",)
        self._collect(observations, f"{name}/{layout.observations}", key, arrays, deep=0)
        missing = sorted(set(self.entries or ()) - set(arrays))
        if missing:
            self._refuse_missing(f"{where}/{layout.observations}", missing[0], observations)
        if len(arrays) == 1:
            fail(f"{where}/{layout.observations}", "it has no observations")
        for entry, values in arrays.items():
            wanted = len(rows) + (0 if entry == "action" else layout.rows_behind)
            if len(values) != wanted:
                refuse(f"{where}: {entry}", f"{wanted} rows, as actions have {len(rows)}", f"{len(values)}")
        return {entry: values[: len(rows)] for entry, values in arrays.items()}

    def _refuse_missing(self, where: str, name: str, observations: H5) -> NoReturn:
        is_group = isinstance(observations, self.h5py.Group)
        there = shown(sorted(observations)[:_MOST_QUOTED]) if is_group else "one array"
        fail(where, f"it has no entry {name}, only {there}")

    def _collect(self, found: H5, place: str, key: tuple[str, ...], arrays: Arrays, *, deep: int) -> None:
        """Add the wanted arrays of a group by their names joined by dots."""
        name = ".".join(key)
        if isinstance(found, self.h5py.Dataset):
            if self.entries is None or name in self.entries:
                if name in arrays:
                    fail(f"{self.path}: {place}", f"two entries have the name {name}")
                arrays[name] = self._array(found, place)
            return
        if not isinstance(found, self.h5py.Group) or deep >= _MOST_DEEP or len(found) > _MOST_ENTRIES:
            problem = f"there may be {_MOST_DEEP} groups in each other, of {_MOST_ENTRIES:,} members"
            fail(f"{self.path}: {place}", problem)
        for inner in sorted(found):
            if self._is_wanted((*key, inner)):
                child = self.child(found, inner, place)
                self._collect(child, f"{place}/{inner}", (*key, inner), arrays, deep=deep + 1)

    def _is_wanted(self, key: tuple[str, ...]) -> bool:
        """Return whether a member is, or may hold, an entry that is wanted."""
        prefix = ".".join((*key, ""))
        return self.entries is None or any(f"{entry}.".startswith(prefix) for entry in self.entries)

    def child(self, group: H5, name: str, place: str) -> H5:
        """Return the member `name` of a group, which must be in this file.

        None without one.
        """
        # Looked at before it is followed: a link may lead to another file.
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
        # Links in groups that are linked often multiply: a small file could keep the reader busy for years.
        if self.again > _MOST_AGAIN:
            fail(where, f"more than {_MOST_AGAIN:,} links lead to what other links lead to")
        return found

    def _lies_plain(self, dataset: H5) -> bool:
        """Return whether values lie in the file itself.

        They may be packed once, by a filter that comes with h5py.
        """
        if dataset.external or dataset.is_virtual:
            return False
        plan = dataset.id.get_create_plist()
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        # Packed once, a byte of the file stands for a thousand at most; packed twice, for a million.
        packers = [each for each in filters if each in _PACKERS]
        return set(filters) <= set(_FILTERS) and len(set(packers)) == len(packers)

    def _array(self, dataset: H5, place: str) -> np.ndarray:
        where = f"{self.path}: {place}"
        kind = dataset.dtype
        is_plain = kind.kind in "biuf" and not kind.hasobject and kind.itemsize <= _MOST_ITEM_BYTES
        if not is_plain or dataset.shape is None:
            wanted = "rows of numbers or flags" + (", or entries that leave it out" if self.entries is None else "")
            refuse(where, wanted, f"{shown(str(kind))} {dataset.shape}")
        if not 1 <= dataset.ndim <= _MOST_AXES or dataset.shape[0] > MOST_FRAMES:
            refuse(where, f"at most {MOST_FRAMES:,} rows of a few axes", f"shape {dataset.shape}")
        if not self._lies_plain(dataset):
            packed = ", ".join(_FILTERS.values())
            fail(where, f"its values must lie in the file itself, packed by {packed} or not at all")
        # Pictures stay as small as they are.
        is_picture = kind == np.uint8 and dataset.ndim > 2
        needed = math.prod(dataset.shape) * (1 if is_picture else 8)
        excess = max(needed, _chunk_bytes(dataset)) - self.left
        if excess > 0:
            fail(
                where,
                f"its shape {dataset.shape} does not fit into memory: {excess:,} bytes too many of a file of"
                f" {self.size:,} bytes",
            )
        # What all arrays take together counts, as they are held at once.
        self.left -= needed
        return dataset[()] if is_picture else check_rows(dataset[()], where)


def _chunk_bytes(dataset: H5) -> int:
    """Return the bytes of a part that is packed by itself, 0 if nothing is."""
    if dataset.chunks is None:
        return 0
    return int(math.prod(dataset.chunks) * dataset.dtype.itemsize)


def _numbers_of(members: Collection[str], number_of: dict[str, int]) -> list[int]:
    """Return the numbers of those episodes of a mask that were kept."""
    return [number_of[name] for name in members if name in number_of]
