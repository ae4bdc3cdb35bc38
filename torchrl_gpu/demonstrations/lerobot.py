"""LeRobotDataset v3, read as it lies on disk: JSON, parquet and MP4, without the lerobot package.

The format is LeRobot's (huggingface/lerobot, `docs/source/lerobot-dataset-v3.mdx`, `src/lerobot/datasets`), the names
of entries are TorchRL's (`torchrl.data.datasets.LeRobotExperienceReplay`, 0.14).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from tensordict import NestedKey

from torchrl_gpu.demonstrations.decoding import count_frames
from torchrl_gpu.demonstrations.recordings import BadParts, Episode, Recording, Source
from torchrl_gpu.demonstrations.transitions import Demonstrations, from_episodes
from torchrl_gpu.demonstrations.untrusted import (
    MOST_FRAMES,
    Arrays,
    fill_pattern,
    read_json,
    read_parquet,
    read_strings,
    refuse,
)
from torchrl_gpu.system.arguments import shown

_LOG = logging.getLogger(__name__)

INFO = "meta/info.json"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
IMAGES = "observation.images."
INDICES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every dataset has, one number a row."""
_NEAR = 1.01  # frames by which the time that an episode takes may differ from its length
_SURE = 0.25  # of a frame, by which a time may be off where the frame is found by its time alone
_KEYS: dict[str, NestedKey] = {"episode_index": "episode", "frame_index": "frame", "task": "language_instruction"}


def entry_key(name: str) -> NestedKey:
    """TorchRL's key of a feature: ("observation", "state") for `observation.state`, "episode" for `episode_index`."""
    if name in _KEYS:
        return _KEYS[name]
    if name.startswith(IMAGES):
        return ("observation", "image", name.removeprefix(IMAGES))
    return tuple(name.split(".")) if "." in name else name


def is_dataset(folder: Path) -> bool:
    return (folder / INFO).is_file()


def read_dataset(root: Path, camera: str | None, bad: BadParts) -> Source:
    """The videos of one camera of a dataset, None for the only one, and the rows beside their frames."""
    info = _Info(root)
    camera = info.camera(camera)
    table = _read_episodes(root, info, camera)
    tasks, stats = root / "meta" / "tasks.parquet", root / "meta" / "stats.json"
    source = Source(camera=camera)
    if tasks.exists():
        source.tasks = read_strings(tasks, ("task", "__index_level_0__"), "task_index")
    if stats.exists():
        source.stats = read_stats(read_json(stats), root)
    files = _DataFiles(root, info)
    chunk, file = (table[f"videos/{camera}/{name}_index"] for name in ("chunk", "file"))
    start = table[f"videos/{camera}/from_timestamp"]
    videos, clock = np.stack([chunk, file], 1), _Clock(info.fps)
    for place in dict.fromkeys(map(tuple, videos.tolist())):
        relative = fill_pattern(
            info.video_path, f"{root / INFO}: video_path", video_key=camera, chunk_index=place[0], file_index=place[1]
        )
        name = str(root / relative)
        with bad.guard(name):
            numbers = np.nonzero((videos == place).all(1))[0]
            numbers = numbers[np.argsort(start[numbers], kind="stable")]
            frames = count_frames(root / relative, name)
            first, complete = _first_frames(table, numbers, camera, info.fps, frames, name, clock)
            rows = [_episode_rows(table, int(i), files, name) for i in numbers]
            for i, each in zip(numbers, rows, strict=True):
                if (each["frame_index"] != np.arange(len(each["frame_index"]))).any():
                    where = f"{name}: episode {table['episode_index'][i]}"
                    refuse(where, "frame_index 0, 1, 2, …", shown(each["frame_index"].tolist()))
                clock.note("timestamp", each["timestamp"] * info.fps - each["frame_index"])
            episodes = tuple(Episode(at, each) for at, each in zip(first, rows, strict=True))
            source.recordings.append(
                Recording(name, root / relative, info.fps, info.size(camera), episodes, complete=complete)
            )
    clock.log(root)
    return source


