"""H.264 of one stream of frames."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.streaming.codecs import libavcodec, probes
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.images import MAX_SIDE, Frame, Packet, to_array
from torchrl_gpu.streaming.codecs.libavcodec import even, to_i420

if TYPE_CHECKING:
    import av
    from av.video.codeccontext import VideoCodecContext

CODECS = ("auto", "nvenc", "x264")
_MIN_FPS = 0.1
_MAX_FPS = 1000
_MIN_BITRATE = 1000
_MAX_BITRATE = 2**31 - 1

_LOG = logging.getLogger(__name__)
# Codecs that have replaced another, which is logged once in a process.
WARNED: set[str] = set()


class H264Encoder:
    """An encoder for the frames of one stream.

    Baseline, Annex B, parameter sets before every key frame; a frame comes out of the call that it goes into. The first
    frame is a key frame, and so is the first after a change of size, which reopens the codec. Odd sides grow by a copy
    of the last row or column. Threads take turns: libavcodec crashes when two enter one codec.

    Args:
        width, height: Of the frames to come, pixels; as attributes those of the coded pictures, even.
        fps: Frames per second that the rate control counts on.
        bitrate: Bits per second, at most.
        codec: "nvenc"; "x264"; or "auto": NVENC if it works, x264 once NVENC refuses this stream. The attribute is what
            encodes now.

    Raises:
        ValueError: An argument is invalid.
        RuntimeError: No codec opens that may be used; the message says why.
    """

    def __init__(self, width: int, height: int, fps: float = 30, bitrate: int = 8_000_000, codec: str = "auto") -> None:
        _check_arguments(width, height, fps, bitrate, codec)
        load("cv2")
        self.fps = float(fps)
        self.bitrate = int(bitrate)
        # The one that encodes now, and those to try after it.
        self._codecs = [codec]
        if codec == "auto":
            self._codecs = ["x264"] if probes.nvenc_problem() else ["nvenc", "x264"]
        self._lock = threading.Lock()
        self._context: VideoCodecContext | None = None
        self._closed = False
        # Pictures since the codec was opened.
        self._number = 0
        self._open(even(width), even(height))

    def encode(self, rgb: Frame, key_frame: bool = False, *, bgr: bool = False) -> Packet:
        """Encode one frame, H×W×3 uint8 on any device.

        With `key_frame` a decoder can start at it.

        Raises:
            RuntimeError: The encoder is closed, or no codec takes the frame.
        """
        planes = to_i420(to_array(rgb), bgr=bgr)
        with self._lock:
            self._refuse_if_closed()
            width = planes.shape[1]
            height = planes.shape[0] * 2 // 3
            is_other_size = (width, height) != (self.width, self.height)
            if self._context is None or is_other_size:
                self._open(width, height)
            packets = self._encode(planes, key_frame)
        data = b"".join(map(bytes, packets))
        return Packet(data, any(packet.is_keyframe for packet in packets))

    def flush(self) -> bytes:
        """Return the last bytes of the codec, usually none. The next frame is a key frame."""
        with self._lock:
            self._refuse_if_closed()
            # A codec of libavcodec that was drained takes no more frames, so that the next one opens another.
            context, self._context = self._context, None
            if context is None:
                return b""
            packets = libavcodec.encode(context, None)
            return b"".join(map(bytes, packets))

    def close(self) -> None:
        """Free the codec, after the frame that another thread may be encoding.

        Closing again does nothing.
        """
        with self._lock:
            self._closed = True
            self._context = None

    def _encode(self, planes: np.ndarray, key_frame: bool) -> list[av.Packet]:
        """Return the packets of a picture, by the next codec if this one fails."""
        while True:
            # Made again for each codec: one that was reopened counts from 0, and begins with a key frame.
            number = self._number
            frame = libavcodec.video_frame(planes, number, key_frame=key_frame or number == 0)
            self._number += 1
            assert self._context is not None
            try:
                return libavcodec.encode(self._context, frame)
            except RuntimeError as error:
                self._context = None
                if not self._drop_codec(error):
                    raise
                self._open(self.width, self.height)

    def _open(self, width: int, height: int) -> None:
        """Open the first codec that opens at this size."""
        self._context = None
        self._number = 0
        while self._context is None:
            try:
                self._context = libavcodec.open_codec(
                    self._codecs[0], width, height, fps=self.fps, bitrate=self.bitrate
                )
            except RuntimeError as error:
                if not self._drop_codec(error):
                    raise
        self.codec = self._codecs[0]
        self.width = width
        self.height = height

    def _drop_codec(self, error: RuntimeError) -> bool:
        """Turn to the next codec.

        It returns False if there is none.
        """
        if len(self._codecs) < 2:
            return False
        self._codecs = self._codecs[1:]
        if self._codecs[0] not in WARNED:
            WARNED.add(self._codecs[0])
            _LOG.warning("H264Encoder: %s; %s encodes instead", error, self._codecs[0])
        return True

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("H264Encoder is closed")


def check_codec(codec: str, where: str) -> None:
    """Check the name of a codec.

    Raises:
        ValueError: There is no such codec.
    """
    if codec not in CODECS:
        raise ValueError(f"{where}: codec must be one of {', '.join(CODECS)}, not {codec!r}")


def _check_arguments(width: int, height: int, fps: float, bitrate: int, codec: str) -> None:
    check_codec(codec, "H264Encoder")
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise ValueError(f"H264Encoder: width and height must be 1 to {MAX_SIDE} pixels, not {width}×{height}")
    if not _MIN_FPS <= fps <= _MAX_FPS:
        raise ValueError(f"H264Encoder: fps must be {_MIN_FPS} to {_MAX_FPS} frames per second, not {fps!r}")
    if not _MIN_BITRATE <= bitrate < _MAX_BITRATE + 1:
        raise ValueError(
            f"H264Encoder: bitrate must be {_MIN_BITRATE:,} to {_MAX_BITRATE:,} bits per second, not {bitrate!r}"
        )
