"""TorchRL specs of `MarineNavEnv`."""

from __future__ import annotations

import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded

from torchrl_gpu.envs.base import DONE_KEYS
from torchrl_gpu.envs.marine.types import Craft

GROUP = "robots"


def make_specs(
    craft: Craft, shape: tuple[int, ...], *, discrete: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Composite, Composite, Composite, Composite]:
    """Return the specs of observation, action, reward and done.

    `shape` is (N, R) for N worlds of R robots in a group, or (N,) for worlds of one robot without its group.
    """
    num_envs = shape[0]
    flat = len(shape) == 1

    def flag(size: int) -> Binary:
        return Binary(size, (*shape, size), device=device, dtype=torch.bool)

    def number(size: int) -> Unbounded:
        return Unbounded((*shape, size), device, dtype)

    def nested(robots: dict[str, TensorSpec], root: dict[str, TensorSpec]) -> Composite:
        if flat:
            return Composite(root | robots, shape=(num_envs,))
        return Composite(root | {GROUP: Composite(robots, shape=shape)}, shape=(num_envs,))

    robots: dict[str, TensorSpec] = {
        "observation": number(craft.observation_size),
        "object_mask": flag(craft.num_seen),
        "active": flag(1),
        "arrived": flag(1),
        "collided": flag(1),
        "clearance": number(1),
        "energy": number(1),
    }
    action: TensorSpec = Bounded(-1, 1, (*shape, 2), device=device, dtype=dtype)
    if discrete:
        robots["action_mask"] = flag(craft.num_actions)
        action = Categorical(craft.num_actions, shape=shape, device=device, dtype=torch.int64)
    count = Unbounded((num_envs, 1), device, torch.int64)
    over = Binary(1, (num_envs, 1), device=device, dtype=torch.bool)
    world_done: dict[str, TensorSpec] = {key: over.clone() for key in DONE_KEYS}
    robot_done: dict[str, TensorSpec] = {} if flat else {key: flag(1) for key in DONE_KEYS}
    return (
        nested(robots, {"episode_step": count, "level": count.clone(), "success": over}),
        nested({"action": action}, {}),
        nested({"reward": number(1)}, {}),
        nested(robot_done, world_done),
    )
