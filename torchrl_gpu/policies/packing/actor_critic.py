"""Actor and critic networks for packing: the heads of `PlacementScores`, each on a trunk of its own."""

from __future__ import annotations

from typing import ClassVar, final

from torch import Tensor, nn

from torchrl_gpu.policies.packing.scores import PlacementScores, placement_planes, pooled
from torchrl_gpu.policies.spaces import AgentSpace


class _HalfOfScores(nn.Module):
    """One head of `PlacementScores` on a trunk of its own; arguments as there."""

    in_keys: ClassVar = PlacementScores.in_keys
    unused: ClassVar[str]  # the other head

    def __init__(self, space: AgentSpace, channels: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.trunk = PlacementScores(space, channels, blocks)
        delattr(self.trunk, self.unused)


@final
class PlacementLogits(_HalfOfScores):
    """PPO actor: a logit for every placement, all equal at first."""

    unused = "value"

    def forward(self, *observations: Tensor) -> Tensor:
        """Logits (…, A) float32 of the inputs of `PlacementScores`."""
        planes, legal, batch = placement_planes(self.trunk, *observations)
        return self.trunk.advantage(self.trunk.maps(planes)).float().reshape(*batch, legal.shape[-1])


@final
class PlacementValue(_HalfOfScores):
    """PPO critic: value of a bin with its visible items."""

    unused = "advantage"

    def forward(self, *observations: Tensor) -> Tensor:
        """Values (…, 1) float32 of the inputs of `PlacementScores`."""
        planes, legal, batch = placement_planes(self.trunk, *observations)
        maps = pooled(self.trunk.maps(planes)).unflatten(0, (len(legal), -1))
        return self.trunk.value(maps.mean(1)).float().reshape(*batch, 1)
