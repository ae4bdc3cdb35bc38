"""Decisions of a policy on images and vectors of a robot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.streaming.ros2.images import RosImage
from torchrl_gpu.system import arguments
from torchrl_gpu.system.policy_messages import ACTIVE, Policy, Space, answers

WHERE = "RosBridge"
# The first call allocates, the second is like all others.
_WARM_UPS = 2
_MAX_WIDTH = 1 << 20


class Decision(NamedTuple):
    """A decision of a policy.

    Attributes:
        action: (D,) float64, finite and within bounds; of a discrete policy its index alone.
        confidence: From 0 to 1; NaN if the policy does not say.
        seconds: The time that the policy took.
    """

    action: np.ndarray
    confidence: float
    seconds: float


class ImageEntry(NamedTuple):
    """An input of a policy that is made of images.

    Attributes:
        name: Its key.
        length: Frames of a clip; None for one frame.
        depth: Whether it is (1, H, W) float32 metres, not uint8 colours.
        channels_last: Whether it is (H, W, 3), not (3, H, W).
    """

    name: str
    length: int | None
    height: int
    width: int
    depth: bool = False
    channels_last: bool = False


class Decider:
    """A policy with its inputs, not yet warm.

    It takes at most one entry of images: `(T, 3, H, W)`, `(3, H, W)` or `(H, W, 3)` uint8, or `(1, H, W)` float32 of
    depth, metres. All others are vectors, float32 or, such as masks, bool.

    Attributes:
        image: The entry of images; None if the policy takes none.
        vectors: Width of each vector by its name.
        width: Numbers of an action.
        seen: The picture that was decided on last, (3, H, W) uint8 or (1, H, W) float32, on the policy's device.

    Raises:
        ValueError: The policy takes something else.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.space = policy.space
        self.device = policy.device
        self.image: ImageEntry | None = None
        self.vectors: dict[str, int] = {}
        self.seen: Tensor | None = None
        self._dtypes: dict[str, torch.dtype] = {}
        self._clip: Tensor | None = None
        for name in policy.in_keys:
            if name != ACTIVE:
                self._add_input(name)
        num_bounds = len(self.space.low or ())
        self.width = 1 if self.space.num_actions is not None else num_bounds

    def _add_input(self, name: str) -> None:
        shape, dtype = self.space.observations[name]
        entry = _image_entry(name, tuple(shape), dtype)
        is_vector = len(shape) == 1 and shape[0] <= _MAX_WIDTH
        if entry is not None and self.image is None:
            self.image = entry
        elif is_vector and dtype in ("float32", "bool"):
            self.vectors[name] = shape[0]
            self._dtypes[name] = getattr(torch, dtype)
        else:
            raise ValueError(
                f"{WHERE}: a policy may take one entry of images, and vectors of float32 or bool; this one takes"
                f" {name}, {dtype} {tuple(shape)}"
            )

    def warm_up(self) -> None:
        """Decide on zeros, and true flags.

        Raises:
            ValueError: The policy gives no action, or none that is finite.
        """
        observations: dict[str, Tensor] = {}
        for name, width in self.vectors.items():
            dtype = self._dtypes[name]
            # Where a mask allows no action at all, a policy would have none to choose.
            is_flag = dtype is torch.bool
            observations[name] = torch.full((width,), is_flag, dtype=dtype, device="cpu")
        if self.image is not None:
            shape, name_of_dtype = self.space.observations[self.image.name]
            dtype = getattr(torch, name_of_dtype)
            observations[self.image.name] = torch.zeros(shape, dtype=dtype, device="cpu")
        # A policy that fails, or takes long at first, does so before the robot moves.
        for _ in range(_WARM_UPS):
            self._run({name: value[None].to(self.device) for name, value in observations.items()})

    def decide(self, image: RosImage | None, vectors: Mapping[str, np.ndarray]) -> Decision:
        """Return the policy's decision. The image becomes the last frame of the clip.

        Raises:
            BadAction: The policy gives no usable action.
            BadMessage: The image has no colours, or no depth, as the policy needs it.
        """
        observations: dict[str, Tensor] = {}
        if self.image is not None:
            assert image is not None
            observations[self.image.name] = self._images(self.image, image)
        for name, values in vectors.items():
            observations[name] = torch.from_numpy(values).to(self.device, self._dtypes[name])[None]
        return self._run(observations)

    def forget(self) -> None:
        """Drop the frames of the clip: those that come belong to another time."""
        self._clip = None

    def _images(self, entry: ImageEntry, image: RosImage) -> Tensor:
        """Return the observation of an image, a batch of one."""
        resize = image.resize_metres if entry.depth else image.resize_rgb
        frame = resize(entry.height, entry.width, self.device)
        self.seen = frame
        if entry.length is not None:
            if self._clip is None:
                # Before there are T frames, the first is repeated, as in training.
                self._clip = frame.expand(entry.length, -1, -1, -1)
            else:
                later = self._clip[1:]
                self._clip = torch.cat([later, frame[None]])
            return self._clip[None]
        return frame.permute(1, 2, 0)[None] if entry.channels_last else frame[None]

    @torch.no_grad()
    def _run(self, observations: dict[str, Tensor]) -> Decision:
        if ACTIVE in self.policy.in_keys:
            # This robot takes part.
            shape, _ = self.space.observations[ACTIVE]
            observations[ACTIVE] = torch.ones((1, *shape), dtype=torch.bool, device=self.device)
        begin = time.perf_counter()
        found = answers(self.policy, observations)
        seconds = time.perf_counter() - begin
        found.check()
        return Decision(found.actions.reshape(-1).astype(np.float64), float(found.confidence[0]), seconds)


def check_action(space: Space, name: str, value: object) -> np.ndarray:
    """Return an action from outside, (D,) float64.

    Raises:
        ValueError: It is not as the policy's actions are, finite and within bounds.
    """
    if space.num_actions is not None:
        return np.array([arguments.whole(WHERE, name, value, 0, space.num_actions - 1)], np.float64)
    low = space.low or ()
    high = space.high or ()
    wanted = f"{len(low)} numbers, as the policy gives"
    given = arguments.listed(WHERE, name, wanted, value)
    if len(given) != len(low):
        arguments.refuse(WHERE, name, wanted, value)
    numbers = [arguments.number(WHERE, name, each) for each in given]
    if not all(least <= each <= most for least, each, most in zip(low, numbers, high, strict=True)):
        bounds = f"within {list(low)} and {list(high)}"
        arguments.refuse(WHERE, name, bounds, value)
    return np.array(numbers, np.float64)


def _image_entry(name: str, shape: tuple[int, ...], dtype: str) -> ImageEntry | None:
    """Return the entry of images that an observation is, None if it is none."""
    if dtype == "uint8" and len(shape) == 4 and shape[1] == 3:
        return ImageEntry(name, shape[0], *shape[2:])
    if dtype == "uint8" and len(shape) == 3 and shape[0] == 3:
        return ImageEntry(name, None, *shape[1:])
    if dtype == "uint8" and len(shape) == 3 and shape[2] == 3:
        return ImageEntry(name, None, *shape[:2], channels_last=True)
    if dtype == "float32" and len(shape) == 3 and shape[0] == 1:
        return ImageEntry(name, None, *shape[1:], depth=True)
    return None
