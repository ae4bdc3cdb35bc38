"""Environments of every kind by name, and random play.

Play is the same whatever they are wrapped in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import Bounded
from torchrl.envs import EnvBase

from tests.envs.marine import settings as sea
from tests.envs.packing import settings as bins
from torchrl_gpu.envs import DishwashingEnv, FromPixels

Policy = Callable[[TensorDictBase], TensorDictBase]


def dishes(observe_as: str, num_envs: int, **changes: object) -> DishwashingEnv | FromPixels:
    small = {"max_steps": 5, "frame_size": (16, 24), "clip_length": 3, "device": "cpu", "seed": 0}
    if observe_as == "pixels":
        return FromPixels(dishes("state", num_envs, **changes), clip_length=3, frame_size=(16, 24))
    return DishwashingEnv(num_envs, **{"observe_as": observe_as} | small | changes)  # type: ignore[arg-type]


def bin_packing(setting: str, num_envs: int, **changes: object) -> EnvBase:
    coarser = {"resolution": 10, "grid_step": 3} if setting == "irregular" else {}
    return bins.packing(setting, num_envs, **coarser | changes)


def marine(setting: str, num_envs: int, **changes: object) -> EnvBase:
    return sea.marine(setting, num_envs, **{"max_steps": 8} | changes)


MAKERS: dict[str, Callable[..., Any]] = {"packing": bin_packing, "marine": marine, "dishes": dishes}
PACKING, MARINE = [f"packing/{name}" for name in bins.SETTINGS], [f"marine/{name}" for name in sea.SETTINGS]
DISHES = ["dishes/state", "dishes/video", "dishes/pixels"]
SOME = [
    *("packing/three visible", "packing/cut anew"),
    *("packing/irregular, on its corners", "packing/irregular, on its support"),
    *("marine/v2, curriculum", "marine/v3", "marine/v2, one robot"),
    *DISHES,
]


def made(name: str, num_envs: int = 3, **changes: object) -> Any:
    room, _, setting = name.partition("/")
    return MAKERS[room](setting, num_envs, **changes)


def at_random(env: EnvBase, seed: int = 0) -> Policy:
    """Random actions, legal ones if there is a mask.

    Nothing is read back.
    """
    (key,) = env.action_keys
    mask_key = (*key[:-1], "action_mask") if isinstance(key, tuple) else "action_mask"
    spec, generator = env.full_action_spec[key], torch.Generator(env.device).manual_seed(seed)

    def act(tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get(mask_key, None)
        shape = spec.shape if mask is None else mask.shape
        number = torch.rand(shape, generator=generator, device=env.device, dtype=torch.float32)
        if mask is not None:
            return tensordict.set(key, (number * mask).argmax(-1))
        assert isinstance(spec, Bounded)
        return tensordict.set(key, (spec.space.low + number * (spec.space.high - spec.space.low)).to(spec.dtype))

    return act


def play(
    env: EnvBase, steps: int, seed: int = 0, start: TensorDictBase | None = None
) -> tuple[list[TensorDictBase], TensorDictBase]:
    """Random actions, with finished rows restarted.

    What each step observed and gave, and where it ended.
    """
    act = at_random(env, seed)
    current = env.reset() if start is None else start
    seen = []
    for _ in range(steps):
        step, current = env.step_and_maybe_reset(act(current))
        seen.append(step.clone())
    return seen, current


def assert_same_runs(first: list[TensorDictBase], second: list[TensorDictBase]) -> None:
    for one, other in zip(first, second, strict=True):
        bins.assert_same(one, other)
