"""Fully convolutional networks over all placements.

They give Q-values, the halves of an actor-critic, and distributions of the return.
"""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import relu
from torchrl.modules import NoisyLinear

from torchrl_gpu.policies.networks.quantile_embedding import TauEmbedding
from torchrl_gpu.policies.packing.features import PlacementFeatures
from torchrl_gpu.policies.packing.placements import join_batch
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments


class PlacementScores(nn.Module):
    """Q-values of all K·O·Gx·Gy placements: a state value plus advantages.

    The maps of every (item, orientation) go through one convolutional trunk, which ends in a map of advantages. Its
    blocks share what the whole map contains, so that each place knows of the others. Dueling: Wang et al. 2016, with
    the mean taken over legal actions only.

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
        width = 2 * channels
        first = nn.Linear(width, width)
        last = nn.Linear(width, 1)
        self.value = nn.Sequential(first, nn.ReLU(), last)
        nn.init.zeros_(self.advantage.weight)
        # Convolutions of few channels are faster with channels last, on CPUs and GPUs alike.
        self.to(memory_format=torch.channels_last)

    def forward(self, box_heightmap: Tensor, item_size: Tensor, z_map: Tensor, legal_mask: Tensor) -> Tensor:
        """Q-values (…, K·O·Gx·Gy) float32 of observations as in `PlacementFeatures`."""
        maps, legal, batch = self.maps(box_heightmap, item_size, z_map, legal_mask)
        return self.dueling(maps, legal).view(*batch, -1)

    def maps(self, *observations: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
        """Maps (B·J, C, Gx, Gy), legal actions (B, A) and batch shape of the inputs."""
        item_size = observations[1]
        batch = item_size.shape[:-3]
        flat = join_batch(observations, len(batch))
        maps = relu(self.stem(self.features(*flat).flatten(0, 1)))
        for block in self.blocks:
            maps = block(maps)
        return maps, flat[-1].flatten(1), batch

    def dueling(self, maps: Tensor, legal: Tensor) -> Tensor:
        """Q-values (B, A) float32 of maps (B·J, C, Gx, Gy) under legal actions (B, A)."""
        num = legal.shape[0]
        advantage = self.advantage(maps).reshape(num, -1).float()
        value = self.value(_pooled_items(maps, num)).float()  # (B, 1)
        # A row without a legal action has no mean; its values are never used.
        count = legal.sum(1, keepdim=True).clamp_min(1)
        mean = torch.where(legal, advantage, 0.0).sum(1, keepdim=True) / count
        return value + advantage - mean


class _Block(nn.Module):
    """Residual block of two convolutions, with features pooled over the whole map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.near = nn.Conv2d(channels, channels, 3, padding=1)
        self.far = nn.Linear(2 * channels, channels)
        self.out = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        # The order decides in which order gradients are added up, and so their last bits.
        near = self.near(maps)
        far = self.far(_pooled(maps))
        hidden = near + far[..., None, None]
        return relu(maps + self.out(relu(hidden)))


def _pooled(maps: Tensor) -> Tensor:
    """Mean and maximum over the map, (B, 2·C)."""
    cells = maps.flatten(-2)
    # Not `amax`, whose backward pass compares every cell with the maximum: a seventh of an update.
    mean = cells.mean(-1)
    highest = cells.max(-1).values
    return torch.cat([mean, highest], -1)


def _pooled_items(maps: Tensor, rows: int) -> Tensor:
    """Mean over the items of each row of their pooled maps (B·J, C, Gx, Gy), (B, 2·C)."""
    return _pooled(maps).unflatten(0, (rows, -1)).mean(1)


