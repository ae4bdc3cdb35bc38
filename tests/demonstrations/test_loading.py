"""From files to a store: what is skipped, rates, sizes and memory.

Plain videos too.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.demonstrations import drawn
from torchrl_gpu.demonstrations import ClipStore, load_demonstrations, loading
from torchrl_gpu.envs import memory


def load(paths: Any, **changes: Any) -> ClipStore:
    return load_demonstrations(paths, device="cpu", **{"size": (8, 8)} | changes)


def test_a_dataset_decodes_each_video_once(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def watched(path: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(path)
        return original(path, *args, **kwargs)

    original = loading.decode
    monkeypatch.setattr(loading, "decode", watched)
    assert len(load(dataset)) == 22
    assert len(opened) == len(set(opened)) == 3


def test_progress_is_told(dataset: Path) -> None:
    told: list[tuple[int, int]] = []
    load(dataset, progress=lambda done, total: told.append((done, total)))
    assert told == [(12, 22), (18, 22), (22, 22)]


SIDECARS: dict[str, Callable[[Path], object]] = {
    "npy": lambda stem: np.save(stem.with_suffix(".npy"), drawn.actions(2, 6)),
    "npz": lambda stem: np.savez(
        stem.with_suffix(".npz"), **{"action": drawn.actions(2, 6), "next.reward": np.arange(6.0)}
    ),
    "json list": lambda stem: stem.with_suffix(".json").write_text(json.dumps(drawn.actions(2, 6).tolist())),
    "json": lambda stem: stem.with_suffix(".json").write_text(
        json.dumps({"action": drawn.actions(2, 6).tolist(), "next.reward": list(range(6))})
    ),
    "parquet": lambda stem: pq.write_table(
        pa.table({"action": drawn.actions(2, 6).tolist(), "next.reward": np.arange(6.0), "note": ["x"] * 6}),
        stem.with_suffix(".parquet"),
    ),
}


@pytest.mark.parametrize("kind", SIDECARS)
def test_a_plain_video_gives_what_the_dataset_gives(dataset: Path, tmp_path: Path, kind: str) -> None:
    path = drawn.write_plain(tmp_path, "demo", 2, 6, SIDECARS[kind])
    store, whole = load(path), load(dataset)
    assert store.lengths == [6]
    assert torch.equal(store.frames, whole.frames[12:18])
    assert torch.equal(store.rows["action"], whole.rows["action"][12:18])
    if "list" not in kind and kind != "npy":
        assert store.rows["next", "reward"].flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert store.fps == drawn.FPS


def test_a_folder_of_videos_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name, episode, length in (("b", 1, 4), ("a", 0, 3)):
        drawn.write_plain(tmp_path, name, episode, length)
    store = load(tmp_path)
    assert store.lengths == [3, 4]
    assert store.episode.tolist() == store.rows["episode"].tolist() == [0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(("rows", "wants"), [(5, 5), (6, 6), (7, 7)])
def test_frames_and_rows_agree_within_one(tmp_path: Path, rows: int, wants: int) -> None:
    """Frames and rows may differ by one.

    A last frame without a row is left out, and a last one that is missing is the one before.
    """
    path = drawn.write_plain(
        tmp_path, "a", 0, 6, lambda stem: np.save(stem.with_suffix(".npy"), drawn.actions(0, rows))
    )
    store = load(path)
    assert len(store) == wants
    colors = torch.tensor([drawn.color(0, min(i, 5)) for i in range(wants)])
    assert (store.frames.float().mean((2, 3)) - colors).abs().max() < 5


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(
            lambda path: path.write_bytes(path.read_bytes()[:1500]),
            "an MP4 file with a video that decodes",
            id="corrupt",
        ),
        pytest.param(
            lambda path: np.save(path.with_suffix(".npy"), drawn.actions(1, 9)),
            "9 frames, .* within one, not 6",
            id="short",
        ),
        pytest.param(
            lambda path: np.save(path.with_suffix(".npy"), drawn.actions(1, 4)),
            "4 frames, .* within one, not more",
            id="long",
        ),
        pytest.param(
            lambda path: drawn.write_video(path, [drawn.picture(1, i) for i in range(6)], fps=15),
            "10 frames a second, not 15",
            id="of another rate",
        ),
        pytest.param(
            lambda path: drawn.write_video(path, [drawn.picture(1, i) for i in range(6)], times=[0, 1, 2, 5, 6, 7]),
            "frames a second|as .* a second give",
            id="of no steady rate",
        ),
        pytest.param(
            lambda path: path.with_suffix(".npy").unlink(), "a file of actions is missing", id="without actions"
        ),
        pytest.param(
            lambda path: np.save(path.with_suffix(".npy"), np.array([{}] * 6, object)),
            ".*plain numbers|an array of numbers, no pickled objects",
            id="with pickled actions",
        ),
        pytest.param(
            lambda path: np.save(path.with_suffix(".npy"), np.zeros((6, 3), np.float32)),
            r"action of float32 \(2,\), as .* has, not float32 \(3,\)",
            id="with other actions",
        ),
        pytest.param(
            lambda path: path.with_suffix(".npy").write_bytes(
                b"\x93NUMPY\x01\x00"
                + (118).to_bytes(2, "little")
                + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 2), }".ljust(117)
                + b"\n"
            ),
            "at most .* bytes of plain numbers",
            id="with a huge array in few bytes",
        ),
        pytest.param(
            lambda path: np.save(path.with_suffix(".npy"), np.array(["a"] * 6)),
            "rows of numbers or flags",
            id="with words",
        ),
        pytest.param(
            lambda path: np.save(path.with_suffix(".npy"), np.full((6, 2), np.inf)),
            r"action: .*finite; row 0 is \[inf, inf\]",
            id="with infinite actions",
        ),
    ],
)
def test_bad_videos_are_named_and_skipped_on_request(
    tmp_path: Path, spoil: Callable[[Path], object], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [drawn.write_plain(tmp_path, each, i, 6) for i, each in enumerate(("a", "b", "c"))]
    spoil(paths[1])
    with pytest.raises(ValueError, match=says) as error:
        load(paths)
    assert "b." in str(error.value)
    assert "\n" not in str(error.value)
    with caplog.at_level(logging.WARNING):
        store = load(paths, on_bad="skip")
    assert store.lengths == [6, 6]
    assert list(store.skipped) == [str(paths[1])]
    matching = [record.getMessage() for record in caplog.records]
    (line,) = matching
    assert line.startswith(f"demonstrations: 1 videos skipped: {paths[1]}: ")
    colors = torch.tensor([drawn.color(2, i) for i in range(6)])
    assert (store.frames[6:].float().mean((2, 3)) - colors).abs().max() < 5, "those behind it move up"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("json", "{", "JSON"),
        ("json", "7", "a list of actions, or an object of lists"),
        ("json", '{"action": [[1], [1, 2]]}', "as many numbers in each row"),
        ("json", '{"action": [1, 2], "next.reward": [1]}', "as many rows of each name"),
        ("json", '{"reward": [1]}', 'no "action"'),
        ("json", '{"action": []}', "as many rows of each name, one or more"),
        ("npz", "PK\x03\x04", "arrays of numbers, no pickled objects"),
        ("npy", "\x93NUMPY", "an array of numbers, no pickled objects"),
        ("parquet", "PAR1", "a parquet file"),
    ],
)
def test_bad_sidecars_are_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    sidecar = tmp_path / f"a.{name}"
    path = drawn.write_plain(tmp_path, "a", 0, 2, lambda stem: sidecar.write_bytes(text.encode("latin-1")))
    with pytest.raises(ValueError, match=rf"a.{name}: .*{says}|a.{name}: {says}"):
        load(path)


VIDEO = f"videos/{drawn.CAMERA}/chunk-000/file-001.mp4"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(lambda path: path.unlink(), "there is no such file", id="missing"),
        pytest.param(
            lambda path: drawn.write_video(path, [drawn.picture(2, i) for i in range(4)]),
            "6 frames.*, not 4",
            id="short",
        ),
        pytest.param(
            lambda path: drawn.write_video(path, [drawn.picture(2, 0)] * 300, times=[i + (i > 2) for i in range(300)]),
            r"frame 3 at 0\.3 s, as 10 a second give, not 0\.4 s",
            id="of frames that are late, at the right rate on average",
        ),
        pytest.param(
            lambda path: drawn.write_video(path, [drawn.picture(2, i, (32, 32)) for i in range(6)]),
            "frames of 48×64, not 32×32",
            id="of another size",
        ),
    ],
)
def test_bad_videos_of_a_dataset_are_named_and_skipped_on_request(
    copy: Path, spoil: Callable[[Path], object], says: str
) -> None:
    spoil(copy / VIDEO)
    with pytest.raises(ValueError, match=says) as error:
        load(copy)
    assert str(copy / VIDEO) in str(error.value)
    store = load(copy, on_bad="skip")
    assert store.lengths == [5, 7, 4]
    assert list(store.skipped) == [str(copy / VIDEO)]
    assert sorted(video.frames for video in store.videos) == [0, 4, 12]


def test_where_nothing_is_left_it_says_so(tmp_path: Path) -> None:
    path = drawn.write_plain(tmp_path, "a", 0, 2, lambda stem: None)
    with pytest.raises(ValueError, match=r"no video .*actions is missing"):
        load(path, on_bad="skip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"neither meta/info.json nor MP4 files"):
        load(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match=r"no such folder"):
        load(tmp_path / "nobody")


def test_a_rate_that_is_asked_for_is_held(tmp_path: Path) -> None:
    path = drawn.write_plain(tmp_path, "a", 0, 3)
    assert load(path, fps=10).fps == 10
    with pytest.raises(ValueError, match=r"30 frames .*not 10"):
        load(path, fps=30)


def test_without_a_size_frames_are_as_large_as_those_of_the_videos(tmp_path: Path) -> None:
    drawn.write_plain(tmp_path, "a", 0, 3)
    assert load(tmp_path, size=None).size == (drawn.H, drawn.W)
    drawn.write_video(tmp_path / "b.mp4", [drawn.picture(0, i, (32, 32)) for i in range(3)])
    np.save(tmp_path / "b.npy", drawn.actions(0, 3))
    with pytest.raises(ValueError, match="frames of 48×64, not 32×32"):
        load(tmp_path, size=None)
    assert load(tmp_path, size=(8, 8)).lengths == [3, 3]


@pytest.mark.parametrize("size", [(0, 8), (8,), "ab", (2**20, 2**20), (8.5, 8)])
def test_loading_checks_the_size_of_frames(tmp_path: Path, size: Any) -> None:
    with pytest.raises(ValueError, match=r"\bsize\b"):
        load(drawn.write_plain(tmp_path, "a", 0, 3), size=size)


def test_frames_that_do_not_fit_are_refused_before_decoding(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 4000)
    monkeypatch.setattr(loading, "decode", None)
    with pytest.raises(ValueError, match=r"frames .* 80% .*cpu, 0\.00 GiB"):
        load(dataset)


def test_frames_go_to_the_host_where_the_device_is_too_small(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cuda, cpu = torch.device("cuda:0"), torch.device("cpu")
    monkeypatch.setattr(memory, "free_bytes", {cuda: 2**30, cpu: 2**34}.__getitem__)
    assert loading.place_frames(2**29, cuda, "auto") == cuda
    with caplog.at_level(logging.WARNING):
        assert loading.place_frames(2**31, cuda, "auto") == cpu
    assert "its frames take 2.0 GiB and cuda:0 has 1.0 GiB free: they are kept in host memory" in caplog.text
    assert loading.place_frames(1, cuda, "host") == cpu
    with pytest.raises(ValueError, match=r"frames .*2\.00 GiB.* 80% .*cuda:0"):
        loading.place_frames(2**31, cuda, "device")


@pytest.mark.parametrize("module", ["av", "pyarrow.parquet"])
def test_a_missing_package_names_the_extra(dataset: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"demonstrations: .*\[video\]"):
        load(dataset, on_bad="skip")
