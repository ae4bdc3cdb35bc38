"""Episodes that end are logged, each once."""

from __future__ import annotations

import torch

from tests.callbacks.fake_server import FakeServer
from tests.play.test_session import Stage
from tests.training.tiny import packing_env
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.play.episode_curves import EpisodeCurves


def test_each_episode_is_a_point() -> None:
    stage = Stage(speed=50.0)
    while len(stage.server.logged) < 2:
        stage.wait(0.1)
    (first, figures), (second, _) = stage.server.logged[:2]
    assert (first, second) == (1, 2)
    assert figures.keys() == {"episode/return", "episode/utilization"}
    assert 0 < figures["episode/utilization"] <= 1
    last = next(meta for name, meta in stage.server.ended if name == "env0")
    assert figures["episode/utilization"] == last["utilization"]


def test_those_that_go_on_are_none() -> None:
    env = packing_env(3)
    env.reset()
    server = FakeServer()
    curves = EpisodeCurves(server, viewable(env), env)
    curves.add(torch.tensor([False, False, False]))
    assert server.logged == []
    curves.add(torch.tensor([True, False, True]))
    assert [step for step, _ in server.logged] == [1, 2]
