"""Pictures on their way from the producer to the encoder, and encoded ones on their way to viewers."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

Codec = Literal["jpeg", "h264"]
Scalar = str | int | float | bool | None
LARGEST_SIDE = 16_384
MOST_META = 64
LONGEST_TEXT = 1_024
_KINDS = frozenset((str, int, float, bool, type(None)))

_WANTED = f"want uint8 pixels, H×W×3 or N×H×W×3, at most {LARGEST_SIDE} a side once tiled"


@dataclass
class Capture:
    """Pixels that the producer has handed over, owned by the server.

    Args:
        pixels: (H, W, 3) uint8: a NumPy array, or a CUDA tensor.
        bgr: Whether the channels are blue, green, red.
        captured: When it was published, seconds since 1970.
        seq: Number of the frame, unique on the server, rising within a stream.
        meta: JSON scalars that travel with the picture.
        copied: CUDA event behind the copy of the pixels; None for those on the host.
    """

    pixels: Any
    bgr: bool
    captured: float
    seq: int
    meta: dict[str, Scalar]
    copied: Any = None

    @property
    def width(self) -> int:
        """Pixels a row."""
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        """Rows."""
        return int(self.pixels.shape[0])


@dataclass(frozen=True, eq=False)
class Encoded:
    """One picture as every viewer of a stream and codec gets it.

    Args:
        data: JPEG file, or H.264 access unit in Annex B.
        key: Whether it can be shown without the pictures before it.
        replay: Whether it is shown again.
    """

    stream: str
    codec: Codec
    data: bytes
    key: bool
    seq: int
    captured: float
    width: int
    height: int
    meta: Mapping[str, Scalar] = field(default_factory=dict)
    replay: bool = False

    @cached_property
    def head(self) -> str:
        """The part of the header that is the same for all viewers: a JSON object without its closing brace."""
        facts = {name: getattr(self, name) for name in ("seq", "stream", "codec", "key", "width", "height", "replay")}
        return json.dumps(facts | {"captured": round(self.captured, 4), "meta": dict(self.meta)})[:-1]


class Layout:
    """What a stream's frames look like; looks closely only at the first of a kind.

    Attributes:
        shape: (H, W, 3) of the picture that a frame makes.
    """

    def __init__(self) -> None:
        self.shape = (0, 0, 3)
        self._seen_shape: Any = None
        self._seen_dtype: Any = None

    def see(self, frame: Any) -> None:
        """Takes a frame's layout in.

        Raises:
            ValueError: It is no picture; see `canvas_shape`.
        """
        shape, dtype = getattr(frame, "shape", None), getattr(frame, "dtype", None)
        if dtype is not self._seen_dtype or shape != self._seen_shape or shape is None:
            self.shape = canvas_shape(frame)
            self._seen_shape, self._seen_dtype = shape, dtype


def canvas_shape(frame: Any) -> tuple[int, int, int]:
    """Shape (H, W, 3) of the picture that a frame makes; a batch is tiled into a grid, as square as can be.

    Raises:
        ValueError: The frame is not uint8, has another shape, or makes too large a picture.
    """
    shape, dtype = tuple(getattr(frame, "shape", ())), str(getattr(frame, "dtype", type(frame).__name__))
    if dtype not in ("uint8", "torch.uint8") or len(shape) not in (3, 4) or shape[-1] != 3 or 0 in shape:
        raise ValueError(f"StreamServer.publish: {_WANTED}; got {dtype} of shape {shape}")
    rows, columns = (1, 1) if len(shape) == 3 else grid(shape[0])
    height, width = rows * shape[-3], columns * shape[-2]
    if max(height, width) > LARGEST_SIDE:
        raise ValueError(f"StreamServer.publish: {_WANTED}; got {shape}, which makes {height}×{width}")
    return height, width, 3


def grid(number: int) -> tuple[int, int]:
    """Rows and columns of the smallest grid with at least as many columns as rows that holds a number of pictures."""
    columns = math.isqrt(number - 1) + 1
    return -(-number // columns), columns


def copy_pixels(frame: Any, shape: tuple[int, int, int], into: np.ndarray | None = None) -> Any:
    """A copy of a frame's pixels as one picture of shape (H, W, 3).

    Args:
        frame: H×W×3 or N×H×W×3 uint8, of any strides: NumPy, or torch on any device.
        shape: What `canvas_shape` says.
        into: A buffer on the host to use again; another is made if its shape does not fit.

    Returns:
        A NumPy array for what lies on the host; for CUDA tensors one of the same device, made on the current stream
        without waiting for it.
    """
    if getattr(frame, "is_cuda", False):
        canvas = frame.new_empty(shape)
        _fill(canvas, frame, "permute")
        return canvas
    host = frame if isinstance(frame, np.ndarray) else frame.detach().numpy()
    if into is None or into.shape != shape:
        into = np.empty(shape, np.uint8)
    _fill(into, host, "transpose")
    return into


def event_behind(pixels: Any) -> Any:
    """A CUDA event recorded behind the work that has been asked for on the current stream; None on the host."""
    if isinstance(pixels, np.ndarray):
        return None
    event = sys.modules["torch"].cuda.Event()
    event.record(sys.modules["torch"].cuda.current_stream(pixels.device))
    return event


def clean_meta(meta: Mapping[str, Any] | None) -> dict[str, Scalar]:
    """Metadata as JSON can hold it: NumPy scalars become Python's, what is not finite becomes None.

    Raises:
        ValueError: A name is not a string, a value is no scalar or a string that is too long, or there are too many.
    """
    if not meta:
        return {}
    if len(meta) > MOST_META:
        raise ValueError(f"StreamServer: want at most {MOST_META} values of metadata; got {len(meta)}")
    return {name: _scalar(name, value) for name, value in meta.items()}


def check_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON can hold them: scalars, as `clean_meta` makes them, and lists of them.

    Raises:
        ValueError: They are something else, or too many.
    """
    lists = {name: value for name, value in values.items() if isinstance(value, list | tuple)}
    scalars = clean_meta({name: value for name, value in values.items() if name not in lists})
    if sum(map(len, lists.values())) + len(values) > MOST_META:
        raise ValueError(f"StreamServer: want at most {MOST_META} values of state; got more")
    return scalars | {name: [_scalar(name, each) for each in value] for name, value in lists.items()}


def _scalar(name: Any, value: Any) -> Scalar:
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return None
    if kind not in _KINDS or type(name) is not str or (kind is str and len(value) > LONGEST_TEXT):
        got = f"{len(value)} characters" if kind is str else kind.__name__
        raise ValueError(
            f"StreamServer: want numbers, bools, None and strings of at most {LONGEST_TEXT} characters as metadata; "
            f"got {got} as {name!r}"
        )
    scalar: Scalar = value
    return scalar


def _fill(canvas: Any, frame: Any, reorder: str) -> None:
    """Writes a picture, or a batch of them row by row, with one or two strided copies whatever the batch."""
    if len(frame.shape) == 3:
        canvas[...] = frame
        return
    number, height, width, _ = frame.shape
    rows, columns = grid(number)
    tiles = getattr(canvas.reshape(rows, height, columns, width, 3), reorder)(0, 2, 1, 3, 4)
    full = number // columns
    tiles[:full] = frame[: full * columns].reshape(full, columns, height, width, 3)
    if full < rows:
        tiles[full, : number - full * columns] = frame[full * columns :]
        tiles[full, number - full * columns :] = 0