def read_rows(root: Path, entries: Collection[str] | None, bad: BadParts) -> Demonstrations:
    """The numbers of a dataset, of some features or all, by LeRobot's names; opens no video. See `read_dataset`."""
    info = _Info(root)
    table, files = _read_episodes(root, info), _DataFiles(root, info, entries)
    if table["length"].sum() > MOST_FRAMES:
        refuse(root / "meta" / "episodes", f"at most {MOST_FRAMES:,} rows", f"{table['length'].sum():,}")
    episodes = []
    for i, number in enumerate(table["episode_index"].tolist()):
        with bad.guard(f"{root}: episode {number}"):
            rows = _episode_rows(table, i, files, str(root))
            found = {name: values for name, values in rows.items() if name not in INDICES}
            episodes.append((f"{root}: episode {number}", found))
    return from_episodes(episodes, bad, str(root), {"format": "LeRobotDataset v3"})[0]


class _Info:
    """The content of `meta/info.json`, validated."""

    def __init__(self, root: Path) -> None:
        info, self.name = read_json(root / INFO), str(root / INFO)
        name = self.name
        if not isinstance(info, dict):
            refuse(name, "an object", shown(info))
        version = info.get("codebase_version")
        if not isinstance(version, str) or not version.startswith("v3."):
            convert = "lerobot's convert_dataset_v21_to_v30 makes it of v2.1"
            refuse(name, f"codebase_version v3.x ({convert})", shown(version))
        fps = info.get("fps")
        if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0.1 <= fps <= 1000:
            refuse(name, "fps from 0.1 to 1000", shown(fps))
        features = info.get("features")
        if not isinstance(features, dict) or not all(isinstance(each, dict) for each in features.values()):
            refuse(name, "features, an object each", shown(features))
        self.fps, self.features = float(fps), features
        self.total_episodes = info.get("total_episodes")
        self.data_path, self.video_path = info.get("data_path", DATA_PATH), info.get("video_path", VIDEO_PATH)

    def camera(self, wanted: str | None) -> str:
        """Name of the feature with the pictures."""
        videos = [key for key, each in self.features.items() if each.get("dtype") == "video" and not _is_depth(each)]
        if wanted is None and len(videos) == 1:
            return videos[0]
        if not videos:
            refuse(self.name, "a feature of dtype video", "none")
        if wanted not in videos:
            refuse(self.name, f"camera to be one of {', '.join(videos)}", shown(wanted))
        return str(wanted)

    def size(self, camera: str) -> tuple[int, int] | None:
        """Height and width of the pictures; None where the shape does not tell."""
        shape = self.shape(camera)
        if len(shape) == 3 and shape[2] in (1, 3):
            return shape[0], shape[1]
        return (shape[1], shape[2]) if len(shape) == 3 and shape[0] in (1, 3) else None

    def shape(self, feature: str) -> tuple[int, ...]:
        """Shape of a feature in one row."""
        shape = self.features[feature].get("shape")
        if not isinstance(shape, list) or not all(type(each) is int and 0 < each < 2**31 for each in shape):
            refuse(f"{self.name}: {feature}", "a shape of positive whole numbers", shown(shape))
        return tuple(shape)

    def columns(self) -> list[str]:
        """Features of numbers, which are columns of the data files."""
        others = ("video", "image", "string", "language", "audio")
        return [key for key, each in self.features.items() if each.get("dtype") not in others]


def _is_depth(feature: dict[str, Any]) -> bool:
    infos = [info for key in ("info", "video_info") if isinstance(info := feature.get(key), dict)]
    return any(info.get("is_depth_map") or info.get("video.is_depth_map") for info in infos)


