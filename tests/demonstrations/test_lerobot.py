"""LeRobotDataset v3 as TorchRL and LeRobot know it, and what is refused of it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.demonstrations import drawn
from tests.demonstrations.drawn import CAMERA, FPS, LENGTHS
from torchrl_gpu.demonstrations import ClipStore, load_demonstrations, read_demonstrations
from torchrl_gpu.demonstrations.decoding import count_frames
from torchrl_gpu.demonstrations.lerobot import entry_key


def load(root: Path, **changes: Any) -> ClipStore:
    return load_demonstrations(root, device="cpu", **changes)


@pytest.fixture(scope="module")
def store(dataset: Path) -> ClipStore:
    return load(dataset)


def test_every_frame_is_the_one_that_was_drawn(store: ClipStore) -> None:
    """Two episodes lie in one file, the others in a second file and in a second chunk."""
    assert store.lengths == list(LENGTHS)
    assert store.size == (drawn.H, drawn.W)
    colors = []
    for episode, length in enumerate(LENGTHS):
        colors += [drawn.color(episode, i) for i in range(length)]
    drawn_colors = torch.tensor(colors)
    off = (store.frames.float().mean((2, 3)) - drawn_colors).abs()
    assert off.max() < 5, "the colours of neighbouring frames differ by 15 and more"
    assert store.frames.float().std((2, 3)).max() < 2


def test_rows_are_those_of_the_frames(store: ClipStore) -> None:
    for number, length in enumerate(LENGTHS):
        rows = store.rows[store.episode == number]
        assert torch.equal(rows["action"], torch.from_numpy(drawn.actions(number, length)))
        assert torch.equal(rows["observation", "state"], torch.from_numpy(drawn.states(number, length)))
        assert rows["next", "done"].flatten().tolist() == [False] * (length - 1) + [True]
        assert rows["frame"].tolist() == store.frame[store.episode == number].tolist() == list(range(length))
        assert [store.tasks[i] for i in rows["task_index"].tolist()] == [("wash", "dry")[number % 2]] * length


def test_keys_are_those_of_torchrl(store: ClipStore) -> None:
    """Names, shapes and dtypes, by TorchRL's own function."""
    with warnings.catch_warnings():
        # TorchRL warns while its datasets are imported.
        warnings.simplefilter("ignore")
        from torchrl.data.datasets.lerobot import lerobot_columns_to_tensordict
    columns = [drawn.data_columns(number) for number in range(len(LENGTHS))]
    given = {name: torch.tensor(rows) for name, rows in drawn.joined(columns).items()}
    wanted = lerobot_columns_to_tensordict(given | {CAMERA: torch.zeros(len(store), 3, 2, 2)})
    image = wanted.pop(store.image_key)
    assert image is not None
    wanted.pop(("observation", "image"))
    assert set(store.rows.keys(True, True)) == set(wanted.keys(True, True))
    assert (store.rows == wanted).all()


def test_nested_names_are_keys() -> None:
    assert entry_key("observation.images.wrist") == ("observation", "image", "wrist")
    assert entry_key("next.success") == ("next", "success")
    assert entry_key("task") == "language_instruction"


def test_stats_are_read(store: ClipStore) -> None:
    assert store.stats["action"]["std"].tolist() == [1.0, 0.5]
    assert store.stats[CAMERA]["mean"].shape == (3, 1, 1)
    assert store.fps == FPS


def test_a_version_before_3_is_refused(copy: Path) -> None:
    drawn.write_info(copy, codebase_version="v2.1")
    with pytest.raises(ValueError, match=r"info\.json: expected codebase_version v3\.x .*, not 'v2\.1'"):
        load(copy)


@pytest.mark.parametrize(
    "pattern",
    [
        "../other/chunk-{chunk_index:03d}.mp4",
        "/etc/{file_index}.mp4",
        "videos/{video_key}/../../../x.mp4",
        "videos/{video_key.__class__}/x.mp4",
        "videos/{0}/x.mp4",
        "videos/{secret}/x.mp4",
        "videos\\..\\x.mp4",
        "C:/x.mp4",
        "a\0b.mp4",
        7,
    ],
)
def test_paths_stay_inside_the_dataset(copy: Path, pattern: Any) -> None:
    for name in ("video_path", "data_path"):
        drawn.write_info(copy, **{name: pattern})
        with pytest.raises(ValueError, match=r"relative path"):
            load(copy)


def test_a_camera_cannot_lead_out_of_the_dataset(copy: Path) -> None:
    """Its name is a part of the path."""
    features = drawn.info()["features"]
    features["../../x"] = features.pop(CAMERA)
    drawn.write_info(copy, features=features)
    rows = [drawn.episode_row(i) for i in range(len(LENGTHS))]

    def renamed(row: dict[str, Any]) -> dict[str, Any]:
        return {key.replace(CAMERA, "../../x"): value for key, value in row.items()}

    drawn.write_episodes(copy, [renamed(row) for row in rows])
    with pytest.raises(ValueError, match=r"relative path"):
        load(copy)


