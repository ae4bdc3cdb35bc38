"""A dataset that is written is one that is read, and what it says of itself holds."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.demonstrations import drawn
from torchrl_gpu.demonstrations import LeRobotWriter, load_demonstrations

FEATURES = {
    "action": ("float32", (2,)),
    "observation.state": ("float32", (2, 3)),
    "next.reward": ("float32", (1,)),
    "next.done": ("bool", (1,)),
    "choice": ("int64", (1,)),
}
LENGTHS = (3, 4, 5)


def row(episode: int, i: int) -> dict[str, Any]:
    state = np.full((2, 3), episode + i / 8, np.float32)
    is_last = i == LENGTHS[episode] - 1
    values = {"action": drawn.actions(episode, 9)[i], "observation.state": state}
    return values | {"next.reward": [i / 4], "next.done": [is_last], "choice": [7 * i]}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The third episode lies in a file of its own."""
    folder = tmp_path_factory.mktemp("written") / "deep" / "demo"
    with LeRobotWriter(folder, 12.5, FEATURES, (32, 48), task="wash up", frames_per_file=6) as writer:
        for episode, length in enumerate(LENGTHS):
            for i in range(length):
                writer.add(drawn.picture(episode, i, (32, 48)), row(episode, i))
            writer.end_episode()
    return folder


def test_dataset_is_read_as_it_was_written(written: Path) -> None:
    store = load_demonstrations(written, device="cpu")
    assert store.lengths == list(LENGTHS)
    assert store.fps == 12.5
    assert [Path(video.name).name for video in store.videos] == ["file-000.mp4", "file-001.mp4"]
    places = []
    for episode, length in enumerate(LENGTHS):
        places += [(episode, i) for i in range(length)]
    rows = [row(*place) for place in places]
    for name, key in (("action", "action"), ("observation.state", ("observation", "state")), ("choice", "choice")):
        assert torch.equal(store.rows[key], torch.from_numpy(np.stack([np.asarray(each[name]) for each in rows])))
    assert store.rows["next", "reward"].flatten().tolist() == [each["next.reward"][0] for each in rows]
    assert store.rows["next", "done"].flatten().tolist() == [each["next.done"][0] for each in rows]
    colors = torch.tensor([drawn.color(*place) for place in places])
    assert (store.frames.float().mean((2, 3)) - colors).abs().max() < 5
    assert {store.tasks[i] for i in store.rows["task_index"].tolist()} == {"wash up"}


