"""A small LeRobotDataset v3 and plain videos.

They are made with PyAV and pyarrow from the published format alone.

Nothing of the package's own writer is used. Every frame has one flat colour that tells its episode and its number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FPS = 10
LENGTHS = (5, 7, 6, 4)
"""Frames of the episodes: the first two in one file, the others in a file of another chunk each."""
PLACES = ((0, 0), (0, 0), (0, 1), (1, 0))
"""Chunk and file of each."""
CAMERA = "observation.images.top"
H, W = 48, 64


def color(episode: int, frame: int) -> tuple[int, int, int]:
    return 40 * episode + 20, 20 * frame + 30, 200 - 15 * frame


def picture(episode: int, frame: int, size: tuple[int, int] = (H, W)) -> np.ndarray:
    return np.full((*size, 3), color(episode, frame), np.uint8)


def write_video(
    path: Path,
    frames: Sequence[np.ndarray],
    fps: float = FPS,
    times: Sequence[int] | None = None,
    codec: str = "libx264",
) -> Path:
    """Write an MP4 file.

    With B-frames, so that frames are not stored in the order in which they are shown.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(path, "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], "yuv420p"
        if codec == "libx264":
            stream.options = {"crf": "12", "bf": "2"}
        for i, frame in enumerate(frames):
            shown = av.VideoFrame.from_ndarray(frame, format="rgb24")
            shown.pts = i if times is None else times[i]
            container.mux(stream.encode(shown))
        container.mux(stream.encode(None))
    return path


def write_plain(
    folder: Path, name: str, episode: int, length: int, sidecar: Callable[[Path], object] | None = None
) -> Path:
    """Write a video of one episode.

    `sidecar` writes its actions, and is given the path without a suffix.
    """
    path = write_video(folder / f"{name}.mp4", [picture(episode, i) for i in range(length)])
    (sidecar or (lambda stem: np.save(stem.with_suffix(".npy"), actions(episode, length))))(folder / name)
    return path


def actions(episode: int, length: int) -> np.ndarray:
    return np.stack([np.arange(length) / 8 + episode, -np.arange(length) / 4], 1).astype(np.float32)


def states(episode: int, length: int) -> np.ndarray:
    return (np.arange(3 * length).reshape(length, 3) + 100 * episode).astype(np.float32)


def info(**changes: Any) -> dict[str, Any]:
    single = {"shape": [1], "names": None}
    features: dict[str, dict[str, Any]] = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": None},
        "action": {"dtype": "float32", "shape": [2], "names": ["speed", "care"]},
    }
    axes = ["height", "width", "channels"]
    features[CAMERA] = {"dtype": "video", "shape": [H, W, 3], "names": axes, "info": {"video.fps": FPS}}
    features["next.reward"] = {"dtype": "float32"} | single
    features["next.done"] = {"dtype": "bool"} | single
    features["timestamp"] = {"dtype": "float32"} | single
    for name in ("frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "int64"} | single
    return {
        "codebase_version": "v3.0",
        "robot_type": "none",
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": 2,
        "chunks_size": 2,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 500,
        "fps": FPS,
        "splits": {"train": f"0:{len(LENGTHS)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    } | changes


def data_columns(number: int) -> dict[str, Any]:
    length = LENGTHS[number]
    begin = sum(LENGTHS[:number])
    columns: dict[str, Any] = {}
    columns["observation.state"] = states(number, length).tolist()
    columns["action"] = actions(number, length).tolist()
    columns["next.reward"] = [0.5 * i for i in range(length)]
    columns["next.done"] = [i == length - 1 for i in range(length)]
    columns["timestamp"] = [i / FPS for i in range(length)]
    columns["frame_index"] = list(range(length))
    columns["episode_index"] = [number] * length
    columns["index"] = list(range(begin, begin + length))
    columns["task_index"] = [number % 2] * length
    return columns


def episode_row(number: int) -> dict[str, Any]:
    length, begin = LENGTHS[number], sum(LENGTHS[:number])
    before = sum(LENGTHS[i] for i in range(number) if PLACES[i] == PLACES[number])
    chunk, file = PLACES[number]
    row = {"episode_index": number, "tasks": [("wash", "dry")[number % 2]], "length": length}
    row |= {"data/chunk_index": chunk, "data/file_index": file}
    row |= {"dataset_from_index": begin, "dataset_to_index": begin + length}
    row |= {f"videos/{CAMERA}/chunk_index": chunk, f"videos/{CAMERA}/file_index": file}
    row[f"videos/{CAMERA}/from_timestamp"] = before / FPS
    row[f"videos/{CAMERA}/to_timestamp"] = (before + length) / FPS
    row["stats/action/mean"] = [0.0, 0.0]
    row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
    return row


STATS = {
    "action": {"mean": [1.5, -0.5], "std": [1.0, 0.5], "min": [0.0, -2.0], "max": [4.0, 0.0], "count": [22]},
    CAMERA: {"mean": [[[0.5]], [[0.4]], [[0.3]]]},
}


def write_data(
    root: Path, place: tuple[int, int], columns: dict[str, Any], types: dict[str, Any] | None = None
) -> None:
    kinds = {
        "observation.state": pa.list_(pa.float32(), 3),
        "action": pa.list_(pa.float32()),
        "timestamp": pa.float32(),
    }
    kinds |= {"next.reward": pa.float32(), **(types or {})}
    path = root / f"data/chunk-{place[0]:03d}/file-{place[1]:03d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: pa.array(each, kinds.get(name)) for name, each in columns.items()}), path)


def write_episodes(root: Path, rows: list[dict[str, Any]]) -> None:
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def joined(parts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return columns with the rows of all parts, one after the other."""
    columns = {}
    for name in parts[0]:
        columns[name] = list(chain.from_iterable(part[name] for part in parts))
    return columns


def write_dataset(root: Path) -> Path:
    for place in dict.fromkeys(PLACES):
        numbers = [i for i, each in enumerate(PLACES) if each == place]
        parts = [data_columns(i) for i in numbers]
        write_data(root, place, joined(parts))
        frames = []
        for i in numbers:
            frames += [picture(i, frame) for frame in range(LENGTHS[i])]
        write_video(root / f"videos/{CAMERA}/chunk-{place[0]:03d}/file-{place[1]:03d}.mp4", frames)
    write_episodes(root, [episode_row(i) for i in range(len(LENGTHS))])
    tasks = pa.table({"task_index": [0, 1], "__index_level_0__": ["wash", "dry"]})
    pq.write_table(tasks, root / "meta/tasks.parquet")
    (root / "meta/stats.json").write_text(json.dumps(STATS))
    write_info(root)
    return root


def write_info(root: Path, **changes: Any) -> None:
    (root / "meta").mkdir(parents=True, exist_ok=True)
    (root / "meta/info.json").write_text(json.dumps(info(**changes)))
