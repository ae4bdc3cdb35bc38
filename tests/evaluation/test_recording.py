"""Episodes in MCAP files.

Those that were played, frame by frame and number by number, and which of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

from tests.demonstrations.mcap_files import frames, read, stamp
from tests.evaluation.counting_env import CountingEnv
from tests.training.crossing_worlds import homing, marine_env
from tests.training.tiny import dqn, packing_env
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.evaluation import recording
from torchrl_gpu.evaluation.episodes import EpisodeSuite, suite_for
from torchrl_gpu.evaluation.recording import choose_episodes, record_episodes
from torchrl_gpu.evaluation.results import evaluation
from torchrl_gpu.policies import PolicyWrapper

BEGIN = 1_700_000_000_000_000_000


def numbers(messages: list[tuple[int, Any]]) -> list[float]:
    return [message.value for _, message in messages]


def test_a_file_holds_the_episode_that_was_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: BEGIN)
    suite = suite_for(packing_env(orientations="axis"), 5, seed=9)
    policy = PolicyWrapper(dqn(suite.env))
    paths = record_episodes(suite, policy, tmp_path / "out", 5, size=(96, 128), fps=4.0, facts={"policy": "greedy"})
    assert [path.name for path in paths] == [f"episode-{i:06d}.mcap" for i in range(5)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [path.name for path in paths]
    found, env = read(paths[3]), suite.like(5)
    suite.begin(env, 0)
    pictures = []
    packed = []
    actions = []
    values = []
    rewards = []
    with evaluation(env, policy) as current:
        done = False
        while not done:
            pictures.append(np.asarray(viewable(env).pictures([3], 128, 96)[0]))
            packed.append(boxes(env, 3))
            stepped = env.step(policy(current))
            actions.append([float(stepped["action"][3])])
            values.append(stepped["action_value"][3, stepped["action"][3]].item())
            rewards.append(stepped["next", "reward"][3].item())
            done = bool(stepped["next", "done"][3])
            current = env.maybe_reset(env.step_mdp(stepped)) if not done else current
        pictures.append(np.asarray(viewable(env).pictures([3], 128, 96)[0]))
        packed.append(boxes(env, 3))
    length = len(actions)
    assert length > 2
    times = [BEGIN + 250_000_000 * i for i in range(length + 1)]
    spans = {"/camera": times, "/scene": times, "/episode/return": times, "/episode/utilization": times}
    spans |= {"/action": times[:-1], "/value": times[:-1], "/reward": times[1:], "/episode/num_packed": times}
    assert set(found.messages) == set(spans)
    for topic, messages in found.messages.items():
        assert [time for time, _ in messages] == spans[topic]
    for topic in ("/camera", "/action", "/reward"):
        assert [stamp(each) for _, each in found.messages[topic]] == spans[topic]
    assert [list(each.values) for _, each in found.messages["/action"]] == actions
    assert [list(each.values) for _, each in found.messages["/value"]] == [[each] for each in values]
    assert numbers(found.messages["/reward"]) == rewards
    np.testing.assert_allclose(numbers(found.messages["/episode/return"])[1:], np.cumsum(rewards), atol=1e-6)
    decoded = frames([each for _, each in found.messages["/camera"]])
    # Distances of each from each.
    off = np.array([distances(each, pictures) for each in decoded])
    assert off.diagonal().max() < 5, "H.264 loses little"
    assert (off.diagonal() == off.min(1)).all(), "and each frame is nearest to its own picture"
    assert len({picture.tobytes() for picture in pictures}) >= length, "which differ, but for a box behind others"
    for (_, scene), expected in zip(found.messages["/scene"], packed, strict=True):
        np.testing.assert_allclose(cubes(scene), expected, atol=1e-5)
    about = found.metadata["episode"]
    assert (about["episode"], about["length"], about["policy"], about["seed"]) == ("3", str(length), "greedy", "9")
    assert float(about["utilization"]) == pytest.approx(sum(rewards))


def distances(decoded: np.ndarray, pictures: list[np.ndarray]) -> list[float]:
    return [np.abs(decoded.astype(int) - picture).mean() for picture in pictures]


def boxes(env: Any, row: int) -> np.ndarray:
    """Lower and upper corners of the items in a bin, (M, 6).

    By the environment's own cells.
    """
    placed = env.placements[row, : int(env.num_packed[row])].long()
    item, orientation = placed[:, 0], placed[:, 1]
    low = torch.cat([placed[:, 2:] * torch.tensor(env.cell), env.placement_z[row, : len(placed), None]], 1)
    size = env.catalogue.extent[item, orientation] * torch.tensor(env.cell)
    high = low + torch.cat([size, env.catalogue.height[item, orientation, None]], 1)
    return torch.cat([low, high], 1).numpy()


def cubes(scene: Any) -> np.ndarray:
    """The same of a scene's cubes, turned as it says."""
    found = []
    for cube in scene.entities[0].cubes:
        place = cube.pose.position
        middle = np.array([place.x, place.y, place.z])
        size = np.array([cube.size.x, cube.size.y, cube.size.z])
        # A turned cuboid reaches as far along an axis as its turned sides together.
        turn = cube.pose.orientation
        half = np.abs(rotation(turn.w, turn.x, turn.y, turn.z) * size).sum(1) / 2
        found.append([*(middle - half), *(middle + half)])
    return np.array(found).reshape(-1, 6)


