"""JPEG on the CPU, by OpenCV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.images import check_frame, to_array

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.images import Frame


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
