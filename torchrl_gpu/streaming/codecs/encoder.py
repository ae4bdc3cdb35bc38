"""Encoders of streams, by the name of their codec: another codec is another file, and a line in `CODECS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from torchrl_gpu.streaming.codecs.packet import Packet

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.images import Frame
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

Codec: TypeAlias = str  # a name of `CODECS`
STILLS: Codec = "jpeg"
"""Every viewer shows it, and each picture stands alone: for snapshots, replay, and where another codec fails."""


class Encoder(Protocol):
    """Encodes frames H×W×3 uint8 that were checked before, one after the other, on any device."""

    def encode(self, rgb: Frame, key_frame: bool = False, *, bgr: bool = False) -> Packet:
        """One frame, encoded; with `key_frame` a decoder must be able to start at it."""

    def close(self) -> None:
        """Frees the codec."""


class EncoderSettings(NamedTuple):
    """Settings of a server that its encoders need.

    Attributes:
        fps: Frames per second that a rate control counts on.
        jpeg_quality: 1 to 100.
        pipeline: Makes the JPEGs; None for OpenCV, and a pipeline of the encoder's own for frames on a GPU.
    """

    fps: float
    jpeg_quality: int
    pipeline: GpuFramePipeline | None


@dataclass(frozen=True)
class StreamCodec:
    """A codec.

    Attributes:
        make: Makes an encoder for frames of a width and height.
        has_deltas: Whether pictures build on those before them: each stream has an encoder of its own then, and viewers
            miss none between key frames. Otherwise one encoder serves all streams.
    """

    make: Callable[[int, int, EncoderSettings], Encoder]
    has_deltas: bool


def _h264(width: int, height: int, settings: EncoderSettings) -> Encoder:
    from torchrl_gpu.streaming.codecs.h264 import H264Encoder

    return H264Encoder(width, height, settings.fps)


def _jpeg(width: int, height: int, settings: EncoderSettings) -> Encoder:
    from torchrl_gpu.streaming.codecs.stills import JpegEncoder

    return JpegEncoder(settings.jpeg_quality, settings.pipeline)


CODECS = {"h264": StreamCodec(_h264, has_deltas=True), STILLS: StreamCodec(_jpeg, has_deltas=False)}
"""The first is the one that needs the fewest bytes."""
