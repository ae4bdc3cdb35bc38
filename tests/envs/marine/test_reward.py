"""Rewards and ends by hand, one robot of every fate beside the others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs.marine.reference import Robot, World3
from torchrl_gpu.envs.marine.reward import RULE_REWARD, Outcome, distance, rewards_and_ends, starboard_turn
from torchrl_gpu.envs.marine.types import CRAFTS, PLACE, MarineState, Scene

LATE, EARLY = torch.tensor([True]), torch.tensor([False])


def column(*values: object) -> Tensor:
    return torch.tensor(values)[:, None]


def before(active: Tensor, place: Tensor) -> MarineState:
    """A state of which only places and activity count."""
    none = torch.empty(0)
    motion = torch.zeros(8, *active.shape)
    motion[PLACE] = place
    fields = {name: none for name in MarineState.__dataclass_fields__}
    flags = {"exists": torch.ones_like(active), "arrived": torch.zeros_like(active), "collided": ~active}
    return MarineState(**fields | flags | {"motion": motion, "active": active})


def outcome(cut: Tensor = EARLY, end_on_collision: bool = False, cut_is_end: bool = False, **how: object) -> Outcome:
    """Five robots, whose goals are at (0, 0).

    One is still on its way, one arrives, one collides, one does both, and one has collided before.
    """
    active = column(True, True, True, True, False)
    place = torch.stack((column(10.0, 3.0, 10.0, 3.0, 10.0), torch.zeros(5, 1)))
    start = before(active, place)
    motion = start.motion.clone()
    motion[PLACE, :4] = place[:, :4] - torch.tensor([1.5, 0.0])[:, None, None]
    none = torch.empty(2, 0, 1, 1)
    scene = Scene(torch.zeros(2, 5, 1), none, none[0], none[:, :, 0], none[0, :, 0])
    assert distance(start.motion, scene)[:, 0].tolist() == [10, 3, 10, 3, 10]
    return rewards_and_ends(
        start,
        motion,
        scene,
        CRAFTS["v2"],
        touches=column(False, False, True, True, True),
        turn=how.get("turn"),
        cut=cut,
        end_on_collision=end_on_collision,
        cut_is_end=cut_is_end,
    )


def rows(flags: Tensor) -> list[bool]:
    return flags[:, 0].tolist()


def test_what_each_one_gets() -> None:
    # 1.5 m nearer and −1 for the time; +100 for arriving, −50 for colliding, which goes before arriving.
    result = outcome()
    assert result.reward[:, 0].tolist() == [0.5, 100.5, -49.5, -49.5, 0]
    assert rows(result.arrived) == [False, True, False, False, False]
    assert rows(result.collided) == [False, False, True, True, True]
    assert rows(result.active) == [True, False, False, False, False]
    assert rows(result.terminated) == [False, True, True, True, True]
    assert not result.truncated.any()
    assert not result.over
    assert not result.cut
    assert not result.decided


def test_the_time_limit_goes_before_everything() -> None:
    result = outcome(cut=LATE)
    assert result.reward[:, 0].tolist() == [0.5, 0.5, 0.5, 0.5, 0]
    assert not result.arrived.any()
    assert rows(result.collided) == [False, False, False, False, True]
    assert rows(result.truncated) == [True, True, True, True, False]
    assert rows(result.terminated) == [False, False, False, False, True]
    assert (result.over, result.cut, result.decided) == (True, True, False)


def test_it_may_be_reported_as_an_end() -> None:
    result = outcome(cut=LATE, cut_is_end=True)
    assert rows(result.terminated) == [True] * 5
    assert (result.over, result.cut, result.decided) == (True, True, True)
    assert outcome(cut_is_end=True).terminated.sum() == 4


def test_a_collision_may_end_it_for_all() -> None:
    result = outcome(end_on_collision=True)
    assert (result.over, result.cut, result.decided) == (True, False, True)
    assert rows(result.truncated) == [True, False, False, False, False]
    assert rows(result.terminated) == [False, True, True, True, True]


def test_a_turn_that_a_rule_asks_for_costs_by_its_angle() -> None:
    turn = column(0.5, 0.0, 1.0, 0.0, 2.0)
    difference = outcome(turn=turn).reward - outcome().reward
    assert RULE_REWARD == -0.1
    assert difference[:, 0].tolist() == pytest.approx([-0.05, 0, -0.1, 0, 0], abs=1e-5)


RADIUS = CRAFTS["v3"].radius


def turn(own: tuple[float, float], *objects: tuple[float, float, float, float, float]) -> float:
    velocity = torch.tensor(own).double()[None, :, None]
    return starboard_turn(velocity, torch.tensor(objects).double()[None, :, :, None], RADIUS).item()


def test_head_on_by_hand() -> None:
    tangent = math.sqrt(100 - (RADIUS + 1) ** 2)
    expected = math.asin((RADIUS + 1) / 10) + math.atan2(RADIUS, tangent)
    assert turn((1, 0), (10, 0, -1, 0, RADIUS)) == pytest.approx(expected)
    # Too far ahead, to one side, one that stands still, and for a robot that does.
    assert turn((1, 0), (17.1, 0, -1, 0, RADIUS)) == 0
    assert turn((1, 0), (10, 4.6, -1, 0, RADIUS)) == 0
    assert turn((1, 0), (10, 0, -0.49, 0, RADIUS)) == 0
    assert turn((0.49, 0), (10, 0, -1, 0, RADIUS)) == 0


def test_the_nearest_that_a_rule_holds_for_counts() -> None:
    still = (3.0, 3.0, 0.0, 0.0, 1.0)
    ahead = (10.0, 0.0, -1.0, 0.0, RADIUS)
    later = (14.0, 0.0, -1.0, 0.0, RADIUS)
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
