"""JPEGs of streams: on the host by OpenCV, on a GPU by a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.streaming.codecs.jpeg import compress
from torchrl_gpu.streaming.codecs.packet import Packet

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.images import Frame
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline


class JpegEncoder:
    """JPEGs of frames that were checked before; every picture is a key picture.

    Args:
        quality: 1 to 100.
        pipeline: Makes them; None for OpenCV, and a pipeline of its own for frames on a GPU.
    """

    def __init__(self, quality: int, pipeline: GpuFramePipeline | None = None) -> None:
        self._quality, self._pipeline = quality, pipeline
        self._own_pipeline: GpuFramePipeline | None = None

    def encode(self, rgb: Frame, key_frame: bool = False, *, bgr: bool = False) -> Packet:
        """One frame, encoded."""
        pipeline = self._pipeline or self._own_pipeline
        if self._pipeline is None and isinstance(rgb, np.ndarray):
            return Packet(compress(rgb, self._quality, bgr=bgr), True)
        if pipeline is None:
            from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

            pipeline = self._own_pipeline = GpuFramePipeline(rgb.device)
        return Packet(pipeline.encode_jpeg(rgb, self._quality, bgr=bgr), True)

    def close(self) -> None:
        """Frees the pipeline of its own."""
        if self._own_pipeline is not None:
            self._own_pipeline.close()