def test_one_of_several_cameras_is_asked_for(copy: Path) -> None:
    features = drawn.info()["features"]
    drawn.write_info(copy, features=features | {"observation.images.wrist": features[CAMERA]})
    with pytest.raises(ValueError, match=rf"camera .*{CAMERA}, observation\.images\.wrist, not None"):
        load(copy)
    assert len(load(copy, camera=CAMERA)) == sum(LENGTHS)


def test_a_map_of_depths_is_no_camera(copy: Path) -> None:
    features = drawn.info()["features"]
    depth = features[CAMERA] | {"info": {"is_depth_map": True}}
    drawn.write_info(copy, features=features | {"observation.images.depth": depth})
    assert len(load(copy)) == sum(LENGTHS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "JSON of finite numbers"),
        ('{"fps": NaN}', "the number NaN"),
        ("[" * 100_000, "cannot be read as JSON of finite numbers: "),
        ('{"fps": 1' + "0" * 5000 + "}", "JSON"),
        ("[]", "an object"),
        ('{"codebase_version": "v3.0", "fps": true}', "fps from 0.1 to 1000, not True"),
        ('{"codebase_version": "v3.0", "fps": 1e9}', "fps from 0.1 to 1000"),
        ('{"codebase_version": "v3.0", "fps": 10, "features": [1]}', "features"),
        ('{"codebase_version": "v3.0", "fps": 10, "features": {}}', "no feature of dtype video"),
    ],
)
def test_description_of_a_lerobot_dataset_is_checked(copy: Path, text: str, says: str) -> None:
    (copy / "meta/info.json").write_text(text)
    with pytest.raises(ValueError, match=says):
        load(copy)


def test_json_beyond_its_size_is_not_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrl_gpu.demonstrations.untrusted._MOST_JSON_BYTES", 100)
    with pytest.raises(ValueError, match=r"JSON .*100 bytes, not"):
        load(copy)


@pytest.mark.parametrize("stats", [{"action": {"mean": ["x"]}}, {"action": {"mean": [[1], [1, 2]]}}, [], {"action": 1}])
def test_stats_are_checked(copy: Path, stats: Any) -> None:
    (copy / "meta/stats.json").write_text(json.dumps(stats))
    with pytest.raises(ValueError, match="stats"):
        load(copy)


def changed_row(number: int, **changes: Any) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        rows = [drawn.episode_row(i) for i in range(len(LENGTHS))]
        rows[number] |= {name.replace("VIDEO", f"videos/{CAMERA}"): value for name, value in changes.items()}
        drawn.write_episodes(root, rows)

    return spoil


def changed_data(name: str, values: Any, kind: Any = None) -> Callable[[Path], None]:
    """The rows of the third episode, which has a file of its own."""

    def spoil(root: Path) -> None:
        drawn.write_data(root, (0, 1), drawn.data_columns(2) | {name: values}, {name: kind} if kind else None)

    return spoil


