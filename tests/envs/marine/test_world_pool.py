"""Worlds looked up are the worlds drawn, with what their robots see first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchrl_gpu.envs.marine.dynamics import Unicycle
from torchrl_gpu.envs.marine.generator import Worlds, generate
from torchrl_gpu.envs.marine.levels import Level, Sizes
from torchrl_gpu.envs.marine.sensors import Sight, object_mask, observation, see_v2
from torchrl_gpu.envs.marine.types import CRAFTS, DRIFT, HEADING, PLACE, SPEED, VELOCITY, Scene
from torchrl_gpu.envs.marine.world_pool import Pool

LEVELS = (Level(0, 2, 3, 0, 30.0), Level(1, 4, 5, 6, 35.0))
CRAFT = CRAFTS["v2"]


def look(motion: Tensor, scene: Scene, there: Tensor) -> Sight:
    return see_v2(motion, scene, there, CRAFT)


@pytest.fixture
def worlds() -> Worlds:
    return generate(CRAFT, LEVELS, 8, 0, frozenset())


@pytest.fixture
def make(worlds: Worlds) -> Callable[[bool], Pool]:
    like = torch.empty(0, dtype=torch.float64)
    return lambda still: Pool(worlds, Unicycle(like), look, like, still)


def test_a_world_looked_up_is_the_world_drawn(worlds: Worlds, make: Callable[[bool], Pool]) -> None:
    number = torch.tensor([3, 12, 3, 15])
    begun = make(False).begin(number)
    scene = Scene.split(begun.scene, Sizes.of(LEVELS))
    assert torch.equal(begun.motion[PLACE].permute(2, 1, 0), worlds.start[number])
    assert torch.equal(begun.motion[HEADING].t(), worlds.heading[number])
    assert torch.equal(begun.motion[SPEED].t(), worlds.speed[number])
    assert torch.equal(scene.goal.permute(2, 1, 0), worlds.goal[number])
    assert torch.equal(scene.core[:, :, 0].permute(2, 1, 0), worlds.core[number])
    assert torch.equal(scene.circulation[:, 0].t(), worlds.circulation[number])
    assert torch.equal(scene.obstacle.permute(2, 1, 0), worlds.obstacle[number])
    assert (scene.obstacle_radius == 1).all()
    assert begun.exists.sum(0).tolist() == [2, 4, 2, 4]


def test_what_is_seen_first_is_what_would_be_seen(make: Callable[[bool], Pool]) -> None:
    begun = make(False).begin(torch.arange(16))
    scene, there = Scene.split(begun.scene, Sizes.of(LEVELS)), begun.exists.double()
    sight = look(begun.motion, scene, there)
    assert torch.equal(begun.observation, observation(sight))
    assert torch.equal(begun.object_mask, object_mask(sight))
    assert torch.equal(begun.clearance, sight.clearance)
    assert begun.observation[8:].any(-1).all()
    assert not begun.observation[:8, 2:].any()  # robots that the first level does not have


def test_a_start_may_leave_the_current_out(make: Callable[[bool], Pool]) -> None:
    number = torch.arange(8, 16)
    still, moved = (make(still).begin(number).motion for still in (True, False))
    assert torch.allclose(moved[VELOCITY] - still[VELOCITY], moved[DRIFT])
    assert torch.equal(still[DRIFT], moved[DRIFT])
    assert moved[DRIFT].abs().max() > 0.1
