"""Demonstrations and clip stores on disk: a TensorDict memmap of rows and frames of video, described by JSON."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDict

from torchrl_gpu.demonstrations.clip_store import ClipStore, Video
from torchrl_gpu.demonstrations.lerobot import read_stats
from torchrl_gpu.demonstrations.transitions import Demonstrations
from torchrl_gpu.demonstrations.untrusted import (
    MOST_FRAMES,
    check_file,
    finite,
    most_bytes,
    new_folder,
    read_json,
    refuse,
)
from torchrl_gpu.envs import memory
from torchrl_gpu.system import arguments
from torchrl_gpu.system.arguments import shown

FORMAT = "torchrl_gpu rows 1"
ABOUT, ROWS = "demonstrations.json", "rows"
FRAMES = "_frames"  # the entry of frames of video, (F, 3, H, W) uint8, which is mapped and not read
_STORED = ("uint8", "int16", "int32", "int64", "float32", "bool")
_VALUES = ("float32", "int64", "bool")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_ENTRIES = 256
_MOST_INDEX_BYTES = 2**18  # of tensordict's own index of these
_MOST_VALUES = 2**20  # of a row
_CHUNK = 4096  # frames that are copied at a time


def is_saved(path: Path) -> bool:
    return (path / ABOUT).is_file()


def has_frames(path: Path) -> bool:
    """True where such a folder holds frames of video, too."""
    return (path / ROWS / f"{FRAMES}.memmap").is_file()


def save(demonstrations: Demonstrations, folder: str | os.PathLike[str]) -> Path:
    """Writes demonstrations into a new folder; see `new_folder`.

    Its `rows` is what `TensorDict.memmap` writes and `TensorDict.load_memmap` reads.
    """
    folder, entries = Path(folder), {}
    for name, value in demonstrations.rows.items():
        dtype = demonstrations.dtypes.get(name, value.dtype)
        entries[name] = {"stored": _word(value.dtype), "dtype": _word(dtype), "shape": list(value.shape[1:])}
    about = {
        "format": FORMAT,
        "num_rows": len(demonstrations),
        "num_episodes": demonstrations.num_episodes,
        "entries": entries,
        **demonstrations.about,
        "lengths": demonstrations.lengths.tolist(),
    }
    with new_folder(folder) as part:
        demonstrations.rows.cpu().memmap(part / ROWS)
        (part / ABOUT).write_text(json.dumps(about) + "\n", encoding="utf-8")
    return folder


def open_saved(folder: str | os.PathLike[str], *, frames: bool = False) -> Demonstrations:
    """Demonstrations that `save` wrote, in memory; the size of each file is validated before it is read.

    Only frames of video are mapped, if `frames` asks for them, copy on write: a file that shrinks later cannot affect
    the rest.
    """
    folder = Path(folder)
    path = folder / ABOUT
    about = read_json(path)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        refuse(path, f"format {FORMAT!r}", shown(about.get("format") if isinstance(about, dict) else about))
    where = f"demonstrations: {path}"
    total = arguments.whole(where, "num_rows", about.get("num_rows"), 1, MOST_FRAMES)
    lengths, entries = about.get("lengths"), about.get("entries")
    if not isinstance(lengths, list) or not all(type(each) is int and 0 < each <= total for each in lengths):
        refuse(path, f"lengths of episodes from 1 to {total}", shown(lengths))
    if sum(lengths) != total or about.get("num_episodes") != len(lengths):
        came = f"{len(lengths)} of {sum(lengths)} rows"
        refuse(path, f"lengths of {shown(about.get('num_episodes'))} episodes of {total} rows", came)
    if not isinstance(entries, dict) or not 0 < len(entries) <= _MOST_ENTRIES:
        refuse(path, f"1 to {_MOST_ENTRIES} entries", shown(entries))
    kinds = {name: _checked_entry(f"{path}: {name}", name, entry) for name, entry in entries.items()}
    _check_index(folder / ROWS / "meta.json", total, kinds)
    pictures = kinds.pop(FRAMES, None)
    size = total * sum(np.dtype(stored).itemsize * math.prod(shape) for stored, shape, _ in kinds.values())
    if size > (most := most_bytes()):
        refuse(path, f"at most {most:,} bytes of rows, {memory.SHARE:.0%} of the free memory", f"{size:,}")
    rows = {
        name: _read(folder / ROWS / f"{name}.memmap", name, (total, *shape), stored)
        for name, (stored, shape, _) in kinds.items()
    }
    if frames and pictures is not None:
        path, shape = folder / ROWS / f"{FRAMES}.memmap", (total, *pictures[1])
        _check_size(path, path, shape, "uint8")
        rows[FRAMES] = torch.from_numpy(np.memmap(path, np.uint8, "c", 0, shape))
    dtypes = {name: getattr(torch, dtype) for name, (stored, _, dtype) in kinds.items() if dtype != stored}
    rest = {key: value for key, value in about.items() if key not in ("format", "lengths", "entries")}
    return Demonstrations(
        TensorDict(rows, batch_size=[total]),
        torch.tensor(lengths, dtype=torch.int64, device="cpu"),
        dtypes,
        rest,
        str(folder),
    )


def _checked_entry(where: str, name: str, entry: Any) -> tuple[str, tuple[int, ...], str]:
    """Stored dtype, shape in a row and dtype of the values of an entry."""
    if not _NAME.fullmatch(name):
        refuse(where, "a name of letters, digits and underscores", shown(name))
    if not isinstance(entry, dict) or set(entry) != {"stored", "dtype", "shape"}:
        refuse(where, "stored, dtype and shape", shown(entry))
    for key, known in (("stored", _STORED), ("dtype", ("uint8",) if name == FRAMES else _VALUES)):
        if entry[key] not in known:
            refuse(where, f"{key} to be one of {', '.join(known)}", shown(entry[key]))
    shape = entry["shape"]
    if not isinstance(shape, list) or len(shape) > 6 or not all(type(each) is int and each > 0 for each in shape):
        refuse(where, "a shape of a few positive whole numbers", shown(shape))
    if name == FRAMES:
        if entry["stored"] != "uint8" or len(shape) != 3 or shape[0] != 3:
            refuse(where, "frames (3, H, W) uint8", shown(entry))
    elif math.prod(shape) > _MOST_VALUES:
        refuse(where, f"at most {_MOST_VALUES:,} numbers in a row", shown(shape))
    return entry["stored"], tuple(shape), entry["dtype"]


def _check_index(path: Path, total: int, kinds: dict[str, tuple[str, tuple[int, ...], str]]) -> None:
    """ValueError unless tensordict's own index, which other programs read, agrees."""
    found = read_json(path, _MOST_INDEX_BYTES)
    if not isinstance(found, dict) or found.get("shape") != [total]:
        refuse(path, f"the index of a tensordict of {total} rows", shown(found))
    entries = {name: each for name, each in found.items() if isinstance(each, dict)}
    if set(entries) != set(kinds):
        refuse(path, f"the entries {', '.join(sorted(kinds))}", shown(sorted(entries)))
    for name, (stored, shape, _) in kinds.items():
        given = [entries[name].get(key) for key in ("dtype", "shape", "is_nested", "type")]
        if given != [f"torch.{stored}", [total, *shape], False, None]:
            refuse(f"{path}: {name}", f"{stored} of shape {(total, *shape)}", shown(entries[name]))


