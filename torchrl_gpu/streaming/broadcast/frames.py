"""Pictures on their way from the producer to the encoder, and encoded ones on their way to viewers."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from torchrl_gpu.streaming.codecs.encoder import Codec
from torchrl_gpu.streaming.codecs.images import Depth, Frame, FrameFormat, format_of, plain_frame
from torchrl_gpu.streaming.codecs.pixels import canvas_shape, check_depth_range, check_size

if TYPE_CHECKING:
    import torch

Scalar = str | int | float | bool | None
Meta: TypeAlias = Mapping[str, Any] | None
MAX_FRAME_SIDE = 16_384
MAX_META = 64
MAX_TEXT = 1_024
MAX_META_NAME = 256
MAX_BITS = 3 * MAX_TEXT  # of an integer, which then has fewer digits than a text may have characters
MAX_EXACT = 2**53  # integers below it are numbers of JavaScript, which reads larger ones as others
_KINDS = frozenset((str, int, float, bool, type(None)))
_WHERE = "StreamServer.publish"


@dataclass
class CapturedFrame:
    """Pixels that the producer has handed over, owned by the server."""

    pixels: Frame  # (H, W, 3) uint8: a NumPy array, or a CUDA tensor
    bgr: bool
    captured: float  # when it was published, seconds by `stream_time`
    seq: int  # unique on the server, rising within a stream
    meta: dict[str, Scalar]  # travels with the picture
    copied: torch.cuda.Event | None = None  # behind the copy of the pixels; None for those on the host
    depth: Depth = None  # of the frame, to be read behind `copied`; None once `meta` has it


@dataclass(frozen=True, eq=False)
class EncodedPicture:
    """One picture as every viewer of a stream and codec gets it."""

    stream: str
    codec: Codec
    data: bytes  # JPEG file, or H.264 access unit in Annex B
    key: bool  # whether it can be shown without the pictures before it
    seq: int
    captured: float
    width: int
    height: int
    meta: Mapping[str, Scalar] = field(default_factory=dict)
    replay: bool = False  # whether it is shown again

    @cached_property
    def head(self) -> str:
        """The part of the header that is the same for all viewers: a JSON object without its closing brace."""
        facts = {name: getattr(self, name) for name in ("seq", "stream", "codec", "key", "width", "height", "replay")}
        return json.dumps(facts | {"captured": round(self.captured, 4), "meta": dict(self.meta)})[:-1]


class FrameLayout:
    """Format of a stream's frames and shape of their pictures, found again where the frames change."""

    def __init__(self) -> None:
        self.shape = (0, 0, 3)  # of the picture that a frame makes
        self.format = FrameFormat("rgb", None, 0, 0)
        self._found_for: Any = None

    def update(self, frame: Frame, depth_range: object = None) -> Frame:
        """Updates the layout from a frame, or raises ValueError; returns it as `images.plain_frame` does."""
        frame = plain_frame(frame, _WHERE)
        if self._found_for != (frame.shape, frame.dtype):
            found = format_of(frame, _WHERE)
            check_size(found, _WHERE, MAX_FRAME_SIDE)
            self.shape, self.format = canvas_shape(found), found
            self._found_for = frame.shape, frame.dtype
        if depth_range is not None:
            check_depth_range(depth_range, self.format, _WHERE)
        return frame


def depth_meta(depth: Depth) -> dict[str, Scalar]:
    """Metres that the first and the last colour of depth stand for, as metadata; None where nothing was measured."""
    if depth is None:
        return {}
    near, far = depth if isinstance(depth, tuple) else depth.tolist()
    return {"depth_near_m": near if math.isfinite(near) else None, "depth_far_m": far if math.isfinite(far) else None}


def record_event(pixels: Frame) -> torch.cuda.Event | None:
    """A CUDA event recorded behind the work that has been asked for on the current stream; None on the host."""
    if isinstance(pixels, np.ndarray):
        return None
    event = sys.modules["torch"].cuda.Event()
    event.record(sys.modules["torch"].cuda.current_stream(pixels.device))
    return event


def beside(pixels: Frame) -> AbstractContextManager[Any]:
    """A CUDA stream of the encoder's own as the current one, so that what it copies and draws does not wait for
    whatever training has queued since; for pixels on the host nothing."""
    return nullcontext() if isinstance(pixels, np.ndarray) else sys.modules["torch"].cuda.stream(_stream(pixels.device))


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = sys.modules["torch"].cuda.Stream(device)
    return stream


def clean_meta(meta: Meta) -> dict[str, Scalar]:
    """Metadata as JSON and JavaScript can hold it; ValueError for all else.

    NumPy scalars become Python's, what is not finite None, and integers from 2⁵³ on text.
    """
    if not meta:
        return {}
    if len(meta) > MAX_META:
        raise ValueError(f"StreamServer: want at most {MAX_META} values of metadata; got {len(meta)}")
    return {name: _scalar(name, value) for name, value in meta.items()}


def with_facts(meta: Meta, facts: Mapping[str, Scalar]) -> dict[str, Any]:
    """Metadata, and as many facts besides as there is room for."""
    return dict(itertools.islice({**(meta or {}), **facts}.items(), max(len(meta or {}), MAX_META)))


def check_title(where: str, title: object) -> str | None:
    """The title of a stream; ValueError unless it is None or text."""
    if title is None or (isinstance(title, str) and len(title) <= MAX_TEXT):
        return title
    got = f"{len(title)} characters" if isinstance(title, str) else type(title).__name__
    raise ValueError(f"{where}: want a title of at most {MAX_TEXT} characters; got {got}")


def check_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON can hold them: scalars, as `clean_meta` makes them, and lists of them; ValueError for all else."""
    lists = {name: value for name, value in values.items() if isinstance(value, list | tuple)}
    scalars = clean_meta({name: value for name, value in values.items() if name not in lists})
    if sum(map(len, lists.values())) + len(values) > MAX_META:
        raise ValueError(f"StreamServer: want at most {MAX_META} values of state; got more")
    return scalars | {name: [_scalar(name, each) for each in value] for name, value in lists.items()}


def _scalar(name: Any, value: Any) -> Scalar:
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return None
    if type(name) is not str or len(name) > MAX_META_NAME:
        got = f"{len(name)} characters" if isinstance(name, str) else type(name).__name__
        raise ValueError(f"StreamServer: want names of metadata of at most {MAX_META_NAME} characters; got {got}")
    if kind is int and abs(value) >= MAX_EXACT:
        return _digits(name, value)
    if kind not in _KINDS or (kind is str and len(value) > MAX_TEXT):
        got = f"{len(value)} characters" if kind is str else kind.__name__
        raise ValueError(
            f"StreamServer: want numbers, bools, None and strings of at most {MAX_TEXT} characters as metadata; "
            f"got {got} as {name!r}"
        )
    scalar: Scalar = value
    return scalar


def _digits(name: str, value: int) -> str:
    """An integer that pages would read as another one, as text."""
    if value.bit_length() > MAX_BITS:
        raise ValueError(f"StreamServer: want integers of at most {MAX_BITS} bits as metadata; got more as {name!r}")
    return str(value)
