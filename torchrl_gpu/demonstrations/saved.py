"""Clip stores on disk: frames as one `.npy` that is mapped into memory, entries as `.npz`, the rest as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDict

from torchrl_gpu import arguments
from torchrl_gpu.arguments import shown
from torchrl_gpu.demonstrations.lerobot import read_stats
from torchrl_gpu.demonstrations.store import ClipStore, Video
from torchrl_gpu.demonstrations.untrusted import (
    MOST_FRAMES,
    check_file,
    checked,
    header,
    new_folder,
    read_json,
    read_npz,
    reading,
    refuse,
)

FORMAT = "torchrl_gpu clips 1"
_ABOUT, _FRAMES, _ROWS = "clips.json", "frames.npy", "rows.npz"
_CHUNK = 4096  # frames that are copied at a time


def is_saved(path: Path) -> bool:
    """Whether a folder holds a store."""
    return (path / _ABOUT).is_file()


def save_store(store: ClipStore, folder: str | os.PathLike[str]) -> Path:
    """Writes a store into a folder that is not there yet; it has its name once all of it is written.

    Raises:
        FileExistsError: There is such a folder.
    """
    folder = Path(folder)
    entries = {_name(key): value.cpu().numpy() for key, value in store.rows.items(True, True)}
    about = {
        "format": FORMAT,
        "fps": store.fps,
        "lengths": store.lengths,
        "image_key": _name(store.image_key),
        "tasks": {str(number): task for number, task in store.tasks.items()},
        "stats": {key: {word: value.tolist() for word, value in each.items()} for key, each in store.stats.items()},
        "videos": [video._asdict() for video in store.videos],
    }
    with new_folder(folder) as part:
        frames = np.lib.format.open_memmap(part / _FRAMES, "w+", np.uint8, tuple(store.frames.shape))
        for first in range(0, len(store), _CHUNK):
            frames[first : first + _CHUNK] = store.frames[first : first + _CHUNK].cpu().numpy()
        frames.flush()
        del frames
        np.savez(part / _ROWS, **entries)
        (part / _ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return folder


def open_store(
    folder: str | os.PathLike[str],
    device: torch.device | None = None,
    place: Callable[[int], torch.device] | None = None,
) -> ClipStore:
    """A store that was saved. On the CPU its frames are read from disk when they are asked for.

    Args:
        folder: Where it is.
        device: Where clips are wanted; None for the CPU.
        place: Gives the device of frames of so many bytes; None for `device`.

    Raises:
        ValueError: It is none.
    """
    folder, device = Path(folder), device or torch.device("cpu")
    about = _About(folder / _ABOUT)
    frames = _frames(folder / _FRAMES)
    if sum(about.lengths) != len(frames):
        refuse(folder / _ABOUT, f"lengths that add up to {len(frames)} frames", f"{sum(about.lengths)}")
    entries = read_npz(folder / _ROWS, folder / _ROWS)
    rows = TensorDict(batch_size=[len(frames)])
    for name, values in entries.items():
        values = checked(values, f"{folder / _ROWS}: {name}")
        if len(values) != len(frames):
            refuse(f"{folder / _ROWS}: {name}", f"{len(frames)} rows", f"{len(values)}")
        values = values.astype(np.float32) if values.dtype == np.float64 else values
        rows.set(_key(name, folder), torch.from_numpy(values))
    home = device if place is None or device.type == "cpu" else place(frames.numel())
    if home.type != "cpu":
        there = torch.empty(frames.shape, dtype=torch.uint8, device=home)
        for first in range(0, len(frames), _CHUNK):
            there[first : first + _CHUNK] = frames[first : first + _CHUNK].to(home)
        frames = there
    return ClipStore(
        frames,
        about.lengths,
        rows,
        fps=about.fps,
        device=device,
        image_key=_key(about.image_key, folder),
        tasks=about.tasks,
        stats=about.stats,
        videos=about.videos,
    )


def _frames(path: Path) -> torch.Tensor:
    """(F, 3, H, W) uint8, mapped; what is written into it is not written to the file."""
    size = check_file(path, path)
    with reading(path, "frames as an array"):
        with path.open("rb") as file:
            shape, dtype = header(file, path, size)
            begin = file.tell()
        if dtype != np.uint8 or len(shape) != 4 or shape[1] != 3 or begin + int(np.prod(shape)) != size:
            refuse(path, "frames (F, 3, H, W) uint8, all of them", f"{dtype} {shape} in {size:,} bytes")
        if not 0 < shape[0] <= MOST_FRAMES:
            refuse(path, f"1 to {MOST_FRAMES:,} frames", f"{shape[0]:,}")
        return torch.from_numpy(np.memmap(path, np.uint8, "c", begin, shape))


class _About:
    """What the JSON file says, checked."""

    def __init__(self, path: Path) -> None:
        found = read_json(path, path)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            refuse(path, f"format {FORMAT!r}", shown(found.get("format") if isinstance(found, dict) else found))
        lengths, tasks, videos = (found.get(name) for name in ("lengths", "tasks", "videos"))
        if not isinstance(lengths, list) or not lengths:
            refuse(path, "lengths of episodes", shown(lengths))
        where = f"demonstrations: {path}"
        self.lengths = [arguments.whole(where, "lengths", each, 1, MOST_FRAMES) for each in lengths]
        self.fps = arguments.number(where, "fps", found.get("fps"), 0.1, 1000.0)
        if not isinstance(found.get("image_key"), str):
            refuse(path, "an image_key", shown(found.get("image_key")))
        self.image_key: str = found["image_key"]
        if not isinstance(tasks, dict) or not all(k.isdecimal() and isinstance(v, str) for k, v in tasks.items()):
            refuse(path, "tasks by their numbers", shown(tasks))
        self.tasks = {int(number): task for number, task in tasks.items()}
        self.stats = read_stats(found.get("stats"), path)
        if not isinstance(videos, list):
            refuse(path, "a list of videos", shown(videos))
        self.videos = [_video(each, path) for each in videos]


def _video(found: Any, path: Path) -> Video:
    kinds = {"name": str, "frames": int, "height": int, "width": int, "fps": float, "problem": str}
    if not isinstance(found, dict) or {name: type(value) for name, value in found.items()} != kinds:
        refuse(path, f"videos of {', '.join(kinds)}", shown(found))
    return Video(**found)


def _name(key: NestedKey) -> str:
    return key if isinstance(key, str) else "/".join(key)


def _key(name: str, folder: Path) -> NestedKey:
    parts = tuple(name.split("/"))
    if not all(parts) or len(parts) > 8:
        refuse(folder, "names of entries", shown(name))
    return parts if len(parts) > 1 else name
