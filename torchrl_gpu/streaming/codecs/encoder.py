"""Encoders of streams, by the name of their codec: another codec is another file, and a line in `CODECS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from torchrl_gpu.streaming.codecs.images import Frame, Packet, encode_jpeg

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

Codec: TypeAlias = str  # a name of `CODECS`
STILLS: Codec = "jpeg"
"""Every viewer shows it, and each picture stands alone: for snapshots, replay, and where another codec fails."""


class Encoder(Protocol):
    """Encodes frames H×W×3 uint8 that were checked before, one after the other, on any device."""

    def encode(self, rgb: Frame, key_frame: bool = False, *, bgr: bool = False) -> Packet:
        """One frame, encoded; with `key_frame` a decoder must be able to start at it."""

    def close(self) -> None: ...


class EncoderSettings(NamedTuple):
    """Settings of a server that its encoders need."""

    fps: float  # that a rate control counts on
    jpeg_quality: int  # 1 to 100
    pipeline: GpuFramePipeline | None  # makes the JPEGs; None for OpenCV, and one of the encoder's own for GPU frames


class JpegEncoder:
    """An `Encoder` of JPEGs."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._quality, self._pipeline = settings.jpeg_quality, settings.pipeline
        self._own_pipeline: GpuFramePipeline | None = None

    def encode(self, rgb: Frame, key_frame: bool = False, *, bgr: bool = False) -> Packet:
        if self._pipeline is None and isinstance(rgb, np.ndarray):
            return Packet(encode_jpeg(rgb, self._quality, bgr=bgr), True)
        pipeline = self._pipeline or self._own_pipeline
        if pipeline is None:
            from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

            pipeline = self._own_pipeline = GpuFramePipeline(rgb.device)
        return Packet(pipeline.encode_jpeg(rgb, self._quality, bgr=bgr), True)

    def close(self) -> None:
        if self._own_pipeline is not None:
            self._own_pipeline.close()


def _h264(width: int, height: int, settings: EncoderSettings) -> Encoder:
    from torchrl_gpu.streaming.codecs.h264 import H264Encoder

    return H264Encoder(width, height, settings.fps)


class StreamCodec(NamedTuple):
    """A codec.

    Where pictures build on those before them, each stream has an encoder of its own, and viewers miss none between key
    frames. Otherwise one encoder serves all streams.
    """

    make: Callable[[int, int, EncoderSettings], Encoder]  # for frames of a width and height
    has_deltas: bool


CODECS = {
    "h264": StreamCodec(_h264, has_deltas=True),
    STILLS: StreamCodec(lambda width, height, settings: JpegEncoder(settings), has_deltas=False),
}
"""The first is the one that needs the fewest bytes."""
