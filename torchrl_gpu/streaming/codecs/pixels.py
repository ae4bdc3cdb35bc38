"""Frames of any format as RGB pixels: alpha over white, gray as it is, depth by colour; on the device of the frame."""

from __future__ import annotations

import math
import numbers
import sys
from functools import cache
from typing import Any

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

WHITE = 255  # of the background behind what is transparent
UNMEASURED = 128  # red, green and blue where depth is NaN or infinite; no colour of the map is gray
_LARGE = 1e30  # metres, up to which float32 has room for sums and products
_BLOCK = 1 << 18  # numbers that are worked on at once on the host: they stay in its cache


def grid(number: int) -> tuple[int, int]:
    """Rows and columns of the smallest grid with at least as many columns as rows that holds a number of pictures."""
    columns = math.isqrt(number - 1) + 1
    return -(-number // columns), columns


def canvas_shape(found: FrameFormat) -> tuple[int, int, int]:
    """Shape (H, W, 3) of the picture that a frame makes; a batch is tiled into a grid, as square as can be."""
    rows, columns = (1, 1) if found.number is None else grid(found.number)
    return rows * found.height, columns * found.width, 3


def check_depth_range(depth_range: object, found: FrameFormat, where: str) -> None:
    """Raises ValueError unless a range is two finite numbers, the first below the second, and the frame has depth."""
    ends: list[Any] = list(depth_range) if isinstance(depth_range, tuple | list) else []
    are_numbers = [isinstance(each, numbers.Real) and not isinstance(each, bool) for each in ends]
    if are_numbers != [True, True] or not -math.inf < float(ends[0]) < float(ends[1]) < math.inf:
        raise ValueError(f"{where}: want depth_range to be (near, far), metres, near below far; got {depth_range!r}")
    if found.kind != "depth":
        raise ValueError(f"{where}: want depth_range with a frame of depth, of float32 or float16; got {found.kind}")


def measured_range(frame: Frame, depth_range: Range = None) -> Depth:
    """Nearest and farthest metres of a frame of depth, given or measured; (inf, −inf) where nothing was measured.

    Two floats; of a tensor on a GPU whose range is not given a tensor (2,) float64 beside it, made without waiting.
    """
    if depth_range is not None:
        return float(depth_range[0]), float(depth_range[1])
    if not getattr(frame, "is_cuda", False):
        array = to_array(frame)
        known = np.isfinite(array)
        return float(np.min(array, initial=np.inf, where=known)), float(np.max(array, initial=-np.inf, where=known))
    torch, depth = sys.modules["torch"], frame.detach().double()  # type: ignore[union-attr]
    known = torch.isfinite(depth)
    near, far = torch.where(known, depth, math.inf).amin(), torch.where(known, depth, -math.inf).amax()
    return torch.stack((near, far))


def paint(canvas: Frame, frame: Frame, found: FrameFormat, depth: Depth = None) -> None:
    """Writes the picture of a frame onto a canvas of `canvas_shape`, on the same side; see `picture_of`."""
    if found.number is None:
        _write(canvas, frame if frame.ndim == 3 else frame[..., None], found, depth)
        return
    (rows, columns), number = grid(found.number), found.number
    reorder = "transpose" if isinstance(canvas, np.ndarray) else "permute"
    tiles = getattr(canvas.reshape(rows, found.height, columns, found.width, 3), reorder)(0, 2, 1, 3, 4)
    full = number // columns
    if full:
        whole = frame[: full * columns]
        _write(tiles[:full], whole.reshape(full, columns, *whole.shape[1:]), found, depth)
    if full < rows:
        _write(tiles[full, : number - full * columns], frame[full * columns :], found, depth)
        tiles[full, number - full * columns :] = 0


def picture_of(
    frame: Frame, found: FrameFormat, depth_range: Range = None, into: np.ndarray | None = None
) -> tuple[Frame, Depth]:
    """The picture of a frame that `plain_frame` gave, (H, W, 3) uint8 in memory of its own, and the range of its depth.

    `depth_range` is the metres of the first and the last colour; None takes those of the frame. On the host the picture
    is written `into` a buffer if its shape fits; of CUDA tensors it is made on their device, on the current stream
    without waiting for it. The range is what `measured_range` gives; None for other formats.
    """
    depth = measured_range(frame, depth_range) if found.kind == "depth" else None
    shape, canvas = canvas_shape(found), into
    if getattr(frame, "is_cuda", False):
        canvas = sys.modules["torch"].empty(shape, dtype=sys.modules["torch"].uint8, device=frame.device)
    else:
        frame = to_array(frame)
        if canvas is None or canvas.shape != shape:
            canvas = np.empty(shape, np.uint8)
    paint(canvas, frame, found, depth)
    return canvas, depth


def as_rgb(frame: Frame, where: str, *, depth_range: Range = None) -> tuple[Frame, bool]:
    """A frame of any of `images.FORMATS` as H×W×3 uint8 where it lies: itself where it is that, a picture otherwise.

    With it, whether its channels are red, green, blue whatever the caller's `bgr`, as those of depth are. ValueError
    where the frame or the range is something else.
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
    """Raises ValueError for an empty batch, and for a picture of more than `most` pixels a side."""
    if found.number == 0:
        raise ValueError(f"{where}: want {FORMATS}; got a batch of none")
    height, width, _ = canvas_shape(found)
    if max(height, width) > most:
        raise ValueError(f"{where}: want at most {most} pixels a side; got a picture of {height}×{width}")


@cache
def color_map() -> np.ndarray:
    """Colours of depth from near, bright yellow, to far, dark violet, (256, 3) uint8 RGB: viridis, backwards."""
    cv2 = load("cv2")
    ramp: np.ndarray = cv2.applyColorMap(np.arange(255, -1, -1, dtype=np.uint8)[:, None], cv2.COLORMAP_VIRIDIS)
    return np.ascontiguousarray(ramp[:, 0, ::-1])


@cache
def _packed_color_map() -> np.ndarray:
    """The same with four bytes a colour, (256,) uint32, which are looked up several times as fast as three."""
    return np.pad(color_map(), ((0, 0), (0, 1))).view(np.uint32)[:, 0]


@cache
def _color_map_on(device: Any) -> Any:
    return sys.modules["torch"].from_numpy(color_map()).to(device)


def _write(canvas: Any, frame: Any, found: FrameFormat, depth: Any) -> None:
    """Writes (…, C) numbers as (…, 3) pixels; on the host a block at a time, where more than a copy is to be done."""
    if found.kind in ("rgb", "gray"):
        canvas[...] = frame
    elif not isinstance(canvas, np.ndarray) and found.kind == "rgba":
        wide = frame.int()
        alpha = wide[..., 3:]
        canvas[...] = ((wide[..., :3] * alpha + WHITE * (255 - alpha) + 127) // 255).byte()
    elif not isinstance(canvas, np.ndarray):
        canvas[...] = _colors_on_device(frame, depth)
    elif canvas.size <= _BLOCK:
        canvas[...] = _over_white(frame) if found.kind == "rgba" else _colors(frame, depth)
    elif len(canvas) == 1:
        _write(canvas[0], frame[0], found, depth)
    else:
        half = len(canvas) // 2
        _write(canvas[:half], frame[:half], found, depth)
        _write(canvas[half:], frame[half:], found, depth)


def _over_white(frame: np.ndarray) -> np.ndarray:
    """(…, 4) over the background, (…, 3) uint16."""
    alpha = frame[..., 3:].astype(np.uint16)
    mixed = frame[..., :3] * alpha
    mixed += WHITE * (255 - alpha) + np.uint16(128)
    mixed += mixed >> 8  # with the next line: a division by 255, rounded
    mixed >>= 8
    return mixed


def _colors(frame: np.ndarray, depth: tuple[float, float]) -> np.ndarray:
    """(…, 1) metres as colours (…, 3) uint8."""
    near, far = depth
    if far < near:  # nothing was measured
        return np.full((*frame.shape[:-1], 3), UNMEASURED, np.uint8)
    wide = np.float32 if max(abs(near), abs(far)) < _LARGE else np.float64
    with np.errstate(over="ignore", invalid="ignore"):  # where nothing was measured, which is painted over
        shades = np.subtract(frame[..., 0], near, dtype=wide)
        shades *= 255 / (far - near) if far > near else 0.0
        places = (np.clip(shades, 0, 255, out=shades) + wide(0.5)).astype(np.uint8)
    colors: np.ndarray = _packed_color_map().take(places).view(np.uint8).reshape(*places.shape, 4)[..., :3]
    unknown = ~np.isfinite(frame[..., 0])
    if unknown.any():
        colors[unknown] = UNMEASURED
    return colors


def _colors_on_device(frame: Any, depth: Any) -> Any:
    torch, metres = sys.modules["torch"], frame[..., 0].detach().double()
    known = torch.isfinite(metres)
    near, far = depth if isinstance(depth, tuple) else depth.unbind()
    share = torch.nan_to_num((metres - near) / (far - near), nan=0.0).clamp(0, 1)
    colors = _color_map_on(frame.device)[(torch.where(known, share, 0.0) * 255 + 0.5).long()]
    return torch.where(known[..., None], colors, UNMEASURED)
