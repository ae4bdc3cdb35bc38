"""Clip stores on disk: demonstrations with frames of video, which are mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey

from torchrl_gpu.demonstrations import memmap
from torchrl_gpu.demonstrations.clip_store import ClipStore, Video
from torchrl_gpu.demonstrations.lerobot import read_stats
from torchrl_gpu.demonstrations.memmap import ABOUT, FRAMES
from torchrl_gpu.demonstrations.transitions import Demonstrations
from torchrl_gpu.demonstrations.untrusted import refuse
from torchrl_gpu.system import arguments
from torchrl_gpu.system.arguments import shown

_CHUNK = 4096  # frames that are copied at a time


def save_store(store: ClipStore, folder: str | os.PathLike[str]) -> Path:
    """Writes a store as demonstrations into a new folder, as `memmap.save` does."""
    clips = {
        "fps": store.fps,
        "image_key": store.image_key if isinstance(store.image_key, str) else "/".join(store.image_key),
        "tasks": {str(number): task for number, task in store.tasks.items()},
        "stats": {key: {word: value.tolist() for word, value in each.items()} for key, each in store.stats.items()},
        "videos": [video._asdict() for video in store.videos],
    }
    rows = store.rows.cpu().flatten_keys(".").set(FRAMES, store.frames.cpu())
    lengths = torch.tensor(store.lengths, dtype=torch.int64, device="cpu")
    return memmap.save(Demonstrations(rows, lengths, about={"clips": clips}), folder)


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
    found = memmap.open_saved(folder, frames=True)
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
