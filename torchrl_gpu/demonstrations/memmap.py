"""Demonstrations and clip stores on disk.

Rows and frames of video are a TensorDict memmap, described by JSON.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from tensordict import NestedKey, TensorDict

from torchrl_gpu.demonstrations.clip_store import ClipStore, Video
from torchrl_gpu.demonstrations.lerobot import read_stats
from torchrl_gpu.demonstrations.recordings import Stats
from torchrl_gpu.demonstrations.transitions import Demonstrations
from torchrl_gpu.demonstrations.untrusted import (
    MOST_FRAMES,
    Json,
    check_file,
    check_finite,
    fail,
    most_bytes,
    new_folder,
    read_json,
    refuse,
)
from torchrl_gpu.envs import memory
from torchrl_gpu.system import arguments
from torchrl_gpu.system.arguments import shown

FORMAT = "torchrl_gpu rows 1"
ABOUT = "demonstrations.json"
ROWS = "rows"
# The entry of frames of video, (F, 3, H, W) uint8, which is mapped and not read.
FRAMES = "_frames"
_STORED = ("uint8", "int16", "int32", "int64", "float32", "bool")
_VALUES = ("float32", "int64", "bool")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_ENTRIES = 256
_MOST_AXES = 6
# Bytes of tensordict's own index of these.
_MOST_INDEX_BYTES = 2**18
# Numbers of a row.
_MOST_VALUES = 2**20
# Parts of a key.
_MOST_PARTS = 8
# Frames that are copied at a time.
_CHUNK = 4096


class _Entry(NamedTuple):
    """An entry of saved rows.

    Attributes:
        stored: Dtype in the file.
        shape: Of one row.
        dtype: Of the values.
    """

    stored: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.stored).itemsize * math.prod(self.shape)


def is_saved(path: Path) -> bool:
    return (path / ABOUT).is_file()


def has_frames(path: Path) -> bool:
    """Return whether such a folder holds frames of video, too."""
    return (path / ROWS / f"{FRAMES}.memmap").is_file()


def save(demonstrations: Demonstrations, folder: str | os.PathLike[str]) -> Path:
    """Write demonstrations into a new folder.

    See `new_folder`.

    Its `rows` is what `TensorDict.memmap` writes and `TensorDict.load_memmap` reads.
    """
    folder = Path(folder)
    entries = {}
    for name, value in demonstrations.rows.items():
        dtype = demonstrations.dtypes.get(name, value.dtype)
        entries[name] = {"stored": _word(value.dtype), "dtype": _word(dtype), "shape": list(value.shape[1:])}
    record = {
        "format": FORMAT,
        "num_rows": len(demonstrations),
        "num_episodes": demonstrations.num_episodes,
        "entries": entries,
        **demonstrations.about,
        "lengths": demonstrations.lengths.tolist(),
    }
    with new_folder(folder) as part:
        demonstrations.rows.cpu().memmap(part / ROWS)
        (part / ABOUT).write_text(json.dumps(record) + "\n", encoding="utf-8")
    return folder


def open_saved(folder: str | os.PathLike[str], *, frames: bool = False) -> Demonstrations:
    """Read demonstrations that `save` wrote into memory.

    The size of each file is validated before it is read. Only frames of video are mapped, if `frames` asks for them,
    copy on write: a file that shrinks later cannot affect the rest.

    Raises:
        ValueError: The folder holds something else.
    """
    folder = Path(folder)
    path = folder / ABOUT
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        refuse(path, f"format {FORMAT!r}", shown(record.get("format") if isinstance(record, dict) else record))
    total = arguments.whole(f"demonstrations: {path}", "num_rows", record.get("num_rows"), 1, MOST_FRAMES)
    lengths = _read_lengths(path, record, total)
    entries = _read_entries(path, record)
    _check_index(folder / ROWS / "meta.json", total, entries)
    # Frames are not read, so that they need not fit into memory.
    pictures = entries.pop(FRAMES, None)
    size = total * sum(entry.row_bytes for entry in entries.values())
    most = most_bytes()
    if size > most:
        wanted = f"at most {most:,} bytes of rows, {memory.SHARE:.0%} of the free memory"
        refuse(path, wanted, f"{size:,}")
    rows: dict[str, torch.Tensor] = {}
    for name, entry in entries.items():
        rows[name] = _read_rows(folder / ROWS / f"{name}.memmap", name, (total, *entry.shape), entry.stored)
    # "c" maps them copy on write: nothing that is done to them reaches the file.
    if frames and pictures is not None:
        path = folder / ROWS / f"{FRAMES}.memmap"
        shape = (total, *pictures.shape)
        _check_size(path, path, shape, "uint8")
        mapped = np.memmap(path, np.uint8, "c", 0, shape)
        rows[FRAMES] = torch.from_numpy(mapped)
    dtypes = {name: getattr(torch, entry.dtype) for name, entry in entries.items() if entry.dtype != entry.stored}
    about = {key: value for key, value in record.items() if key not in ("format", "lengths", "entries")}
    return Demonstrations(
        TensorDict(rows, batch_size=[total]),
        torch.tensor(lengths, dtype=torch.int64, device="cpu"),
        dtypes,
        about,
        str(folder),
    )


def _read_lengths(path: Path, record: Json, total: int) -> list[int]:
    """Return the rows of each episode."""
    lengths = record.get("lengths")
    if not isinstance(lengths, list) or not all(type(each) is int and 0 < each <= total for each in lengths):
        refuse(path, f"lengths of episodes from 1 to {total}", shown(lengths))
    if sum(lengths) != total or record.get("num_episodes") != len(lengths):
        wanted = f"lengths of {shown(record.get('num_episodes'))} episodes of {total} rows"
        refuse(path, wanted, f"{len(lengths)} of {sum(lengths)} rows")
    return lengths


def _read_entries(path: Path, record: Json) -> dict[str, _Entry]:
    """Return the entries by name."""
    entries = record.get("entries")
    if not isinstance(entries, dict) or not 0 < len(entries) <= _MOST_ENTRIES:
        refuse(path, f"1 to {_MOST_ENTRIES} entries", shown(entries))
    return {name: _read_entry(f"{path}: {name}", name, entry) for name, entry in entries.items()}


def _read_entry(where: str, name: str, entry: Json) -> _Entry:
    if not _NAME.fullmatch(name):
        refuse(where, "a name of letters, digits and underscores", shown(name))
    if not isinstance(entry, dict) or set(entry) != {"stored", "dtype", "shape"}:
        refuse(where, "stored, dtype and shape", shown(entry))
    for key, known in (("stored", _STORED), ("dtype", ("uint8",) if name == FRAMES else _VALUES)):
        if entry[key] not in known:
            refuse(where, f"{key} to be one of {', '.join(known)}", shown(entry[key]))
    shape = entry["shape"]
    is_shape = isinstance(shape, list) and len(shape) <= _MOST_AXES
    if not is_shape or not all(type(each) is int and each > 0 for each in shape):
        refuse(where, "a shape of a few positive whole numbers", shown(shape))
    if name == FRAMES:
        if entry["stored"] != "uint8" or len(shape) != 3 or shape[0] != 3:
            refuse(where, "frames (3, H, W) uint8", shown(entry))
    elif math.prod(shape) > _MOST_VALUES:
        refuse(where, f"at most {_MOST_VALUES:,} numbers in a row", shown(shape))
    return _Entry(entry["stored"], tuple(shape), entry["dtype"])


def _check_index(path: Path, total: int, entries: dict[str, _Entry]) -> None:
    """Check that tensordict's own index, which other programs read, agrees."""
    found = read_json(path, _MOST_INDEX_BYTES)
    if not isinstance(found, dict) or found.get("shape") != [total]:
        refuse(path, f"the index of a tensordict of {total} rows", shown(found))
    indexed = {name: each for name, each in found.items() if isinstance(each, dict)}
    if set(indexed) != set(entries):
        names = ", ".join(sorted(entries))
        refuse(path, f"the entries {names}", shown(sorted(indexed)))
    for name, entry in entries.items():
        given = [indexed[name].get(key) for key in ("dtype", "shape", "is_nested", "type")]
        wanted = [f"torch.{entry.stored}", [total, *entry.shape], False, None]
        if given != wanted:
            refuse(f"{path}: {name}", f"{entry.stored} of shape {(total, *entry.shape)}", shown(indexed[name]))