def _read_episodes(root: Path, info: _Info, camera: str | None = None) -> Arrays:
    """The rows of `meta/episodes` in the order of the episodes, with the places of a camera's videos."""
    folder = root / "meta" / "episodes"
    names = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    places = [] if camera is None else [f"videos/{camera}/{name}" for name in names]
    columns = ["episode_index", "length", "dataset_from_index", "dataset_to_index"]
    columns += ["data/chunk_index", "data/file_index", *places]
    tables = []
    for path in sorted(folder.glob("chunk-*/file-*.parquet")):
        table = read_parquet(path, columns)
        if missing := [each for each in columns if each not in table]:
            refuse(path, f"the columns {', '.join(columns)}", f"no {missing[0]}")
        for each in columns:
            kinds = "if" if each.endswith("timestamp") else "i"
            if table[each].ndim != 1 or table[each].dtype.kind not in kinds or (table[each] < 0).any():
                refuse(f"{path}: {each}", "numbers from 0 on, one a row", f"{table[each].dtype} {table[each].shape}")
        tables.append(table)
    if not tables or not sum(len(each["length"]) for each in tables):
        refuse(folder, "files chunk-*/file-*.parquet of episodes", "none")
    joined = {each: np.concatenate([table[each] for table in tables]) for each in columns}
    order = np.argsort(joined["episode_index"], kind="stable")
    joined = {each: values[order] for each, values in joined.items()}
    if (np.diff(joined["episode_index"]) == 0).any():
        refuse(folder, "every episode once", "one that is there twice")
    if joined["length"].max() > MOST_FRAMES or (joined["length"] < 1).any():
        refuse(folder, f"lengths from 1 to {MOST_FRAMES:,}", f"{joined['length'].min()} to {joined['length'].max()}")
    if len(order) != info.total_episodes:
        wanted = f"as many episodes as total_episodes says, {shown(info.total_episodes)}"
        refuse(folder, wanted, f"{len(order)}")
    return joined


class _DataFiles:
    """Rows of episodes from the files of `data`; caches the file that was read last."""

    def __init__(self, root: Path, info: _Info, entries: Collection[str] | None = None) -> None:
        self.root, self.info, self.entries = root, info, entries
        self._kept: tuple[Path, Arrays | ValueError] | None = None

    def rows(self, chunk: int, file: int, episode: int, name: str) -> Arrays:
        """All columns of an episode, (L, …) each."""
        where = f"{self.info.name}: data_path"
        path = self.root / fill_pattern(self.info.data_path, where, chunk_index=chunk, file_index=file)
        if self._kept is None or self._kept[0] != path:
            try:
                self._kept = path, self._read(path)
            except ValueError as error:  # of every episode in it
                self._kept = path, error
        table = self._kept[1]
        if isinstance(table, ValueError):
            raise table
        low, high = np.searchsorted(table["episode_index"], [episode, episode + 1])
        if low == high:
            refuse(name, f"rows of episode {episode} in {path}", "none")
        return {each: values[low:high].copy() for each, values in table.items()}  # or the whole file stays in memory

    def _read(self, path: Path) -> Arrays:
        asked = [each for each in self.info.columns() if self.entries is None or each in self.entries]
        wanted = list(dict.fromkeys([*asked, *INDICES]))
        table = read_parquet(path, wanted)
        needed = [each for each in wanted if each not in ("index", "task_index")]
        if missing := [each for each in needed if each not in table]:
            refuse(path, f"the columns {', '.join(needed)}", f"no {missing[0]}")
        for each in (each for each in INDICES if each in table):
            if table[each].ndim != 1 or (table[each].dtype.kind != "i" and each != "timestamp"):
                refuse(f"{path}: {each}", "one whole number a row", f"{table[each].dtype} {table[each].shape}")
        if (np.diff(table["episode_index"]) < 0).any():
            refuse(path, "rows in the order of their episodes", "others")
        return {each: self._shaped(each, values, path) for each, values in table.items()}

    def _shaped(self, feature: str, values: np.ndarray, path: Path) -> np.ndarray:
        """(L, …): a feature of shape (1,) is one number a row in the file."""
        if feature in INDICES:
            return values
        shape = self.info.shape(feature)
        if values.shape[1:] not in (shape, () if shape == (1,) else shape):
            refuse(f"{path}: {feature}", f"shape {shape} in each row", f"{values.shape[1:]}")
        values = values.reshape(len(values), *shape)
        return values.astype(np.float32) if values.dtype.kind == "f" else values


