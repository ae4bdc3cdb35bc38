"""A navigation run that takes a second: four worlds for two robots, short episodes, each of the six agents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.training.tiny import with_replay
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.policies import (
    ACIQN,
    DDPG,
    DQN,
    IQN,
    SAC,
    Agent,
    NavigationActor,
    NavigationAtoms,
    NavigationCritic,
    NavigationGaussian,
    NavigationQuantileCritic,
    NavigationQuantiles,
    NavigationScores,
    Rainbow,
    SoftTargets,
)
from torchrl_gpu.training import NavigationWorlds, OffPolicy

DISCRETE: dict[str, Callable[..., Agent]] = {
    "DQN": partial(DQN, network=NavigationScores),
    "Rainbow": partial(Rainbow, network=NavigationAtoms),
    "IQN": partial(IQN, network=NavigationQuantiles, num_taus=3, acting_taus=4),
}
CONTINUOUS: dict[str, Callable[..., Agent]] = {
    "DDPG": partial(DDPG, actor=NavigationActor, critic=NavigationCritic),
    "SAC": partial(SAC, actor=NavigationGaussian, critic=NavigationCritic, target_entropy=-2.0),
    "ACIQN": partial(ACIQN, actor=NavigationActor, critic=NavigationQuantileCritic, num_taus=3),
}
AGENTS = DISCRETE | CONTINUOUS

ROWS = [[0, 1, 1, 0, 5.0], [120, 2, 1, 1, 5.0]]


def marine_env(version: str = "v2", num_envs: int = 4, **changes: Any) -> MarineNavEnv:
    """Worlds of one robot, then of two, that are over after twelve actions."""
    arguments = {"version": version, "curriculum": ROWS, "max_steps": 12, "pool": 32, "device": "cpu", "seed": 4}
    return MarineNavEnv(num_envs, **arguments | changes)  # type: ignore[arg-type]


def navigation(
    name: str = "IQN", *, agent: dict[str, Any] | None = None, env: dict[str, Any] | None = None, **changes: Any
) -> OffPolicy:
    arguments: dict[str, Any] = {"batch_size": 16, "capacity": 400, "warmup_frames": 48}
    arguments |= {"rollout_steps": 2, "updates_per_step": 2}
    torch.manual_seed(7)
    return OffPolicy(
        marine_env("v2" if name in DISCRETE else "v3", **(env or {})),
        partial(AGENTS[name], **{"n_steps": 3, "targets": SoftTargets(0.1), **(agent or {})}),
        partial(torch.optim.Adam, lr=1e-3),
        **with_replay(arguments | changes),
    )


def worlds(**changes: Any) -> NavigationWorlds:
    small = {"steps_per_epoch": 3, "worlds_per_level": 2, "val_worlds_per_level": 2, "pictures": False, "batch_size": 4}
    return NavigationWorlds(**small | {"test_levels": "own", "val_levels": "own", "max_steps": 12} | changes)  # type: ignore[arg-type]