def _read(path: Path, name: str, shape: tuple[int, ...], stored: str) -> torch.Tensor:
    kind, where = np.dtype(stored), f"{path}: {name}"
    _check_size(path, where, shape, stored)
    raw = np.fromfile(path, np.uint8 if stored == "bool" else kind, count=math.prod(shape)).reshape(shape)
    if stored == "bool" and (raw > 1).any():
        row = int((raw > 1).reshape(len(raw), -1).any(1).argmax())
        refuse(where, "flags, 0 or 1", f"{int(raw.max())} in row {row}")
    return torch.from_numpy(finite(raw.view(kind) if stored == "bool" else raw, where))


def _check_size(path: Path, where: object, shape: tuple[int, ...], stored: str) -> None:
    wanted, size = math.prod(shape) * np.dtype(stored).itemsize, check_file(path, where)
    if size != wanted:
        refuse(where, f"{wanted:,} bytes, {shape} of {stored}", f"{size:,} bytes")


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- clip stores -------------------------------------------------------------------------------------------------------


def save_store(store: ClipStore, folder: str | os.PathLike[str]) -> Path:
    """Writes a store as demonstrations into a new folder, as `save` does."""
    clips = {
        "fps": store.fps,
        "image_key": store.image_key if isinstance(store.image_key, str) else "/".join(store.image_key),
        "tasks": {str(number): task for number, task in store.tasks.items()},
        "stats": {key: {word: value.tolist() for word, value in each.items()} for key, each in store.stats.items()},
        "videos": [video._asdict() for video in store.videos],
    }
    rows = store.rows.cpu().flatten_keys(".").set(FRAMES, store.frames.cpu())
    lengths = torch.tensor(store.lengths, dtype=torch.int64, device="cpu")
    return save(Demonstrations(rows, lengths, about={"clips": clips}), folder)