def _read_rows(path: Path, name: str, shape: tuple[int, ...], stored: str) -> torch.Tensor:
    kind = np.dtype(stored)
    where = f"{path}: {name}"
    _check_size(path, where, shape, stored)
    # Flags are read as bytes first: another value than 0 or 1 would be no bool.
    raw = np.fromfile(path, np.uint8 if stored == "bool" else kind, count=math.prod(shape)).reshape(shape)
    if stored != "bool":
        return torch.from_numpy(check_finite(raw, where))
    is_bad = raw > 1
    if is_bad.any():
        has_bad = is_bad.reshape(len(raw), -1).any(1)
        row = int(has_bad.argmax())
        refuse(where, "flags, 0 or 1", f"{int(raw.max())} in row {row}")
    return torch.from_numpy(raw.view(kind))


def _check_size(path: Path, where: object, shape: tuple[int, ...], stored: str) -> None:
    wanted = math.prod(shape) * np.dtype(stored).itemsize
    size = check_file(path, where)
    if size != wanted:
        refuse(where, f"{wanted:,} bytes, {shape} of {stored}", f"{size:,} bytes")


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- clip stores -------------------------------------------------------------------------------------------------------


class _StoreFacts(TypedDict):
    """The record of a store, as arguments of `ClipStore`."""

    fps: float
    image_key: NestedKey
    tasks: dict[int, str]
    stats: Stats
    videos: list[Video]


