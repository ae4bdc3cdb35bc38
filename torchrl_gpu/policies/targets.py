"""Target networks, their update rules, and networks with fixed weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, TypeVar

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
    """Soft target updates: a moving average of the online weights.

    Attributes:
        every_step: Whether all updates are alike, so that a CUDA graph can hold them.
        tau: Share of the online weights that targets take at every update.
    """

    every_step: ClassVar[bool] = True

    tau: float = 0.005

    def __post_init__(self) -> None:
        arguments.number("SoftTargets", "tau", self.tau, 0, 1, above=0)

    def update(self, online: Tensors, targets: Tensors, number: int) -> None:
        """Move target weights in place after update `number`, counted from 1."""
        # One kernel for all weights: there may be hundreds of small ones.
        torch._foreach_lerp_(targets, online, self.tau)


@dataclass(frozen=True)
class PeriodicTargets:
    """Periodic target updates: a copy of the online weights every `period` updates."""

    every_step: ClassVar[bool] = False

    period: int = 500

    def __post_init__(self) -> None:
        arguments.whole("PeriodicTargets", "period", self.period, 1)

    def update(self, online: Tensors, targets: Tensors, number: int) -> None:
        if number % self.period == 0:
            torch._foreach_copy_(targets, online)


TargetUpdate = SoftTargets | PeriodicTargets
"""How targets follow the online networks."""


def target_of(network: Network) -> Network:
    """Copy a network with its weights, which then take no gradients."""
    return copy.deepcopy(network).requires_grad_(False)


def weight_pairs(*networks: tuple[nn.Module, nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Pairs of an online weight and its target weight."""
    pairs: list[tuple[Tensor, Tensor]] = []
    for online, target in networks:
        pairs += zip(online.parameters(), target.parameters(), strict=True)
    return pairs


def loss_pairs(loss: LossModule, *networks: str) -> list[tuple[Tensor, Tensor]]:
    """`weight_pairs` of a TorchRL loss, by its names for its networks."""
    pairs = []
    for name in networks:
        online = getattr(loss, f"{name}_params")
        targets = getattr(loss, f"target_{name}_params")
        for key, weight in online.items(True, True):
            if weight.requires_grad:
                pairs.append((weight, targets.get(key)))
    return pairs


def forget_settings(loss: LossModule, **networks: nn.Module) -> None:
    """Keep settings out of a TorchRL loss's state dict: discount, bounds of actors.

    The loss holds the parameters and all buffers of its networks, which are given by name, as `NAME_params`. It would
    save the buffers as weights, and a checkpoint would then override the settings of a new run.
    """
    estimator = loss.value_estimator
    estimator._non_persistent_buffers_set.update(estimator._buffers)
    set_names: list[str] = []
    for kind in ("", "target_"):
        if not any(f"{kind}{name}_params" in loss._modules for name in networks):
            continue
        for name, network in networks.items():
            set_names += [f"{kind}{name}_params.{setting}" for setting in settings_in(network)]
    # `settings_in` reads this attribute.
    loss.set_names = tuple(set_names)
    # Loading needs the entries again, since TorchRL's loss is strict about them.
    loss.register_state_dict_post_hook(_leave_out)
    loss.register_load_state_dict_pre_hook(_put_back)


def _leave_out(loss: nn.Module, state: dict[str, object], prefix: str, *args: object) -> None:
    for name in _set_names(loss):
        state.pop(prefix + name, None)


def _put_back(loss: nn.Module, state: dict[str, object], prefix: str, *args: object) -> None:
    for name in _set_names(loss):
        params, _, setting = name.partition(".")
        state[prefix + name] = getattr(loss, params).get(tuple(setting.split("."))).detach()


def _set_names(loss: nn.Module) -> tuple[str, ...]:
    names: tuple[str, ...] = loss.set_names  # type: ignore[assignment]
    return names


def fixed(network: nn.Module, *inputs: Tensor) -> Tensor:
    """Output of a network, with gradients to its inputs and none to its weights."""
    # The weights are replaced for this one call, so that the module itself keeps its gradients.
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    output: Tensor = functional_call(network, weights, inputs)
    return output
