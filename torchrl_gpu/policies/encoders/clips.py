"""`VideoEncoder`, the base of clip encoders, and `ENCODERS`, all of them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchrl_gpu.system import arguments

ClipShape = tuple[int, int, int, int]
"""(T, 3, H, W): frames, colours, pixels."""


class VideoEncoder(nn.Module, ABC):
    """Base class of encoders from clips to features.

    Args:
        clip_shape: (T, 3, H, W) of the clips.
        num_features: F.
        checkpointing: Whether activations within a stage are computed again in the backward pass and not kept: less
            memory, a third more work, the same numbers.
    """

    least_shape: ClipShape = (1, 3, 16, 16)
    """The smallest clip that this encoder takes."""

    published_weights: ClassVar[Callable[[], dict[str, Tensor]] | None] = None
    """Gives weights that others have trained; None where there are none."""

    def __init__(self, clip_shape: Sequence[int], num_features: int = 64, *, checkpointing: bool = False) -> None:
        super().__init__()
        where = type(self).__name__
        self.clip_shape = clip_shape_of(where, clip_shape, self.least_shape)
        self.num_features = arguments.whole(where, "num_features", num_features, 1, 1 << 16)
        self.checkpointing = arguments.flag(where, "checkpointing", checkpointing)

    def forward(self, clip: Tensor) -> Tensor:
        """Features (…, F) float32 in [-1, 1] of clips (…, T, 3, H, W) uint8, under autocast too."""
        if clip.dtype is not torch.uint8 or clip.shape[-4:] != self.clip_shape:
            wanted = ", ".join(map(str, self.clip_shape))
            arguments.refuse(type(self).__name__, "clip", f"a tensor of torch.uint8 (…, {wanted})", clip)
        return self.encode(clip.reshape(-1, *self.clip_shape)).view(*clip.shape[:-4], self.num_features)

    @abstractmethod
    def encode(self, clips: Tensor) -> Tensor:
        """Features (B, F) of clips (B, T, 3, H, W)."""

    def adapted(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Published weights by the names that they have here; others as they are."""
        return state

    def stage(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Output of a stage of the network, with activation checkpointing where enabled."""
        if not self.checkpointing or not torch.is_grad_enabled():
            return function(*inputs)
        # Nothing here draws random numbers, so there is no generator to be put back.
        out: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
        return out


Encoder = TypeVar("Encoder", bound=type[VideoEncoder])

ENCODERS: dict[str, type[VideoEncoder]] = {}
"""Encoders by the name that `ClipEncoder` takes as `arch`: that of the class in lower case."""


def register_encoder(cls: Encoder) -> Encoder:
    """Adds a class to `ENCODERS`; also a decorator."""
    ENCODERS[cls.__name__.lower()] = cls
    return cls


class Projection(nn.Module):
    """A linear layer, LayerNorm and tanh, as DrQ-v2 ends its encoder; the last two not under autocast."""

    def __init__(self, num_inputs: int, num_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_features)
        self.norm = nn.LayerNorm(num_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (…, F) float32 of inputs (…, I)."""
        return self.norm(self.linear(inputs).to(self.norm.weight.dtype)).tanh()


def clip_shape_of(where: str, value: Sequence[int], least: ClipShape) -> ClipShape:
    """A clip shape (T, 3, H, W), not smaller than the least, as plain integers."""
    wanted = f"(T, 3, H, W), at least {least}"
    sides = arguments.listed(where, "clip_shape", wanted, value)
    shape = tuple(arguments.whole(where, "clip_shape", side) for side in sides)
    if len(shape) != 4 or shape[1] != 3 or any(side < low for side, low in zip(shape, least, strict=True)):
        arguments.refuse(where, "clip_shape", wanted, value)
    return shape
