"""TorchRL specs of `MarineNavEnv`."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded

from torchrl_gpu.envs.base import DONE_KEYS
from torchrl_gpu.envs.marine.types import Craft

GROUP = "robots"


def make_specs(
    craft: Craft, shape: tuple[int, ...], *, discrete: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Composite, Composite, Composite, Composite]:
    """Specs of observation, action, reward and done of N worlds of R robots, (N, R); of one without its group, (N,)."""
    num_envs, flat = shape[0], len(shape) == 1

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
    return (
        nested(robots, {"episode_step": count, "level": count.clone(), "success": over}),
        nested({"action": action}, {}),
        nested({"reward": number(1)}, {}),
        nested({} if flat else {key: flag(1) for key in DONE_KEYS}, done),
    )
