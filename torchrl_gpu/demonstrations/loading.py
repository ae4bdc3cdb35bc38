"""`load_demonstrations`: videos and their rows decoded into a `ClipStore`."""

from __future__ import annotations

import bisect
import logging
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_gpu.demonstrations import lerobot
from torchrl_gpu.demonstrations.clip_store import ClipStore, Video
from torchrl_gpu.demonstrations.decoding import MOST_PIXELS, Decoder, VideoHeader, decode, read_header
from torchrl_gpu.demonstrations.memmap import has_frames, open_store
from torchrl_gpu.demonstrations.recordings import BadParts, Episode, OnBad, Recording, Source
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
from torchrl_gpu.device import get_device
from torchrl_gpu.envs import memory
from torchrl_gpu.envs.memory import Placement
from torchrl_gpu.system import arguments
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


_LOG = logging.getLogger(__name__)

WHERE = "demonstrations"
_RATE = 0.01  # tolerance of a video's rate, as a share: it is a mean over the file

PathLike = str | os.PathLike[str]


def load_demonstrations(
    paths: PathLike | Sequence[PathLike],
    *,
    size: Sequence[int] | None = None,
    device: str | torch.device = "auto",
    fps: float | None = None,
    camera: str | None = None,
    on_bad: OnBad = "raise",
    placement: Placement = "auto",
    decoder: Decoder = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ClipStore:
    """The frames of demonstrations, decoded once, and the rows beside them.

    Args:
        paths: Folders of LeRobotDataset v3, MP4 files with a file of actions beside each, folders of these; or one
            saved store, which is opened without decoding, by `device` and `placement` alone.
        size: Height and width of the frames; None for those of the videos.
        device: Where clips are wanted.
        fps: Frames per second that all videos must have; None for those of the first one.
        camera: LeRobot's feature with the pictures; None where each dataset has only one.
        on_bad: "raise" the error of a bad video, or "skip" the video; skipped ones are logged in one line, see
            `ClipStore.skipped`.
        placement: Of the frames: "device", "host", or "auto": the device where they fit into most of its free memory,
            else host memory, from where clips are staged; the choice is logged.
        decoder: See `decode`.
        progress: Called after every batch with the numbers of decoded frames and of all frames.

    Raises:
        ValueError: A video or its rows cannot be used, or the frames do not fit into memory.
        ModuleNotFoundError: PyAV or pyarrow is not installed.
    """
    arguments.choice(WHERE, "placement", placement, ("auto", "device", "host"))
    clip_device, listed = get_device(device), _listed(paths)
    if len(listed) == 1 and has_frames(listed[0]):
        return open_store(listed[0], clip_device, lambda needed: placed(needed, clip_device, placement))
    rate = None if fps is None else arguments.number(WHERE, "fps", fps, 0.1, 1000.0)
    wanted, bad = None if size is None else _checked_size(size), BadParts(on_bad)
    source = _read(listed, rate, camera, bad)
    accepted = _accepted(source.recordings, wanted, rate, bad)
    _check_any(accepted, listed, bad)
    (first, header), total = accepted[0], sum(recording.num_rows for recording, _ in accepted)
    shape = total, 3, *(wanted or header[:2])
    frames = torch.empty(shape, dtype=torch.uint8, device=placed(math.prod(shape), clip_device, placement))
    decoded, done = list[Recording](), 0
    for recording, its_header in accepted:

        def report(new: int, before: int = done) -> None:
            progress(before + new, total)

        with bad.guard(recording.name):
            out = frames[done : done + recording.num_rows]
            _decode_into(out, recording, its_header, decoder, clip_device, report)
            decoded.append(recording)
            done += recording.num_rows
    bad.log()
    _check_any(decoded, listed, bad)
    episodes = [episode for recording in decoded for episode in recording.episodes]
    forms = {recording.name: (*header[:2], float(header.fps)) for recording, header in accepted}
    kept = [Video(each.name, each.num_rows, *forms[each.name]) for each in decoded]
    skipped = [Video(name, 0, *forms.get(name, (0, 0, 0.0)), reason) for name, reason in bad.reasons.items()]
    return ClipStore(
        frames[:done],
        [len(each) for each in episodes],
        _rows(episodes),
        fps=rate or first.fps or float(header.fps),
        device=clip_device,
        image_key="pixels" if source.camera is None else lerobot.entry_key(source.camera),
        tasks=source.tasks,
        stats=source.stats,
        videos=[*kept, *skipped],
    )


def _check_any(usable: Sequence[object], paths: list[Path], bad: BadParts) -> None:
    """ValueError where no video is left, with the reason of the first one."""
    if not usable:
        bad.log()
        refuse(", ".join(map(str, paths)), "a video that can be used", next(iter(bad.reasons.values()), "none"))


def placed(needed: int, device: torch.device, placement: Placement) -> torch.device:
    """The device on which frames of `needed` bytes are kept; ValueError where they do not fit."""
    home = memory.place(WHERE, "frames", needed, device, placement)
    free = memory.free_bytes(home)
    if free is not None and needed > memory.SHARE * free:
        raise ValueError(
            f"{WHERE}: want frames that take at most {memory.SHARE:.0%} of the free memory of {home},"
            f" {free / 2**30:.2f} GiB; got {needed / 2**30:.2f} GiB: ask for a smaller size, or for fewer videos"
        )
    return home


# -- what is read ------------------------------------------------------------------------------------------------------


def _listed(paths: PathLike | Sequence[PathLike]) -> list[Path]:
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ValueError(f"{WHERE}: want a folder or a video; got none")
    out = []
    for path in map(Path, given):
        if not path.exists():
            raise FileNotFoundError(f"{WHERE}: {path}: want a folder or a video; there is none")
        out.append(path)
    return out


def _checked_size(size: Sequence[int]) -> tuple[int, int]:
    height, width = arguments.pair(WHERE, "size", "height and width", size, 1, MOST_PIXELS)
    if height * width > MOST_PIXELS:
        arguments.refuse(WHERE, "size", f"at most {MOST_PIXELS:,} pixels", size)
    return height, width


def _read(paths: list[Path], fps: float | None, camera: str | None, bad: BadParts) -> Source:
    """The recordings at all paths, in their order."""
    joined = Source()
    for path in paths:
        if path.is_dir() and lerobot.is_dataset(path):
            found = lerobot.read_dataset(path, camera, bad)
        else:
            found = read_videos(sorted(path.glob("*.mp4")) if path.is_dir() else [path], fps, bad)
            if path.is_dir() and not found.recordings and not bad.reasons:
                refuse(path, f"a folder with {lerobot.INFO}, or with MP4 files", "neither")
        if joined.recordings and joined.tasks != found.tasks:
            refuse(path, "the tasks of the paths before", f"{len(found.tasks)} others")
        joined.recordings += found.recordings
        joined.tasks = found.tasks
        joined.camera = found.camera or joined.camera
        joined.stats = found.stats if len(paths) == 1 else {}  # those of one dataset are not those of all
    return joined


def _accepted(
    recordings: list[Recording], size: tuple[int, int] | None, fps: float | None, bad: BadParts
) -> list[tuple[Recording, VideoHeader]]:
    """The videos whose headers have the wanted rate and size, and the rows of the first one; with their headers."""
    accepted: list[tuple[Recording, VideoHeader]] = []
    for recording in recordings:
        with bad.guard(recording.name):
            header = read_header(recording.path, recording.name)
            before = accepted[0] if accepted else None
            rates = [fps, recording.fps, float(before[0].fps or before[1].fps) if before else None]
            for rate in filter(None, rates):
                if abs(float(header.fps) / rate - 1) > _RATE:
                    refuse(recording.name, f"{rate:g} frames a second", f"{float(header.fps):g}")
            sizes = [recording.size, tuple(before[1][:2]) if before and size is None else None]
            for wanted in filter(None, sizes):
                if wanted != header[:2]:
                    refuse(recording.name, f"frames of {wanted[0]}×{wanted[1]}", f"{header.height}×{header.width}")
            if before:
                _check_alike(before[0], recording)
            accepted.append((recording, header))
    return accepted


def _check_alike(first: Recording, other: Recording) -> None:
    """ValueError unless both have rows of the same names, dtypes and shapes."""
    forms = [
        {name: (values.dtype, values.shape[1:]) for name, values in each.episodes[0].rows.items()}
        for each in (first, other)
    ]
    for name in sorted(set(forms[0]) | set(forms[1])):
        wanted, came = (form.get(name) for form in forms)
        if wanted != came:
            texts = ["none" if form is None else f"{form[0]} {form[1]}" for form in (wanted, came)]
            refuse(other.name, f"{name} of {texts[0]}, as {first.name} has", texts[1])


# -- decoding ----------------------------------------------------------------------------------------------------------


def _decode_into(
    out: Tensor,
    recording: Recording,
    header: VideoHeader,
    decoder: Decoder,
    device: torch.device,
    progress: Callable[[int], None],
) -> None:
    """Fills `out` (L, 3, H, W) with the frames of a video's episodes in order.

    ValueError where frames are not at the times of the video's rate, or their number is off by more than one.
    """
    fps = recording.fps if recording.fps is not None and not recording.complete else float(header.fps)
    begin = [each.first_frame for each in recording.episodes]
    offset = np.cumsum([0, *map(len, recording.episodes)])  # of each episode in `out`
    needed = begin[-1] + len(recording.episodes[-1])
    seen, shown_first = 0, 0.0
    size = (out.shape[2], out.shape[3])
    for batch in decode(recording.path, recording.name, size, device=device, decoder=decoder):
        shown_first = batch.seconds[0] if not seen else shown_first
        for k, seconds in enumerate(batch.seconds, seen):
            if abs(seconds - shown_first - k / fps) > 0.5 / fps:
                refuse(recording.name, f"frame {k} at {k / fps:g} s, as {fps:g} a second give", f"{seconds:g} s")
        end = seen + len(batch.seconds)
        i = max(0, bisect.bisect_right(begin, seen) - 1)
        while i < len(begin) and begin[i] < end:
            low, high = max(seen, begin[i]), min(end, begin[i] + len(recording.episodes[i]))
            if low < high:
                to = int(offset[i]) + low - begin[i]
                out[to : to + high - low].copy_(batch.frames[low - seen : high - seen].contiguous())
            i += 1
        seen = end
        progress(min(seen, needed))
        if seen > needed + 1 or (seen >= needed and not recording.complete):
            break
    if not needed - 1 <= seen or seen == 0 or (recording.complete and seen > needed + 1):
        came = f"{seen}" if seen <= needed + 1 else "more"
        refuse(recording.name, f"{needed} frames, as many as rows, within one", came)
    if seen == needed - 1:
        if len(recording.episodes[-1]) < 2:
            refuse(recording.name, f"{needed} frames", f"{seen}, and none of the last episode")
        out[-1] = out[-2]


def _rows(episodes: list[Episode]) -> TensorDict:
    """Rows of all episodes, by TorchRL's keys; episodes are numbered anew."""
    total = sum(map(len, episodes))
    out = TensorDict(batch_size=[total])
    for name in episodes[0].rows:
        values = np.concatenate([each.rows[name] for each in episodes])
        values = values.astype(np.float32) if values.dtype == np.float64 else values
        out.set(lerobot.entry_key(name), torch.from_numpy(values))
    numbers = np.repeat(np.arange(len(episodes)), [len(each) for each in episodes])
    return out.set("episode", torch.from_numpy(numbers))