# A fault of the table of episodes is a fault of the whole.
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(changed_row(1, episode_index=0), "every episode once", id="episodes that are there twice"),
        pytest.param(changed_row(1, length=0), "lengths from 1", id="no length"),
        pytest.param(changed_row(1, **{"VIDEO/from_timestamp": -1.0}), "numbers from 0 on", id="a negative time"),
        pytest.param(
            changed_row(1, **{"VIDEO/to_timestamp": float("inf")}),
            "to_timestamp: .*finite; row 1",
            id="an infinite time",
        ),
        pytest.param(changed_row(1, **{"VIDEO/file_index": None}), "file_index: 1 values are null", id="a null"),
        pytest.param(
            lambda root: drawn.write_episodes(root, [drawn.episode_row(i) | {"length": "5"} for i in range(4)]),
            "numbers or flags, not string",
            id="words for numbers",
        ),
        pytest.param(
            lambda root: (root / "meta/episodes/chunk-000/file-000.parquet").write_bytes(b"PAR1" + bytes(64) + b"PAR1"),
            "a parquet file",
            id="no parquet",
        ),
    ],
)
def test_the_table_of_episodes_is_checked(copy: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(copy)
    with pytest.raises(ValueError, match=says):
        load(copy, on_bad="skip")


# A fault of the rows of a video is that video's alone.
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(
            changed_row(2, **{"VIDEO/to_timestamp": 0.0}), "to_timestamp behind from_timestamp", id="times in no order"
        ),
        pytest.param(
            changed_row(2, **{"VIDEO/to_timestamp": 1.0}), "6 frames, 0.6 s of video, within one", id="times too long"
        ),
        pytest.param(changed_row(2, length=7, dataset_to_index=19), "7 rows, not 6", id="more rows than frames"),
        pytest.param(changed_row(2, dataset_from_index=11), "6 rows, not 6, and indices for 7", id="another index"),
        pytest.param(changed_data("episode_index", [7] * 6), "rows of episode 2", id="no rows"),
        pytest.param(
            changed_data("episode_index", [2, 2, 3, 2, 2, 2]),
            "rows must be in the order of their episodes",
            id="rows mixed",
        ),
        pytest.param(changed_data("frame_index", [0, 1, 3, 4, 5, 6]), "frame_index 0, 1, 2", id="frames left out"),
        pytest.param(
            changed_data("timestamp", [0.0, 0.1, 0.2, 0.1, 0.4, 0.5]),
            r"timestamp .*0\.1 s in row 3",
            id="time runs back",
        ),
        pytest.param(
            changed_data("action", [[float("nan"), 1.0]] * 6),
            r"action: .*finite; row 0 is \[nan, 1\.0\]",
            id="an action that is not finite",
        ),
        pytest.param(
            changed_data("action", [[1.0], [1.0, 2.0], [1.0], [1.0], [1.0], [1.0]]),
            "action: .*one length, not 1 to 2",
            id="actions of several lengths",
        ),
        pytest.param(
            changed_data("action", [[1.0, 2.0, 3.0]] * 6),
            r"action: .*shape \(2,\) in each",
            id="actions of another length",
        ),
        pytest.param(
            lambda root: drawn.write_data(
                root, (0, 1), {name: value for name, value in drawn.data_columns(2).items() if name != "action"}
            ),
            "no column action",
            id="no actions",
        ),
        pytest.param(
            lambda root: (root / "data/chunk-000/file-001.parquet").unlink(),
            "there is no such file",
            id="no rows at all",
        ),
    ],
)
def test_rows_that_cannot_be_used_are_named_and_skipped_with_their_video(
    copy: Path, spoil: Callable[[Path], object], says: str
) -> None:
    spoil(copy)
    with pytest.raises(ValueError, match=says) as error:
        load(copy)
    assert "\n" not in str(error.value)
    assert str(copy) in str(error.value)
    store = load(copy, on_bad="skip", size=(8, 8))
    assert store.lengths == [5, 7, 4]
    assert [Path(video).name for video in store.skipped] == ["file-001.mp4"]
    first_of_last = store.frames[12].float().mean((1, 2)) - torch.tensor(drawn.color(3, 0))
    assert first_of_last.abs().max() < 5


def test_episodes_that_overlap_are_refused(copy: Path) -> None:
    changed_row(1, **{"VIDEO/from_timestamp": 0.3, "VIDEO/to_timestamp": 1.0})(copy)
    with pytest.raises(ValueError, match=r"one behind another.*frame 3"):
        load(copy)


def drifting(root: Path, per_episode: float, starts: float = 0.0) -> None:
    """Write thirty episodes of four frames in one video.

    The time of each, in frames, is further off than that of the one before.
    """
    lengths, frames = [4] * 30, 120
    rows, parts = [], []
    for number, length in enumerate(lengths):
        begin, off = 4 * number, starts + per_episode * number
        times = {"from_timestamp": (begin + off) / FPS, "to_timestamp": (begin + length + off + per_episode) / FPS}
        rows.append(
            drawn.episode_row(0)
            | {"episode_index": number, "length": length, "dataset_from_index": begin, "dataset_to_index": begin + 4}
            | {f"videos/{CAMERA}/{name}": value for name, value in times.items()}
        )
        columns = {name: values[:length] for name, values in drawn.data_columns(0).items()}
        parts.append(columns | {"episode_index": [number] * length, "index": list(range(begin, begin + length))})
    drawn.write_episodes(root, rows)
    drawn.write_data(root, (0, 0), drawn.joined(parts))
    drawn.write_info(root, total_episodes=len(lengths), total_frames=frames)
    drawn.write_video(video_of(root), [np.full((16, 16, 3), 2 * i, np.uint8) for i in range(frames)])
    features = drawn.info()["features"]
    features[CAMERA]["shape"] = [16, 16, 3]
    drawn.write_info(root, total_episodes=30, features=features)


def video_of(root: Path) -> Path:
    return root / f"videos/{CAMERA}/chunk-000/file-000.mp4"


