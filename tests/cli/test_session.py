"""A session goes on at its speed while somebody watches, and does what it is told."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.callbacks.fake_server import FakeServer
from tests.training.tiny import packing_env
from torchrl_gpu.callbacks.env_streams import EnvStreams
from torchrl_gpu.cli.session import FASTEST, HOLD_S, SLOWEST, ViewerSession
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.evaluation.player import Player
from torchrl_gpu.policies.packing import DeepestBottomLeft

pytest.importorskip("cv2")


class Stage:
    def __init__(self, num_envs: int = 1, speed: float = 2.0, watched: tuple[str, ...] = ("env0",)) -> None:
        self.clock = 100.0
        self.env = packing_env(num_envs)
        self.server = FakeServer(watched)
        streams = EnvStreams(self.server, viewable(self.env), ["env0", "best"], 32, 24)
        player = Player(self.env, DeepestBottomLeft(self.env))
        self.session = ViewerSession(player, self.server, streams, speed, {"policy_version": 9}, now=lambda: self.clock)

    def wait(self, seconds: float) -> None:
        for _ in range(round(100 * seconds)):
            self.session.turn()
            self.clock += 0.01

    def send(self, name: str, value: Any = None) -> None:
        self.server.pending.append(SimpleNamespace(name=name, value=value, stream="env0"))
        self.session.turn()

    @property
    def steps(self) -> list[int]:
        return [meta["episode_step"] for meta in self.server.metas("env0")]


def test_a_step_whenever_one_is_due_and_a_picture_of_each() -> None:
    stage = Stage(speed=2.0)
    stage.wait(1.4)
    # At 0, 0.5 and 1 s.
    assert stage.steps == [1, 2, 3]
    assert {meta["policy_version"] for meta in stage.server.metas("env0")} == {9}


def test_unwatched_session_draws_one_picture_and_waits() -> None:
    stage = Stage(watched=())
    stage.wait(2.0)
    assert int(stage.env.state.step_count[0]) == 0
    # One of each, for every new viewer.
    assert [meta["episode_step"] for _, _, meta in stage.server.published] == [0, 0]
    stage.server.watched = {"best"}
    stage.wait(0.1)
    assert len(stage.server.metas("best")) == 2
    assert stage.steps == [0]


def test_a_viewer_who_comes_late_gets_the_picture_that_there_is() -> None:
    stage = Stage()
    stage.wait(0.1)
    stage.send("pause")
    stage.wait(1.0)
    stage.server.watched.add("best")
    stage.wait(1.0)
    assert (stage.steps, len(stage.server.metas("best"))) == ([1], 1)


def test_a_full_bin_stays_to_be_seen_and_its_end_is_marked() -> None:
    stage = Stage(speed=10.0)
    while not stage.session.player.done.all():
        stage.wait(0.01)
    full = stage.server.metas("env0")[-1]
    stage.wait(HOLD_S)
    assert stage.server.metas("env0")[-1] == full
    stage.wait(0.15)
    after = stage.server.metas("env0")[-1]
    assert (after["episode"], after["episode_step"]) == (full["episode"] + 1, 1)
    assert stage.server.ended == [("env0", full)]


def test_pause_step_and_resume() -> None:
    stage = Stage()
    stage.wait(0.1)
    stage.send("pause")
    assert stage.server.shown["paused"] is True
    stage.wait(2.0)
    assert stage.steps == [1]
    stage.send("resume")
    # And pause.
    stage.send("step")
    assert stage.server.shown["paused"] is True
    stage.wait(2.0)
    assert stage.steps == [1, 2, 3]
    stage.send("resume")
    stage.wait(0.6)
    assert stage.steps[-1] > 3
    assert stage.server.shown["paused"] is False


def test_reset_goes_to_the_next_episode() -> None:
    stage = Stage()
    stage.wait(0.6)
    stage.send("reset")
    last = stage.server.metas("env0")[-1]
    assert (last["episode"], last["episode_step"]) == (2, 0)
    stage.wait(0.6)
    assert stage.server.metas("env0")[-1]["episode_step"] == 1


def test_session_runs_at_these_speeds() -> None:
    stage = Stage(speed=2.0)
    for name, value, speed in [
        ("faster", None, 4.0),
        ("slower", None, 2.0),
        ("speed", 5, 5.0),
        ("speed", 1e9, FASTEST),
    ]:
        stage.send(name, value)
        assert stage.server.shown["speed"] == speed
    stage.send("speed", 1e-9)
    assert stage.server.shown["speed"] == SLOWEST


@pytest.mark.parametrize(("name", "value"), [("speed", None), ("speed", "2"), ("speed", -1), ("format_disk", None)])
def test_session_ignores_commands_that_cannot_be_done(name: str, value: object) -> None:
    stage = Stage(speed=2.0)
    stage.send(name, value)
    assert stage.server.shown["speed"] == 2.0
    stage.wait(0.6)
    assert stage.steps == [1, 2]


def test_the_page_is_told_what_can_be_asked_for() -> None:
    shown = Stage().server.shown
    assert shown == {
        "paused": False,
        "speed": 2.0,
        "commands": ["pause", "resume", "step", "reset", "slower", "faster"],
        "curve_axis": "episode",
    }


def test_session_logs_a_point_for_each_episode() -> None:
    stage = Stage(speed=50.0)
    while len(stage.server.logged) < 2:
        stage.wait(0.1)
    (first, values), (second, _) = stage.server.logged[:2]
    assert (first, second) == (1, 2)
    assert values.keys() == {"episode/return", "episode/utilization"}
    assert 0 < values["episode/utilization"] <= 1
    last = next(meta for name, meta in stage.server.ended if name == "env0")
    assert values["episode/utilization"] == last["utilization"]


def test_session_logs_no_point_for_running_episodes() -> None:
    stage = Stage(num_envs=3, watched=())
    stage.session.log_episodes(torch.tensor([False, False, False]))
    assert stage.server.logged == []
    stage.session.log_episodes(torch.tensor([True, False, True]))
    assert [step for step, _ in stage.server.logged] == [1, 2]


def test_session_ends_when_it_is_told() -> None:
    stage, stop = Stage(), threading.Event()
    stop.set()
    stage.session.run(stop)
    assert stage.steps == []
