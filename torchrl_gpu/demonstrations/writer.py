"""`LeRobotWriter`: a LeRobotDataset v3 of MP4 in H.264, parquet and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchrl_gpu.demonstrations.lerobot import DATA_PATH, EPISODES_PATH, IMAGES, INDICES, INFO, VIDEO_PATH
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.libavcodec import file_stream
from torchrl_gpu.system import arguments
from torchrl_gpu.system.parts import Part

VERSION = "v3.0"
_CHUNKS_SIZE = 1000  # files of a folder
_OPTIONS = {"preset": "veryfast", "crf": "18"}
_TASKS_INDEX = {  # LeRobot reads tasks with pandas, and looks for them in the index
    "index_columns": ["task"],
    "column_indexes": [],
    "columns": [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, kind, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ],
}
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_WHERE = "LeRobotWriter"
_CAMERA = f"{IMAGES}main"

Stats = dict[str, dict[str, np.ndarray]]
"""Statistics by feature and by name."""


class LeRobotWriter:
    """Writes episodes into a new folder, which has its name from `close` on.

    Leaving a `with` block closes it; by an exception, nothing is left.

    Args:
        folder: Of the dataset.
        fps: Frames per second.
        features: dtype and shape in one row of the values beside the frames, by LeRobot's names, such as
            `{"action": ("float32", (2,))}`.
        size: Height and width of the pictures, even.
        task: Description of the episodes.
        robot: LeRobot's `robot_type`.
        frames_per_file: After so many frames, episodes go to the next files.
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
        self.height, self.width = (arguments.whole(_WHERE, "size", side, 2, 8192) for side in size)
        if self.height % 2 or self.width % 2:
            arguments.refuse(_WHERE, "size", "even, as H.264 has it", tuple(size))
        self.frames_per_file = arguments.whole(_WHERE, "frames_per_file", frames_per_file, 1)
        self.features = {name: (dtype, tuple(shape)) for name, (dtype, shape) in features.items()}
        self.folder, self.task, self.robot = Path(folder), task, robot
        if self.folder.exists():
            raise FileExistsError(f"{_WHERE}: {folder}: want a folder that is not there yet; got one that is")
        self._av, self._pa = (load(each, "video", _WHERE) for each in ("av", "pyarrow"))
        load("pyarrow.parquet", "video", _WHERE)
        self._whole = Part(self.folder, _WHERE, is_folder=True)
        self._part = self._whole.part
        self._file = 0  # number of the files that are being written
        self._rows: list[dict[str, Any]] = []  # of the file
        self._running: list[dict[str, Any]] = []  # of the episode
        self._pixels: list[np.ndarray] = []  # of the episode: some of each picture, (n, 3) uint8
        self._episodes: list[dict[str, Any]] = []
        self._total, self._container, self._stream = 0, None, None  # type: int, Any, Any
        self._stats: Stats = {}

    def add(self, picture: np.ndarray, row: Mapping[str, Any]) -> None:
        """Adds a frame (H, W, 3) uint8 RGB with its row, by the names of the features."""
        if picture.shape != (self.height, self.width, 3) or picture.dtype != np.uint8:
            wanted = f"uint8 of shape {(self.height, self.width, 3)}"
            arguments.refuse(_WHERE, "picture", wanted, picture)
        values = {}
        for name, (dtype, shape) in self.features.items():
            value = np.asarray(row[name], dtype)
            if value.shape != shape:
                arguments.refuse(_WHERE, name, f"of shape {shape}", value)
            values[name] = value
        self._pixels.append(picture.reshape(-1, 3)[:: max(1, picture.size // 3000)].copy())
        if self._container is None:
            self._open()
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        self._container.mux(self._stream.encode(frame))
        self._running.append(values)

    def end_episode(self) -> None:
        """Makes an episode of the frames since the last call."""
        length, begin = len(self._running), len(self._rows)
        if not length:
            raise ValueError(f"{_WHERE}: want a frame or more in every episode; got none")
        number = len(self._episodes)
        for i, values in enumerate(self._running):
            indices = (np.float32(i / self.fps), i, number, self._total + i, 0)
            self._rows.append(values | dict(zip(INDICES, indices, strict=True)))
        columns = (*self.features, *INDICES)
        stats = {name: episode_stats(np.stack([row[name] for row in self._rows[begin:]])) for name in columns}
        pixels = episode_stats(np.stack(self._pixels) / 255.0)
        stats[_CAMERA] = {w: value if w == "count" else value.reshape(3, 1, 1) for w, value in pixels.items()}
        self._stats = joined_stats(self._stats, stats)
        place = {"chunk_index": self._file // _CHUNKS_SIZE, "file_index": self._file % _CHUNKS_SIZE}
        self._episodes.append(
            {"episode_index": number, "tasks": [self.task], "length": length}
            | {f"data/{name}": value for name, value in place.items()}
            | {"dataset_from_index": self._total, "dataset_to_index": self._total + length}
            | {f"videos/{_CAMERA}/{name}": value for name, value in place.items()}
            | {f"videos/{_CAMERA}/from_timestamp": begin / self.fps}
            | {f"videos/{_CAMERA}/to_timestamp": (begin + length) / self.fps}
            | {f"stats/{name}/{word}": value.tolist() for name, each in stats.items() for word, value in each.items()}
            | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        )
        self._total += length
        self._running, self._pixels = [], []
        if len(self._rows) >= self.frames_per_file:
            self._finish_file()

    def close(self) -> None:
        """Writes the last files and gives the folder its name; leaves out an episode that was not ended."""
        if not self._episodes:
            self._discard()
            raise ValueError(f"{_WHERE}: want an episode or more; got none")
        if self._rows:
            self._finish_file()
        if self._container is not None:  # a video without a complete episode
            self._close_video()
            self._path(VIDEO_PATH, self._file).unlink()
        pa, pq = self._pa, self._pa.parquet
        path = self._path(EPISODES_PATH, 0)
        pq.write_table(pa.Table.from_pylist(self._episodes), path)
        tasks = pa.table({"task_index": pa.array([0], pa.int64()), "task": [self.task]})
        tasks = tasks.replace_schema_metadata({"pandas": json.dumps(_TASKS_INDEX)})
        pq.write_table(tasks, self._part / "meta" / "tasks.parquet")
        stats = {name: {word: v.tolist() for word, v in each.items()} for name, each in self._stats.items()}
        _write_json(self._part / "meta" / "stats.json", stats)
        _write_json(self._part / INFO, self._info())
        self._whole.publish()

    def __enter__(self) -> LeRobotWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()

    def _open(self) -> None:
        path = self._path(VIDEO_PATH, self._file)
        self._container = self._av.open(path, "w", format="mp4")
        self._stream = file_stream(self._container, self.width, self.height, self.fps, _OPTIONS)

    def _finish_file(self) -> None:
        self._close_video()
        pa, columns = self._pa, {}
        for name, (dtype, shape) in self.features.items():
            values = np.stack([row[name] for row in self._rows])
            array = pa.array(values.reshape(-1), pa.from_numpy_dtype(np.dtype(dtype)))
            for side in reversed(shape if shape != (1,) else ()):
                array = pa.FixedSizeListArray.from_arrays(array, side)
            columns[name] = array
        for name in INDICES:
            kind = pa.float32() if name == "timestamp" else pa.int64()
            columns[name] = pa.array([row[name] for row in self._rows], kind)
        pa.parquet.write_table(pa.table(columns), self._path(DATA_PATH, self._file))
        self._rows, self._file = [], self._file + 1

    def _close_video(self) -> None:
        container, stream, self._container, self._stream = self._container, self._stream, None, None
        container.mux(stream.encode(None))
        container.close()

    def _discard(self) -> None:
        if self._container is not None:
            self._close_video()
        self._whole.discard()

    def _path(self, pattern: str, file: int) -> Path:
        chunk, number = divmod(file, _CHUNKS_SIZE)
        path = self._part / pattern.format(video_key=_CAMERA, chunk_index=chunk, file_index=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _info(self) -> dict[str, Any]:
        shapes = {
            name: {"dtype": dtype, "shape": list(shape), "names": None}
            for name, (dtype, shape) in self.features.items()
        }
        details = {"height": self.height, "width": self.width, "fps": self.fps, "channels": 3, "codec": "h264"}
        details |= {"pix_fmt": "yuv420p", "is_depth_map": False}
        video = {
            "dtype": "video",
            "shape": [self.height, self.width, 3],
            "names": ["height", "width", "channels"],
            "info": {f"video.{name}": value for name, value in details.items()} | {"has_audio": False},
        }
        indices = {name: {"dtype": "int64", "shape": [1], "names": None} for name in INDICES}
        indices["timestamp"]["dtype"] = "float32"
        return {
            "codebase_version": VERSION,
            "robot_type": self.robot,
            "total_episodes": len(self._episodes),
            "total_frames": self._total,
            "total_tasks": 1,
            "chunks_size": _CHUNKS_SIZE,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": int(self.fps) if self.fps.is_integer() else self.fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH,
            "features": {_CAMERA: video} | shapes | indices,
        }


def episode_stats(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Statistics of a feature over the rows (L, …) of an episode, by LeRobot's names (`compute_stats.py`).

    One for each index of the last axis; the axes between count as rows.
    """
    length = len(rows)
    rows = rows[:, None] if rows.ndim == 1 else rows.reshape(-1, rows.shape[-1])
    real = rows.astype(np.float64)
    found = {"min": rows.min(0), "max": rows.max(0), "mean": real.mean(0), "std": real.std(0)}
    found["count"] = np.array([length])
    return found | dict(zip(_QUANTILES, np.quantile(real, list(_QUANTILES.values()), axis=0), strict=True))


def joined_stats(before: Stats, new: Stats) -> Stats:
    """Statistics of all episodes from those of the earlier ones and of the last, as LeRobot's `aggregate_stats`.

    Minimum, maximum, mean and deviation are exact; quantiles are means of the episodes' quantiles.
    """
    if not before:
        return new
    out: Stats = {}
    for name, b in new.items():
        a = before[name]
        count = a["count"] + b["count"]
        share = b["count"][0] / count[0]
        mixed = {word: a[word] * (1 - share) + b[word] * share for word in ("mean", *_QUANTILES)}
        variance = sum(w * (s["std"] ** 2 + (s["mean"] - mixed["mean"]) ** 2) for w, s in ((1 - share, a), (share, b)))
        ends = {"min": np.minimum(a["min"], b["min"]), "max": np.maximum(a["max"], b["max"])}
        out[name] = ends | mixed | {"std": np.sqrt(variance), "count": count}
    return out


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
