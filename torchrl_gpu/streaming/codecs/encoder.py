"""Encoders of streams, by the name of their codec.

Another codec is another file, and a line in `CODECS`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.images import Frame, Packet, encode_jpeg

if TYPE_CHECKING:
    import torch

    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

Codec: TypeAlias = str
"""A name of `CODECS`."""

STILLS: Codec = "jpeg"
"""Every viewer shows it, and each picture stands alone: for snapshots, replay, and when another codec fails."""


class Encoder(Protocol):
    """Encodes frames H×W×3 uint8 one after the other, on any device.

    The frames must have been checked before.
    """

    def encode(self, rgb: Frame, key_frame: bool = False, *, bgr: bool = False) -> Packet:
        """Encode one frame.

        With `key_frame` a decoder must be able to start at it.
        """

    def close(self) -> None: ...


class EncoderSettings(NamedTuple):
    """Settings of a server that its encoders need.

    Attributes:
        fps: The rate that a rate control counts on.
        jpeg_quality: 1 to 100.
        pipeline: Makes the JPEGs. None for OpenCV, and a pipeline of the encoder's own for GPU frames.
    """

    fps: float
    jpeg_quality: int
    pipeline: GpuFramePipeline | None


class JpegEncoder:
    """An `Encoder` of JPEGs."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._quality = settings.jpeg_quality
        self._pipeline = settings.pipeline
        self.own_pipeline: Future[GpuFramePipeline] | None = None

    def encode(self, rgb: Frame, key_frame: bool = False, *, bgr: bool = False) -> Packet:
        pipeline = self._pipeline
        if pipeline is None and not isinstance(rgb, np.ndarray):
            pipeline = self._pipeline_of(rgb.device)
        if pipeline is None:
            return Packet(encode_jpeg(rgb, self._quality, bgr=bgr), True)
        return Packet(pipeline.encode_jpeg(rgb, self._quality, bgr=bgr), True)

    def close(self) -> None:
        if self.own_pipeline is not None:
            self.own_pipeline.add_done_callback(_close_pipeline)

    def _pipeline_of(self, device: torch.device) -> GpuFramePipeline | None:
        """Return a pipeline of the encoder's own for frames on a device.

        It is None while the pipeline is being made. That may include a self-test of NVJPEG, which takes minutes on a
        new machine. So it has a thread of its own, and OpenCV encodes until then.
        """
        if self.own_pipeline is None:
            self.own_pipeline = Future()
            arguments = (self.own_pipeline, device)
            threading.Thread(target=_make_pipeline, args=arguments, name="torchrl_gpu nvjpeg", daemon=True).start()
        return self.own_pipeline.result() if self.own_pipeline.done() else None


def _make_pipeline(made: Future[GpuFramePipeline], device: torch.device) -> None:
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

    try:
        made.set_result(GpuFramePipeline(device))
    except Exception as error:
        # A driver may raise anything. The encoder raises it when it asks for the pipeline.
        made.set_exception(error)


def _close_pipeline(made: Future[GpuFramePipeline]) -> None:
    if made.exception() is None:
        made.result().close()


class StreamCodec(NamedTuple):
    """A codec.

    If pictures build on those before them, each stream has an encoder of its own, and viewers miss none between key
    frames. Otherwise one encoder serves all streams.

    Attributes:
        make: Makes an encoder for frames of a width and height.
        has_deltas: Whether pictures build on those before them.
        prepare: Does beforehand what would hold up the first picture: imports, probes.
    """

    make: Callable[[int, int, EncoderSettings], Encoder]
    has_deltas: bool
    prepare: Callable[[], None]


def _prepare_jpeg() -> None:
    load("cv2")


def _make_jpeg(width: int, height: int, settings: EncoderSettings) -> Encoder:
    return JpegEncoder(settings)


def _prepare_h264() -> None:
    """Load the codec and find out what encodes it here."""
    from torchrl_gpu.streaming.codecs import h264

    h264.probes.nvenc_problem()


def _make_h264(width: int, height: int, settings: EncoderSettings) -> Encoder:
    from torchrl_gpu.streaming.codecs.h264 import H264Encoder

    return H264Encoder(width, height, settings.fps)


CODECS = {
    "h264": StreamCodec(_make_h264, has_deltas=True, prepare=_prepare_h264),
    STILLS: StreamCodec(_make_jpeg, has_deltas=False, prepare=_prepare_jpeg),
}
"""The first is the one that needs the fewest bytes."""
