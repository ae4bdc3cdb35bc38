"""Frames from the producer to the encoder, and encoded pictures to viewers."""

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
Meta: TypeAlias = Mapping[str, object] | None
State: TypeAlias = dict[str, Scalar | list[Scalar]]

MAX_FRAME_SIDE = 16_384  # pixels
# Values of a picture's metadata, or of the state.
MAX_META = 64
# Characters of a text.
MAX_TEXT = 1_024
# Characters of the name of a value.
MAX_META_NAME = 256
# Bits of an integer, which then has fewer digits than a text may have characters.
MAX_BITS = 3 * MAX_TEXT
# JavaScript has all integers below this one, and rounds larger ones.
MAX_EXACT = 2**53
# What `json` writes as a scalar. A subclass of them, such as an enumeration, may be written as anything.
_KINDS = frozenset((str, int, float, bool, type(None)))
_WHERE = "StreamServer.publish"


@dataclass
class CapturedFrame:
    """Pixels that the producer has handed over, owned by the server.

    Attributes:
        pixels: (H, W, 3) uint8, a NumPy array or a CUDA tensor.
        bgr: Whether the channels are blue, green, red.
        captured: When it was published, seconds by `stream_time`.
        seq: Unique on the server, rising within a stream.
        meta: Travels with the picture.
        copied: Event behind the copy of the pixels; None for pixels on the host.
        depth: Range of the frame's depth, to be read behind `copied`; None once `meta` has it.
    """

    pixels: Frame
    bgr: bool
    captured: float
    seq: int
    meta: dict[str, Scalar]
    copied: torch.cuda.Event | None = None
    depth: Depth = None


