"""JPEG: on the CPU by OpenCV, on a GPU by a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.streaming.codecs.encoder import Packet
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.images import check_frame, to_array

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


def encode_jpeg(frame: Frame, quality: int = 80, *, bgr: bool = False) -> bytes:
    """A frame as a JPEG file, 4:2:0. Any number of threads may call this at once.

    Args:
        frame: H×W×3 uint8; a tensor on the CPU is read where it lies, one on a GPU is copied to the host first.
        quality: 1 to 100.
        bgr: Whether the channels are blue, green, red.

    Raises:
        ValueError: The frame or the quality is something else.
        ModuleNotFoundError: OpenCV is not installed.
    """
    check_frame(frame, "encode_jpeg")
    check_quality(quality, "encode_jpeg")
    return compress(to_array(frame), quality, bgr=bgr)


def compress(array: np.ndarray, quality: int, *, bgr: bool = False) -> bytes:
    """The JPEG of a frame and a quality that were checked before."""
    cv2 = load("cv2")
    blue_first = array if bgr else cv2.cvtColor(array, cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(".jpg", blue_first, [cv2.IMWRITE_JPEG_QUALITY, int(quality)])
    assert done, "OpenCV refused a frame that was checked"
    return data.tobytes()


def check_quality(quality: int, where: str) -> None:
    """Checks a JPEG quality.

    Raises:
        ValueError: It is not a whole number from 1 to 100.
    """
    if isinstance(quality, bool) or not isinstance(quality, int | np.integer) or not 1 <= quality <= 100:
        raise ValueError(f"{where}: want a quality of 1 to 100; got {quality!r}")
