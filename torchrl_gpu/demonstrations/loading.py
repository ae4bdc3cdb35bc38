"""`load_demonstrations`: videos and their rows decoded into a `ClipStore`."""

from __future__ import annotations

import bisect
import logging
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_gpu.demonstrations import lerobot
from torchrl_gpu.demonstrations.clip_store import ClipStore, Video
from torchrl_gpu.demonstrations.decoding import MOST_PIXELS, Batch, Decoder, VideoHeader, decode, read_header
from torchrl_gpu.demonstrations.memmap import has_frames, open_store
from torchrl_gpu.demonstrations.recordings import BadParts, Episode, OnBad, Recording, Source
from torchrl_gpu.demonstrations.transitions import refuse_all
from torchrl_gpu.demonstrations.untrusted import (
    Arrays,
    check_file,
    check_rows,
    fail,
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

_LOG = logging.getLogger(__name__)

WHERE = "demonstrations"
SUFFIXES = (".parquet", ".npz", ".npy", ".json")
# Tolerance of a video's rate, as a share: it is a mean over the file.
_RATE = 0.01

PathLike = str | os.PathLike[str]


class _Accepted(NamedTuple):
    """A video whose header is as it should be."""

    recording: Recording
    header: VideoHeader

    @property
    def fps(self) -> float:
        return float(self.recording.fps or self.header.fps)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.header.height, self.header.width


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
    """Decode the frames of demonstrations once, and load the rows recorded with them.

    Args:
        paths: Folders of LeRobotDataset v3, MP4 files with a file of actions next to each, folders of these; or one
            saved store, which is opened without decoding, by `device` and `placement` alone.
        size: Height and width of the frames; None for those of the videos.
        device: Where clips are wanted.
        fps: Frames per second that all videos must have; None for those of the first one.
        camera: LeRobot's feature with the pictures; None if each dataset has only one.
        on_bad: "raise" the error of a bad video, or "skip" the video; skipped ones are logged in one line, see
            `ClipStore.skipped`.
        placement: Of the frames: "device", "host", or "auto": the device if they fit into most of its free memory,
            else host memory, from where clips are staged; the choice is logged.
        decoder: See `decode`.
        progress: Called after every batch with the numbers of decoded frames and of all frames.

    Raises:
        ValueError: A video or its rows cannot be used, or the frames do not fit into memory.
        ModuleNotFoundError: PyAV or pyarrow is not installed.
    """
    arguments.choice(WHERE, "placement", placement, ("auto", "device", "host"))
    clip_device = get_device(device)
    listed = _check_paths(paths)
    if len(listed) == 1 and has_frames(listed[0]):
        return open_store(listed[0], clip_device, partial(place_frames, device=clip_device, placement=placement))
    rate = None if fps is None else arguments.number(WHERE, "fps", fps, 0.1, 1000.0)
    wanted = None if size is None else _check_frame_size(size)
    bad = BadParts(on_bad)
    source = _read(listed, rate, camera, bad)
    accepted = _accept(source.recordings, wanted, rate, bad)
    _check_any(accepted, listed, bad)
    total = sum(each.recording.num_rows for each in accepted)
    shape = (total, 3, *(wanted or accepted[0].size))
    frames = torch.empty(
        shape, dtype=torch.uint8, device=place_frames(math.prod(shape), device=clip_device, placement=placement)
    )
    # A video that fails in the middle leaves its place to the next one.
    decoded: list[Recording] = []
    done = 0
    for recording, header in accepted:

        def report(new: int, before: int = done) -> None:
            progress(before + new, total)

        with bad.guard(recording.name):
            out = frames[done : done + recording.num_rows]
            _decode_into(out, recording, header, decoder, clip_device, progress=report)
            decoded.append(recording)
            done += recording.num_rows
    bad.log()
    # A video may have failed only now.
    _check_any(decoded, listed, bad)
    episodes: list[Episode] = []
    for recording in decoded:
        episodes += recording.episodes
    lengths = [len(each) for each in episodes]
    image_key = "pixels" if source.camera is None else lerobot.entry_key(source.camera)
    videos = _videos(decoded, accepted, bad)
    return ClipStore(
        frames[:done],
        lengths,
        _rows(episodes),
        fps=rate or accepted[0].fps,
        device=clip_device,
        image_key=image_key,
        tasks=source.tasks,
        stats=source.stats,
        videos=videos,
    )


def _videos(decoded: list[Recording], accepted: list[_Accepted], bad: BadParts) -> list[Video]:
    """Return the videos of a store, and those that were skipped."""
    headers = {each.recording.name: each.header for each in accepted}
    videos: list[Video] = []
    for recording in decoded:
        header = headers[recording.name]
        videos.append(Video(recording.name, recording.num_rows, header.height, header.width, float(header.fps)))
    for name, reason in bad.reasons.items():
        skipped = Video(name, problem=reason)
        if name in headers:
            header = headers[name]
            skipped = skipped._replace(height=header.height, width=header.width, fps=float(header.fps))
        videos.append(skipped)
    return videos


def _check_any(usable: Sequence[object], paths: list[Path], bad: BadParts) -> None:
    """Refuse paths of which no video is left."""
    if not usable:
        bad.log()
        refuse_all(", ".join(map(str, paths)), "video", bad)


def place_frames(needed: int, device: torch.device, placement: Placement) -> torch.device:
    """Return the device on which frames of `needed` bytes are kept.

    Raises:
        ValueError: They do not fit.
    """
    home = memory.place(WHERE, "frames", needed, device, placement)
    free = memory.free_bytes(home)
    if free is not None and needed > memory.SHARE * free:
        raise ValueError(
            f"{WHERE}: the frames take {needed / 2**30:.2f} GiB, and may take at most {memory.SHARE:.0%} of the free"
            f" memory of {home}, {free / 2**30:.2f} GiB: ask for a smaller size, or for fewer videos"
        )
    return home


# -- files of actions --------------------------------------------------------------------------------------------------


def read_videos(paths: list[Path], fps: float | None, bad: BadParts) -> Source:
    """Read MP4 files with their files of actions.

    Args:
        paths: Of the videos.
        fps: What they must have; None if they need only agree.
        bad: What to do with a bad video.
    """
    source = Source()
    for path in paths:
        with bad.guard(str(path)):
            check_file(path, path)
            episodes = (Episode(0, _read_actions(path)),)
            recording = Recording(str(path), path, fps, None, episodes, complete=True)
            source.recordings.append(recording)
    return source


def _read_actions(video: Path) -> Arrays:
    """Return the rows of a video, from the first file of its name that there is."""
    candidates = map(video.with_suffix, SUFFIXES)
    path = next((each for each in candidates if each.exists()), None)
    if path is None:
        listed = ", ".join(video.stem + suffix for suffix in SUFFIXES)
        fail(video, f"a file of actions is missing, one of {listed}")
    found = _READERS[path.suffix](path)
    if "action" not in found:
        fail(path, f'it has no "action" for every frame, only {shown(sorted(found))}')
    rows = {name: _row_values(check_rows(values, f"{path}: {name}"), name) for name, values in found.items()}
    lengths = {len(values) for values in rows.values()}
    if len(lengths) > 1 or not min(lengths):
        refuse(path, "as many rows of each name, one or more", f"{sorted(lengths)}")
    return rows


def _row_values(values: np.ndarray, name: str) -> np.ndarray:
    """Return the rows of a name, (L, …).

    Actions, observations and what follows them have an axis behind that of the rows.
    """
    if values.dtype.kind == "f" and name != "timestamp":
        values = values.astype(np.float32)
    is_vector = name == "action" or name.startswith(("observation.", "next."))
    return values[:, None] if is_vector and values.ndim == 1 else values


def _read_npy(path: Path) -> Arrays:
    size = check_file(path, path)
    with path.open("rb") as file:
        return {"action": read_npy(file, path, size)}


def _read_json(path: Path) -> Arrays:
    found = read_json(path)
    if isinstance(found, list):
        found = {"action": found}
    if not isinstance(found, dict) or not all(isinstance(each, list) for each in found.values()):
        refuse(path, "a list of actions, or an object of lists", shown(found))
    arrays: Arrays = {}
    for name, values in found.items():
        try:
            arrays[name] = np.array(values)
        except (ValueError, OverflowError):
            refuse(f"{path}: {name}", "as many numbers in each row", shown(values))
    return arrays


_READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npy": _read_npy,
    ".npz": read_npz,
    ".json": _read_json,
    ".parquet": read_parquet,
}