def rotation(w: float, x: float, y: float, z: float) -> np.ndarray:
    """Rotation matrix of a unit quaternion, by Euler and Rodrigues."""
    axis = np.array([x, y, z])
    # Matrix of the cross product by the axis.
    cross = np.cross(np.eye(3), axis)
    return np.eye(3) + 2 * w * cross + 2 * cross @ cross


def greedy(seen: TensorDictBase) -> TensorDictBase:
    """Always adds two, which overshoots odd goals."""
    return seen.set("action", torch.full_like(seen["left"][:, 0], 2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "expected", "side_by_side"),
    [
        ({"choose": "failures"}, "failed", 2),
        ({"choose": "failures", "most": 1}, "first failed", 64),
        ({"choose": "worst", "most": 2, "by": "return"}, "worst", 64),
        ({"choose": "best", "most": 2, "by": "return"}, "best", 2),
        ({"choose": "failures", "by": "return", "below": -2.5}, "long", 2),
        ({}, "all", 2),
    ],
)
def test_which_are_written(
    options: dict[str, Any], expected: str, side_by_side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_MOST_SIDE_BY_SIDE", side_by_side)
    env = CountingEnv(1, masked=False, seed=2)
    # What the environment says of its episodes.
    goals = [2 + (2 + 7 * i) % 4 for i in range(5)]
    returns = [-((goal + 1) // 2) - 10 * (goal % 2) for goal in goals]
    order = sorted(range(5), key=lambda i: returns[i])
    failed = [i for i in range(5) if goals[i] % 2]
    best = sorted(range(5), key=lambda i: -returns[i])
    long = [i for i in range(5) if returns[i] < -2.5]
    wanted = {
        "failed": failed,
        "first failed": failed[:1],
        "worst": sorted(order[:2]),
        "best": sorted(best[:2]),
        "long": long,
        "all": list(range(5)),
    }[expected]
    told: list[int] = []
    paths = record_episodes(
        EpisodeSuite(env, num_episodes=5), greedy, tmp_path, 5, size=(32, 32), progress=told.append, **options
    )
    assert [int(path.stem[-6:]) for path in paths] == wanted
    for path, i in zip(paths, wanted, strict=True):
        found = read(path)
        assert sum(numbers(found.messages["/reward"])) == returns[i]
        assert found.metadata["episode"]["exact"] == str(not goals[i] % 2)
    assert told[-1] == 5


def test_robots_are_in_the_scene(tmp_path: Path) -> None:
    env = marine_env(1, robots=2, obstacles=2, max_steps=3)
    suite = suite_for(env, 1, seed=1)
    (path,) = record_episodes(suite, homing(suite.env), tmp_path, 1, size=(64, 64))
    found = read(path)
    (_, first), *_ = found.messages["/scene"]
    (entity,) = first.entities
    # Obstacles, and goals.
    assert (len(entity.cubes), len(entity.cylinders), len(entity.lines)) == (2, 2 + 2, 1)
    assert [len(each.values) for _, each in found.messages["/action"]] == [2, 2, 2]


def test_ties_go_to_the_first_and_nan_is_no_best() -> None:
    values = torch.tensor([1.0, 0.0, 1.0, 0.0, 2.0])
    assert choose_episodes(values, "worst", 1) == [1]
    assert choose_episodes(values, "best", 3) == [0, 2, 4]


def test_an_episode_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def fails(seen: TensorDictBase) -> TensorDictBase:
        if bool((seen["left"] < 3).any()):
            raise KeyError
        return greedy(seen)

    suite = EpisodeSuite(CountingEnv(1, masked=False, seed=1), num_episodes=4)
    with pytest.raises(KeyError):
        record_episodes(suite, fails, tmp_path, 4, size=(32, 32))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"choose": "odd"}, "choose must be one of all, worst, best, failures"),
        ({"by": "profit"}, "by must be one of utilization, return"),
        ({"choose": "failures"}, "below.*utilization"),
        ({"choose": "failures", "by": "return"}, "below.*return"),
        ({"most": 0}, "most must be"),
        ({"size": (8, 64)}, "EpisodeRecorder: size must be"),
        ({"size": (64,)}, "EpisodeRecorder: size must be height and width"),
        ({"fps": 0.0}, "EpisodeRecorder: fps must be"),
        ({"fps": float("nan")}, "EpisodeRecorder: fps must be"),
    ],
)
def test_what_cannot_be_is_refused_before_a_step(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    def plays(tensordict: TensorDictBase) -> TensorDictBase:
        pytest.fail("it was played")

    with pytest.raises(ValueError, match=says):
        record_episodes(suite_for(packing_env(), 2, seed=9), plays, tmp_path / "out", 2, **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_folder_has_one_recording_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    suite = suite_for(packing_env(), 2, seed=9)
    policy = PolicyWrapper(dqn(suite.env))

    def record_beside(done: int) -> None:
        with pytest.raises(FileExistsError, match="records into"):
            record_episodes(suite, policy, tmp_path / "out", 2, size=(32, 32))

    paths = record_episodes(suite, policy, tmp_path / "out", 2, size=(32, 32), progress=record_beside)
    assert all(path.is_file() for path in paths)
    record_episodes(suite, policy, tmp_path / "out", 2, size=(32, 32))
