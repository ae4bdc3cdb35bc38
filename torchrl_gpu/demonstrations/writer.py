"""`LeRobotWriter`: a LeRobotDataset v3 of MP4 in H.264, parquet and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from torchrl_gpu.demonstrations.lerobot import DATA_PATH, EPISODES_PATH, IMAGES, INDICES, INFO, VIDEO_PATH
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.libavcodec import file_stream
from torchrl_gpu.system import arguments
from torchrl_gpu.system.parts import Part

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

VERSION = "v3.0"
# Files of a folder.
_CHUNKS_SIZE = 1000
_OPTIONS = {"preset": "veryfast", "crf": "18"}
# LeRobot reads tasks with pandas, and looks for them in the index.
_TASKS_INDEX = {
    "index_columns": ["task"],
    "column_indexes": [],
    "columns": [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, kind, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ],
}
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# Numbers of a picture that its statistics are made of, about.
_STATS_NUMBERS = 3000
_WHERE = "LeRobotWriter"
_CAMERA = f"{IMAGES}main"

Stats = dict[str, dict[str, np.ndarray]]
"""Statistics by feature and by name."""

Row: TypeAlias = dict[str, Any]
"""Values of a frame, or of an episode, by the names of their columns."""


class LeRobotWriter:
    """Writes episodes into a new folder, which has its name from `close` on.

    Leaving a `with` block closes it; by an exception, nothing is left.

    Args:
        folder: Of the dataset.
        fps: Frames per second.
        features: dtype and shape in one row of the values of a frame, by LeRobot's names, such as
            `{"action": ("float32", (2,))}`.
        size: Height and width of the pictures, even.
        task: Description of the episodes.
        robot: LeRobot's `robot_type`.
        frames_per_file: After this many frames, episodes go to the next files.

    Raises:
        FileExistsError: There is such a folder.
        ValueError: An argument is invalid.
        ModuleNotFoundError: PyAV or pyarrow is not installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        fps: float,
        features: Mapping[str, tuple[str, Sequence[int]]],
        size: Sequence[int],
        *,
        task: str = "",
        robot: str = "simulated",
        frames_per_file: int = 20_000,
    ) -> None:
        self.fps = arguments.number(_WHERE, "fps", fps, 0.1, 1000.0)
        height, width = size
        self.height = arguments.whole(_WHERE, "size", height, 2, 8192)
        self.width = arguments.whole(_WHERE, "size", width, 2, 8192)
        if self.height % 2 or self.width % 2:
            arguments.refuse(_WHERE, "size", "even, as H.264 has it", tuple(size))
        self.frames_per_file = arguments.whole(_WHERE, "frames_per_file", frames_per_file, 1)
        self.features = {name: (dtype, tuple(shape)) for name, (dtype, shape) in features.items()}
        self.folder = Path(folder)
        self.task = task
        self.robot = robot
        if self.folder.exists():
            raise FileExistsError(f"{_WHERE}: {folder}: the folder exists; choose another or remove it")
        self._av = load("av", "video", _WHERE)
        self._pa = load("pyarrow", "video", _WHERE)
        load("pyarrow.parquet", "video", _WHERE)
        self._whole = Part(self.folder, _WHERE, is_folder=True)
        self._part = self._whole.part
        # Number of the files that are being written, and the rows of the data file.
        self._file = 0
        self._rows: list[Row] = []
        # Rows of the running episode, and some of each of its pictures, (n, 3) uint8.
        self._running: list[Row] = []
        self._pixels: list[np.ndarray] = []
        self._episodes: list[Row] = []
        self._total = 0
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self._stats: Stats = {}

    def add(self, picture: np.ndarray, row: Mapping[str, object]) -> None:
        """Add a frame (H, W, 3) uint8 RGB with its row, by the names of the features."""
        if picture.shape != (self.height, self.width, 3) or picture.dtype != np.uint8:
            wanted = f"uint8 of shape {(self.height, self.width, 3)}"
            arguments.refuse(_WHERE, "picture", wanted, picture)
        values: Row = {}
        for name, (dtype, shape) in self.features.items():
            value = np.asarray(row[name], dtype)
            if value.shape != shape:
                arguments.refuse(_WHERE, name, f"of shape {shape}", value)
            values[name] = value
        # All pixels of an episode would not fit into memory.
        step = max(1, picture.size // _STATS_NUMBERS)
        some_pixels = picture.reshape(-1, 3)[::step]
        # A view would keep the whole picture.
        self._pixels.append(some_pixels.copy())
        if self._container is None:
            self._open_video()
        assert self._container is not None
        assert self._stream is not None
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        self._container.mux(self._stream.encode(frame))
        self._running.append(values)

    def end_episode(self) -> None:
        """Make an episode of the frames since the last call.

        Raises:
            ValueError: There are none.
        """
        length = len(self._running)
        begin = len(self._rows)
        if not length:
            raise ValueError(f"{_WHERE}: an episode needs at least one frame; add frames before end_episode")
        number = len(self._episodes)
        for i, values in enumerate(self._running):
            indices = (np.float32(i / self.fps), i, number, self._total + i, 0)
            self._rows.append(values | dict(zip(INDICES, indices, strict=True)))
        # The rows since `begin` are those of this episode.
        stats = self._episode_stats(begin)
        self._stats = join_stats(self._stats, stats)
        self._episodes.append(self._episode_row(number, begin, length, stats))
        self._total += length
        self._running = []
        self._pixels = []
        # Only between episodes: LeRobot has an episode in one file.
        if len(self._rows) >= self.frames_per_file:
            self._finish_file()

    def _episode_stats(self, begin: int) -> Stats:
        """Return the statistics of the rows from `begin` on, and of the pictures."""
        stats: Stats = {}
        for name in (*self.features, *INDICES):
            stats[name] = episode_stats(np.stack([row[name] for row in self._rows[begin:]]))
        pixels = episode_stats(np.stack(self._pixels) / 255.0)
        stats[_CAMERA] = {word: v if word == "count" else v.reshape(3, 1, 1) for word, v in pixels.items()}
        return stats

    def _episode_row(self, number: int, begin: int, length: int, stats: Stats) -> Row:
        """Return an episode's row of `meta/episodes`.

        The order is LeRobot's.
        """
        chunk = self._file // _CHUNKS_SIZE
        file = self._file % _CHUNKS_SIZE
        row: Row = {"episode_index": number, "tasks": [self.task], "length": length}
        row["data/chunk_index"] = chunk
        row["data/file_index"] = file
        row["dataset_from_index"] = self._total
        row["dataset_to_index"] = self._total + length
        row[f"videos/{_CAMERA}/chunk_index"] = chunk
        row[f"videos/{_CAMERA}/file_index"] = file
        row[f"videos/{_CAMERA}/from_timestamp"] = begin / self.fps
        row[f"videos/{_CAMERA}/to_timestamp"] = (begin + length) / self.fps
        for name, words in stats.items():
            for word, value in words.items():
                row[f"stats/{name}/{word}"] = value.tolist()
        row["meta/episodes/chunk_index"] = 0
        row["meta/episodes/file_index"] = 0
        return row

    def close(self) -> None:
        """Write the last files and give the folder its name.

        An episode that was not ended is left out.

        Raises:
            ValueError: There is no episode.
        """
        if not self._episodes:
            self._discard()
            raise ValueError(f"{_WHERE}: a dataset needs at least one episode; call end_episode before close")
        if self._rows:
            self._finish_file()
        if self._container is not None:
            # A video without a complete episode.
            self._close_video()
            self._path(VIDEO_PATH, self._file).unlink()
        self._write_meta()
        self._whole.publish()

    def __enter__(self) -> LeRobotWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()

    def _discard(self) -> None:
        if self._container is not None:
            self._close_video()
        self._whole.discard()

    # -- files ---------------------------------------------------------------------------------------------------------

    def _open_video(self) -> None:
        path = self._path(VIDEO_PATH, self._file)
        container: OutputContainer = self._av.open(path, "w", format="mp4")
        self._container = container
        self._stream = file_stream(container, self.width, self.height, self.fps, _OPTIONS)

    def _close_video(self) -> None:
        container = self._container
        stream = self._stream
        self._container = None
        self._stream = None
        assert container is not None
        assert stream is not None
        container.mux(stream.encode(None))
        container.close()

    def _finish_file(self) -> None:
        """Write the rows of a data file, and begin the next files."""
        self._close_video()
        pa = self._pa
        columns = {}
        for name, (dtype, shape) in self.features.items():
            values = np.stack([row[name] for row in self._rows])
            kind = pa.from_numpy_dtype(np.dtype(dtype))
            array = pa.array(values.reshape(-1), kind)
            # LeRobot has one number a row for a feature of shape (1,).
            for side in reversed(shape if shape != (1,) else ()):
                array = pa.FixedSizeListArray.from_arrays(array, side)
            columns[name] = array
        for name in INDICES:
            kind = pa.float32() if name == "timestamp" else pa.int64()
            numbers = [row[name] for row in self._rows]
            columns[name] = pa.array(numbers, kind)
        path = self._path(DATA_PATH, self._file)
        pa.parquet.write_table(pa.table(columns), path)
        self._rows = []
        self._file += 1

    def _write_meta(self) -> None:
        """Write the files of `meta`."""
        pa = self._pa
        pq = pa.parquet
        path = self._path(EPISODES_PATH, 0)
        pq.write_table(pa.Table.from_pylist(self._episodes), path)
        tasks = pa.table({"task_index": pa.array([0], pa.int64()), "task": [self.task]})
        tasks = tasks.replace_schema_metadata({"pandas": json.dumps(_TASKS_INDEX)})
        pq.write_table(tasks, self._part / "meta" / "tasks.parquet")
        stats = {}
        for name, words in self._stats.items():
            stats[name] = {word: value.tolist() for word, value in words.items()}
        _write_json(self._part / "meta" / "stats.json", stats)
        _write_json(self._part / INFO, self._info())

    def _path(self, pattern: str, file: int) -> Path:
        chunk, number = divmod(file, _CHUNKS_SIZE)
        path = self._part / pattern.format(video_key=_CAMERA, chunk_index=chunk, file_index=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _info(self) -> dict[str, object]:
        """Return the content of `meta/info.json`."""
        num_episodes = len(self._episodes)
        fps = int(self.fps) if self.fps.is_integer() else self.fps
        return {
            "codebase_version": VERSION,
            "robot_type": self.robot,
            "total_episodes": num_episodes,
            "total_frames": self._total,
            "total_tasks": 1,
            "chunks_size": _CHUNKS_SIZE,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": fps,
            "splits": {"train": f"0:{num_episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH,
            "features": self._feature_facts(),
        }

    def _feature_facts(self) -> dict[str, object]:
        facts: dict[str, object] = {_CAMERA: self._camera_facts()}
        for name, (dtype, shape) in self.features.items():
            facts[name] = {"dtype": dtype, "shape": list(shape), "names": None}
        for name in INDICES:
            facts[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
        return facts

    def _camera_facts(self) -> dict[str, object]:
        info = {
            "video.height": self.height,
            "video.width": self.width,
            "video.fps": self.fps,
            "video.channels": 3,
            "video.codec": "h264",
            "video.pix_fmt": "yuv420p",
            "video.is_depth_map": False,
            "has_audio": False,
        }
        return {
            "dtype": "video",
            "shape": [self.height, self.width, 3],
            "names": ["height", "width", "channels"],
            "info": info,
        }


# -- statistics --------------------------------------------------------------------------------------------------------


def episode_stats(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return statistics of a feature over the rows (L, …) of an episode.

    They have LeRobot's names (`compute_stats.py`), one value for each index of the last axis; the axes between count
    as rows.
    """
    length = len(rows)
    rows = rows[:, None] if rows.ndim == 1 else rows.reshape(-1, rows.shape[-1])
    real = rows.astype(np.float64)
    found = {"min": rows.min(0), "max": rows.max(0), "mean": real.mean(0), "std": real.std(0)}
    found["count"] = np.array([length])
    quantiles = np.quantile(real, list(_QUANTILES.values()), axis=0)
    return found | dict(zip(_QUANTILES, quantiles, strict=True))


def join_stats(before: Stats, new: Stats) -> Stats:
    """Return statistics of all episodes from those of the earlier and the last.

    This is LeRobot's `aggregate_stats`: minimum, maximum, mean and deviation are exact; quantiles are means of the
    episodes' quantiles.
    """
    if not before:
        return new
    return {name: _join_feature(before[name], last) for name, last in new.items()}


def _join_feature(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    count = a["count"] + b["count"]
    share = b["count"][0] / count[0]
    joined = {"min": np.minimum(a["min"], b["min"]), "max": np.maximum(a["max"], b["max"])}
    for word in ("mean", *_QUANTILES):
        joined[word] = a[word] * (1 - share) + b[word] * share
    # Variance within each part, and of the parts' means around the common one.
    of_a = (1 - share) * (a["std"] ** 2 + (a["mean"] - joined["mean"]) ** 2)
    of_b = share * (b["std"] ** 2 + (b["mean"] - joined["mean"]) ** 2)
    joined["std"] = np.sqrt(of_a + of_b)
    joined["count"] = count
    return joined


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
