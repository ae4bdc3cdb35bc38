"""H.264 encoders of libavcodec, opened for the lowest latency: NVENC and x264; and frames in the colours they take.

A codec that is listed may still fail to open: NVENC without a driver, on a chip without the engine (A100, H100, H200),
below its smallest size, or beyond the number of sessions that a consumer card allows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

NAMES = {"nvenc": "h264_nvenc", "x264": "libx264"}
KEY_FRAME_PERIOD_S = 4.0  # at most; a viewer that joins asks for one at once
_CRF = 23  # x264's own default: what looks right costs no more bits, however many are allowed
_PIXELS_PER_THREAD = 1 << 21
# ITU-T H.273 numbers of what `to_i420` makes of sRGB: without them a player guesses BT.709 from the size of the picture
PRIMARIES, TRANSFER, MATRIX, LIMITED = 1, 13, 6, 1


def even(side: int) -> int:
    """The side of the smallest picture with even sides around one, pixels."""
    return side + side % 2


def to_i420(frame: np.ndarray, *, bgr: bool = False) -> np.ndarray:
    """A frame H×W×3 as I420, BT.601, limited range: the planes Y, U, V below each other, (3/2 H, W) uint8.

    Odd sides repeat the last line.
    """
    cv2 = load("cv2")
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        frame = cv2.copyMakeBorder(frame, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
    planes: np.ndarray = cv2.cvtColor(frame, cv2.COLOR_BGR2YUV_I420 if bgr else cv2.COLOR_RGB2YUV_I420)
    return planes


def open_codec(codec: str, width: int, height: int, *, fps: float, bitrate: int) -> VideoCodecContext:
    """An open encoder of I420 pictures: Annex B, Baseline, no B-frames, one packet per picture in the same call.

    Sides are even, pixels. Of `bitrate`, bits per second, NVENC spends all, x264 at most that. RuntimeError where the
    codec, "nvenc" or "x264", does not open here.
    """
    av = load("av")
    rate = Fraction(fps).limit_denominator(1001)
    try:
        context = av.CodecContext.create(NAMES[codec], "w")
        context.width, context.height, context.pix_fmt = width, height, "yuv420p"
        context.time_base, context.framerate = 1 / rate, rate
        context.gop_size = max(1, round(KEY_FRAME_PERIOD_S * fps))
        context.max_b_frames = 0
        set_color_properties(context)
        _set_options(codec, context, bitrate)
        context.open()
    except (av.FFmpegError, ValueError) as error:
        raise RuntimeError(f"{NAMES[codec]} does not open at {width}×{height}: {error_text(error)}") from error
    return context


def file_stream(file: Any, width: int, height: int, fps: float, options: dict[str, str] | None = None) -> Any:
    """A stream of x264 in an open container, for pictures as `to_i420` makes them; the first packet opens the codec."""
    stream = file.add_stream(NAMES["x264"], rate=Fraction(fps).limit_denominator(1001), options=options)
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    set_color_properties(stream.codec_context)
    return stream


def codec_problem(codec: str, width: int = 640, height: int = 480) -> str:
    """Why a codec encodes nothing here, in one line; empty if it has just encoded a picture of this size."""
    try:
        with _in_its_own_words():
            context = open_codec(codec, width, height, fps=30.0, bitrate=8_000_000)
        gray = video_frame(np.full((height * 3 // 2, width), 128, np.uint8), 0, key_frame=True)
        packets = [*encode(context, gray), *encode(context, None)]
    except (RuntimeError, ModuleNotFoundError) as error:
        return " ".join(str(error).split())
    return "" if any(bytes(packet) for packet in packets) else f"{NAMES[codec]} opens, but gives no packet"


def video_frame(planes: np.ndarray, number: int, *, key_frame: bool = False) -> VideoFrame:
    """Planes as `to_i420` makes them, as the codec's n-th picture."""
    av = load("av")
    frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
    frame.pts = number
    if key_frame:
        frame.pict_type = av.video.frame.PictureType.I
    return frame


def encode(context: VideoCodecContext, frame: VideoFrame | None) -> list[Packet]:
    """The packets that a picture makes ready, or with None, at the end, those still inside; or RuntimeError."""
    av = load("av")
    try:
        packets: list[Packet] = context.encode(frame)
    except (av.FFmpegError, ValueError) as error:
        raise RuntimeError(f"{context.name} fails: {error_text(error)}") from error
    return packets


def error_text(error: Exception) -> str:
    """The message of a PyAV error in one line, libavcodec's own where there is one."""
    _, _, message = getattr(error, "log", None) or (0, "", "")
    words = message or getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(words).split())


@contextlib.contextmanager
def _in_its_own_words() -> Iterator[None]:
    """Errors say what libavcodec says ("Cannot load libcuda.so.1") rather than its number's name.

    For a moment only: PyAV keeps such messages off, because a codec that speaks from several threads may hang.
    """
    logging = load("av.logging")
    level = logging.get_level()
    logging.set_level(logging.ERROR)
    try:
        with logging.Capture(local=True):
            yield
    finally:
        logging.set_level(level)


def set_color_properties(context: VideoCodecContext) -> None:
    """Writes into the stream which colours its numbers mean."""
    context.color_primaries, context.color_trc, context.colorspace = PRIMARIES, TRANSFER, MATRIX
    context.color_range = LIMITED


def _set_options(codec: str, context: VideoCodecContext, bitrate: int) -> None:
    shared = {"profile": "baseline", "forced-idr": "1", "maxrate": str(bitrate), "bufsize": str(bitrate // 2)}
    if codec == "nvenc":
        context.bit_rate = bitrate
        context.options = shared | {"preset": "p1", "tune": "ull", "zerolatency": "1", "delay": "0", "rc": "cbr"}
    else:
        context.thread_count = 1 + context.width * context.height // _PIXELS_PER_THREAD
        context.options = shared | {"preset": "ultrafast", "tune": "zerolatency", "crf": str(_CRF)}
