"""Actions out of unbounded numbers: two ways to squash them into bounds, with what that does to densities."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import softplus
from torchrl.envs.utils import ExplorationType, exploration_type

from torchrl_gpu.policies.spaces import in_keys

Squashing = Literal["tanh", "atan"]


@final
class Squash(nn.Module):
    """Maps real numbers into the bounds of an action, number by number.

    TorchRL's `TanhNormal` compares its bounds on the host at every construction; here they are buffers that are only
    computed with.

    Args:
        low: Smallest action, (D,).
        high: Largest action, (D,).
        kind: "tanh", or "atan" for (2/π)·atan.
    """

    def __init__(self, low: Tensor, high: Tensor, kind: Squashing = "tanh") -> None:
        super().__init__()
        if kind not in ("tanh", "atan"):
            raise ValueError(f"Squash: kind must be tanh or atan; got {kind!r}")
        self.kind = kind
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", low.clone())
        self.register_buffer("high", high.clone())

    def forward(self, z: Tensor) -> Tensor:
        """Actions (…, D) of real numbers (…, D)."""
        unit = torch.tanh(z) if self.kind == "tanh" else torch.atan(z) * (2 / math.pi)
        return self.low + (unit + 1) * (self.high - self.low) / 2

    def log_slope(self, z: Tensor) -> Tensor:
        """Logarithm of the derivative of the action, (…, D)."""
        if self.kind == "tanh":
            slope = 2 * (math.log(2) - z - softplus(-2 * z))  # log(1 − tanh²), finite however large z is
        else:
            slope = math.log(2 / math.pi) - torch.log1p(z.square())
        return slope + torch.log((self.high - self.low) / 2)


@final
class DeterministicActor(nn.Module):
    """An actor network whose outputs are squashed into the bounds.

    Args:
        network: `forward` takes the entries named by its `in_keys` and gives real numbers (…, D).
        squash: The bounds.
    """

    def __init__(self, network: nn.Module, squash: Squash) -> None:
        super().__init__()
        self.network, self.squash = network, squash
        self.in_keys = in_keys(network)

    def forward(self, *observed: Tensor) -> Tensor:
        """Actions (…, D) float32."""
        return self.squash(self.network(*observed))


@final
class GaussianActor(TensorDictModuleBase):
    """An actor that squashes a normal variable; sampled under `ExplorationType.RANDOM`, else at its mean.

    Args:
        network: `forward` takes the entries named by its `in_keys` and gives mean and log standard deviation, (…, D).
        squash: The bounds.
        always_sampled: Whether actions are sampled under any exploration type.
        tanh_density: Whether the density is that of tanh although the squashing is another: a defect, for comparison.
    """

    def __init__(
        self, network: nn.Module, squash: Squash, *, always_sampled: bool = False, tanh_density: bool = False
    ) -> None:
        super().__init__()
        self.network, self.squash = network, squash
        self.always_sampled, self.tanh_density = always_sampled, tanh_density
        self.in_keys, self.out_keys = in_keys(network), ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action` (…, D) float32."""
        if self.always_sampled or exploration_type() is ExplorationType.RANDOM:
            return tensordict.set("action", self.sample(tensordict)[0])
        mean, _ = self.network(*(tensordict.get(key) for key in self.in_keys))
        return tensordict.set("action", self.squash(mean))

    def sample(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Actions (…, D) and the logarithm of their density (…,); gradients reach the network through both."""
        mean, log_std = self.network(*(tensordict.get(key) for key in self.in_keys))
        noise = torch.randn_like(mean)
        z = mean + log_std.exp() * noise
        action = self.squash(z)
        normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return action, (normal - self._log_slope(z, action)).sum(-1)

    def _log_slope(self, z: Tensor, action: Tensor) -> Tensor:
        if self.tanh_density:
            return torch.log(1 - action.square() + 1e-6)
        return self.squash.log_slope(z)
