"""Networks that do not learn: target networks with the rules by which they follow, critics that pass gradients on."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torchrl.objectives import LossModule

Network = TypeVar("Network", bound=nn.Module)
Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class SoftTargets:
    """Targets take a share of the online weights at every update.

    Args:
        tau: The share.
    """

    every_step: ClassVar[bool] = True
    """Whether all updates are alike, so that a CUDA graph can hold them."""

    tau: float = 0.005

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise ValueError(f"SoftTargets: want 0 < tau <= 1; got {self.tau}")

    def update(self, online: Tensors, targets: Tensors, number: int) -> None:
        """Moves target weights, in place, after update `number`, the first being 1."""
        torch._foreach_lerp_(targets, online, self.tau)


@dataclass(frozen=True)
class PeriodicTargets:
    """Targets become the online weights every so many updates.

    Args:
        period: How many.
    """

    every_step: ClassVar[bool] = False

    period: int = 500

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"PeriodicTargets: want a period of at least 1; got {self.period}")

    def update(self, online: Tensors, targets: Tensors, number: int) -> None:
        """As in `SoftTargets`."""
        if number % self.period == 0:
            torch._foreach_copy_(targets, online)


TargetUpdate = SoftTargets | PeriodicTargets
"""How targets follow."""


def target_of(network: Network) -> Network:
    """A copy with the same weights that takes no gradients."""
    return copy.deepcopy(network).requires_grad_(False)


def weight_pairs(*networks: tuple[nn.Module, nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Weights of online networks, each with that of the target network beside it."""
    return [pair for online, target in networks for pair in zip(online.parameters(), target.parameters(), strict=True)]


def loss_pairs(loss: LossModule, *networks: str) -> list[tuple[Tensor, Tensor]]:
    """The same of a loss of TorchRL, by what it calls its networks."""
    named = [(getattr(loss, f"{name}_params"), getattr(loss, f"target_{name}_params")) for name in networks]
    return [
        (weight, targets.get(key))
        for online, targets in named
        for key, weight in online.items(True, True)
        if weight.requires_grad
    ]


def fixed(network: nn.Module, *inputs: Any) -> Any:
    """What a network gives, with gradients to its inputs and none to its weights."""
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    return functional_call(network, weights, inputs)
