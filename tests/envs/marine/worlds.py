"""Worlds of a batched environment, each by itself, as the reference plays them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from tests.envs.marine import reference
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.marine.types import HEADING, PLACE, SPEED

QUIRKS = (reference.LAGGED, reference.LATE, reference.TERMINAL)


def world_of(env: MarineNavEnv, index: int) -> reference.World:
    """The world of one environment that has just begun: places, headings, cores and obstacles, and nothing else."""
    scene, motion, exists = env.scene, env.state.motion, env.state.exists[:, index]
    robots = [
        reference.Robot(
            place=motion[PLACE, i, index].numpy().copy(),
            goal=scene.goal[:, i, index].numpy().copy(),
            heading=float(motion[HEADING, i, index]),
            speed=float(motion[SPEED, i, index]) if env.version == "v2" else 0.0,
            present=bool(exists[i]),
        )
        for i in range(env.num_robots)
    ]
    strengths = zip(scene.core[:, :, 0, index].T.numpy(), scene.circulation[:, 0, index].tolist(), strict=True)
    cores = [reference.Core(at.copy(), 2 * math.pi * abs(gamma), gamma > 0) for at, gamma in strengths if gamma]
    obstacles = [
        reference.Obstacle(scene.obstacle[:, m, index].numpy().copy(), float(scene.obstacle_radius[m, index]))
        for m in range(env.sizes.obstacles)
        if abs(float(scene.obstacle[0, m, index])) < 1e4
    ]
    make = reference.World2 if env.version == "v2" else reference.World3
    quirks = [quirk for quirk in QUIRKS if quirk in env.quirks]
    world = make(robots, cores, obstacles, env.max_steps, quirks, env.end_on_collision)
    world.begin(feel_current="still_start" not in env.quirks)
    return world


def noise_of(env: MarineNavEnv, world: reference.World, index: int, noise: Tensor | None) -> np.ndarray | None:
    """Errors (R, J, 5) as the reference wants them, for the objects that the world has, of (5, R, M + R, N)."""
    if noise is None:
        return None
    errors = noise[..., index].permute(1, 2, 0).numpy().copy()  # (R, M + R, 5)
    errors[..., 4] = (errors[..., 4] - 0.8) / 0.2 * math.pi
    there = [*range(len(world.obstacles)), *range(env.sizes.obstacles, env.sizes.obstacles + env.num_robots)]
    return errors[:, there]


def vector_of(env: MarineNavEnv, seen: reference.Seen) -> tuple[list[float], list[bool]]:
    kinds: list[tuple[list[Any], int]] = [(seen.objects, 5)]
    if env.version == "v2":
        kinds = [(seen.static, 3), (seen.objects, 4)]
    vector, mask = list(seen.own), []
    for objects, size in kinds:
        vector += [number for thing in objects for number in thing] + [0.0] * (size * (5 - len(objects)))
        mask += [True] * len(objects) + [False] * (5 - len(objects))
    return vector, mask
