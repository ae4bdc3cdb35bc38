"""Frames to encode, decoders that are not ours, and how far two frames lie apart."""

from __future__ import annotations

from collections.abc import Iterable

import av
import cv2
import numpy as np


def scene(height: int = 120, width: int = 160, *, shift: int = 0) -> np.ndarray:
    """An RGB frame H×W×3 that a swap of channels or a flip changes everywhere.

    It moves with `shift`.
    """
    y, x = np.mgrid[0:height, 0:width]
    red = 130 + 100 * (y / height)
    green = 40 + 60 * (x / width)
    blue = 60 + 40 * np.sin((x + 2 * y + 4 * shift) / 20)
    frame = np.stack([red, green, blue], -1).astype(np.uint8)
    frame[: height // 4, shift % 8 : shift % 8 + width // 4] = (20, 60, 220)
    return frame


def decode_jpeg(file: bytes) -> np.ndarray:
    decoded = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None, "no JPEG file"
    return decoded[..., ::-1]


def decode_h264(packets: Iterable[bytes]) -> list[np.ndarray]:
    """RGB frames of one Annex B stream, cut into packets anyhow."""
    context = av.CodecContext.create("h264", "r")
    units = context.parse(b"".join(packets)) + context.parse(None)
    frames = []
    for unit in [*units, None]:
        frames += context.decode(unit)
    return [frame.to_ndarray(format="rgb24") for frame in frames]


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Peak signal-to-noise ratio, decibels.

    Frames of other sizes fail.
    """
    assert one.shape == other.shape
    error = float(np.square(one.astype(float) - other).mean())
    return 10 * float(np.log10(255**2 / max(error, 1e-12)))


def unit_types(packet: bytes) -> list[int]:
    """Types of the NAL units of an Annex B packet.

    7 and 8 are parameter sets, 5 is an IDR slice, 1 another slice.
    """
    return [unit[0] & 31 for unit in packet.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1")[1:]]