@dataclass(frozen=True, eq=False)
class EncodedPicture:
    """One picture as every viewer of a stream and codec gets it.

    Attributes:
        data: A JPEG file, or an access unit of H.264 in Annex B.
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
        """The part of the header that all viewers share.

        A JSON object without its closing brace.
        """
        header = {
            "seq": self.seq,
            "stream": self.stream,
            "codec": self.codec,
            "key": self.key,
            "width": self.width,
            "height": self.height,
            "replay": self.replay,
            "captured": round(self.captured, 4),
            "meta": dict(self.meta),
        }
        return json.dumps(header)[:-1]


class FrameLayout:
    """Format of a stream's frames and shape of their pictures.

    Both are derived once, and again whenever shape or dtype of the frames change.

    Attributes:
        shape: (H, W, 3) of the picture that a frame makes.
        format: Meaning and number of the values of a frame.
    """

    def __init__(self) -> None:
        self.shape = (0, 0, 3)
        self.format = FrameFormat("rgb", None, 0, 0)
        self._derived_from: object = None

    def update(self, frame: Frame, depth_range: object = None) -> Frame:
        """Update the layout from a frame.

        Returns:
            The frame as `images.plain_frame` gives it.

        Raises:
            ValueError: The frame or the range of its depth is invalid.
        """
        frame = plain_frame(frame, _WHERE)
        if self._derived_from != (frame.shape, frame.dtype):
            found = format_of(frame, _WHERE)
            check_size(found, _WHERE, MAX_FRAME_SIDE)
            self.shape = canvas_shape(found)
            self.format = found
            self._derived_from = (frame.shape, frame.dtype)
        if depth_range is not None:
            check_depth_range(depth_range, self.format, _WHERE)
        return frame


def depth_meta(depth: Depth) -> dict[str, Scalar]:
    """Return the metres of the first and the last colour of depth, as metadata.

    A value is None if no pixel has a depth. Without a depth there is no metadata.
    """
    if depth is None:
        return {}
    near, far = depth if isinstance(depth, tuple) else depth.tolist()
    return {
        "depth_near_m": near if math.isfinite(near) else None,
        "depth_far_m": far if math.isfinite(far) else None,
    }


# -- CUDA: torch is imported by whoever publishes tensors, never here --------------------------------------------------


def record_event(pixels: Frame) -> torch.cuda.Event | None:
    """Record a CUDA event behind the work queued on the current stream.

    Returns:
        None for pixels on the host.
    """
    if isinstance(pixels, np.ndarray):
        return None
    torch_cuda = sys.modules["torch"].cuda
    event: torch.cuda.Event = torch_cuda.Event()
    event.record(torch_cuda.current_stream(pixels.device))
    return event


def encoder_stream(pixels: Frame) -> AbstractContextManager[object]:
    """Make a CUDA stream of the encoder's own the current one.

    On the default stream, whatever the encoder copies and draws would wait for all that training has queued since. For
    pixels on the host nothing happens.
    """
    if isinstance(pixels, np.ndarray):
        return nullcontext()
    torch_cuda = sys.modules["torch"].cuda
    context: AbstractContextManager[object] = torch_cuda.stream(_stream_on(pixels.device))
    return context


@cache
def _stream_on(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = sys.modules["torch"].cuda.Stream(device)
    return stream


# -- metadata and state ------------------------------------------------------------------------------------------------


def clean_meta(meta: Meta) -> dict[str, Scalar]:
    """Convert metadata to what JSON and JavaScript can hold.

    NumPy scalars become Python's, numbers that are not finite None, and integers from 2⁵³ on text.

    Raises:
        ValueError: There are too many values, or one that is no scalar.
    """
    if not meta:
        return {}
    if len(meta) > MAX_META:
        raise ValueError(f"StreamServer: metadata may have at most {MAX_META} values, not {len(meta)}")
    return {name: _scalar(name, value) for name, value in meta.items()}


def with_facts(meta: Meta, facts: Mapping[str, Scalar]) -> dict[str, object]:
    """Return metadata, and as many more facts as there is room for."""
    given = meta or {}
    # The caller's own values are never cut here: too many of them are an error, which `clean_meta` raises.
    room = max(len(given), MAX_META)
    everything = {**given, **facts}
    return dict(itertools.islice(everything.items(), room))


def check_title(where: str, title: object) -> str | None:
    """Return the title of a stream.

    Raises:
        ValueError: It is neither None nor a text that is short enough.
    """
    if title is None:
        return None
    if isinstance(title, str) and len(title) <= MAX_TEXT:
        return title
    raise ValueError(f"{where}: title may have at most {MAX_TEXT} characters, not {_size_or_type(title)}")


def check_state(values: Mapping[str, object]) -> State:
    """Convert the state to what JSON can hold.

    Values are scalars, as `clean_meta` makes them, and lists of scalars.

    Raises:
        ValueError: There are too many values, or one that is neither.
    """
    lists = {name: value for name, value in values.items() if isinstance(value, list | tuple)}
    state: State = {**clean_meta({name: value for name, value in values.items() if name not in lists})}
    num_values = sum(map(len, lists.values())) + len(values)
    if num_values > MAX_META:
        raise ValueError(f"StreamServer: the state may have at most {MAX_META} values, not {num_values}")
    for name, value in lists.items():
        state[name] = [_scalar(name, each) for each in value]
    return state


def _scalar(name: object, value: Any) -> Scalar:
    """Convert a value of metadata to one of JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return None
    if type(name) is not str or len(name) > MAX_META_NAME:
        raise ValueError(
            f"StreamServer: the name of a value of metadata may have at most {MAX_META_NAME} characters,"
            f" not {_size_or_type(name)}"
        )
    if kind is int and abs(value) >= MAX_EXACT:
        return _digits(name, value)
    is_long_text = kind is str and len(value) > MAX_TEXT
    if kind not in _KINDS or is_long_text:
        raise ValueError(
            f"StreamServer: {name!r} of metadata must be a number, a boolean, None or a text of at most {MAX_TEXT}"
            f" characters, not {_size_or_type(value)}"
        )
    scalar: Scalar = value
    return scalar


def _digits(name: str, value: int) -> str:
    """Return an integer that JavaScript would round as text."""
    if value.bit_length() > MAX_BITS:
        raise ValueError(
            f"StreamServer: {name!r} of metadata may have at most {MAX_BITS} bits, not {value.bit_length()}"
        )
    return str(value)


def _size_or_type(value: object) -> str:
    return f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
