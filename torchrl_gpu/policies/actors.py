"""Actors: networks whose outputs are squashed into action bounds or drawn from, with the density of what is drawn."""

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

_NEVER = -1e9  # logit of an illegal action: finite, so that entropy and gradients are
_SMALLEST = 1e-10  # of what a logarithm is taken of


@final
class Squash(nn.Module):
    """Maps real numbers into the bounds of an action, number by number.

    TorchRL's `TanhNormal` compares its bounds on the host at every construction; here they, (D,) each, are buffers that
    are only computed with. Of the kinds "tanh" and "atan" the second is (2/π)·atan.
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

    def log_density(self, z: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
        """Logarithm of the density (…) of the action of a normal variable z (…, D), `noise` deviations off its mean."""
        normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return (normal - self.log_slope(z)).sum(-1)


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
        return self.squash(z), self.squash.log_density(z, noise, log_std)


@final
class CategoricalActor(TensorDictModuleBase):
    """Draws legal actions by their logits; sampled under `ExplorationType.RANDOM`, else the likeliest.

    Draws are by Gumbel noise: torch's `multinomial` and its distributions read the device back.

    Args:
        network: `forward` takes the entries named by its `in_keys` and gives logits (…, A) float32.
        masked: Whether `action_mask` (…, A) bool says which actions are legal; one is, in every row that counts.
    """

    def __init__(self, network: nn.Module, masked: bool) -> None:
        super().__init__()
        self.network, self.masked = network, masked
        self.in_keys = [*in_keys(network), *(["action_mask"] if masked else [])]
        self.out_keys = ["action", "action_log_prob"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action` (…) int64 and `action_log_prob` (…), the logarithm of its probability."""
        log_probs = self.log_probs(tensordict)
        scores = log_probs
        if exploration_type() is ExplorationType.RANDOM:
            scores = log_probs - (-torch.rand_like(log_probs).clamp_min(_SMALLEST).log()).log()
        action = scores.argmax(-1)
        log_prob = log_probs.gather(-1, action[..., None])[..., 0]
        return tensordict.set("action", action).set("action_log_prob", log_prob)

    def evaluate(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Logarithm of the probability of `action`, and entropy, (…) each; nats."""
        log_probs = self.log_probs(tensordict)
        log_prob = log_probs.gather(-1, tensordict.get("action")[..., None])[..., 0]
        return log_prob, -(log_probs.exp() * log_probs).sum(-1)

    def log_probs(self, tensordict: TensorDictBase) -> Tensor:
        """Logarithms of the probabilities of all actions, (…, A) float32; illegal ones are all but impossible."""
        logits = self.network(*observed(self.network, tensordict)).float()
        if self.masked:
            logits = torch.where(tensordict.get("action_mask"), logits, _NEVER)
        return logits.log_softmax(-1)


@final
class SquashedGaussianActor(TensorDictModuleBase):
    """Draws a normal variable and squashes it into the bounds, as `GaussianActor`, and keeps the variable itself.

    At the bounds the variable could not be found again from the action.
    """

    def __init__(self, network: nn.Module, squash: Squash) -> None:
        super().__init__()
        self.network, self.squash = network, squash
        self.in_keys = in_keys(network)
        self.out_keys = ["action", "action_log_prob", "unsquashed_action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action` (…, D) float32, `action_log_prob` (…), the logarithm of its density, and
        `unsquashed_action` (…, D)."""
        mean, log_std = self.network(*observed(self.network, tensordict))
        z = mean
        if exploration_type() is ExplorationType.RANDOM:
            z = mean + log_std.exp() * torch.randn_like(mean)
        tensordict.set("action", self.squash(z)).set("unsquashed_action", z)
        return tensordict.set("action_log_prob", self._log_prob(z, mean, log_std))

    def evaluate(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Logarithm of the density of the action, and entropy, estimated by one draw, (…) each; nats."""
        mean, log_std = self.network(*observed(self.network, tensordict))
        other = mean + log_std.exp() * torch.randn_like(mean)
        normal = 0.5 + 0.5 * math.log(2 * math.pi) + log_std
        entropy = (normal + self.squash.log_slope(other)).sum(-1)
        return self._log_prob(tensordict.get("unsquashed_action"), mean, log_std), entropy

    def _log_prob(self, z: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        return self.squash.log_density(z, (z - mean) * (-log_std).exp(), log_std)
