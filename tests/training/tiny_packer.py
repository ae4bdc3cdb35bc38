"""A hierarchical packing run that takes a second: 3 bins of 20×20 cells, episodes of 4 items, a small manager."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.policies.packing.packer_scenes import narrow, solids_env
from tests.training.tiny import with_replay
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.packing import PackerNetworks
from torchrl_gpu.policies.packing.hierarchical.views import ItemViews
from torchrl_gpu.training import HierarchicalPacking


def short_env(num_envs: int = 3, **changes: Any) -> PackingEnv:
    return solids_env(num_envs, **{"num_items": 4, "visible_items": 3, **changes})


def tiny_networks() -> PackerNetworks:
    """A narrow worker, and a manager that is no ResNet: a checkpoint of that has eleven million weights."""
    networks = narrow()
    torch.manual_seed(5)
    seen = nn.Conv2d(ItemViews.num_views, 4, 3, 2)
    layers = [seen, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1), nn.Flatten(0)]
    networks.manager = nn.Sequential(*layers)
    return networks


def module(*, env: dict[str, Any] | None = None, **changes: Any) -> HierarchicalPacking:
    periods: dict[str, Any] = {"worker_updates": 4, "manager_period": 2, "rollout_steps": 2, "updates_per_step": 2}
    sizes: dict[str, Any] = {"batch_size": 6, "capacity": 90, "warmup_frames": 18, "n_steps": 4}
    adam = partial(torch.optim.Adam, lr=1e-3)
    return HierarchicalPacking(
        short_env(**(env or {})), tiny_networks(), adam, **with_replay(periods | sizes | changes)
    )
