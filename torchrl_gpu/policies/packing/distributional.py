"""Distributions of the return after every placement, for the agents that learn them."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torchrl.modules import NoisyLinear

from torchrl_gpu.policies.networks.quantile_embedding import TauEmbedding
from torchrl_gpu.policies.packing.scores import PlacementScores, placement_planes, pooled
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments


@final
class PlacementQuantiles(nn.Module):
    """Quantiles for every placement, for `IQN`: those of `PlacementScores`, whose maps are multiplied by features of τ.

    Args:
        space, channels, blocks: As in `PlacementScores`.
    """

    in_keys: ClassVar = PlacementScores.in_keys

    def __init__(self, space: AgentSpace, channels: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.scores = PlacementScores(space, channels, blocks)
        self.taus = TauEmbedding(channels)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Quantiles (…, U, A) float32 of the inputs of `PlacementScores`, followed by τ (…, U) or (U,)."""
        *observations, taus = inputs
        planes, legal, batch = placement_planes(self.scores, *observations)
        num, number = legal.shape[0], taus.shape[-1]
        maps = self.scores.maps(planes).unflatten(0, (num, 1, -1))  # (B, 1, J, C, Gx, Gy)
        scale = self.taus(taus.expand(*batch, number).reshape(num, number))  # (B, U, C)
        shaped = (maps * scale[:, :, None, :, None, None]).flatten(0, 2)
        values = self.scores.dueling(shaped, legal.repeat_interleave(number, 0, output_size=num * number))
        return values.view(*batch, number, -1)


@final
class PlacementAtoms(nn.Module):
    """Distributions over fixed values for every placement, for `Rainbow`: dueling, with noisy last layers.

    Args:
        num_atoms: Values.
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
            setattr(self.trunk, head, nn.Identity())  # made, and never used
        self.advantage = NoisyLinear(channels, num_atoms, std_init=sigma)
        self.value = NoisyLinear(2 * channels, num_atoms, std_init=sigma)

    def forward(self, *observations: Tensor) -> Tensor:
        """Logits (…, A, Z) float32 of the inputs of `PlacementScores`."""
        planes, legal, batch = placement_planes(self.trunk, *observations)
        maps = self.trunk.maps(planes)
        advantage = self.advantage(maps.movedim(1, -1)).float().reshape(legal.shape[0], -1, self.num_atoms)
        value = self.value(pooled(maps).unflatten(0, (legal.shape[0], -1)).mean(1)).float()
        count = legal.sum(1)[:, None].clamp_min(1)
        mean = torch.where(legal[..., None], advantage, 0.0).sum(1) / count
        return ((value - mean)[:, None] + advantage).view(*batch, -1, self.num_atoms)
