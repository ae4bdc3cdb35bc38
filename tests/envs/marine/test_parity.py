"""Steps of the environment in float64 against the reference.

The reference plays each world by itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.envs.marine.reference import Robot, World, World2, World3
from tests.envs.marine.settings import SETTINGS, acted, marine, robots_of, some_action
from tests.envs.marine.worlds import noise_of, vector_of, world_of
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.marine.types import PLACE

# Metres, after sixty actions of ten substeps.
NEAR = 1e-9


# The first plays below, and two differ from others in numbers alone.
@pytest.mark.parametrize("setting", sorted({*SETTINGS} - {"v2", "v2, most", "v3, curriculum"}))
def test_steps_are_those_of_the_reference(setting: str) -> None:
    num_envs = 3 if "v2" in setting else 2
    if "curriculum" in setting:
        num_envs = 6
    env = marine(setting, num_envs=num_envs, dtype="float64")
    begin_everywhere(env)
    # Until some robot has ended.
    steps = 60 if env.flat else 24
    if setting == "v2, no obstacles":
        steps = 35
    ends = play_both(env, steps)
    assert ends["arrived"] + ends["collided"] >= 1


@pytest.mark.parametrize("setting", ["v2", "v3, as released"])
def test_so_are_the_ends_by_time_and_by_a_collision(setting: str) -> None:
    env = marine(setting, num_envs=3, dtype="float64", max_steps=10, end_on_collision=True)
    ends = play_both(env, 12)
    assert ends["truncated"] >= 3
    assert ends["over"] == 3


def test_every_kind_of_end_is_compared() -> None:
    ends = play_both(marine("v2", num_envs=6, dtype="float64"), 60)
    assert min(ends["arrived"], ends["collided"]) >= 3


def begin_everywhere(env: MarineNavEnv) -> None:
    if len(env.levels) > 1:
        env.assign_levels([i % len(env.levels) for i in range(env.num_envs)])


def play_both(env: MarineNavEnv, steps: int) -> dict[str, int]:
    """Compare every step until each world's episode is over.

    Returns:
        How many robots ended in which way, and how many episodes ended.
    """
    generator = torch.Generator().manual_seed(0)
    current = env.reset()
    worlds = [world_of(env, n) for n in range(env.num_envs)]
    if env.draw_errors(env.state.key, env.state.step_count) is None:
        for n, world in enumerate(worlds):
            compare_views(env, current, n, world.look())
    over = [False] * env.num_envs
    ends = dict.fromkeys(("arrived", "collided", "truncated", "over"), 0)
    for _ in range(steps):
        action = some_action(env, current, generator)
        noise = env.draw_errors(env.state.key, env.state.step_count + 1) if env.version == "v3" else None
        step = env.step(acted(env, current, action))
        for n, world in enumerate(worlds):
            if not over[n]:
                result = world.step(list(action[n].numpy()), noise_of(env, world, n, noise))
                compare(env, step["next"], n, world, result)
                over[n] = result["done"]
                ends["truncated"] += sum(result["truncated"])
        current = step["next"].exclude("reward", ("robots", "reward"))
    for world in worlds:
        ends["arrived"] += sum(robot.arrived for robot in world.robots)
        ends["collided"] += sum(robot.collided for robot in world.robots)
    return ends | {"over": sum(over)}


def compare(env: MarineNavEnv, seen: Any, n: int, world: World, result: dict[str, Any]) -> None:
    got = {key: value[n] for key, value in robots_of(env, seen).items()}
    for i, robot in enumerate(world.robots):
        if robot.present:
            assert np.abs(env.state.motion[PLACE, i, n].numpy() - robot.place).max() < NEAR
        assert got["reward"][i, 0] == pytest.approx(result["rewards"][i], abs=NEAR)
        assert got["energy"][i, 0] == pytest.approx(robot.energy, rel=1e-12)
        flags = {"active": robot.active, "arrived": robot.arrived, "collided": robot.collided}
        if not env.flat:
            flags |= {key: result[key][i] for key in ("terminated", "truncated")}
            flags["done"] = flags["terminated"] or flags["truncated"]
        assert {key: bool(got[key][i, 0]) for key in flags} == flags
    root = {"done": "done", "terminated": "all_terminated", "truncated": "all_truncated", "success": "success"}
    assert {key: bool(seen[key][n]) for key in root} == {key: result[name] for key, name in root.items()}
    assert int(seen["episode_step"][n]) == world.steps
    compare_views(env, seen, n, result["seen"])


def compare_views(env: MarineNavEnv, seen: Any, n: int, views: list[object]) -> None:
    got = robots_of(env, seen)
    for i, view in enumerate(views):
        observation, mask = got["observation"][n, i], got["object_mask"][n, i]
        if view is None:
            assert not observation.any()
            assert not mask.any()
            continue
        vector, there = vector_of(env, view)
        assert mask.tolist() == there
        assert np.abs(observation.numpy() - vector).max() < 1e-8
        assert got["clearance"][n, i, 0] == pytest.approx(view.clearance, abs=1e-8)


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
    # Half a second at π/6.
    assert robot.heading == pytest.approx(math.pi / 12)
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
    # The right thruster pushes to port, and yaw is clockwise.
    assert robot.velocity[2] < 0


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
