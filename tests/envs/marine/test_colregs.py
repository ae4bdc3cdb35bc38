"""The rules of the road, beside the reference and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.envs.marine.reference import Robot, World3
from torchrl_gpu.envs.marine.colregs import starboard_turn
from torchrl_gpu.envs.marine.types import CRAFTS

RADIUS = CRAFTS["v3"].radius


def turn(own: tuple[float, float], *objects: tuple[float, float, float, float, float]) -> float:
    velocity = torch.tensor(own).double()[None, :, None]
    return starboard_turn(velocity, torch.tensor(objects).double()[None, :, :, None], RADIUS).item()


def test_head_on_by_hand() -> None:
    tangent = math.sqrt(100 - (RADIUS + 1) ** 2)
    expected = math.asin((RADIUS + 1) / 10) + math.atan2(RADIUS, tangent)
    assert turn((1, 0), (10, 0, -1, 0, RADIUS)) == pytest.approx(expected)
    assert turn((1, 0), (17.1, 0, -1, 0, RADIUS)) == 0  # too far ahead
    assert turn((1, 0), (10, 4.6, -1, 0, RADIUS)) == 0  # to one side
    assert turn((1, 0), (10, 0, -0.49, 0, RADIUS)) == 0  # it stands still …
    assert turn((0.49, 0), (10, 0, -1, 0, RADIUS)) == 0  # … or this one does


def test_the_nearest_that_a_rule_holds_for_counts() -> None:
    still, ahead, later = (3.0, 3.0, 0.0, 0.0, 1.0), (10.0, 0.0, -1.0, 0.0, RADIUS), (14.0, 0.0, -1.0, 0.0, RADIUS)
    assert turn((1, 0), still, ahead, later) == turn((1, 0), ahead)
    assert turn((1, 0), still, later, ahead) == turn((1, 0), later) != turn((1, 0), ahead)


def test_thousands_of_meetings_are_judged_as_by_the_reference() -> None:
    rng = np.random.default_rng(0)
    places = rng.uniform(-18, 18, (3000, 2))
    velocities, own = rng.uniform(-1.5, 1.5, (2, 3000, 2))
    radii = rng.uniform(0.5, 3.5, 3000)
    world = World3([Robot(np.zeros(2), np.zeros(2), 0.0)], [], [])
    expected = [world.rule_angle(p, v, r, o) for p, v, r, o in zip(places, velocities, radii, own, strict=True)]
    objects = torch.from_numpy(np.concatenate([places, velocities, radii[:, None]], 1)).t()[None, None]
    got = starboard_turn(torch.from_numpy(own).t()[None].contiguous(), objects.contiguous(), RADIUS)[0]
    assert got.numpy() == pytest.approx(expected, abs=1e-12)
    assert (got > 0).sum() > 100
    assert (got <= math.pi).all()
