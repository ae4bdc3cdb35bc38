"""NaN and Inf checks of weights and gradients."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn


class Diverged(ArithmeticError):
    """The weights of a module hold NaN or infinity, so the run cannot go on.

    Attributes:
        checkpoint: What the run is to go back to; None where it is to end.
        complete: False where the message says only what was found.
        times: How often the run will have gone back by then.
    """

    def __init__(self, message: str, checkpoint: Path | None = None, *, complete: bool = False, times: int = 0) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint
        self.complete = complete
        self.times = times


def largest(tensors: list[Tensor]) -> Tensor:
    """The largest absolute value of some tensors, a scalar on their device.

    It is not finite where one of theirs is not.
    """
    # One launch for all tensors, where `isfinite` takes one for each. The largest norm carries NaN along.
    norms = [each.float() for each in torch._foreach_norm(tensors, math.inf)]
    return torch.stack(norms).max()


def not_finite(module: nn.Module) -> str | None:
    """Name a module's tensors that hold NaN or infinity, if there are any.

    It waits for the device.
    """
    state = module.state_dict(keep_vars=True)
    tensors = {name: value.detach() for name, value in state.items() if value.is_floating_point() and value.numel()}
    # The sum is not finite where a value is not: the quickest look on a CPU.
    on_host = {name: value for name, value in tensors.items() if value.device.type == "cpu"}
    suspects = [name for name, value in on_host.items() if not bool(value.sum().isfinite())]
    on_device = {name: value for name, value in tensors.items() if value.device.type != "cpu"}
    if on_device and not bool(largest(list(on_device.values())).isfinite()):
        suspects += on_device
    names = [name for name in suspects if not bool(tensors[name].isfinite().all())]
    if not names:
        return None
    more = ", …" if len(names) > 2 else ""
    return f"NaN or infinity in {len(names)} of {len(tensors)} tensors: {', '.join(names[:2])}{more}"


def drop_broken(gradients: list[Tensor]) -> Tensor:
    """Zero gradients in place where one of them is not finite.

    Returns:
        Whether one was not, a bool on their device.
    """
    broken = ~largest(gradients).isfinite()
    for gradient in gradients:
        # A product with 0 would leave NaN as it is, and a branch would read the device back.
        gradient.copy_(torch.where(broken, 0.0, gradient))
    return broken
