"""Images of ROS as views of their messages, and as tensors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system.policy_messages import BadMessage

MAX_SIDE = 16_384  # pixels
MAX_PIXELS = 1 << 25
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

_COLORS = [name for name, (kind, _) in ENCODINGS.items() if kind == "u1"]
# Characters of an unknown encoding that are quoted.
_MOST_QUOTED = 40


class RosImage(NamedTuple):
    """One image, a read-only view of its message.

    Attributes:
        pixels: (H, W, C) uint8, or depth (H, W): uint16 millimetres or float32 metres, in any byte order.
        encoding: One of `ENCODINGS`.
        stamp_ns: When it was taken, nanoseconds of the sender's clock; 0 if the sender does not say.
        frame_id: Of the camera.
    """

    pixels: np.ndarray
    encoding: str
    stamp_ns: int = 0
    frame_id: str = ""

    @property
    def is_depth(self) -> bool:
        return ENCODINGS[self.encoding][0] != "u1"

    @property
    def is_bgr(self) -> bool:
        return self.encoding.startswith("bgr")

    def metres(self) -> Tensor:
        """Return depth, (H, W) float32 on the CPU, metres.

        NaN where nothing was measured.

        Raises:
            BadMessage: The image has colours.
        """
        if not self.is_depth:
            raise BadMessage(f"image: the policy needs depth, 16UC1, mono16 or 32FC1, not {self.encoding}")
        found = self.pixels.astype(np.float32)
        if self.pixels.dtype.kind == "u":
            found *= 1e-3
            found[self.pixels == 0] = np.nan
        return torch.from_numpy(found)

    def resize_rgb(self, height: int, width: int, device: torch.device) -> Tensor:
        """Return colours, (3, H, W) uint8 on a device.

        Another size is averaged over areas.

        Raises:
            BadMessage: The image has depth.
        """
        if self.is_depth:
            raise BadMessage(f"image: the policy needs colours, {', '.join(_COLORS)}, not {self.encoding}")
        pixels = self.pixels
        has_size = pixels.shape[:2] == (height, width)
        if has_size or device.type != "cpu":
            interleaved = torch.from_numpy(np.asarray(_Borrowed(pixels))).to(device)
        else:
            interleaved = torch.from_numpy(area_means(pixels, height, width))
        planes = interleaved.permute(2, 0, 1)[:3]
        if planes.shape[1:] != (height, width):
            planes = interpolate(planes[None].float(), (height, width), mode="area")[0].round_().to(torch.uint8)
        return planes.flip(0) if self.is_bgr else planes.expand(3, -1, -1)

    def resize_metres(self, height: int, width: int, device: torch.device) -> Tensor:
        """Return depth, (1, H, W) float32 metres on a device.

        It is 0 where nothing was measured. Another size takes the nearest pixel.
        """
        metres = self.metres().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        found = metres.to(device)[None]
        if found.shape[1:] == (height, width):
            return found
        return interpolate(found[None], (height, width))[0]

    def frame(self) -> np.ndarray:
        """Return the image as `StreamServer.publish` and `GpuFramePipeline` take it.

        They need `bgr=image.is_bgr` with it.
        """
        return self.metres().numpy() if self.is_depth else self.pixels


class _Borrowed:
    """An array whose memory torch takes without a warning that it is read-only.

    Nobody writes to it.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        interface: dict[str, object] = dict(array.__array_interface__)
        address, _ = array.__array_interface__["data"]
        interface["data"] = (address, False)
        self.__array_interface__ = interface


def area_means(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return another size of (H, W, C) uint8, averaged over areas.

    The result is to the bit that of torch's `interpolate(mode="area")` and rounding, as policies were trained on it.
    On a CPU torch takes tens of milliseconds for interleaved channels, and this a millisecond or two: a table of the
    sums of all pixels above and to the left of each gives the sum of any area by four lookups.
    """
    cv2 = load("cv2", "ros2", "RosBridge")
    high, wide, channels = pixels.shape
    row = np.arange(height)
    column = np.arange(width)
    top = row * high // height
    bottom = -(-(row + 1) * high // height)
    left = column * wide // width
    right = -(-(column + 1) * wide // width)
    rows_of_area = bottom - top
    columns_of_area = right - left
    counts = np.outer(rows_of_area, columns_of_area)[..., None]
    # An area whose own sum may not fit int32 needs float64, which is as exact but takes twice the memory.
    largest_sum = 255 * counts.max()
    depth = cv2.CV_32S if largest_sum < 1 << 31 else cv2.CV_64F
    table = cv2.integral(pixels, sdepth=depth)
    sums = table.reshape(high + 1, wide + 1, channels)
    above = sums[top]
    below = sums[bottom]
    # int32 may wrap around in the table. A difference of two entries wraps back, as each area's own sum fits.
    found = below[:, right] - below[:, left] - above[:, right] + above[:, left]
    means: np.ndarray = np.rint(found / counts.astype(np.float32)).astype(np.uint8)
    return means


def view_pixels(
    *, height: int, width: int, encoding: str, step: int, is_bigendian: int, data: np.ndarray
) -> np.ndarray:
    """Return the pixels of an image message, as `RosImage.pixels`.

    Nothing is copied and no memory is taken.

    Raises:
        BadMessage: The fields do not describe an image.
    """
    if encoding not in ENCODINGS:
        raise BadMessage(f"image: encoding must be one of {', '.join(ENCODINGS)}, not {encoding[:_MOST_QUOTED]!r}")
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise BadMessage(
            f"image: sides must be 1 to {MAX_SIDE} and have {MAX_PIXELS} pixels at most, not {width}×{height}"
        )
    kind, channels = ENCODINGS[encoding]
    size = int(kind[1])
    least_step = width * channels * size
    if step < least_step or step * height != len(data):
        raise BadMessage(
            f"image: {height} rows of at least {least_step} bytes do not fit a step of {step} and {len(data)} bytes"
        )
    dtype = np.dtype(kind).newbyteorder(">" if is_bigendian else "<")
    shape: tuple[int, ...] = (height, width)
    strides: tuple[int, ...] = (step, channels * size)
    if kind == "u1":
        shape = (height, width, channels)
        strides = (step, channels * size, 1)
    pixels: np.ndarray = np.ndarray(shape, dtype, data, 0, strides)
    pixels.flags.writeable = False
    return pixels
