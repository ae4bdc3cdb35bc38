"""The reference by hand and by laws, so that it cannot be wrong in company."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.envs.marine import reference
from tests.envs.marine.reference import Core, Obstacle, Robot, World2, World3


def at(x: float, y: float, heading: float = 0.0, **more: object) -> Robot:
    return Robot(np.array([x, y]), np.array([100.0, 0.0]), heading, **more)  # type: ignore[arg-type]


def test_a_current_by_hand() -> None:
    # Edge speed 6 m/s: G = 2π · 0.5 · 6. Two metres east of it the water runs at 6 · 0.5 / 2 = 1.5 m/s, southwards if
    # the core turns clockwise; a quarter of a metre west, inside, at 6 / 2 = 3 m/s, northwards.
    core = Core(np.array([10.0, 10.0]), 2 * math.pi * 0.5 * 6, True)
    assert reference.current(np.array([12.0, 10.0]), [core]) == pytest.approx([0, -1.5])
    assert reference.current(np.array([9.75, 10.0]), [core]) == pytest.approx([0, 3])
    core.clockwise = False
    assert reference.current(np.array([12.0, 10.0]), [core]) == pytest.approx([0, 1.5])
    assert reference.current(np.array([10.0, 10.0]), [core]) == pytest.approx([0, 0])


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


def test_a_lagged_velocity_is_that_before_the_last_substep() -> None:
    robot = at(0, 0)
    World2([robot], [], [], quirks=[reference.LAGGED]).move(robot, 7)
    assert robot.velocity[0] == pytest.approx(2 * (1 - 0.99**9))


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


def test_a_step_of_every_kind() -> None:
    # One reaches its goal, one hits an obstacle, one goes on. The way of the action is as above.
    home, crash, free = at(0, 0), at(0, 20), at(0, 40)
    home.goal, crash.goal, free.goal = np.array([2.01, 0.0]), np.array([50.0, 20.0]), np.array([50.0, 40.0])
    world = World2([home, crash, free], [], [Obstacle(np.array([1.8, 20.0]), 1.0)])
    world.begin()
    way = 0.1 * (10 - (1 - 0.99**10) / 0.01)
    result = world.step([7, 7, 7])
    assert result["rewards"] == pytest.approx([-1 + way + 100, -1 + way - 50, -1 + way])
    assert result["terminated"] == [True, True, False]
    assert (home.arrived, crash.collided, free.active) == (True, True, True)
    assert world.step([7, 7, 7])["rewards"][:2] == [0, 0]
    assert world.look()[2].objects == []  # who has arrived or collided is gone


def test_the_rule_of_the_road_by_hand() -> None:
    # Head on, 10 m apart, both at 1 m/s: pass to starboard of a circle of 2.795 + 1 m by one's own radius.
    world = World3([at(0, 0)], [], [])
    ahead, radius = np.array([10.0, 0.0]), world.radius
    tangent = math.sqrt(100 - (radius + 1) ** 2)
    expected = math.asin((radius + 1) / 10) + math.atan2(radius, tangent)
    own = np.array([1.0, 0.0])
    assert world.rule_angle(ahead, np.array([-1.0, 0.0]), radius, own) == pytest.approx(expected)
    assert world.rule_angle(ahead, np.array([1.0, 0.0]), radius, own) == 0  # it leads the same way
    assert world.rule_angle(ahead, np.array([-0.4, 0.0]), radius, own) == 0  # as good as still
    # From starboard (y > 0 is to the right): it crosses to the left, and sees this one on its port side.
    assert world.rule_angle(np.array([8.0, 3.0]), np.array([0.0, -1.0]), radius, own) > 0
    assert world.rule_angle(np.array([8.0, -3.0]), np.array([0.0, 1.0]), radius, own) == 0  # it gives way itself
