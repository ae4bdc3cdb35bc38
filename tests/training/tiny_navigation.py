"""A navigation run that takes a second.

Four worlds for two robots, short episodes, each of the six agents.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.policies.packing.packer_scenes import narrow, solids_env
from tests.training.tiny import with_replay
from torchrl_gpu.envs import MarineNavEnv, PackingEnv
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
from torchrl_gpu.policies.packing import PackerNetworks
from torchrl_gpu.policies.packing.hierarchical.views import ItemViews
from torchrl_gpu.training import HierarchicalPacking, NavigationWorlds, OffPolicy

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
    version = "v2" if name in DISCRETE else "v3"
    options = {"n_steps": 3, "targets": SoftTargets(0.1), **(agent or {})}
    return OffPolicy(
        marine_env(version, **(env or {})),
        partial(AGENTS[name], **options),
        partial(torch.optim.Adam, lr=1e-3),
        **with_replay(arguments | changes),
    )


def worlds(**changes: Any) -> NavigationWorlds:
    small = {"steps_per_epoch": 3, "worlds_per_level": 2, "val_worlds_per_level": 2, "pictures": False, "batch_size": 4}
    return NavigationWorlds(**small | {"test_levels": "own", "val_levels": "own", "max_steps": 12} | changes)  # type: ignore[arg-type]


def short_env(num_envs: int = 3, **changes: Any) -> PackingEnv:
    return solids_env(num_envs, **{"num_items": 4, "visible_items": 3, **changes})


def tiny_networks() -> PackerNetworks:
    """A narrow worker, and a manager that is no ResNet.

    A checkpoint of a ResNet has eleven million weights.
    """
    networks = narrow()
    torch.manual_seed(5)
    seen = nn.Conv2d(ItemViews.num_views, 4, 3, 2)
    layers = [seen, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1), nn.Flatten(0)]
    networks.manager = nn.Sequential(*layers)
    return networks


def hierarchical(*, env: dict[str, Any] | None = None, **changes: Any) -> HierarchicalPacking:
    periods: dict[str, Any] = {"worker_updates": 4, "manager_period": 2, "rollout_steps": 2, "updates_per_step": 2}
    sizes: dict[str, Any] = {"batch_size": 6, "capacity": 90, "warmup_frames": 18, "n_steps": 4}
    adam = partial(torch.optim.Adam, lr=1e-3)
    return HierarchicalPacking(
        short_env(**(env or {})), tiny_networks(), adam, **with_replay(periods | sizes | changes)
    )
