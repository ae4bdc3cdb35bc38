"""Frames of any format as RGB pixels, on the device of the frame.

What is transparent shows white behind it, gray stays gray, and depth is drawn in colours.
"""

from __future__ import annotations

import math
import numbers
import sys
from functools import cache
from typing import TYPE_CHECKING, cast

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.images import (
    FORMATS,
    MAX_SIDE,
    Depth,
    Frame,
    FrameFormat,
    Range,
    format_of,
    plain_frame,
    to_array,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# The background behind what is transparent.
WHITE = 255
# Red, green and blue where depth is NaN or infinite. No colour of the map is gray.
UNMEASURED = 128
# Metres up to which float32 has room for sums and products.
_LARGE = 1e30
# Numbers that are worked on at once on the host: they stay in its cache.
_BLOCK = 1 << 18


def grid(number: int) -> tuple[int, int]:
    """Return rows and columns of the smallest grid that holds a number of pictures.

    It has at least as many columns as rows.
    """
    columns = math.isqrt(number - 1) + 1
    return -(-number // columns), columns


def canvas_shape(found: FrameFormat) -> tuple[int, int, int]:
    """Return the shape (H, W, 3) of the picture that a frame makes.

    A batch is tiled into a grid, as square as can be.
    """
    rows, columns = (1, 1) if found.number is None else grid(found.number)
    return rows * found.height, columns * found.width, 3


def check_depth_range(depth_range: object, found: FrameFormat, where: str) -> None:
    """Check the range of a frame's depth.

    Raises:
        ValueError: It is not two finite numbers, the first below the second, or the frame has no depth.
    """
    ends = list(depth_range) if isinstance(depth_range, tuple | list) else []
    are_numbers = [isinstance(each, numbers.Real) and not isinstance(each, bool) for each in ends]
    if are_numbers != [True, True] or not -math.inf < float(ends[0]) < float(ends[1]) < math.inf:
        raise ValueError(f"{where}: depth_range must be (near, far), metres, near below far, not {depth_range!r}")
    if found.kind != "depth":
        raise ValueError(f"{where}: depth_range needs a frame of depth, of float32 or float16, not {found.kind}")


def measured_range(frame: Frame, depth_range: Range = None) -> Depth:
    """Return nearest and farthest metres of a frame of depth, given or measured.

    They are (inf, −inf) if no pixel has a depth. Of a tensor on a GPU whose range is not given they are a tensor (2,)
    float64 on that GPU, made without waiting; else two floats.
    """
    if depth_range is not None:
        return float(depth_range[0]), float(depth_range[1])
    if not getattr(frame, "is_cuda", False):
        array = to_array(frame)
        known = np.isfinite(array)
        near = float(np.min(array, initial=np.inf, where=known))
        far = float(np.max(array, initial=-np.inf, where=known))
        return near, far
    return _measured_on_device(frame)  # type: ignore[arg-type]


def _measured_on_device(frame: Tensor) -> Tensor:
    torch = sys.modules["torch"]
    depth = frame.detach().double()
    known = torch.isfinite(depth)
    near = torch.where(known, depth, math.inf).amin()
    far = torch.where(known, depth, -math.inf).amax()
    ends: Tensor = torch.stack((near, far))
    return ends


def paint(canvas: Frame, frame: Frame, found: FrameFormat, depth: Depth = None) -> None:
    """Draw a frame on a canvas of `canvas_shape`, both on the same device.

    See `picture_of`.
    """
    if found.number is None:
        with_channels = frame if frame.ndim == 3 else frame[..., None]
        _write(canvas, with_channels, found, depth)
        return
    number = found.number
    rows, columns = grid(number)
    reorder = "transpose" if isinstance(canvas, np.ndarray) else "permute"
    # (rows, columns, H, W, 3): a view of the canvas.
    tiles = getattr(canvas.reshape(rows, found.height, columns, found.width, 3), reorder)(0, 2, 1, 3, 4)
    num_full_rows = number // columns
    rest = number - num_full_rows * columns
    if num_full_rows:
        in_full_rows = frame[: num_full_rows * columns]
        in_rows = in_full_rows.reshape(num_full_rows, columns, *in_full_rows.shape[1:])
        _write(tiles[:num_full_rows], in_rows, found, depth)
    if num_full_rows < rows:
        _write(tiles[num_full_rows, :rest], frame[num_full_rows * columns :], found, depth)
        tiles[num_full_rows, rest:] = 0


def picture_of(
    frame: Frame, found: FrameFormat, depth_range: Range = None, into: np.ndarray | None = None
) -> tuple[Frame, Depth]:
    """Draw the picture of a frame that `plain_frame` gave, in memory of its own.

    The picture of a CUDA tensor is made on its device, on the current stream without waiting for it.

    Args:
        frame: Plain.
        found: Its format.
        depth_range: Metres of the first and the last colour; None takes those of the frame.
        into: Buffer for a picture on the host, used if its shape fits.

    Returns:
        The picture, (H, W, 3) uint8; and the range of its depth as `measured_range` gives it, None for other formats.
    """
    depth = measured_range(frame, depth_range) if found.kind == "depth" else None
    shape = canvas_shape(found)
    canvas: Frame | None = into
    if getattr(frame, "is_cuda", False):
        torch = sys.modules["torch"]
        canvas = torch.empty(shape, dtype=torch.uint8, device=frame.device)
    else:
        frame = to_array(frame)
        if canvas is None or canvas.shape != shape:
            canvas = np.empty(shape, np.uint8)
    paint(canvas, frame, found, depth)
    return canvas, depth


def as_rgb(frame: Frame, where: str, *, depth_range: Range = None) -> tuple[Frame, bool]:
    """Return a frame of any of `images.FORMATS` as H×W×3 uint8, on its device.

    A frame that has this format is returned itself.

    Returns:
        The picture; and whether its channels are red, green, blue whatever the caller's `bgr`, as those of depth are.

    Raises:
        ValueError: The frame or the range is something else.
    """
    frame = plain_frame(frame, where)
    found = format_of(frame, where)
    if depth_range is not None:
        check_depth_range(depth_range, found, where)
    check_size(found, where)
    if found.kind == "rgb" and found.number is None:
        return frame, False
    return picture_of(frame, found, depth_range)[0], found.kind == "depth"


def check_size(found: FrameFormat, where: str, most: int = MAX_SIDE) -> None:
    """Check the size of the picture that a frame makes.

    Raises:
        ValueError: The batch is empty, or a side has more than `most` pixels.
    """
    if found.number == 0:
        raise ValueError(f"{where}: expected {FORMATS}, not an empty batch")
    height, width, _ = canvas_shape(found)
    if max(height, width) > most:
        raise ValueError(f"{where}: a picture may have at most {most} pixels a side, not {height}×{width}")


# -- colours of depth --------------------------------------------------------------------------------------------------


@cache
def color_map() -> np.ndarray:
    """Return the colours of depth from near to far, (256, 3) uint8 RGB.

    They run from bright yellow to dark violet: viridis, backwards.
    """
    cv2 = load("cv2")
    ramp: np.ndarray = cv2.applyColorMap(np.arange(255, -1, -1, dtype=np.uint8)[:, None], cv2.COLORMAP_VIRIDIS)
    return np.ascontiguousarray(ramp[:, 0, ::-1])


@cache
def _packed_color_map() -> np.ndarray:
    """Return the colours with four bytes each, (256,) uint32.

    NumPy looks these up several times as fast as three bytes.
    """
    return np.pad(color_map(), ((0, 0), (0, 1))).view(np.uint32)[:, 0]


@cache
def color_map_on(device: torch.device) -> Tensor:
    """Return the color map on a device."""
    colors: Tensor = sys.modules["torch"].from_numpy(color_map()).to(device)
    return colors


def _write(canvas: Frame, frame: Frame, found: FrameFormat, depth: Depth) -> None:
    """Write (…, C) numbers as (…, 3) pixels, both on the same device."""
    if isinstance(canvas, np.ndarray):
        _write_on_host(canvas, cast("np.ndarray", frame), found, depth)
    else:
        _write_on_device(canvas, cast("Tensor", frame), found, depth)


def _write_on_device(canvas: Tensor, frame: Tensor, found: FrameFormat, depth: Depth) -> None:
    if found.kind in ("rgb", "gray"):
        canvas[...] = frame
    elif found.kind == "rgba":
        wide = frame.int()
        alpha = wide[..., 3:]
        canvas[...] = ((wide[..., :3] * alpha + WHITE * (255 - alpha) + 127) // 255).byte()
    else:
        assert depth is not None
        canvas[...] = _colors_on_device(frame, depth)


# A frame that needs more than a copy is worked on in blocks: each step of the arithmetic makes an array of its own,
# which for a whole picture would not stay in the processor's cache. The canvas is halved until a part is small enough,
# as the axes of a grid leave no single axis to cut along.
def _write_on_host(canvas: np.ndarray, frame: np.ndarray, found: FrameFormat, depth: Depth) -> None:
    if found.kind in ("rgb", "gray"):
        canvas[...] = frame
    elif canvas.size <= _BLOCK and found.kind == "rgba":
        canvas[...] = _over_white(frame)
    elif canvas.size <= _BLOCK:
        assert isinstance(depth, tuple), "that of a frame on the host"
        canvas[...] = _colors(frame, depth)
    elif len(canvas) == 1:
        _write_on_host(canvas[0], frame[0], found, depth)
    else:
        half = len(canvas) // 2
        _write_on_host(canvas[:half], frame[:half], found, depth)
        _write_on_host(canvas[half:], frame[half:], found, depth)


def _over_white(frame: np.ndarray) -> np.ndarray:
    """Mix (…, 4) with the background, (…, 3) uint16."""
    alpha = frame[..., 3:].astype(np.uint16)
    mixed = frame[..., :3] * alpha
    mixed += WHITE * (255 - alpha) + np.uint16(128)
    # These two lines divide by 255 and round, without a division.
    mixed += mixed >> 8
    mixed >>= 8
    return mixed


def _colors(frame: np.ndarray, depth: tuple[float, float]) -> np.ndarray:
    """Return (…, 1) metres as colours (…, 3) uint8."""
    near, far = depth
    nothing_measured = far < near
    if nothing_measured:
        return np.full((*frame.shape[:-1], 3), UNMEASURED, np.uint8)
    largest = max(abs(near), abs(far))
    wide = np.float32 if largest < _LARGE else np.float64
    # NaN and infinities make warnings here, and are painted over below.
    with np.errstate(over="ignore", invalid="ignore"):
        shades = np.subtract(frame[..., 0], near, dtype=wide)
        shades *= 255 / (far - near) if far > near else 0.0
        np.clip(shades, 0, 255, out=shades)
        places = (shades + wide(0.5)).astype(np.uint8)
    packed = _packed_color_map().take(places)
    colors: np.ndarray = packed.view(np.uint8).reshape(*places.shape, 4)[..., :3]
    unknown = ~np.isfinite(frame[..., 0])
    if unknown.any():
        colors[unknown] = UNMEASURED
    return colors


def _colors_on_device(frame: Tensor, depth: tuple[float, float] | Tensor) -> Tensor:
    """Return (…, 1) metres as colours (…, 3), without waiting for the device."""
    torch = sys.modules["torch"]
    metres = frame[..., 0].detach().double()
    known = torch.isfinite(metres)
    near, far = depth if isinstance(depth, tuple) else depth.unbind()
    share = (metres - near) / (far - near)
    # NaN also comes of 0 / 0, where all of a frame is equally far.
    share = torch.nan_to_num(share, nan=0.0).clamp(0, 1)
    places = (torch.where(known, share, 0.0) * 255 + 0.5).long()
    colors: Tensor = torch.where(known[..., None], color_map_on(frame.device)[places], UNMEASURED)
    return colors
