"""`VideoEncoder`, the base of clip encoders, and `ENCODERS`, all of them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchrl_gpu.system import arguments

# (T, 3, H, W): frames, colours, pixels.
ClipShape = tuple[int, int, int, int]


class VideoEncoder(nn.Module, ABC):
    """Base class of encoders from clips to features.

    Args:
        clip_shape: (T, 3, H, W) of the clips.
        num_features: F.
        checkpointing: Whether activations within a stage are computed again in the backward pass instead of kept: less
            memory, a third more work, the same numbers.

    Attributes:
        least_shape: Smallest clip that this encoder takes.
        published_weights: Gives weights that others have trained; None if there are none.
    """

    least_shape: ClipShape = (1, 3, 16, 16)
    published_weights: ClassVar[Callable[[], dict[str, Tensor]] | None] = None

    def __init__(self, clip_shape: Sequence[int], num_features: int = 64, *, checkpointing: bool = False) -> None:
        super().__init__()
        where = type(self).__name__
        self.clip_shape = clip_shape_of(where, clip_shape, self.least_shape)
        self.num_features = arguments.whole(where, "num_features", num_features, 1, 1 << 16)
        self.checkpointing = arguments.flag(where, "checkpointing", checkpointing)

    def forward(self, clip: Tensor) -> Tensor:
        """Features (…, F) float32 in [-1, 1] of clips (…, T, 3, H, W) uint8.

        Autocast does not change the type.
        """
        if clip.dtype is not torch.uint8 or clip.shape[-4:] != self.clip_shape:
            sides = map(str, self.clip_shape)
            wanted = ", ".join(sides)
            arguments.refuse(type(self).__name__, "clip", f"a tensor of torch.uint8 (…, {wanted})", clip)
        # Encoders see one batch axis alone.
        features = self.encode(clip.reshape(-1, *self.clip_shape))
        return features.view(*clip.shape[:-4], self.num_features)

    @abstractmethod
    def encode(self, clips: Tensor) -> Tensor:
        """Features (B, F) of clips (B, T, 3, H, W)."""

    def adapted(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Published weights by the names that they have here, or the state as it is."""
        return state

    def stage(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Output of a stage of the network, with activation checkpointing if enabled."""
        if not self.checkpointing or not torch.is_grad_enabled():
            return function(*inputs)
        # Nothing here draws random numbers, so no generator has to be restored.
        out: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
        return out


Encoder = TypeVar("Encoder", bound=type[VideoEncoder])

# Encoders by the name that `ClipEncoder` takes as `arch`: that of the class in lower case.
ENCODERS: dict[str, type[VideoEncoder]] = {}


def register_encoder(cls: Encoder) -> Encoder:
    """Add a class to `ENCODERS`. It also serves as a decorator."""
    ENCODERS[cls.__name__.lower()] = cls
    return cls


class Projection(nn.Module):
    """Linear layer, LayerNorm and tanh, as DrQ-v2 ends its encoder.

    The last two do not run under autocast.
    """

    def __init__(self, num_inputs: int, num_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_features)
        self.norm = nn.LayerNorm(num_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (…, F) float32 of inputs (…, I)."""
        hidden = self.linear(inputs).to(self.norm.weight.dtype)
        return self.norm(hidden).tanh()


def clip_shape_of(where: str, value: Sequence[int], least: ClipShape) -> ClipShape:
    """Clip shape (T, 3, H, W) as plain integers, not smaller than the least."""
    wanted = f"(T, 3, H, W), at least {least}"
    sides = arguments.listed(where, "clip_shape", wanted, value)
    shape = tuple(arguments.whole(where, "clip_shape", side) for side in sides)
    are_sides = len(shape) == 4 and shape[1] == 3
    if not are_sides or any(side < low for side, low in zip(shape, least, strict=True)):
        arguments.refuse(where, "clip_shape", wanted, value)
    frames, colours, height, width = shape
    return frames, colours, height, width
