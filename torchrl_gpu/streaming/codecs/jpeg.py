"""JPEG on the CPU, by OpenCV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.images import to_array

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.images import Frame


def encode_jpeg(frame: Frame, quality: int = 80, *, bgr: bool = False) -> bytes:
    """The JPEG, 4:2:0, of a frame H×W×3 uint8 and a quality that were checked before; from any number of threads."""
    cv2, array = load("cv2"), to_array(frame)
    blue_first = array if bgr else cv2.cvtColor(array, cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(".jpg", blue_first, [cv2.IMWRITE_JPEG_QUALITY, int(quality)])
    assert done, "OpenCV refused a frame that was checked"
    return data.tobytes()


def check_quality(quality: int, where: str) -> None:
    if isinstance(quality, bool) or not isinstance(quality, int | np.integer) or not 1 <= quality <= 100:
        raise ValueError(f"{where}: want a quality of 1 to 100; got {quality!r}")
