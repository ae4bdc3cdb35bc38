"""RGB as video codecs take it: I420, BT.601, limited range, even sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext

# ITU-T H.273 numbers of what `to_i420` makes of sRGB: without them a player guesses BT.709 from the size of the picture
PRIMARIES, TRANSFER, MATRIX, LIMITED = 1, 13, 6, 1


def even(side: int) -> int:
    """The side of the smallest picture with even sides around one, pixels."""
    return side + side % 2


def to_i420(frame: np.ndarray, *, bgr: bool = False) -> np.ndarray:
    """A frame H×W×3 as the planes Y, U, V below each other, (3/2 H, W) uint8; odd sides repeat the last line."""
    cv2 = load("cv2")
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        frame = cv2.copyMakeBorder(frame, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
    planes: np.ndarray = cv2.cvtColor(frame, cv2.COLOR_BGR2YUV_I420 if bgr else cv2.COLOR_RGB2YUV_I420)
    return planes


def set_color_properties(codec_context: VideoCodecContext) -> None:
    """Writes into the stream which colours its numbers mean."""
    codec_context.color_primaries, codec_context.color_trc = PRIMARIES, TRANSFER
    codec_context.colorspace, codec_context.color_range = MATRIX, LIMITED