def test_dataset_has_the_description_that_lerobot_needs(written: Path) -> None:
    info = json.loads((written / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 12, 1)
    assert info["features"]["observation.images.main"]["shape"] == [32, 48, 3]
    assert set(pq.read_schema(written / "data/chunk-000/file-000.parquet").names) == set(info["features"]) - {
        "observation.images.main"
    }
    episodes = pq.read_table(written / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [each["videos/observation.images.main/from_timestamp"] for each in episodes] == [0, 0.24, 0]
    assert [each["dataset_from_index"] for each in episodes] == [0, 3, 7]
    tasks = pq.read_table(written / "meta/tasks.parquet")
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]


WORDS = ("min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99")
"""Of LeRobot's `compute_stats.py`, of each feature and of each column that every dataset has."""


def test_episodes_have_the_columns_that_lerobot_appends_to(written: Path) -> None:
    """Every file has the columns that `datasets` needs.

    lerobot 0.4.4 appended to such a dataset and read it again.
    """
    table = pq.read_table(written / "meta/episodes/chunk-000/file-000.parquet")
    features = json.loads((written / "meta/info.json").read_text())["features"]
    place = {"chunk_index", "file_index"}
    columns = {"episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index"}
    columns |= {"/".join(pair) for pair in product(("data", "meta/episodes"), place)}
    columns |= {f"videos/observation.images.main/{n}" for n in (*place, "from_timestamp", "to_timestamp")}
    statistics = {f"stats/{name}/{word}" for name, word in product(features, WORDS)}
    assert set(table.column_names) == columns | statistics
    kinds = {
        name: str(table.schema.field(f"stats/{name}").type).replace("item", "element")
        for name in ("action/min", "next.done/max", "choice/min", "choice/mean", "action/count", "timestamp/q50")
    }
    assert kinds == {
        "action/min": "list<element: double>", "next.done/max": "list<element: bool>",
        "choice/min": "list<element: int64>", "choice/mean": "list<element: double>",
        "action/count": "list<element: int64>", "timestamp/q50": "list<element: double>",
    }  # fmt: skip
    second = table.to_pylist()[1]
    actions = drawn.actions(1, 9)[:4]
    for word, wanted in (
        ("mean", actions.mean(0)),
        ("std", actions.std(0)),
        ("q10", np.quantile(actions, 0.1, axis=0)),
    ):
        np.testing.assert_allclose(second[f"stats/action/{word}"], wanted, atol=1e-6)
    assert second["stats/index/max"] == [6]
    assert second["stats/observation.state/min"] == [1.0] * 3, "of the last axis, as LeRobot's are"
    assert np.shape(second["stats/observation.images.main/q99"]) == (3, 1, 1)
    assert second["stats/observation.images.main/count"] == [4]


def test_statistics_of_a_dataset_are_lerobots_of_its_episodes(written: Path) -> None:
    """Statistics are computed as `aggregate_stats` does.

    Ends, mean and deviation are those of all rows, quantiles are means over episodes.
    """
    found = json.loads((written / "meta/stats.json").read_text())
    choices = 7 * np.concatenate([np.arange(length) for length in LENGTHS])
    assert [found["choice"][word] for word in ("min", "max", "count")] == [[0], [28], [12]]
    np.testing.assert_allclose([found["choice"]["mean"][0], found["choice"]["std"][0]], [choices.mean(), choices.std()])
    halves = [np.quantile(7 * np.arange(length), 0.5) for length in LENGTHS]
    np.testing.assert_allclose(found["choice"]["q50"], [np.average(halves, weights=LENGTHS)])
    assert found["index"]["max"] == [11]
    store = load_demonstrations(written, device="cpu")
    assert torch.allclose(store.stats["action"]["std"], store.rows["action"].std(0, correction=0))
    pictures = store.frames.double().mean((0, 2, 3)) / 255
    assert torch.allclose(store.stats["observation.images.main"]["mean"].flatten().double(), pictures, atol=0.01)


def test_an_episode_that_is_not_ended_is_left_out(tmp_path: Path) -> None:
    features = {"action": ("float32", (2,))}
    with LeRobotWriter(tmp_path / "a", 10, features, (32, 48), frames_per_file=2) as writer:
        for i in range(5):
            writer.add(drawn.picture(0, i, (32, 48)), {"action": [0, i]})
            if i in (1, 3):
                writer.end_episode()
    store = load_demonstrations(tmp_path / "a", device="cpu")
    assert store.lengths == [2, 2]
    assert len(list((tmp_path / "a").rglob("*.mp4"))) == 2
    assert store.stats["action"]["max"].tolist() == [0, 3], "nor do statistics count it"
    assert store.stats["observation.images.main"]["count"].tolist() == [4]


def written_until_an_error(folder: Path) -> None:
    with LeRobotWriter(folder, 10, {"action": ("float32", (2,))}, (32, 48)) as writer:
        writer.add(drawn.picture(0, 0, (32, 48)), {"action": [0, 1]})
        writer.end_episode()
        raise KeyError


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        written_until_an_error(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_writer_refuses_wrong_episodes(tmp_path: Path) -> None:
    features = {"action": ("float32", (2,))}
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError, match=r"folder exists"):
        LeRobotWriter(tmp_path / "there", 10, features, (32, 48))
    with pytest.raises(ValueError, match=r"size .*even"):
        LeRobotWriter(tmp_path / "a", 10, features, (31, 48))
    writer = LeRobotWriter(tmp_path / "a", 10, features, (32, 48))
    with pytest.raises(ValueError, match=r"picture .*uint8 .*\(32, 48, 3\)"):
        writer.add(drawn.picture(0, 0, (32, 32)), {"action": [0, 1]})
    with pytest.raises(ValueError, match=r"action .*\(2,\)"):
        writer.add(drawn.picture(0, 0, (32, 48)), {"action": [0, 1, 2]})
    with pytest.raises(ValueError, match=r"one frame"):
        writer.end_episode()
    with pytest.raises(ValueError, match=r"one episode"):
        writer.close()


def test_a_second_recording_leaves_the_first_alone(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    folder = tmp_path / "demo"
    with LeRobotWriter(folder, 10.0, FEATURES, (32, 48)) as writer:
        writer.add(drawn.picture(0, 0, (32, 48)), row(0, 0))
        with pytest.raises(FileExistsError, match=r"written by"):
            LeRobotWriter(folder, 10.0, FEATURES, (32, 48))
        writer.end_episode()
    assert load_demonstrations(folder, device="cpu").lengths == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
