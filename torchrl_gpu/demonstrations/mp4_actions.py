"""Plain MP4 files, each an episode, with its actions in a file of the same name beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from torchrl_gpu.demonstrations.recordings import BadParts, Episode, Recording, Source
from torchrl_gpu.demonstrations.untrusted import (
    Arrays,
    check_file,
    checked,
    read_json,
    read_npy,
    read_npz,
    read_parquet,
    refuse,
)
from torchrl_gpu.system.arguments import shown

SUFFIXES = (".parquet", ".npz", ".npy", ".json")


def read_videos(paths: list[Path], fps: float | None, bad: BadParts) -> Source:
    """MP4 files with their files of actions; `fps` is what they must have, None where they need only agree."""
    source = Source()
    for path in paths:
        with bad.guard(str(path)):
            check_file(path, path)
            episodes = (Episode(0, _read_actions(path)),)
            source.recordings.append(Recording(str(path), path, fps, None, episodes, complete=True))
    return source


def _read_actions(video: Path) -> Arrays:
    path = next((each for each in map(video.with_suffix, SUFFIXES) if each.exists()), None)
    if path is None:
        listed = ", ".join(video.stem + suffix for suffix in SUFFIXES)
        refuse(video, f"a file of actions beside it, one of {listed}", "none")
    found = _READERS[path.suffix](path)
    if "action" not in found:
        refuse(path, 'an "action" for every frame', f"the names {shown(sorted(found))}")
    rows = {name: _row_values(checked(values, f"{path}: {name}"), name) for name, values in found.items()}
    lengths = {len(values) for values in rows.values()}
    if len(lengths) > 1 or not min(lengths):
        refuse(path, "as many rows of each name, one or more", f"{sorted(lengths)}")
    return rows


def _row_values(values: np.ndarray, name: str) -> np.ndarray:
    """(L, …): actions, observations and what follows them have an axis behind that of the rows."""
    if values.dtype.kind == "f" and name != "timestamp":
        values = values.astype(np.float32)
    is_vector = name == "action" or name.startswith(("observation.", "next."))
    return values[:, None] if is_vector and values.ndim == 1 else values


def _read_npy(path: Path) -> Arrays:
    size = check_file(path, path)
    with path.open("rb") as file:
        return {"action": read_npy(file, path, size)}


def _read_json(path: Path) -> Arrays:
    found: Any = read_json(path)
    if isinstance(found, list):
        found = {"action": found}
    if not isinstance(found, dict) or not all(isinstance(each, list) for each in found.values()):
        refuse(path, "a list of actions, or an object of lists", shown(found))
    out = {}
    for name, values in found.items():
        try:
            out[name] = np.array(values)
        except (ValueError, OverflowError):
            refuse(f"{path}: {name}", "as many numbers in each row", shown(values))
    return out


_READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npy": _read_npy,
    ".npz": read_npz,
    ".json": _read_json,
    ".parquet": read_parquet,
}