@pytest.mark.parametrize(("per_episode", "starts"), [(1 / 30, 0.0), (-1 / 30, 1.0), (0.2, 0.0), (0.0, 0.5), (0.9, 0.0)])
def test_frames_are_counted_where_times_drift(
    per_episode: float, starts: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Frames are found by number where times drift.

    Times are sums of what containers say of their length (huggingface/lerobot #3177), and a clock may begin late.
    """
    drifting(tmp_path, per_episode, starts)
    store = load(tmp_path)
    assert (store.frames.float().mean((1, 2, 3)) - 2 * torch.arange(120)).abs().max() < 1.5
    off = max(abs(starts), abs(starts + 29 * per_episode))
    line = f"from_timestamp is off by up to {off / FPS:.3g} s, {off:.1f} frames at 10 a second: frames go by lengths"
    assert [record.getMessage().partition(": from")[2] for record in caplog.records] == (
        [line.removeprefix("from")] if off > 0.5 else []
    )


def test_times_that_drift_beside_frames_of_no_episode_are_refused(tmp_path: Path) -> None:
    """Nothing says then which frame is meant."""
    drifting(tmp_path, 1 / 30)
    drawn.write_video(video_of(tmp_path), [np.full((16, 16, 3), 2 * i, np.uint8) for i in range(124)])
    with pytest.raises(ValueError, match=r"episode 8: .*from_timestamp .* not 3\.22667 s, frame 32\.27"):
        load(tmp_path)


def test_frames_of_a_fragmented_video_are_counted(tmp_path: Path) -> None:
    """Its header does not say how many there are."""
    drifting(tmp_path, 0.2)
    whole, parts = video_of(tmp_path), tmp_path / "parts.mp4"
    with av.open(whole) as source, av.open(parts, "w", options={"movflags": "frag_keyframe+empty_moov"}) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    parts.replace(whole)
    assert count_frames(whole, "x") == 120
    assert (load(tmp_path).frames.float().mean((1, 2, 3)) - 2 * torch.arange(120)).abs().max() < 1.5


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([i / 9.8 for i in range(6)], id="at another rate"),
        pytest.param([0.05 + i / 10 for i in range(6)], id="that begins late"),
        pytest.param([0.0, 0.1, 0.2, 0.4, 0.5, 0.6], id="that lost a frame"),
        pytest.param([1e5 + i / 10 for i in range(6)], id="of the day"),
    ],
)
def test_frames_go_by_frame_index_whatever_the_clock(
    copy: Path, times: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """One line says how far it is off, if that is more than half a frame."""
    changed_data("timestamp", times, pa.float64())(copy)
    store = load(copy, size=(8, 8))
    colors = torch.tensor([drawn.color(2, i) for i in range(6)])
    assert (store.frames[12:18].float().mean((2, 3)) - colors).abs().max() < 5
    off = max(abs(time * FPS - i) for i, time in enumerate(times))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (off > 0.5)
    assert all(
        f"timestamp is off by up to {off / FPS:.3g} s" in line and "frames go by frame_index" in line for line in said
    )
    assert read_demonstrations(copy).lengths.tolist() == list(LENGTHS)


def test_numbers_need_a_clock_that_rises(copy: Path) -> None:
    changed_data("frame_index", [0, 1, 3, 4, 5, 6])(copy)
    assert read_demonstrations(copy).lengths.tolist() == list(LENGTHS), "nobody looks at their frames"
    changed_data("timestamp", [0.0, 0.1, 0.1, 0.3, 0.4, 0.5])(copy)
    with pytest.raises(ValueError, match=r"episode 2: .*timestamp .*0\.1 s in row 2"):
        read_demonstrations(copy)


@pytest.mark.parametrize("begin", [0.46, 0.4999999, 0.5000001, 0.54])
def test_an_episode_begins_at_the_nearest_frame(copy: Path, begin: float) -> None:
    """Times are sums of what containers say of their length."""
    changed_row(1, **{"VIDEO/from_timestamp": begin, "VIDEO/to_timestamp": begin + 0.7})(copy)
    store = load(copy, size=(8, 8))
    colors = torch.tensor([drawn.color(1, i) for i in range(7)])
    assert (store.frames[5:12].float().mean((2, 3)) - colors).abs().max() < 5


def test_frames_between_episodes_are_left_out(copy: Path) -> None:
    """As after an episode was deleted."""
    rows = [drawn.episode_row(i) for i in (1, 2, 3)]
    drawn.write_episodes(copy, rows)
    with pytest.raises(ValueError, match=r"total_episodes .*4, not 3"):
        load(copy)
    drawn.write_info(copy, total_episodes=3)
    store = load(copy, size=(8, 8))
    assert store.lengths == [7, 6, 4]
    assert (store.frames[0].float().mean((1, 2)) - torch.tensor(drawn.color(1, 0))).abs().max() < 5
    assert store.rows["episode"].tolist()[:8] == [0] * 7 + [1], "episodes are numbered anew"
