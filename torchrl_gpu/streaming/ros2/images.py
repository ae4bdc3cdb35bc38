"""Images of ROS as views of their messages, and as tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system.policy_messages import BadMessage

MAX_SIDE, MAX_PIXELS = 16_384, 1 << 25
ENCODINGS = {
    "rgb8": ("u1", 3),
    "bgr8": ("u1", 3),
    "rgba8": ("u1", 4),
    "bgra8": ("u1", 4),
    "mono8": ("u1", 1),
    "mono16": ("u2", 1),
    "16UC1": ("u2", 1),
    "32FC1": ("f4", 1),
}
"""Type of a number and channels of each encoding; those of two or four bytes are depth (REP 118)."""


class RosImage(NamedTuple):
    """One image, a read-only view of its message."""

    pixels: np.ndarray  # (H, W, C) uint8, or depth (H, W): uint16 millimetres or float32 metres, in any byte order
    encoding: str  # one of `ENCODINGS`
    stamp_ns: int = 0  # when it was taken, nanoseconds of the sender's clock; 0 where it does not say
    frame_id: str = ""  # of the camera

    @property
    def is_depth(self) -> bool:
        return ENCODINGS[self.encoding][0] != "u1"

    @property
    def is_bgr(self) -> bool:
        return self.encoding.startswith("bgr")

    def metres(self) -> Tensor:
        """(H, W) float32 on the CPU, metres; NaN where nothing was measured. BadMessage for colours."""
        if not self.is_depth:
            raise BadMessage(f"image: want depth, 16UC1, mono16 or 32FC1; got {self.encoding}")
        found = self.pixels.astype(np.float32)
        if self.pixels.dtype.kind == "u":
            found *= 1e-3
            found[self.pixels == 0] = np.nan
        return torch.from_numpy(found)

    def resized_rgb(self, height: int, width: int, device: torch.device) -> Tensor:
        """(3, H, W) uint8 on a device; another size is averaged over areas. BadMessage for depth."""
        if self.is_depth:
            raise BadMessage(f"image: want colours, {', '.join(_COLORS)}; got {self.encoding}")
        pixels = self.pixels
        if pixels.shape[:2] == (height, width) or device.type != "cpu":
            planes = torch.from_numpy(np.asarray(_Lent(pixels))).to(device).permute(2, 0, 1)[:3]
        else:
            planes = torch.from_numpy(area_means(pixels, height, width)).permute(2, 0, 1)[:3]
        if planes.shape[1:] != (height, width):
            planes = interpolate(planes[None].float(), (height, width), mode="area")[0].round_().to(torch.uint8)
        return planes.flip(0) if self.is_bgr else planes.expand(3, -1, -1)

    def resized_metres(self, height: int, width: int, device: torch.device) -> Tensor:
        """(1, H, W) float32 metres on a device, 0 where nothing was measured; another size takes the nearest pixel."""
        found = self.metres().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).to(device)[None]
        return found if found.shape[1:] == (height, width) else interpolate(found[None], (height, width))[0]

    def frame(self) -> np.ndarray:
        """As `StreamServer.publish` and `GpuFramePipeline` take it, with `bgr=image.is_bgr`."""
        return self.metres().numpy() if self.is_depth else self.pixels


_COLORS = [name for name, (kind, _) in ENCODINGS.items() if kind == "u1"]


class _Lent:
    """An array whose memory torch takes without a warning that it is read-only; nobody writes to it."""

    def __init__(self, array: np.ndarray) -> None:
        interface: dict[str, Any] = array.__array_interface__
        self.array, self.__array_interface__ = array, interface | {"data": (interface["data"][0], False)}


def area_means(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Another size of (H, W, C) uint8, to the bit as torch's `interpolate(mode="area")` and rounding make it.

    A table of sums takes a millisecond or two where torch, of interleaved channels on a CPU, takes tens.
    """
    cv2 = load("cv2", "ros2", "RosBridge")
    high, wide, channels = pixels.shape
    row, column = np.arange(height), np.arange(width)
    top, bottom = row * high // height, -(-(row + 1) * high // height)
    left, right = column * wide // width, -(-(column + 1) * wide // width)
    counts = np.outer(bottom - top, right - left)[..., None]
    depth = cv2.CV_32S if 255 * counts.max() < 1 << 31 else cv2.CV_64F
    sums = cv2.integral(pixels, sdepth=depth).reshape(high + 1, wide + 1, channels)
    above, below = sums[top], sums[bottom]
    # int32 may wrap in the table; differences that fit are right again
    found = below[:, right] - below[:, left] - above[:, right] + above[:, left]
    means: np.ndarray = np.rint(found / counts.astype(np.float32)).astype(np.uint8)
    return means


def view_pixels(
    *, height: int, width: int, encoding: str, step: int, is_bigendian: int, data: np.ndarray
) -> np.ndarray:
    """The pixels of an image message, as `RosImage.pixels`, or BadMessage; nothing is copied and no memory is taken."""
    if encoding not in ENCODINGS:
        raise BadMessage(f"image: want an encoding of {', '.join(ENCODINGS)}; got {encoding[:40]!r}")
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise BadMessage(f"image: want sides of 1 to {MAX_SIDE} and {MAX_PIXELS} pixels at most; got {width}×{height}")
    kind, channels = ENCODINGS[encoding]
    size = int(kind[1])
    if step < width * channels * size or step * height != len(data):
        wanted = f"at least {width * channels * size} bytes a row and {height} rows"
        raise BadMessage(f"image: want {wanted}; got a step of {step} and {len(data)} bytes")
    dtype = np.dtype(kind).newbyteorder(">" if is_bigendian else "<")
    last = ((channels,), (1,)) if kind == "u1" else ((), ())
    shape, strides = (height, width, *last[0]), (step, channels * size, *last[1])
    pixels: np.ndarray = np.ndarray(shape, dtype, data, 0, strides)
    pixels.flags.writeable = False
    return pixels
