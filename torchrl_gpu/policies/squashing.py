"""Squashing of unbounded numbers into action bounds, by tanh or atan, with the change of density."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import softplus
from torchrl.envs.utils import ExplorationType, exploration_type

from torchrl_gpu.policies.spaces import in_keys, observed
from torchrl_gpu.policies.weights import register_settings
from torchrl_gpu.system import arguments

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
        self.kind = arguments.choice("Squash", "kind", kind, ("tanh", "atan"))
        self.low: Tensor
        self.high: Tensor
        register_settings(self, low=low.clone(), high=high.clone())

    def forward(self, z: Tensor) -> Tensor:
        """Actions (…, D) of real numbers (…, D)."""
        unit = torch.tanh(z) if self.kind == "tanh" else torch.atan(z) * (2 / math.pi)
        action = self.low + (unit + 1) * (self.high - self.low) / 2
        return action.clamp(self.low, self.high)  # rounded, it may lie beyond them

    def log_slope(self, z: Tensor) -> Tensor:
        """Logarithm of the derivative of the action, (…, D)."""
        if self.kind == "tanh":
            slope = 2 * (math.log(2) - z - softplus(-2 * z))  # log(1 − tanh²), finite however large z is
        else:
            slope = math.log(2 / math.pi) - torch.log1p(z.square())
        return slope + torch.log((self.high - self.low) / 2)


@final
class DeterministicActor(nn.Module):
    """An actor network whose outputs, real numbers (…, D), are squashed into the bounds."""

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

    The network gives mean and log standard deviation, (…, D).
    """

    def __init__(self, network: nn.Module, squash: Squash) -> None:
        super().__init__()
        self.network, self.squash = network, squash
        self.in_keys, self.out_keys = in_keys(network), ["action", "action_log_prob"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action` (…, D) float32 and `action_log_prob` (…), the logarithm of its density."""
        action, log_prob = self.sample(tensordict, exploration_type() is ExplorationType.RANDOM)
        return tensordict.set("action", action).set("action_log_prob", log_prob)

    def sample(self, tensordict: TensorDictBase, random: bool = True) -> tuple[Tensor, Tensor]:
        """Actions (…, D), drawn or squashed means, and the logarithm of their density (…), both with gradients."""
        mean, log_std = self.network(*observed(self.network, tensordict))
        noise = torch.randn_like(mean) if random else torch.zeros_like(mean)
        z = mean + log_std.exp() * noise if random else mean
        normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return self.squash(z), (normal - self.squash.log_slope(z)).sum(-1)
