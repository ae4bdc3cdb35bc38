"""A dueling, fully convolutional score for every placement."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from torchrl_gpu.policies.packing.features import PlacementFeatures
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments


class PlacementScores(nn.Module):
    """Q-values of all K·O·Gx·Gy placements: a state value plus the advantage of each place of a score map.

    The maps of every (item, orientation) go through one convolutional trunk; blocks exchange what the whole map has, so
    that each place knows of the others. Dueling: Wang et al. 2016, with the mean taken over legal actions only.

    Args:
        space: Gives the bin and the grid; the weights fit any other.
        channels: Width of the trunk.
        blocks: Residual blocks.
    """

    in_keys: ClassVar = ["box_heightmap", "item_size", "z_map", "legal_mask"]

    def __init__(self, space: AgentSpace, channels: int = 32, blocks: int = 2) -> None:
        super().__init__()
        arguments.whole("PlacementScores", "channels", channels, 1, 4096)
        arguments.whole("PlacementScores", "blocks", blocks, 0, 256)
        self.features = PlacementFeatures(space)
        self.stem = nn.Conv2d(self.features.num_planes, channels, 3, padding=1)
        self.blocks = nn.ModuleList(_Block(channels) for _ in range(blocks))
        self.advantage = nn.Conv2d(channels, 1, 1)
        self.value = nn.Sequential(nn.Linear(2 * channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, 1))
        nn.init.zeros_(self.advantage.weight)
        self.to(memory_format=torch.channels_last)

    def forward(self, box_heightmap: Tensor, item_size: Tensor, z_map: Tensor, legal_mask: Tensor) -> Tensor:
        """Q-values (…, K·O·Gx·Gy) float32 of observations of any batch shape, as in `PlacementFeatures`."""
        planes, legal, batch = placement_planes(self, box_heightmap, item_size, z_map, legal_mask)
        return self.dueling(self.maps(planes), legal).view(*batch, -1)

    def maps(self, planes: Tensor) -> Tensor:
        """Maps (B·J, C, Gx, Gy) of planes (B, J, P, Gx, Gy)."""
        maps = relu(self.stem(planes.flatten(0, 1)))
        for block in self.blocks:
            maps = block(maps)
        return maps

    def dueling(self, maps: Tensor, legal: Tensor) -> Tensor:
        """Q-values (B, A) float32 of maps (B·J, C, Gx, Gy) under legal actions (B, A)."""
        num = legal.shape[0]
        advantage = self.advantage(maps).reshape(num, -1).float()
        value = self.value(pooled(maps).unflatten(0, (num, -1)).mean(1)).float()  # (B, 1)
        count = legal.sum(1, keepdim=True).clamp_min(1)
        mean = torch.where(legal, advantage, 0.0).sum(1, keepdim=True) / count
        return value + advantage - mean


class _Block(nn.Module):
    """Residual block of two convolutions; features pooled over the whole map are added to the first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.near = nn.Conv2d(channels, channels, 3, padding=1)
        self.far = nn.Linear(2 * channels, channels)
        self.out = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        hidden = self.near(maps) + self.far(pooled(maps))[..., None, None]
        return relu(maps + self.out(relu(hidden)))


def placement_planes(scores: PlacementScores, *observations: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Planes (B, J, P, Gx, Gy), legal actions (B, A) and the batch shape of the inputs of `PlacementScores`."""
    heightmap, item_size, z_map, legal = observations
    batch = item_size.shape[:-3]
    legal = legal.reshape(-1, *legal.shape[-4:])
    heightmap, item_size = heightmap.reshape(-1, *heightmap.shape[-2:]), item_size.reshape(-1, *item_size.shape[-3:])
    return scores.features(heightmap, item_size, z_map.reshape(legal.shape), legal), legal.flatten(1), batch


def pooled(maps: Tensor) -> Tensor:
    """Mean and maximum over the map, (B, 2·C)."""
    return torch.cat([maps.mean((-2, -1)), maps.amax((-2, -1))], -1)