# -- what is read ------------------------------------------------------------------------------------------------------


def _check_paths(paths: PathLike | Sequence[PathLike]) -> list[Path]:
    """Return the paths.

    Raises:
        ValueError: There are none.
        FileNotFoundError: One of them leads nowhere.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ValueError(f"{WHERE}: paths is empty; name a folder or a video")
    listed = [Path(path) for path in given]
    for path in listed:
        if not path.exists():
            raise FileNotFoundError(f"{WHERE}: {path}: there is no such folder or video")
    return listed


def _check_frame_size(size: Sequence[int]) -> tuple[int, int]:
    height, width = arguments.pair(WHERE, "size", "height and width", size, 1, MOST_PIXELS)
    if height * width > MOST_PIXELS:
        arguments.refuse(WHERE, "size", f"at most {MOST_PIXELS:,} pixels", size)
    return height, width


def _read(paths: list[Path], fps: float | None, camera: str | None, bad: BadParts) -> Source:
    """Return the recordings at all paths, in their order."""
    joined = Source()
    for path in paths:
        if path.is_dir() and lerobot.is_dataset(path):
            found = lerobot.read_dataset(path, camera, bad)
        else:
            videos = sorted(path.glob("*.mp4")) if path.is_dir() else [path]
            found = read_videos(videos, fps, bad)
            if path.is_dir() and not found.recordings and not bad.reasons:
                fail(path, f"it has neither {lerobot.INFO} nor MP4 files")
        if joined.recordings and joined.tasks != found.tasks:
            refuse(path, "the tasks of the paths before", f"{len(found.tasks)} others")
        joined.recordings += found.recordings
        joined.tasks = found.tasks
        joined.camera = found.camera or joined.camera
        # The statistics of one dataset are not those of all.
        joined.stats = found.stats if len(paths) == 1 else {}
    return joined


def _accept(
    recordings: list[Recording], size: tuple[int, int] | None, fps: float | None, bad: BadParts
) -> list[_Accepted]:
    """Return the videos that have the wanted rate and size, and rows like the first."""
    accepted: list[_Accepted] = []
    for recording in recordings:
        with bad.guard(recording.name):
            new = _Accepted(recording, read_header(recording.path, recording.name))
            first = accepted[0] if accepted else None
            _check_rates(new, fps, first)
            _check_sizes(new, size, first)
            if first is not None:
                _check_alike(first.recording, recording)
            accepted.append(new)
    return accepted


def _check_rates(new: _Accepted, fps: float | None, first: _Accepted | None) -> None:
    """Check the rate of a video against all that it must agree with.

    These are the wanted one, the one of its dataset, and that of the first video.
    """
    found = float(new.header.fps)
    for rate in (fps, new.recording.fps, None if first is None else first.fps):
        if rate and abs(found / rate - 1) > _RATE:
            refuse(new.recording.name, f"{rate:g} frames a second", f"{found:g}")


def _check_sizes(new: _Accepted, size: tuple[int, int] | None, first: _Accepted | None) -> None:
    """Check the size of a video against all that it must agree with.

    These are the one of its dataset, and without a wanted one that of the first video.
    """
    of_first = first.size if first is not None and size is None else None
    for wanted in (new.recording.size, of_first):
        if wanted and wanted != new.size:
            header = new.header
            refuse(new.recording.name, f"frames of {wanted[0]}×{wanted[1]}", f"{header.height}×{header.width}")


def _check_alike(first: Recording, other: Recording) -> None:
    """Check that both have rows of the same names, dtypes and shapes."""
    wanted = first.episodes[0].rows
    found = other.episodes[0].rows
    for name in sorted(set(wanted) | set(found)):
        if _form_of(wanted, name) != _form_of(found, name):
            refuse(other.name, f"{name} of {_form_of(wanted, name)}, as {first.name} has", _form_of(found, name))


def _form_of(rows: Arrays, name: str) -> str:
    if name not in rows:
        return "none"
    return f"{rows[name].dtype} {rows[name].shape[1:]}"


# -- decoding ----------------------------------------------------------------------------------------------------------


def _decode_into(
    out: Tensor,
    recording: Recording,
    header: VideoHeader,
    decoder: Decoder,
    device: torch.device,
    *,
    progress: Callable[[int], None],
) -> None:
    """Fill `out` (L, 3, H, W) with the frames of a video's episodes in order.

    Raises:
        ValueError: Frames are not at the times of the video's rate, or their number is off by more than one.
    """
    fps = recording.fps if recording.fps is not None and not recording.complete else float(header.fps)
    last = recording.episodes[-1]
    needed = last.first_frame + len(last)
    seen = 0
    first_s = 0.0
    size = (out.shape[2], out.shape[3])
    places = _Places.of(recording)
    for batch in decode(recording.path, recording.name, size, device=device, decoder=decoder):
        first_s = batch.seconds[0] if not seen else first_s
        # A frame that was dropped or doubled would shift all rows behind it.
        for k, seconds in enumerate(batch.seconds, seen):
            late_s = seconds - first_s - k / fps
            if abs(late_s) > 0.5 / fps:
                refuse(recording.name, f"frame {k} at {k / fps:g} s, as {fps:g} a second give", f"{seconds:g} s")
        _copy_frames(out, places, batch, seen)
        seen += len(batch.seconds)
        progress(min(seen, needed))
        # Frames behind the last episode are not decoded, but a complete video may have no more than one of them.
        is_enough = seen >= needed and not recording.complete
        if is_enough or seen > needed + 1:
            break
    if not needed - 1 <= seen or seen == 0 or (recording.complete and seen > needed + 1):
        found = str(seen) if seen <= needed + 1 else "more"
        refuse(recording.name, f"{needed} frames, as many as rows, within one", found)
    # Recorders may lose the last frame: the one before stands in for it.
    if seen == needed - 1:
        if len(last) < 2:
            refuse(recording.name, f"{needed} frames", f"{seen}, and none of the last episode")
        out[-1] = out[-2]


class _Places(NamedTuple):
    """Where the episodes of a video are.

    Attributes:
        begin: The first frame of each in the video.
        length: Frames of each.
        offset: The first frame of each among the frames of all episodes.
    """

    begin: list[int]
    length: list[int]
    offset: list[int]

    @classmethod
    def of(cls, recording: Recording) -> _Places:
        begin = [each.first_frame for each in recording.episodes]
        length = [len(each) for each in recording.episodes]
        offset = np.cumsum([0, *length]).tolist()
        return cls(begin, length, offset)


def _copy_frames(out: Tensor, places: _Places, batch: Batch, seen: int) -> None:
    """Copy those frames of a batch that belong to episodes.

    Args:
        out: (L, 3, H, W), the frames of all episodes.
        places: Of the episodes.
        batch: Frames of the video from `seen` on.
        seen: Frames before it.
    """
    begin = places.begin
    end = seen + len(batch.seconds)
    i = max(0, bisect.bisect_right(begin, seen) - 1)
    while i < len(begin) and begin[i] < end:
        low = max(seen, begin[i])
        high = min(end, begin[i] + places.length[i])
        if low < high:
            to = places.offset[i] + low - begin[i]
            out[to : to + high - low].copy_(batch.frames[low - seen : high - seen].contiguous())
        i += 1


def _rows(episodes: list[Episode]) -> TensorDict:
    """Return the rows of all episodes, by TorchRL's keys.

    Episodes are numbered anew.
    """
    total = sum(map(len, episodes))
    out = TensorDict(batch_size=[total])
    for name in episodes[0].rows:
        values = np.concatenate([each.rows[name] for each in episodes])
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        out.set(lerobot.entry_key(name), torch.from_numpy(values))
    lengths = [len(each) for each in episodes]
    numbers = np.repeat(np.arange(len(episodes)), lengths)
    return out.set("episode", torch.from_numpy(numbers))
