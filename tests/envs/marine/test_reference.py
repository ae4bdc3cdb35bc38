"""The reference by hand and by laws, so that it cannot be wrong in company."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.envs.marine.reference import Robot, World2, World3


def at(x: float, y: float, heading: float = 0.0, **more: object) -> Robot:
    return Robot(np.array([x, y]), np.array([100.0, 0.0]), heading, **more)  # type: ignore[arg-type]


def test_a_unicycle_by_hand() -> None:
    # From rest at full acceleration the speed after k substeps is 2 (1 − 0.99^k), and the way is the sum of the speeds
    # before each times 0.05: 0.1 · (10 − (1 − 0.99¹⁰) / 0.01) = 0.0438 m.
    robot = at(0, 0)
    World2([robot], [], []).move(robot, 7)
    assert robot.speed == pytest.approx(2 * (1 - 0.99**10))
    assert robot.place[0] == pytest.approx(0.1 * (10 - (1 - 0.99**10) / 0.01))
    assert robot.velocity[0] == pytest.approx(robot.speed)
    assert robot.energy == 1
    World2([robot], [], []).move(robot, 8)
    assert robot.heading == pytest.approx(math.pi / 12)  # half a second at π/6
    assert robot.energy == 3


def test_a_vessel_by_hand() -> None:
    # Both thrusters by 1000 N/s for half a second: 500 N each, at once. Straight ahead there is but one equation,
    # 380 u̇ = 1000 − (100 + 150 u) u, in steps of 0.05 s.
    robot = at(0, 0)
    world = World3([robot], [], [])
    world.move(robot, np.array([1.0, 1.0]))
    assert robot.thrust.tolist() == [500, 500]
    u = 0.0
    for _ in range(10):
        u += (1000 - (100 + 150 * u) * u) / 380 * 0.05
    assert robot.velocity[0] == pytest.approx(u)
    assert robot.velocity[1:].tolist() == [0, 0]
    assert robot.energy == 500
    world.move(robot, np.array([-1.0, 1.0]))
    world.move(robot, np.array([-1.0, 1.0]))
    assert robot.thrust.tolist() == [-500, 1000]
    assert robot.velocity[2] < 0  # the right one pushes: to port, and yaw is clockwise


def test_a_vessel_reaches_its_steady_speed() -> None:
    # 2000 N against (100 + 150 u) u: u = (−100 + √(100² + 4 · 150 · 2000)) / 300 = 3.333 m/s.
    robot = at(0, 0)
    world = World3([robot], [], [])
    for _ in range(60):
        world.move(robot, np.array([1.0, 1.0]))
    assert robot.velocity[0] == pytest.approx((-100 + math.sqrt(100**2 + 600 * 2000)) / 300, abs=1e-4)


def test_a_vessel_turns_as_fast_as_the_released_one() -> None:
    # Full differential thrust turns the released vessel at 0.981457 rad/s, measured by running it. By hand, without
    # sway: 1500 N on an arm of 1.25 m against both drags of turning, 1875 = 980 r + 950 r², which is 1% off.
    robot = at(0, 0)
    world = World3([robot], [], [])
    for _ in range(100):
        world.move(robot, np.array([1.0, -1.0]))
    assert robot.thrust.tolist() == [1000, -500]
    assert robot.velocity[2] == pytest.approx(0.981457, abs=5e-7)
    assert robot.velocity[2] == pytest.approx((-980 + math.sqrt(980**2 + 4 * 950 * 1875)) / 1900, rel=0.01)