class _HalfOfScores(nn.Module):
    """One head of `PlacementScores` on a trunk of its own.

    Arguments are those of `PlacementScores`. `unused` names the other head.
    """

    in_keys: ClassVar = PlacementScores.in_keys
    unused: ClassVar[str]

    def __init__(self, space: AgentSpace, channels: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.trunk = PlacementScores(space, channels, blocks)
        # Weights without gradients would stop optimizers that are captured in a graph.
        delattr(self.trunk, self.unused)


@final
class PlacementLogits(_HalfOfScores):
    """PPO actor: logits (…, A) float32 of all placements, equal at first."""

    unused = "value"

    def forward(self, *observations: Tensor) -> Tensor:
        maps, legal, batch = self.trunk.maps(*observations)
        logits = self.trunk.advantage(maps).float()
        return logits.reshape(*batch, legal.shape[-1])


@final
class PlacementValue(_HalfOfScores):
    """PPO critic: values (…, 1) float32 of bins with their visible items."""

    unused = "advantage"

    def forward(self, *observations: Tensor) -> Tensor:
        maps, legal, batch = self.trunk.maps(*observations)
        pooled = _pooled_items(maps, len(legal))
        return self.trunk.value(pooled).float().reshape(*batch, 1)


@final
class PlacementQuantiles(nn.Module):
    """Quantiles for every placement, for `IQN`.

    The maps of `PlacementScores` are multiplied by features of τ. Arguments are those of `PlacementScores`.
    """

    in_keys: ClassVar = PlacementScores.in_keys

    def __init__(self, space: AgentSpace, channels: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.scores = PlacementScores(space, channels, blocks)
        self.taus = TauEmbedding(channels)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Quantiles (…, U, A) float32.

        Inputs are those of `PlacementScores`, followed by τ (…, U) or (U,).
        """
        *observations, taus = inputs
        maps, legal, batch = self.scores.maps(*observations)
        num = legal.shape[0]
        number = taus.shape[-1]
        # The trunk runs once for all τ, and only its maps are scaled.
        maps = maps.unflatten(0, (num, 1, -1))
        taus = taus.expand(*batch, number).reshape(num, number)
        scale = self.taus(taus)[:, :, None, :, None, None]
        shaped = (maps * scale).flatten(0, 2)
        legal = legal.repeat_interleave(number, 0, output_size=num * number)
        values = self.scores.dueling(shaped, legal)
        return values.view(*batch, number, -1)


@final
class PlacementAtoms(nn.Module):
    """Distributions over fixed values for every placement, for `Rainbow`.

    Dueling, with noisy last layers.

    Args:
        num_atoms: Number of values.
        sigma: Initial size of the noise.
        space, channels, blocks: As in `PlacementScores`.
    """

    in_keys: ClassVar = PlacementScores.in_keys

    def __init__(
        self, space: AgentSpace, num_atoms: int = 51, channels: int = 32, blocks: int = 2, sigma: float = 0.5
    ) -> None:
        super().__init__()
        arguments.whole("PlacementAtoms", "num_atoms", num_atoms, 2)
        arguments.number("PlacementAtoms", "sigma", sigma, 0)
        self.num_atoms = num_atoms
        self.trunk = PlacementScores(space, channels, blocks)
        for head in ("advantage", "value"):
            # Made, as the trunk makes it, and never used.
            setattr(self.trunk, head, nn.Identity())
        self.advantage = NoisyLinear(channels, num_atoms, std_init=sigma)
        self.value = NoisyLinear(2 * channels, num_atoms, std_init=sigma)

    def forward(self, *observations: Tensor) -> Tensor:
        """Logits (…, A, Z) float32 of the inputs of `PlacementScores`."""
        maps, legal, batch = self.trunk.maps(*observations)
        advantage = self.advantage(maps.movedim(1, -1)).float()
        advantage = advantage.reshape(legal.shape[0], -1, self.num_atoms)
        value = self.value(_pooled_items(maps, legal.shape[0])).float()
        count = legal.sum(1)[:, None].clamp_min(1)
        legal_advantage = torch.where(legal[..., None], advantage, 0.0)
        mean = legal_advantage.sum(1) / count
        logits = (value - mean)[:, None] + advantage
        return logits.view(*batch, -1, self.num_atoms)
