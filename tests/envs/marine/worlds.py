"""Worlds of a batched environment, each by itself, as the reference plays them."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from tests.envs.marine import reference
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.marine.types import HEADING, PLACE, SPEED

QUIRKS = (reference.LAGGED, reference.LATE, reference.TERMINAL)


def world_of(env: MarineNavEnv, index: int) -> reference.World:
    """The world of one environment that has just begun.

    Places, headings, cores and obstacles, and nothing else.
    """
    robots = [_robot_of(env, i, index) for i in range(env.num_robots)]
    scene = env.scene
    strengths = zip(scene.core[:, :, 0, index].T.numpy(), scene.circulation[:, 0, index].tolist(), strict=True)
    cores = [reference.Core(at.copy(), 2 * math.pi * abs(gamma), gamma > 0) for at, gamma in strengths if gamma]
    obstacles = []
    for m in range(env.sizes.obstacles):
        place = scene.obstacle[:, m, index].numpy().copy()
        # Those that a world does not have are far away.
        if abs(float(place[0])) < 1e4:
            obstacles.append(reference.Obstacle(place, float(scene.obstacle_radius[m, index])))
    make = reference.World2 if env.version == "v2" else reference.World3
    quirks = [quirk for quirk in QUIRKS if quirk in env.quirks]
    world = make(robots, cores, obstacles, env.max_steps, quirks, env.end_on_collision)
    world.begin(feel_current="still_start" not in env.quirks)
    return world


def _robot_of(env: MarineNavEnv, i: int, index: int) -> reference.Robot:
    motion = env.state.motion
    place = motion[PLACE, i, index].numpy().copy()
    goal = env.scene.goal[:, i, index].numpy().copy()
    heading = float(motion[HEADING, i, index])
    present = bool(env.state.exists[i, index])
    if env.version == "v3":
        return reference.Robot(place, goal, heading, present=present)
    return reference.Robot(place, goal, heading, speed=float(motion[SPEED, i, index]), present=present)


def noise_of(env: MarineNavEnv, world: reference.World, index: int, noise: Tensor | None) -> np.ndarray | None:
    """Errors (R, J, 5) in the form of the reference, from (5, R, M + R, N).

    They are those of the objects that the world has.
    """
    if noise is None:
        return None
    # Of all objects, (R, M + R, 5).
    errors = noise[..., index].permute(1, 2, 0).numpy().copy()
    errors[..., 4] = (errors[..., 4] - 0.8) / 0.2 * math.pi
    there = [*range(len(world.obstacles)), *range(env.sizes.obstacles, env.sizes.obstacles + env.num_robots)]
    return errors[:, there]


def vector_of(env: MarineNavEnv, seen: reference.Seen) -> tuple[list[float], list[bool]]:
    kinds: list[tuple[list[object], int]] = [(seen.objects, 5)]
    if env.version == "v2":
        kinds = [(seen.static, 3), (seen.objects, 4)]
    vector = list(seen.own)
    mask: list[bool] = []
    for objects, size in kinds:
        missing = 5 - len(objects)
        for thing in objects:
            vector += thing
        vector += [0.0] * (size * missing)
        mask += [True] * len(objects) + [False] * missing
    return vector, mask