def _first_frames(
    table: Arrays, numbers: np.ndarray, camera: str, fps: float, frames: int, name: str, clock: _Clock
) -> tuple[list[int], bool]:
    """The first frame of each episode of a video, and whether the episodes are all that is in it.

    `from_timestamp` is a sum of durations, and drifts (huggingface/lerobot #3177). Where episodes follow each other
    and have as many frames as the video, lengths say where they begin; else times do, if they are near frames.
    """
    length, number = table["length"][numbers], table["episode_index"][numbers]
    times = [table[f"videos/{camera}/{word}_timestamp"][numbers] for word in ("from", "to")]
    begin, end = (each * fps for each in times)
    for i in np.nonzero((begin >= end) | (end > MOST_FRAMES))[0]:
        came = f"{times[0][i]:g} to {times[1][i]:g} s"
        refuse(f"{name}: episode {number[i]}", "to_timestamp behind from_timestamp", came)
    for i in np.nonzero(np.abs(end - begin - length) > _NEAR)[0]:
        wanted = f"{length[i]} frames, {length[i] / fps:g} s of video, within one"
        refuse(f"{name}: episode {number[i]}", wanted, f"{times[1][i] - times[0][i]:g} s")
    if length.sum() == frames and (np.abs(begin[1:] - end[:-1]) <= _NEAR).all():
        counted = np.cumsum(length) - length
        clock.note("from_timestamp", begin - counted)
        return counted.tolist(), True
    nearest = np.round(begin).astype(np.int64)
    for i in np.nonzero(np.abs(begin - nearest) > _SURE)[0]:
        wanted = f"from_timestamp at a frame, as episodes have {length.sum():,} frames and the video has {frames:,}"
        refuse(f"{name}: episode {number[i]}", wanted, f"{times[0][i]:g} s, frame {begin[i]:.2f}")
    for i in np.nonzero(nearest[1:] < nearest[:-1] + length[:-1])[0]:
        refuse(name, "episodes one behind another", f"one that begins at frame {nearest[i + 1]}")
    return nearest.tolist(), False


class _Clock:
    """The largest distance, in frames, of recorded times from counted frames; more than half of one is logged once."""

    def __init__(self, fps: float) -> None:
        self.fps, self.late = fps, dict[str, float]()

    def note(self, column: str, frames: np.ndarray) -> None:
        self.late[column] = max(self.late.get(column, 0.0), float(np.abs(frames).max()))

    def log(self, root: Path) -> None:
        for column, frames in self.late.items():
            if frames > 0.5:
                used = "lengths" if column == "from_timestamp" else "frame_index"
                line = "demonstrations: %s: %s is off by up to %.3g s, %.1f frames at %g a second: frames go by %s"
                _LOG.warning(line, root, column, frames / self.fps, frames, self.fps, used)


def _episode_rows(table: Arrays, i: int, files: _DataFiles, name: str) -> Arrays:
    """Rows of episode i of the table, validated against it; clocks need only rise."""
    number, length = int(table["episode_index"][i]), int(table["length"][i])
    where = f"{name}: episode {number}"
    rows = files.rows(int(table["data/chunk_index"][i]), int(table["data/file_index"][i]), number, name)
    span = int(table["dataset_to_index"][i] - table["dataset_from_index"][i])
    if not len(rows["frame_index"]) == length == span:
        refuse(where, f"{length} rows", f"{len(rows['frame_index'])}, and indices for {span}")
    for column, unit in (("frame_index", ""), ("timestamp", " s")):
        if (still := np.diff(rows[column]) <= 0).any():
            row = int(still.argmax()) + 1
            refuse(where, f"{column} that rises", f"{rows[column][row]:g}{unit} in row {row}")
    return rows


def read_stats(found: Any, name: object) -> dict[str, dict[str, Any]]:
    """Statistics of features: nested lists of finite numbers, by feature and by name."""
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        refuse(f"{name}: stats", "an object of features, an object each", shown(found))
    for feature, stats in found.items():
        for word, values in stats.items():
            try:
                array = np.array(values, np.float64)
            except (ValueError, TypeError, OverflowError):
                refuse(f"{name}: stats of {feature}: {word}", "lists of numbers", shown(values))
            if not np.isfinite(array).all() or array.ndim > 4 or math.prod(array.shape) > 2**22:
                refuse(f"{name}: stats of {feature}: {word}", "finite numbers", shown(values))
    return found
