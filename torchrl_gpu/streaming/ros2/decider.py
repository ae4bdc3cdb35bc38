"""Decisions of a policy on images and vectors of a robot, and the validation of its actions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.streaming.ros2.images import RosImage
from torchrl_gpu.system import arguments
from torchrl_gpu.system.policy_messages import ACTIVE, Policy, Space, answers

WHERE = "RosBridge"
_WARM_UPS = 2  # the first call allocates, the second is like all others
_MAX_WIDTH = 1 << 20


class Decision(NamedTuple):
    """A decision of a policy."""

    action: np.ndarray  # (D,) float64, finite and within bounds; of a discrete policy its index alone
    confidence: float  # from 0 to 1; NaN where the policy does not say
    seconds: float  # that the policy took


class ImageEntry(NamedTuple):
    """An input of a policy that is made of images."""

    name: str  # its key
    length: int | None  # frames of a clip; None for one frame
    height: int
    width: int
    depth: bool = False  # (1, H, W) float32 metres, not uint8 colours
    channels_last: bool = False  # (H, W, 3), not (3, H, W)


class Decider:
    """A policy with its inputs, not yet warm.

    It takes at most one entry of images: `(T, 3, H, W)`, `(3, H, W)` or `(H, W, 3)` uint8, or `(1, H, W)` float32 of
    depth, metres. All others are vectors, float32 or, such as masks, bool; ValueError for something else.

    Attributes:
        image: The entry of images; None where it takes none.
        vectors: Width of each vector by its name.
        seen: The picture that was decided on last, (3, H, W) uint8 or (1, H, W) float32, on the policy's device.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy, self.space, self.device = policy, policy.space, policy.device
        self.image: ImageEntry | None = None
        self.vectors: dict[str, int] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self.seen: Tensor | None = None
        self._clip: Tensor | None = None
        for name in (each for each in policy.in_keys if each != ACTIVE):
            shape, dtype = self.space.observations[name]
            entry = _image_entry(name, tuple(shape), dtype)
            if entry is not None and self.image is None:
                self.image = entry
            elif len(shape) == 1 and shape[0] <= _MAX_WIDTH and dtype in ("float32", "bool"):
                self.vectors[name], self._dtypes[name] = shape[0], getattr(torch, dtype)
            else:
                wanted = "one entry of images, and vectors of float32 or bool besides"
                raise ValueError(f"{WHERE}: policy must take {wanted}; got {name}, {dtype} {tuple(shape)}")
        self.width = 1 if self.space.num_actions is not None else len(self.space.low or ())

    def warm_up(self) -> None:
        """Decides on zeros, and true flags; ValueError where the policy gives no action, or none that is finite."""
        observations: dict[str, Tensor] = {}
        for name, width in self.vectors.items():
            dtype = self._dtypes[name]
            observations[name] = torch.full((width,), dtype is torch.bool, dtype=dtype, device="cpu")
        if self.image is not None:
            shape, name_of_dtype = self.space.observations[self.image.name]
            observations[self.image.name] = torch.zeros(shape, dtype=getattr(torch, name_of_dtype), device="cpu")
        for _ in range(_WARM_UPS):
            self._run({name: value[None].to(self.device) for name, value in observations.items()})

    def decide(self, image: RosImage | None, vectors: Mapping[str, np.ndarray]) -> Decision:
        """The policy's decision, or BadAction or BadMessage; the image becomes the last frame of the clip."""
        observations: dict[str, Tensor] = {}
        if self.image is not None:
            assert image is not None
            observations[self.image.name] = self._images(self.image, image)
        for name, values in vectors.items():
            observations[name] = torch.from_numpy(values).to(self.device, self._dtypes[name])[None]
        return self._run(observations)

    def forget(self) -> None:
        """Drops the frames of the clip: those that come belong to another time."""
        self._clip = None

    def _images(self, entry: ImageEntry, image: RosImage) -> Tensor:
        resized = image.resized_metres if entry.depth else image.resized_rgb
        frame = resized(entry.height, entry.width, self.device)
        self.seen = frame
        if entry.length is not None:
            if self._clip is None:  # before there are T, the first is repeated, as in training
                self._clip = frame.expand(entry.length, -1, -1, -1)
            else:
                self._clip = torch.cat([self._clip[1:], frame[None]])
            return self._clip[None]
        return frame.permute(1, 2, 0)[None] if entry.channels_last else frame[None]

    @torch.no_grad()
    def _run(self, observations: dict[str, Tensor]) -> Decision:
        if ACTIVE in self.policy.in_keys:  # this robot is
            shape, _ = self.space.observations[ACTIVE]
            observations[ACTIVE] = torch.ones((1, *shape), dtype=torch.bool, device=self.device)
        begun = time.perf_counter()
        found = answers(self.policy, observations)
        seconds = time.perf_counter() - begun
        found.check()
        return Decision(found.actions.reshape(-1).astype(np.float64), float(found.confidence[0]), seconds)


def checked_action(space: Space, name: str, value: Any) -> np.ndarray:
    """An action from outside, (D,) float64; ValueError unless it is as the policy's are, finite and within bounds."""
    if (number := space.num_actions) is not None:
        return np.array([arguments.whole(WHERE, name, value, 0, number - 1)], np.float64)
    low, high = space.low or (), space.high or ()
    wanted = f"{len(low)} numbers, as the policy gives"
    given = arguments.listed(WHERE, name, wanted, value)
    if len(given) != len(low):
        arguments.refuse(WHERE, name, wanted, value)
    numbers = [arguments.number(WHERE, name, each) for each in given]
    if not all(a <= b <= c for a, b, c in zip(low, numbers, high, strict=True)):
        arguments.refuse(WHERE, name, f"within {list(low)} and {list(high)}", value)
    return np.array(numbers, np.float64)


def _image_entry(name: str, shape: tuple[int, ...], dtype: str) -> ImageEntry | None:
    if dtype == "uint8" and len(shape) == 4 and shape[1] == 3:
        return ImageEntry(name, shape[0], *shape[2:])
    if dtype == "uint8" and len(shape) == 3 and shape[0] == 3:
        return ImageEntry(name, None, *shape[1:])
    if dtype == "uint8" and len(shape) == 3 and shape[2] == 3:
        return ImageEntry(name, None, *shape[:2], channels_last=True)
    if dtype == "float32" and len(shape) == 3 and shape[0] == 1:
        return ImageEntry(name, None, *shape[1:], depth=True)
    return None
