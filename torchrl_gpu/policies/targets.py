"""Target networks and their update rules; networks with fixed weights that pass gradients to their inputs."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torchrl.objectives import LossModule

from torchrl_gpu.policies.weights import settings_in
from torchrl_gpu.system import arguments

Network = TypeVar("Network", bound=nn.Module)
Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class SoftTargets:
    """Soft target updates: targets take the share `tau` of the online weights at every update."""

    every_step: ClassVar[bool] = True
    """Whether all updates are alike, so that a CUDA graph can hold them."""

    tau: float = 0.005

    def __post_init__(self) -> None:
        arguments.number("SoftTargets", "tau", self.tau, 0, 1, above=0)

    def update(self, online: Tensors, targets: Tensors, number: int) -> None:
        """Moves target weights, in place, after update `number`, the first being 1."""
        torch._foreach_lerp_(targets, online, self.tau)


@dataclass(frozen=True)
class PeriodicTargets:
    """Periodic target updates: targets become the online weights every `period` updates."""

    every_step: ClassVar[bool] = False

    period: int = 500

    def __post_init__(self) -> None:
        arguments.whole("PeriodicTargets", "period", self.period, 1)

    def update(self, online: Tensors, targets: Tensors, number: int) -> None:
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
    """`weight_pairs` of a TorchRL loss, by its names for its networks."""
    named = [(getattr(loss, f"{name}_params"), getattr(loss, f"target_{name}_params")) for name in networks]
    return [
        (weight, targets.get(key))
        for online, targets in named
        for key, weight in online.items(True, True)
        if weight.requires_grad
    ]


def forget_settings(loss: LossModule, **networks: nn.Module) -> None:
    """Keeps settings out of the state dict of a TorchRL loss: its discount, bounds of actors.

    The loss holds the parameters and all buffers of its networks, which are given by name, as `NAME_params`.
    """
    estimator: Any = loss.value_estimator
    estimator._non_persistent_buffers_set.update(estimator._buffers)
    kinds = [kind for kind in ("", "target_") for name in networks if f"{kind}{name}_params" in loss._modules]
    kept: Any = loss
    kept.set_names = tuple(
        f"{kind}{name}_params.{setting}"
        for kind in dict.fromkeys(kinds)
        for name, network in networks.items()
        for setting in settings_in(network)
    )
    loss.register_state_dict_post_hook(_leave_out)
    loss.register_load_state_dict_pre_hook(_put_back)


def _leave_out(loss: Any, state: dict[str, Any], prefix: str, *args: Any) -> None:
    for name in loss.set_names:
        state.pop(prefix + name, None)


def _put_back(loss: Any, state: dict[str, Any], prefix: str, *args: Any) -> None:
    for name in loss.set_names:
        params, _, setting = name.partition(".")
        state[prefix + name] = getattr(loss, params).get(tuple(setting.split("."))).detach()


def fixed(network: nn.Module, *inputs: Any) -> Any:
    """Output of a network, with gradients to its inputs and none to its weights."""
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    return functional_call(network, weights, inputs)