def save_store(store: ClipStore, folder: str | os.PathLike[str]) -> Path:
    """Write a store as demonstrations into a new folder, as `save` does."""
    stats = {}
    for feature, words in store.stats.items():
        stats[feature] = {word: value.tolist() for word, value in words.items()}
    tasks = {str(number): task for number, task in store.tasks.items()}
    image_key = store.image_key if isinstance(store.image_key, str) else "/".join(store.image_key)
    videos = [video._asdict() for video in store.videos]
    clips = {"fps": store.fps, "image_key": image_key, "tasks": tasks, "stats": stats, "videos": videos}
    rows = store.rows.cpu().flatten_keys(".").set(FRAMES, store.frames.cpu())
    lengths = torch.tensor(store.lengths, dtype=torch.int64, device="cpu")
    return save(Demonstrations(rows, lengths, about={"clips": clips}), folder)


def open_store(
    folder: str | os.PathLike[str],
    device: torch.device | None = None,
    place: Callable[[int], torch.device] | None = None,
) -> ClipStore:
    """Open a saved store. On the CPU its frames are read from disk on access.

    Args:
        folder: Of the store.
        device: Where clips are wanted; None for the CPU.
        place: Gives the device for frames of a number of bytes; None for `device`.

    Raises:
        ValueError: The folder holds no store.
    """
    folder = Path(folder)
    device = device or torch.device("cpu")
    found = open_saved(folder, frames=True)
    facts = _read_facts(found.about.get("clips"), folder / ABOUT)
    frames = found.rows.pop(FRAMES, None)
    if frames is None:
        fail(folder, "it has rows alone, and no frames of video")
    home = device
    if place is not None and device.type != "cpu":
        home = place(frames.numel())
    if home.type != "cpu":
        frames = _copy_to(frames, home)
    rows = found.rows.unflatten_keys(".")
    return ClipStore(frames, found.lengths.tolist(), rows, device=device, **facts)


def _copy_to(frames: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy mapped frames to a device in parts: the host never holds all of them."""
    copy = torch.empty(frames.shape, dtype=torch.uint8, device=device)
    for first in range(0, len(frames), _CHUNK):
        copy[first : first + _CHUNK] = frames[first : first + _CHUNK].to(device)
    return copy


def _read_facts(record: Json, path: Path) -> _StoreFacts:
    """Return the record of a store in the JSON file, validated."""
    found = record if isinstance(record, dict) else {}
    tasks = found.get("tasks")
    videos = found.get("videos")
    image_key = found.get("image_key")
    if not isinstance(tasks, dict) or not all(k.isdecimal() and isinstance(v, str) for k, v in tasks.items()):
        refuse(path, "tasks by their numbers", shown(tasks))
    if not isinstance(videos, list):
        refuse(path, "a list of videos", shown(videos))
    if not isinstance(image_key, str):
        refuse(path, "an image_key", shown(image_key))
    fps = arguments.number(f"demonstrations: {path}", "fps", found.get("fps"), 0.1, 1000.0)
    return {
        "fps": fps,
        "image_key": _read_key(image_key, path),
        "tasks": {int(number): task for number, task in tasks.items()},
        "stats": read_stats(found.get("stats"), path),
        "videos": [_read_video(each, path) for each in videos],
    }


def _read_video(found: Json, path: Path) -> Video:
    kinds = {"name": str, "frames": int, "height": int, "width": int, "fps": float, "problem": str}
    if not isinstance(found, dict) or {name: type(value) for name, value in found.items()} != kinds:
        refuse(path, f"videos of {', '.join(kinds)}", shown(found))
    return Video(**found)


def _read_key(name: str, folder: Path) -> NestedKey:
    parts = tuple(name.split("/"))
    if not all(parts) or len(parts) > _MOST_PARTS:
        refuse(folder, "names of entries", shown(name))
    return parts if len(parts) > 1 else name
