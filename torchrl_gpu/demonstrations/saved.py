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
    """Writes a store as demonstrations into a folder that is not there yet; it has its name once all is written.

    Raises:
        FileExistsError: There is such a folder.
    """
    clips = {
        "fps": store.fps,
        "image_key": _name(store.image_key),
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
    """A store that was saved. On the CPU its frames are read from disk when they are asked for.

    Args:
        folder: Where it is.
        device: Where clips are wanted; None for the CPU.
        place: Gives the device of frames of so many bytes; None for `device`.

    Raises:
        ValueError: It is none.
    """
    folder, device = Path(folder), device or torch.device("cpu")
    found = memmap.open_saved(folder, frames=True)
    about = _About(found.about.get("clips"), folder / ABOUT)
    frames = found.rows.pop(FRAMES, None)
    if frames is None:
        refuse(folder, "frames of video", "rows alone")
    home = device if place is None or device.type == "cpu" else place(frames.numel())
    if home.type != "cpu":
        there = torch.empty(frames.shape, dtype=torch.uint8, device=home)
        for first in range(0, len(frames), _CHUNK):
            there[first : first + _CHUNK] = frames[first : first + _CHUNK].to(home)
        frames = there
    return ClipStore(
        frames,
        found.lengths.tolist(),
        found.rows.unflatten_keys("."),
        fps=about.fps,
        device=device,
        image_key=about.image_key,
        tasks=about.tasks,
        stats=about.stats,
        videos=about.videos,
    )


class _About:
    """The record of a store in the JSON file, checked."""

    def __init__(self, found: Any, path: Path) -> None:
        tasks, videos = (found.get(name) if isinstance(found, dict) else None for name in ("tasks", "videos"))
        if not isinstance(tasks, dict) or not all(k.isdecimal() and isinstance(v, str) for k, v in tasks.items()):
            refuse(path, "tasks by their numbers", shown(tasks))
        if not isinstance(videos, list):
            refuse(path, "a list of videos", shown(videos))
        if not isinstance(found.get("image_key"), str):
            refuse(path, "an image_key", shown(found.get("image_key")))
        self.fps = arguments.number(f"demonstrations: {path}", "fps", found.get("fps"), 0.1, 1000.0)
        self.image_key = _key(found["image_key"], path)
        self.tasks = {int(number): task for number, task in tasks.items()}
        self.stats = read_stats(found.get("stats"), path)
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
