"""Small environments for the hierarchical packer, and states of them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ItemSequences, ItemSource, ProceduralSolids, RandomBoxes
from torchrl_gpu.envs.packing.items.source import EndlessSequences
from torchrl_gpu.envs.packing.items.voxels import heightmaps
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.policies.packing import PackerNetworks, RandomLegal

# The decoder of a small U-Net.
NARROW = (16, 8)


class Voxels(ItemSource):
    """Items given as voxels (A, B, C) bool."""

    boxes = False

    def __init__(self, *items: np.ndarray) -> None:
        self.items = list(items)

    def build(
        self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int
    ) -> tuple[Catalogue, ItemSequences]:
        catalogue = heightmaps(self.items, orientation_set(orientations, boxes=False), bin_)
        return catalogue, EndlessSequences(catalogue.num_items, num_items)


def voxels(shape: tuple[int, int, int], cells: list[tuple[int, int, int]]) -> np.ndarray:
    solid = np.zeros(shape, dtype=bool)
    solid[tuple(np.array(cells).T)] = True
    return solid


def solids_env(num_envs: int = 4, **changes: Any) -> PackingEnv:
    """Five irregular items to choose from, a bin of 20×20 cells and 7×7 places."""
    arguments: dict[str, Any] = {
        "bin_size": (0.20, 0.20, 0.16),
        "resolution": 20,
        "grid_step": 3,
        "items": ProceduralSolids(12, min_size=0.04, max_size=0.09, seed=2),
        "num_items": 12,
        "visible_items": 5,
        "orientations": "yaw",
        "order": "box",
        "reward": "objective",
        "include": ("z_map",),
        "device": "cpu",
        "seed": 4,
    }
    return PackingEnv(num_envs, **arguments | changes)


def boxes_env(num_envs: int = 4, **changes: Any) -> PackingEnv:
    """Three boxes to choose from, a bin of 8×7 cells."""
    arguments: dict[str, Any] = {
        "bin_size": (8.0, 7.0, 8.0),
        "resolution": (8, 7),
        "items": RandomBoxes(1, 4),
        "visible_items": 3,
        "orientations": "axis",
        "reward": "objective",
        "stability": "support",
    }
    return solids_env(num_envs, **{**arguments, "grid_step": 1, "num_items": 20, **changes})


ENVS = {"solids": solids_env, "boxes": boxes_env}


def random_states(env: PackingEnv, steps: int) -> TensorDictBase:
    """Return the observation after random legal actions.

    `steps` of them after a reset, and bins that end on the way start again.
    """
    torch.manual_seed(steps)
    policy, tensordict = RandomLegal(env), env.reset()
    for _ in range(steps):
        _, tensordict = env.step_and_maybe_reset(policy(tensordict))
    return tensordict


def variants_of(env: PackingEnv, item_id: Tensor) -> Tensor:
    """Every orientation (B, K·O) of items (B, K), as rows of the separated catalogue."""
    orientation = torch.arange(env.num_orientations)
    return torch.where(item_id[..., None] < 0, -1, item_id[..., None] * env.num_orientations + orientation).flatten(1)


def narrow(seed: int = 0) -> PackerNetworks:
    return copy.deepcopy(_narrow(seed))


def trained(seed: int = 0) -> PackerNetworks:
    """Small networks as if they had been trained: no weight is what it was."""
    return copy.deepcopy(_trained(seed))


# To draw eleven million weights takes longer than most tests.
@cache
def _narrow(seed: int) -> PackerNetworks:
    torch.manual_seed(seed)
    return PackerNetworks(channels=NARROW)


@cache
def _trained(seed: int) -> PackerNetworks:
    networks, generator = narrow(seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in networks.parameters():
            weight.add_(torch.empty_like(weight).normal_(0, 0.05, generator=generator))
        networks.slope.fill_(3.0)
        networks.box_slope.fill_(-2.0)
        networks.waste_slope.fill_(1.5)
    return networks
