"""TorchRL specs of `MarineNavEnv`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded

from torchrl_gpu.envs.base import DONE_KEYS
from torchrl_gpu.envs.marine.types import Craft

GROUP = "robots"


class Specs(NamedTuple):
    """The four specs that TorchRL requires of an environment."""

    observation: Composite
    action: Composite
    reward: Composite
    done: Composite


def make_specs(
    craft: Craft,
    num_envs: int,
    num_robots: int,
    *,
    discrete: bool,
    flat: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Specs:
    """Specs of N worlds of R robots; without the group where there is but one robot and it is `flat`."""
    shape = (num_envs,) if flat else (num_envs, num_robots)

    def flag(size: int) -> Binary:
        return Binary(size, (*shape, size), device=device, dtype=torch.bool)

    def number(size: int) -> Unbounded:
        return Unbounded((*shape, size), device, dtype)

    def nested(robots: dict[str, Any], root: dict[str, Any]) -> Composite:
        if flat:
            return Composite(root | robots, shape=(num_envs,))
        return Composite(root | {GROUP: Composite(robots, shape=shape)}, shape=(num_envs,))

    robots: dict[str, Any] = {
        "observation": number(craft.observation_size),
        "object_mask": flag(craft.num_seen),
        **{name: flag(1) for name in ("active", "arrived", "collided")},
        **{name: number(1) for name in ("clearance", "energy")},
    }
    action: Any = Bounded(-1, 1, (*shape, 2), device=device, dtype=dtype)
    if discrete:
        robots["action_mask"] = flag(craft.num_actions)
        action = Categorical(craft.num_actions, shape=shape, device=device, dtype=torch.int64)
    count = Unbounded((num_envs, 1), device, torch.int64)
    over = Binary(1, (num_envs, 1), device=device, dtype=torch.bool)
    done = {key: over.clone() for key in DONE_KEYS}
    return Specs(
        observation=nested(robots, {"episode_step": count, "level": count.clone(), "success": over}),
        action=nested({"action": action}, {}),
        reward=nested({"reward": number(1)}, {}),
        done=nested({} if flat else {key: flag(1) for key in DONE_KEYS}, done),
    )
