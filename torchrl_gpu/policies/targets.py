"""Networks that do not learn: targets that follow, and critics that only pass gradients on."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

Network = TypeVar("Network", bound=nn.Module)


def target_of(network: Network) -> Network:
    """A copy with the same weights that takes no gradients."""
    return copy.deepcopy(network).requires_grad_(False)


def fixed(network: nn.Module, *inputs: Any) -> Any:
    """What a network gives, with gradients to its inputs and none to its weights."""
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    return functional_call(network, weights, inputs)


@final
class Targets:
    """Target networks that follow online ones, softly at each update or all the way every so many.

    Args:
        pairs: Online and target networks.
        tau: Share of the online weights that the targets take at each update; None for hard updates.
        period: Updates between hard updates, where `tau` is None.
    """

    def __init__(self, pairs: Sequence[tuple[nn.Module, nn.Module]], tau: float | None, period: int) -> None:
        self.pairs, self.tau, self.period = list(pairs), tau, 1 if tau is not None else period

    @torch.no_grad()
    def follow(self, update: int) -> None:
        """Moves the targets after update number `update`, the first being 1."""
        if update % self.period:
            return
        online: list[Tensor] = [weight for network, _ in self.pairs for weight in network.parameters()]
        target: list[Tensor] = [weight for _, network in self.pairs for weight in network.parameters()]
        if self.tau is None:
            torch._foreach_copy_(target, online)
        else:
            torch._foreach_lerp_(target, online, self.tau)
