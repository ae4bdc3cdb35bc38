"""JPEGs of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.streaming.codecs.jpeg import encode_jpeg
from torchrl_gpu.streaming.codecs.packet import Packet

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.images import Frame
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline


class JpegEncoder:
    """An `Encoder` of JPEGs, by a pipeline; without one by OpenCV, and by a pipeline of its own for frames on a GPU."""

    def __init__(self, quality: int, pipeline: GpuFramePipeline | None = None) -> None:
        self._quality, self._pipeline = quality, pipeline
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