def open_store(
    folder: str | os.PathLike[str],
    device: torch.device | None = None,
    place: Callable[[int], torch.device] | None = None,
) -> ClipStore:
    """A saved store. On the CPU its frames are read from disk on access.

    Args:
        folder: Of the store.
        device: Where clips are wanted; None for the CPU.
        place: Gives the device of frames of so many bytes; None for `device`.

    Raises:
        ValueError: The folder holds no store.
    """
    folder, device = Path(folder), device or torch.device("cpu")
    found = open_saved(folder, frames=True)
    about = _validated(found.about.get("clips"), folder / ABOUT)
    frames = found.rows.pop(FRAMES, None)
    if frames is None:
        refuse(folder, "frames of video", "rows alone")
    home = device if place is None or device.type == "cpu" else place(frames.numel())
    if home.type != "cpu":
        there = torch.empty(frames.shape, dtype=torch.uint8, device=home)
        for first in range(0, len(frames), _CHUNK):
            there[first : first + _CHUNK] = frames[first : first + _CHUNK].to(home)
        frames = there
    return ClipStore(frames, found.lengths.tolist(), found.rows.unflatten_keys("."), device=device, **about)


def _validated(found: Any, path: Path) -> dict[str, Any]:
    """The record of a store in the JSON file, as arguments of `ClipStore`."""
    found = found if isinstance(found, dict) else {}
    tasks, videos, image_key = (found.get(name) for name in ("tasks", "videos", "image_key"))
    if not isinstance(tasks, dict) or not all(k.isdecimal() and isinstance(v, str) for k, v in tasks.items()):
        refuse(path, "tasks by their numbers", shown(tasks))
    if not isinstance(videos, list):
        refuse(path, "a list of videos", shown(videos))
    if not isinstance(image_key, str):
        refuse(path, "an image_key", shown(image_key))
    return {
        "fps": arguments.number(f"demonstrations: {path}", "fps", found.get("fps"), 0.1, 1000.0),
        "image_key": _key(image_key, path),
        "tasks": {int(number): task for number, task in tasks.items()},
        "stats": read_stats(found.get("stats"), path),
        "videos": [_video(each, path) for each in videos],
    }


def _video(found: Any, path: Path) -> Video:
    kinds = {"name": str, "frames": int, "height": int, "width": int, "fps": float, "problem": str}
    if not isinstance(found, dict) or {name: type(value) for name, value in found.items()} != kinds:
        refuse(path, f"videos of {', '.join(kinds)}", shown(found))
    return Video(**found)


def _key(name: str, folder: Path) -> NestedKey:
    parts = tuple(name.split("/"))
    if not all(parts) or len(parts) > 8:
        refuse(folder, "names of entries", shown(name))
    return parts if len(parts) > 1 else name
