"""Worlds to watch: metrics and pictures, which change nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.envs.marine.settings import acted, homing_action, marine, play
from torchrl_gpu.envs.marine.viewable import ViewableMarine
from torchrl_gpu.envs.viewable import Spatial, Viewable, viewable


@pytest.mark.parametrize("setting", ["v2", "v3, curriculum"])
def test_figures_are_those_of_the_running_episode(setting: str) -> None:
    env = marine(setting, num_envs=4)
    shown = viewable(env)
    assert isinstance(shown, Viewable)
    assert shown.num_envs == 4
    seen, _ = play(env, 7)
    metrics = shown.metrics()
    assert {value.shape for value in metrics.values()} == {(4,)}
    assert metrics["step"].tolist() == [7] * 4
    assert metrics["episode"].tolist() == [1] * 4
    robots = seen[0]["robots", "active"].sum(1)[:, 0]
    expected = sum(step["next", "robots", "reward"].sum((1, 2)) for step in seen) / robots
    assert torch.allclose(metrics["return"], expected, atol=1e-4)
    assert torch.equal(metrics["active"] + metrics["arrived"] + metrics["collided"], robots)


def test_pictures_change_nothing_and_join_the_places_seen() -> None:
    env, twin = marine("v2", num_envs=3, max_steps=20), marine("v2", num_envs=3, max_steps=20)
    shown = ViewableMarine(env)
    current = env.reset()
    first = shown.pictures([0, 2], 120, 90)
    assert first.shape == (2, 90, 120, 3)
    assert first.dtype == np.uint8
    for _ in range(10):
        current = env.step_and_maybe_reset(acted(env, current, homing_action(env, current)))[1]
    later, fresh = shown.pictures([0], 120, 90), ViewableMarine(env).pictures([0], 120, 90)
    assert (later != fresh).any()  # the trail
    for _ in range(10):  # into the next episode, which has none yet
        current = env.step_and_maybe_reset(acted(env, current, homing_action(env, current)))[1]
    assert np.array_equal(shown.pictures([0], 120, 90), ViewableMarine(env).pictures([0], 120, 90))
    again = twin.reset()
    for _ in range(20):
        again = twin.step_and_maybe_reset(acted(twin, again, homing_action(twin, again)))[1]
    assert all(torch.equal(value, twin.state_dict()[key]) for key, value in env.state_dict().items())


def test_shapes_are_where_the_robots_are() -> None:
    env = marine("v3", num_envs=2)
    play(env, 5)
    shown = viewable(env)
    assert isinstance(shown, Spatial)
    outline, *bodies = shown.shapes(1)
    assert (outline.kind, outline.size[0]) == ("outline", env.craft.side)
    robots = [body for body in bodies if body.kind == "cuboid"]
    exists = env.state.exists[:, 1]
    assert len(robots) == int(exists.sum())
    motion = env.state.motion[:, exists, 1].double()
    np.testing.assert_allclose([robot.center[:2] for robot in robots], motion[:2].t())
    turns = [2 * np.arctan2(robot.quaternion[3], robot.quaternion[0]) for robot in robots]
    np.testing.assert_allclose(np.exp(1j * np.array(turns)), np.exp(1j * motion[2].numpy()), atol=1e-6)
    discs = [body for body in bodies if body.kind == "cylinder"]
    there = env.scene.obstacle[0, :, 1] < 1e4
    assert len(discs) == len(robots) + int(there.sum())
