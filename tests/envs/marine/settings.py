"""Environments that the tests of marine navigation share, and how they are played."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs import MarineNavEnv

SETTINGS: dict[str, dict[str, object]] = {}
SETTINGS["v2"] = {}
SETTINGS["v2, no obstacles"] = {"robots": 3, "cores": 4, "obstacles": 0, "min_distance": 30.0}
SETTINGS["v2, most"] = {"robots": 7, "cores": 8, "obstacles": 10}
SETTINGS["v2, curriculum"] = {"curriculum": "paper"}
SETTINGS["v2, one robot"] = {"robots": 1, "flat": True}
SETTINGS["v2, as released"] = {"upstream_compat": True}
SETTINGS["v3"] = {"version": "v3"}
SETTINGS["v3, discrete"] = {"version": "v3", "actions": "discrete"}
SETTINGS["v3, in currents"] = {"version": "v3", "robots": 4, "cores": 6, "obstacles": 3, "min_distance": 30.0}
SETTINGS["v3, true sensors"] = {"version": "v3", "sensor_noise": False}
SETTINGS["v3, curriculum"] = {"version": "v3", "curriculum": "paper"}
SETTINGS["v3, one robot"] = {"version": "v3", "robots": 1, "flat": True}
SETTINGS["v3, as released"] = {"version": "v3", "upstream_compat": True, "cores": 4}


def marine(setting: str = "v2", num_envs: int = 3, **changes: object) -> MarineNavEnv:
    arguments = {"device": "cpu", "seed": 0, "pool": 16} | SETTINGS[setting] | changes
    return MarineNavEnv(num_envs, **arguments)


def robots_of(env: MarineNavEnv, seen: TensorDictBase) -> dict[str, Tensor]:
    """The entries of the robots, (N, R, …), wherever they are."""
    if not env.flat:
        return dict(seen["robots"].items())
    return {key: value.unsqueeze(1) for key, value in seen.items() if isinstance(value, Tensor)}


def acted(env: MarineNavEnv, seen: TensorDictBase, action: Tensor) -> TensorDictBase:
    """`seen` with actions of all robots, (N, R) or (N, R, 2)."""
    if env.flat:
        return seen.set("action", action.squeeze(1))
    seen["robots", "action"] = action
    return seen


def random_action(env: MarineNavEnv, generator: torch.Generator) -> Tensor:
    size = env.num_envs, env.num_robots
    if env.num_actions:
        return torch.randint(env.num_actions, size, generator=generator)
    return torch.rand(*size, 2, generator=generator, dtype=env.dtype) * 2 - 1


def homing_action(env: MarineNavEnv, seen: TensorDictBase) -> Tensor:
    """Full ahead towards the goal, (N, R) int64 or (N, R, 2).

    It ignores everything else.
    """
    observation = robots_of(env, seen)["observation"]
    bearing = torch.atan2(observation[..., 1], observation[..., 0])
    if env.version == "v2":
        return 6 + torch.where(bearing > 0.1, 2, torch.where(bearing < -0.1, 0, 1))
    # Slow down the turn, and aim for half the thrust with a difference that turns towards the goal.
    wanted = (2 * bearing - 3 * observation[..., 4]).clamp(-1, 1) * 200
    left, right = 400 + wanted, 400 - wanted
    change = torch.stack((left - observation[..., 5], right - observation[..., 6]), -1) / 500
    if not env.num_actions:
        return change.clamp(-1, 1)
    levels = torch.tensor([0.0, -0.5, -1.0, 0.5, 1.0], dtype=change.dtype)
    nearest = (change.unsqueeze(-1) - levels).abs().argmin(-1)
    return nearest[..., 0] * 5 + nearest[..., 1]


def some_action(env: MarineNavEnv, seen: TensorDictBase, generator: torch.Generator) -> Tensor:
    """Homing in two environments of three, and random actions in the third.

    One action in ten is random anyway.
    """
    homing, drawn = homing_action(env, seen), random_action(env, generator)
    chance = torch.rand(homing.shape[:2], generator=generator) < 0.1
    chance[::3] = True
    return torch.where(chance if env.num_actions else chance.unsqueeze(-1), drawn, homing)


def play(
    env: MarineNavEnv, steps: int, seed: int = 0, start: TensorDictBase | None = None
) -> tuple[list[TensorDictBase], TensorDictBase]:
    """Some actions, with finished rows restarted.

    What each step observed and gave, and where it ended.
    """
    generator = torch.Generator().manual_seed(seed)
    current, seen = env.reset() if start is None else start, []
    for _ in range(steps):
        step, current = env.step_and_maybe_reset(acted(env, current, some_action(env, current, generator)))
        seen.append(step.clone())
    return seen, current
