"""LeRobotDataset v3, read without the lerobot package.

The format is LeRobot's (huggingface/lerobot, `docs/source/lerobot-dataset-v3.mdx`, `src/lerobot/datasets`), the names
of entries are TorchRL's (`torchrl.data.datasets.LeRobotExperienceReplay`, 0.14).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tensordict import NestedKey

from torchrl_gpu.demonstrations.decoding import count_frames
from torchrl_gpu.demonstrations.recordings import BadParts, Episode, Recording, Source, Stats
from torchrl_gpu.demonstrations.transitions import Demonstrations, from_episodes
from torchrl_gpu.demonstrations.untrusted import (
    MOST_FRAMES,
    Arrays,
    Json,
    fail,
    fill_pattern,
    form_text,
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

# Columns of `meta/episodes`, and of these the places of a camera's videos.
_EPISODE_COLUMNS = (
    *("episode_index", "length", "dataset_from_index", "dataset_to_index"),
    *("data/chunk_index", "data/file_index"),
)
_VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
# Dtypes of features that are no columns of numbers.
_OTHER_DTYPES = ("video", "image", "string", "language", "audio")
# Frames by which the time that an episode takes may differ from its length.
_NEAR = 1.01
# Share of a frame by which a time may be off if the frame is found by its time alone.
_SURE = 0.25
# Share of a frame from which on a time is another frame's, which is logged.
_ANOTHER = 0.5
_MOST_AXES = 4
_MOST_STATS = 2**22
_KEYS: dict[str, NestedKey] = {"episode_index": "episode", "frame_index": "frame", "task": "language_instruction"}


def entry_key(name: str) -> NestedKey:
    """Return TorchRL's key of a feature.

    It is ("observation", "state") for `observation.state`, "episode" for `episode_index`.
    """
    if name in _KEYS:
        return _KEYS[name]
    if name.startswith(IMAGES):
        return ("observation", "image", name.removeprefix(IMAGES))
    return tuple(name.split(".")) if "." in name else name


def is_dataset(folder: Path) -> bool:
    return (folder / INFO).is_file()


def read_dataset(root: Path, camera: str | None, bad: BadParts) -> Source:
    """Read the videos of one camera of a dataset, with the rows of their frames.

    Args:
        root: Of the dataset.
        camera: Its feature; None for the only one.
        bad: What to do with a bad video.
    """
    info = _Info(root)
    camera = info.camera(camera)
    table = _read_episodes(root, info, camera)
    source = Source(camera=camera)
    # A dataset may lack either file.
    tasks = root / "meta" / "tasks.parquet"
    if tasks.exists():
        source.tasks = read_strings(tasks, ("task", "__index_level_0__"), "task_index")
    stats = root / "meta" / "stats.json"
    if stats.exists():
        source.stats = read_stats(read_json(stats), root)
    files = _DataFiles(root, info)
    clock = _Clock(info.fps)
    chunk = table[f"videos/{camera}/chunk_index"]
    file = table[f"videos/{camera}/file_index"]
    start = table[f"videos/{camera}/from_timestamp"]
    videos = np.stack([chunk, file], 1)
    where = f"{root / INFO}: video_path"
    for chunk_index, file_index in dict.fromkeys(map(tuple, videos.tolist())):
        relative = fill_pattern(
            info.video_path, where, video_key=camera, chunk_index=chunk_index, file_index=file_index
        )
        path = root / relative
        with bad.guard(str(path)):
            # Episodes need not be in the order of their numbers in a video.
            numbers = np.nonzero((videos == (chunk_index, file_index)).all(1))[0]
            numbers = numbers[np.argsort(start[numbers], kind="stable")]
            source.recordings.append(_read_video(path, table, numbers, camera, info, files=files, clock=clock))
    clock.log(root)
    return source


def _read_video(
    path: Path, table: Arrays, numbers: np.ndarray, camera: str, info: _Info, *, files: _DataFiles, clock: _Clock
) -> Recording:
    """Return a video with its episodes, whose indices in the table are `numbers`."""
    name = str(path)
    num_frames = count_frames(path, name)
    starts = _first_frames(table, numbers, camera, info.fps, num_frames=num_frames, name=name, clock=clock)
    rows = [_episode_rows(table, int(i), files, name) for i in numbers]
    for i, each in zip(numbers, rows, strict=True):
        if (each["frame_index"] != np.arange(len(each["frame_index"]))).any():
            where = f"{name}: episode {table['episode_index'][i]}"
            refuse(where, "frame_index 0, 1, 2, …", shown(each["frame_index"].tolist()))
        late = each["timestamp"] * info.fps - each["frame_index"]
        clock.note("timestamp", late)
    episodes = tuple(Episode(first, each) for first, each in zip(starts.first, rows, strict=True))
    return Recording(name, path, info.fps, info.size(camera), episodes, complete=starts.complete)


def read_rows(root: Path, entries: Collection[str] | None, bad: BadParts) -> Demonstrations:
    """Read the numbers of a dataset, by LeRobot's names. No video is opened.

    Args:
        root: Of the dataset.
        entries: Features; None for all.
        bad: What to do with a bad episode.
    """
    info = _Info(root)
    table = _read_episodes(root, info)
    files = _DataFiles(root, info, entries)
    total = table["length"].sum()
    if total > MOST_FRAMES:
        where = root / "meta" / "episodes"
        refuse(where, f"at most {MOST_FRAMES:,} rows", f"{total:,}")
    episodes: list[tuple[str, Arrays]] = []
    for i, number in enumerate(table["episode_index"].tolist()):
        name = f"{root}: episode {number}"
        with bad.guard(name):
            rows = _episode_rows(table, i, files, str(root))
            found = {column: values for column, values in rows.items() if column not in INDICES}
            episodes.append((name, found))
    return from_episodes(episodes, bad, str(root), {"format": "LeRobotDataset v3"})[0]


class _Info:
    """The content of `meta/info.json`, validated."""

    def __init__(self, root: Path) -> None:
        info = read_json(root / INFO)
        self.name = str(root / INFO)
        if not isinstance(info, dict):
            refuse(self.name, "an object", shown(info))
        version = info.get("codebase_version")
        if not isinstance(version, str) or not version.startswith("v3."):
            convert = "lerobot's convert_dataset_v21_to_v30 makes it of v2.1"
            refuse(self.name, f"codebase_version v3.x ({convert})", shown(version))
        fps = info.get("fps")
        if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0.1 <= fps <= 1000:
            refuse(self.name, "fps from 0.1 to 1000", shown(fps))
        features = info.get("features")
        if not isinstance(features, dict) or not all(isinstance(each, dict) for each in features.values()):
            refuse(self.name, "features, an object each", shown(features))
        self.fps = float(fps)
        self.features = features
        self.total_episodes = info.get("total_episodes")
        self.data_path = info.get("data_path", DATA_PATH)
        self.video_path = info.get("video_path", VIDEO_PATH)

    def camera(self, wanted: str | None) -> str:
        """Return the name of the feature with the pictures."""
        videos = [key for key, each in self.features.items() if each.get("dtype") == "video" and not _is_depth(each)]
        if wanted is None and len(videos) == 1:
            return videos[0]
        if not videos:
            fail(self.name, "it has no feature of dtype video")
        if wanted not in videos:
            refuse(self.name, f"camera to be one of {', '.join(videos)}", shown(wanted))
        return str(wanted)

    def size(self, camera: str) -> tuple[int, int] | None:
        """Return height and width of the pictures.

        They are None if the shape does not tell.
        """
        shape = self.shape(camera)
        if len(shape) == 3 and shape[2] in (1, 3):
            return shape[0], shape[1]
        return (shape[1], shape[2]) if len(shape) == 3 and shape[0] in (1, 3) else None

    def shape(self, feature: str) -> tuple[int, ...]:
        """Return the shape of a feature in one row."""
        shape = self.features[feature].get("shape")
        if not isinstance(shape, list) or not all(type(each) is int and 0 < each < 2**31 for each in shape):
            refuse(f"{self.name}: {feature}", "a shape of positive whole numbers", shown(shape))
        return tuple(shape)

    def columns(self) -> list[str]:
        """Return the features of numbers, which are columns of the data files."""
        return [key for key, each in self.features.items() if each.get("dtype") not in _OTHER_DTYPES]


def _is_depth(feature: Json) -> bool:
    for key in ("info", "video_info"):
        info = feature.get(key)
        if isinstance(info, dict) and (info.get("is_depth_map") or info.get("video.is_depth_map")):
            return True
    return False


# -- tables ------------------------------------------------------------------------------------------------------------


def _read_episodes(root: Path, info: _Info, camera: str | None = None) -> Arrays:
    """Return the rows of `meta/episodes` in the order of the episodes.

    With a camera, they have the places of its videos.
    """
    folder = root / "meta" / "episodes"
    columns = list(_EPISODE_COLUMNS)
    if camera is not None:
        columns += [f"videos/{camera}/{name}" for name in _VIDEO_COLUMNS]
    tables = [_read_table(path, columns) for path in sorted(folder.glob("chunk-*/file-*.parquet"))]
    num_episodes = sum(len(each["length"]) for each in tables)
    if not num_episodes:
        fail(folder, "there are no files chunk-*/file-*.parquet of episodes")
    joined: Arrays = {}
    for column in columns:
        joined[column] = np.concatenate([table[column] for table in tables])
    # Files may come in any order.
    order = np.argsort(joined["episode_index"], kind="stable")
    joined = {column: values[order] for column, values in joined.items()}
    if (np.diff(joined["episode_index"]) == 0).any():
        refuse(folder, "every episode once", "one that is there twice")
    length = joined["length"]
    shortest = length.min()
    longest = length.max()
    if longest > MOST_FRAMES or shortest < 1:
        refuse(folder, f"lengths from 1 to {MOST_FRAMES:,}", f"{shortest} to {longest}")
    if len(order) != info.total_episodes:
        refuse(folder, f"as many episodes as total_episodes says, {shown(info.total_episodes)}", f"{len(order)}")
    return joined


def _read_table(path: Path, columns: list[str]) -> Arrays:
    """Return a file of `meta/episodes`.

    Its columns have one number from 0 on a row, a time or a whole number.
    """
    table = read_parquet(path, columns)
    _check_columns(path, table, columns)
    for column in columns:
        kinds = "if" if column.endswith("timestamp") else "i"
        values = table[column]
        if values.ndim != 1 or values.dtype.kind not in kinds or (values < 0).any():
            refuse(f"{path}: {column}", "numbers from 0 on, one a row", form_text(values))
    return table


def _check_columns(path: Path, table: Arrays, columns: list[str]) -> None:
    missing = [column for column in columns if column not in table]
    if missing:
        fail(path, f"it has no column {missing[0]}; it must have {', '.join(columns)}")


class _DataFiles:
    """Rows of episodes from the files of `data`.

    Keeps the file that was read last.
    """

    def __init__(self, root: Path, info: _Info, entries: Collection[str] | None = None) -> None:
        self.root = root
        self.info = info
        self.entries = entries
        self._kept: tuple[Path, Arrays | ValueError] | None = None

    def rows(self, chunk: int, file: int, episode: int, name: str) -> Arrays:
        """Return all columns of an episode, (L, …) each."""
        where = f"{self.info.name}: data_path"
        relative = fill_pattern(self.info.data_path, where, chunk_index=chunk, file_index=file)
        path = self.root / relative
        table = self._table(path)
        # The rows are in the order of their episodes, as `_read` has checked.
        edges = [episode, episode + 1]
        low, high = np.searchsorted(table["episode_index"], edges)
        if low == high:
            fail(name, f"{path} has no rows of episode {episode}")
        # Copies, or the whole file stays in memory.
        return {column: values[low:high].copy() for column, values in table.items()}

    def _table(self, path: Path) -> Arrays:
        """Return the columns of a file.

        Its error is one of every episode in it.
        """
        if self._kept is None or self._kept[0] != path:
            try:
                self._kept = (path, self._read(path))
            except ValueError as error:
                self._kept = (path, error)
        table = self._kept[1]
        if isinstance(table, ValueError):
            raise table
        return table

    def _read(self, path: Path) -> Arrays:
        asked = [each for each in self.info.columns() if self.entries is None or each in self.entries]
        wanted = list(dict.fromkeys([*asked, *INDICES]))
        table = read_parquet(path, wanted)
        _check_columns(path, table, [each for each in wanted if each not in ("index", "task_index")])
        for column in INDICES:
            if column not in table:
                continue
            values = table[column]
            if values.ndim != 1 or (values.dtype.kind != "i" and column != "timestamp"):
                refuse(f"{path}: {column}", "one whole number a row", form_text(values))
        if (np.diff(table["episode_index"]) < 0).any():
            fail(path, "its rows must be in the order of their episodes")
        return {column: self._shape(column, values, path) for column, values in table.items()}

    def _shape(self, feature: str, values: np.ndarray, path: Path) -> np.ndarray:
        """Return a feature in its shape, (L, …).

        One of shape (1,) is one number a row in the file.
        """
        if feature in INDICES:
            return values
        shape = self.info.shape(feature)
        found = values.shape[1:]
        is_number = shape == (1,) and found == ()
        if found != shape and not is_number:
            refuse(f"{path}: {feature}", f"shape {shape} in each row", f"{found}")
        values = values.reshape(len(values), *shape)
        return values.astype(np.float32) if values.dtype.kind == "f" else values


# -- episodes in videos ------------------------------------------------------------------------------------------------


class _Starts(NamedTuple):
    """Where the episodes of a video begin.

    Attributes:
        first: The first frame of each.
        complete: Whether the episodes are all that is in the video.
    """

    first: list[int]
    complete: bool


def _first_frames(
    table: Arrays, numbers: np.ndarray, camera: str, fps: float, *, num_frames: int, name: str, clock: _Clock
) -> _Starts:
    """Find the first frame of each episode of a video.

    `from_timestamp` is a sum of durations, and drifts (huggingface/lerobot #3177). If episodes follow each other and
    have as many frames as the video, lengths say where they begin; else times do, if they are near frames.
    """
    length = table["length"][numbers]
    number = table["episode_index"][numbers]
    from_s = table[f"videos/{camera}/from_timestamp"][numbers]
    to_s = table[f"videos/{camera}/to_timestamp"][numbers]
    begin = from_s * fps
    end = to_s * fps
    for i in np.nonzero((begin >= end) | (end > MOST_FRAMES))[0]:
        given = f"{from_s[i]:g} to {to_s[i]:g} s"
        refuse(f"{name}: episode {number[i]}", "to_timestamp behind from_timestamp", given)
    for i in np.nonzero(np.abs(end - begin - length) > _NEAR)[0]:
        wanted = f"{length[i]} frames, {length[i] / fps:g} s of video, within one"
        refuse(f"{name}: episode {number[i]}", wanted, f"{to_s[i] - from_s[i]:g} s")
    if length.sum() == num_frames and (np.abs(begin[1:] - end[:-1]) <= _NEAR).all():
        counted = np.cumsum(length) - length
        clock.note("from_timestamp", begin - counted)
        return _Starts(counted.tolist(), complete=True)
    nearest = np.round(begin).astype(np.int64)
    for i in np.nonzero(np.abs(begin - nearest) > _SURE)[0]:
        counts = f"episodes have {length.sum():,} frames and the video has {num_frames:,}"
        wanted = f"from_timestamp at a frame, as {counts}"
        refuse(f"{name}: episode {number[i]}", wanted, f"{from_s[i]:g} s, frame {begin[i]:.2f}")
    for i in np.nonzero(nearest[1:] < nearest[:-1] + length[:-1])[0]:
        refuse(name, "episodes one behind another", f"one that begins at frame {nearest[i + 1]}")
    return _Starts(nearest.tolist(), complete=False)


class _Clock:
    """The largest distance, in frames, of recorded times from counted frames.

    More than half of one is logged once.
    """

    def __init__(self, fps: float) -> None:
        self.fps = fps
        self.late: dict[str, float] = {}

    def note(self, column: str, frames: np.ndarray) -> None:
        """Remember the distances of a column."""
        self.late[column] = max(self.late.get(column, 0.0), float(np.abs(frames).max()))

    def log(self, root: Path) -> None:
        for column, frames in self.late.items():
            if frames > _ANOTHER:
                used = "lengths" if column == "from_timestamp" else "frame_index"
                line = "demonstrations: %s: %s is off by up to %.3g s, %.1f frames at %g a second: frames go by %s"
                _LOG.warning(line, root, column, frames / self.fps, frames, self.fps, used)


def _episode_rows(table: Arrays, i: int, files: _DataFiles, name: str) -> Arrays:
    """Return the rows of episode i of the table, validated against it.

    Clocks need only rise.
    """
    number = int(table["episode_index"][i])
    length = int(table["length"][i])
    where = f"{name}: episode {number}"
    rows = files.rows(int(table["data/chunk_index"][i]), int(table["data/file_index"][i]), number, name)
    begin = table["dataset_from_index"][i]
    end = table["dataset_to_index"][i]
    span = int(end - begin)
    num_rows = len(rows["frame_index"])
    if not num_rows == length == span:
        refuse(where, f"{length} rows", f"{num_rows}, and indices for {span}")
    for column, unit in (("frame_index", ""), ("timestamp", " s")):
        does_not_rise = np.diff(rows[column]) <= 0
        if does_not_rise.any():
            row = int(does_not_rise.argmax()) + 1
            refuse(where, f"{column} that rises", f"{rows[column][row]:g}{unit} in row {row}")
    return rows


def read_stats(found: Json, name: object) -> Stats:
    """Return the statistics of features: nested lists of finite numbers.

    Raises:
        ValueError: They are something else.
    """
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        refuse(f"{name}: stats", "an object of features, an object each", shown(found))
    for feature, words in found.items():
        for word, values in words.items():
            _check_statistic(values, f"{name}: stats of {feature}: {word}")
    return found


def _check_statistic(values: Json, where: str) -> None:
    try:
        array = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        refuse(where, "lists of numbers", shown(values))
    if not np.isfinite(array).all() or array.ndim > _MOST_AXES or math.prod(array.shape) > _MOST_STATS:
        refuse(where, "finite numbers", shown(values))
