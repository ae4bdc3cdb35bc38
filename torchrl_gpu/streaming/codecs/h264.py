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

_LOG = logging.getLogger(__name__)
_WARNED: set[str] = set()  # the codecs whose turn has been logged in this process
CODECS = ("auto", "nvenc", "x264")


class H264Encoder:
    """Baseline, Annex B, parameter sets before every key frame; a frame comes out of the call that it goes into.

    The first frame is a key frame, and so is the first after a change of size, which reopens the codec. Odd sides grow
    by a copy of the last row or column. Threads take turns: libavcodec crashes where two enter one codec.

    Args:
        width, height: Of the frames to come, pixels; as attributes those of the coded pictures, even.
        fps: Frames per second that the rate control counts on.
        bitrate: Bits per second, at most.
        codec: "nvenc"; "x264"; or "auto": NVENC where it works, x264 once NVENC refuses this stream. The attribute is
            what encodes now. RuntimeError, which says why, where none that may be used opens.
    """

    def __init__(self, width: int, height: int, fps: float = 30, bitrate: int = 8_000_000, codec: str = "auto") -> None:
        _check_arguments(width, height, fps, bitrate, codec)
        load("cv2")
        self.fps, self.bitrate = float(fps), int(bitrate)
        self._codecs = [codec]
        if codec == "auto":
            self._codecs = ["x264"] if probes.nvenc_problem() else ["nvenc", "x264"]
        self._lock = threading.Lock()
        self._context: VideoCodecContext | None = None
        self._closed = False
        self._number = 0
        self._open(even(width), even(height))

    def encode(self, rgb: Frame, key_frame: bool = False, *, bgr: bool = False) -> Packet:
        """One frame, H×W×3 uint8 on any device, encoded; with `key_frame` a decoder can start at it."""
        planes = to_i420(to_array(rgb), bgr=bgr)
        with self._lock:
            self._refuse_if_closed()
            width, height = planes.shape[1], planes.shape[0] * 2 // 3
            if self._context is None or (width, height) != (self.width, self.height):
                self._open(width, height)
            packets = self._encode(planes, key_frame)
        return Packet(b"".join(map(bytes, packets)), any(packet.is_keyframe for packet in packets))

    def flush(self) -> bytes:
        """The last bytes of the codec, usually none. The next frame is a key frame."""
        with self._lock:
            self._refuse_if_closed()
            context, self._context = self._context, None
            return b"".join(map(bytes, libavcodec.encode(context, None))) if context is not None else b""

    def close(self) -> None:
        """Frees the codec, after the frame that another thread may be encoding. Closing again does nothing."""
        with self._lock:
            self._closed, self._context = True, None

    def _encode(self, planes: np.ndarray, key_frame: bool) -> list[av.Packet]:
        """Packets of a picture, by the next codec where this one fails."""
        while True:
            frame = libavcodec.video_frame(planes, self._number, key_frame=key_frame or self._number == 0)
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
        self._context, self._number = None, 0
        while self._context is None:
            try:
                self._context = libavcodec.open_codec(
                    self._codecs[0], width, height, fps=self.fps, bitrate=self.bitrate
                )
            except RuntimeError as error:
                if not self._drop_codec(error):
                    raise
        self.codec, self.width, self.height = self._codecs[0], width, height

    def _drop_codec(self, error: RuntimeError) -> bool:
        """Goes on to the next codec; False if there is none."""
        if len(self._codecs) < 2:
            return False
        self._codecs = self._codecs[1:]
        if self._codecs[0] not in _WARNED:
            _WARNED.add(self._codecs[0])
            _LOG.warning("H264Encoder: %s; %s encodes instead", error, self._codecs[0])
        return True

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("H264Encoder: want an open encoder; got one that was closed")


def check_codec(codec: str, where: str) -> None:
    if codec not in CODECS:
        raise ValueError(f"{where}: want one of the codecs {', '.join(CODECS)}; got {codec!r}")


def _check_arguments(width: int, height: int, fps: float, bitrate: int, codec: str) -> None:
    check_codec(codec, "H264Encoder")
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise ValueError(f"H264Encoder: want sides of 1 to {MAX_SIDE} pixels; got {width}×{height}")
    if not 0.1 <= fps <= 1000:
        raise ValueError(f"H264Encoder: want 0.1 to 1000 frames per second; got {fps!r}")
    if not 1000 <= bitrate < 2**31:
        raise ValueError(f"H264Encoder: want a bitrate of 1,000 to 2^31 − 1 bits per second; got {bitrate!r}")
