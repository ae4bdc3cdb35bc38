"""Actors: networks whose outputs are squashed into bounds or drawn from."""

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

# Logit of an illegal action. It is finite so that entropy and gradients are, too.
_NEVER = -1e9
# Smallest number that a logarithm is taken of.
_SMALLEST = 1e-10


@final
class Squash(nn.Module):
    """Map of real numbers into the bounds of an action, number by number.

    TorchRL's `TanhNormal` compares its bounds on the host at every construction; here the bounds, (D,) each, are
    buffers that are only computed with. The kind "atan" is (2/π)·atan.
    """

    def __init__(self, low: Tensor, high: Tensor, kind: Squashing = "tanh") -> None:
        super().__init__()
        self.kind = arguments.choice("Squash", "kind", kind, ("tanh", "atan"))
        self.low: Tensor
        self.high: Tensor
        register_settings(self, low=low.clone(), high=high.clone())

    def forward(self, z: Tensor) -> Tensor:
        """Actions (…, D) of real numbers (…, D)."""
        if self.kind == "tanh":
            # Both kinds map real numbers into (−1, 1); atan has the longer tail.
            unit = torch.tanh(z)
        else:
            unit = torch.atan(z) * (2 / math.pi)
        size = self.high - self.low
        action = self.low + (unit + 1) * size / 2
        # Rounding may carry it beyond the bounds.
        return action.clamp(self.low, self.high)

    def log_slope(self, z: Tensor) -> Tensor:
        """Logarithm of the derivative of the action, (…, D)."""
        if self.kind == "tanh":
            # log(1 − tanh²) in a form that is finite for any z.
            slope = 2 * (math.log(2) - z - softplus(-2 * z))
        else:
            # The derivative of (2/π)·atan(z) is (2/π) / (1 + z²).
            slope_at_zero = math.log(2 / math.pi)
            slope = slope_at_zero - torch.log1p(z.square())
        return slope + torch.log((self.high - self.low) / 2)

    def log_density(self, z: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
        """Logarithm of the density (…) of the action of a normal variable.

        Args:
            z: The variable, (…, D).
            noise: Its distance from the mean in standard deviations, (…, D).
            log_std: Logarithm of its standard deviation, (…, D).
        """
        normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        density = normal - self.log_slope(z)
        return density.sum(-1)


@final
class DeterministicActor(nn.Module):
    """Actor whose network's outputs (…, D) are squashed into the bounds."""

    def __init__(self, network: nn.Module, squash: Squash) -> None:
        super().__init__()
        self.network = network
        self.squash = squash
        self.in_keys = in_keys(network)

    def forward(self, *observed: Tensor) -> Tensor:
        """Actions (…, D) float32."""
        numbers = self.network(*observed)
        return self.squash(numbers)


@final
class GaussianActor(TensorDictModuleBase):
    """Actor that squashes a normal variable into the bounds.

    It samples under `ExplorationType.RANDOM` and takes the mean otherwise. The network gives mean and logarithm of the
    standard deviation, (…, D) each.
    """

    def __init__(self, network: nn.Module, squash: Squash) -> None:
        super().__init__()
        self.network = network
        self.squash = squash
        self.in_keys = in_keys(network)
        self.out_keys = ["action", "action_log_prob"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action` (…, D) float32 and its log density `action_log_prob` (…)."""
        action, log_prob = self.sample(tensordict, exploration_type() is ExplorationType.RANDOM)
        return tensordict.set("action", action).set("action_log_prob", log_prob)

    def sample(self, tensordict: TensorDictBase, random: bool = True) -> tuple[Tensor, Tensor]:
        """Actions (…, D) and their log density (…), both with gradients.

        Actions are drawn if `random`, otherwise squashed means.
        """
        mean, log_std = self.network(*observed(self.network, tensordict))
        noise = torch.randn_like(mean) if random else torch.zeros_like(mean)
        z = mean + log_std.exp() * noise if random else mean
        return self.squash(z), self.squash.log_density(z, noise, log_std)


@final
class CategoricalActor(TensorDictModuleBase):
    """Actor that draws legal actions by their logits.

    It samples under `ExplorationType.RANDOM` and takes the likeliest action otherwise. Draws are by Gumbel noise, as
    torch's `multinomial` and its distributions read the device back.

    Args:
        network: `forward` takes the entries named by its `in_keys` and gives logits (…, A) float32.
        masked: Whether `action_mask` (…, A) bool says which actions are legal. Rows that count have at least one.
    """

    def __init__(self, network: nn.Module, masked: bool) -> None:
        super().__init__()
        self.network = network
        self.masked = masked
        self.in_keys = in_keys(network)
        if masked:
            self.in_keys.append("action_mask")
        self.out_keys = ["action", "action_log_prob"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action` (…) int64 and its log probability `action_log_prob` (…)."""
        log_probs = self.log_probs(tensordict)
        scores = log_probs
        if exploration_type() is ExplorationType.RANDOM:
            # The least of exponential numbers over probabilities is a draw from them: the Gumbel trick.
            exponential = -torch.rand_like(log_probs).clamp_min(_SMALLEST).log()
            scores = log_probs - exponential.log()
        action = scores.argmax(-1)
        log_prob = log_probs.gather(-1, action[..., None])
        log_prob = log_prob[..., 0]
        return tensordict.set("action", action).set("action_log_prob", log_prob)

    def evaluate(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Log probability of `action`, and entropy, (…) each, nats."""
        log_probs = self.log_probs(tensordict)
        action = tensordict.get("action")[..., None]
        log_prob = log_probs.gather(-1, action)[..., 0]
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_prob, entropy

    def log_probs(self, tensordict: TensorDictBase) -> Tensor:
        """Log probabilities of all actions, (…, A) float32, illegal ones next to never."""
        logits = self.network(*observed(self.network, tensordict)).float()
        if self.masked:
            is_legal = tensordict.get("action_mask")
            logits = torch.where(is_legal, logits, _NEVER)
        return logits.log_softmax(-1)


@final
class SquashedGaussianActor(TensorDictModuleBase):
    """Actor that squashes a normal variable and keeps the variable itself.

    It is a `GaussianActor` that also writes the variable, since at the bounds the action does not tell it.
    """

    def __init__(self, network: nn.Module, squash: Squash) -> None:
        super().__init__()
        self.network = network
        self.squash = squash
        self.in_keys = in_keys(network)
        self.out_keys = ["action", "action_log_prob", "unsquashed_action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action`, `unsquashed_action` (…, D) float32 and `action_log_prob` (…).

        The last is the logarithm of the action's density.
        """
        mean, log_std = self.network(*observed(self.network, tensordict))
        z = mean
        if exploration_type() is ExplorationType.RANDOM:
            z = mean + log_std.exp() * torch.randn_like(mean)
        tensordict.set("action", self.squash(z)).set("unsquashed_action", z)
        log_prob = self._log_prob(z, mean, log_std)
        return tensordict.set("action_log_prob", log_prob)

    def evaluate(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Log density of the action, and entropy, estimated by one draw, (…) each, nats."""
        mean, log_std = self.network(*observed(self.network, tensordict))
        # A normal variable has its entropy in closed form; squashing adds the expected slope, of which one draw is
        # taken.
        other = mean + log_std.exp() * torch.randn_like(mean)
        standard_entropy = 0.5 + 0.5 * math.log(2 * math.pi)
        normal = standard_entropy + log_std
        entropy = (normal + self.squash.log_slope(other)).sum(-1)
        z = tensordict.get("unsquashed_action")
        log_prob = self._log_prob(z, mean, log_std)
        return log_prob, entropy

    def _log_prob(self, z: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        noise = (z - mean) * (-log_std).exp()
        return self.squash.log_density(z, noise, log_std)
