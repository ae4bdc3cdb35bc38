"""H.264 encoders of libavcodec, NVENC and x264, opened for the lowest latency.

Also the colours of frames that they take. A codec that is listed may still fail to open: NVENC without a driver, on a
chip without the engine (A100, H100, H200), below its smallest size, or beyond the number of sessions that a consumer
card allows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_X264: Final = "libx264"
NAMES = {"nvenc": "h264_nvenc", "x264": _X264}
# Seconds between two key frames, at most. A viewer that joins asks for one at once.
KEY_FRAME_PERIOD_S = 4.0
# x264's own default. A picture that looks right costs no more bits, however many are allowed.
_CRF = 23
_PIXELS_PER_THREAD = 1 << 21
# Numbers of ITU-T H.273 for what `to_i420` makes of sRGB. Without them a player guesses BT.709 from the size of the
# picture.
PRIMARIES = 1
TRANSFER = 13
MATRIX = 6
LIMITED = 1


def even(side: int) -> int:
    """Return a side, pixels, or the next one if it is odd."""
    return side + side % 2


def to_i420(frame: np.ndarray, *, bgr: bool = False) -> np.ndarray:
    """Convert a frame H×W×3 to I420, BT.601, limited range.

    Odd sides repeat the last line.

    Returns:
        The planes Y, U, V below each other, (3/2 H, W) uint8.
    """
    cv2 = load("cv2")
    height, width = frame.shape[:2]
    below = height % 2
    right = width % 2
    if below or right:
        frame = cv2.copyMakeBorder(frame, 0, below, 0, right, cv2.BORDER_REPLICATE)
    conversion = cv2.COLOR_BGR2YUV_I420 if bgr else cv2.COLOR_RGB2YUV_I420
    planes: np.ndarray = cv2.cvtColor(frame, conversion)
    return planes


def open_codec(codec: str, width: int, height: int, *, fps: float, bitrate: int) -> VideoCodecContext:
    """Open an encoder of I420 pictures: Annex B, Baseline, no B-frames.

    It gives one packet per picture in the same call.

    Args:
        codec: "nvenc" or "x264".
        width, height: Even, pixels.
        fps: Frames per second that the rate control counts on.
        bitrate: Bits per second. NVENC spends all of it, x264 at most that.

    Raises:
        RuntimeError: The codec does not open here.
    """
    av = load("av")
    rate = Fraction(fps).limit_denominator(1001)
    try:
        context: VideoCodecContext = av.CodecContext.create(NAMES[codec], "w")
        context.width = width
        context.height = height
        context.pix_fmt = "yuv420p"
        context.time_base = 1 / rate
        context.framerate = rate
        context.gop_size = max(1, round(KEY_FRAME_PERIOD_S * fps))
        context.max_b_frames = 0
        set_color_properties(context)
        _set_options(codec, context, bitrate)
        context.open()
    except (av.FFmpegError, ValueError) as error:
        size = f"{width}×{height}"
        reason = error_text(error)
        raise RuntimeError(f"{NAMES[codec]} does not open at {size}: {reason}") from error
    return context


def file_stream(
    file: OutputContainer, width: int, height: int, fps: float, options: dict[str, str] | None = None
) -> VideoStream:
    """Add a stream of x264 to an open container, for pictures as `to_i420` makes them.

    The first packet opens the codec.
    """
    stream = file.add_stream(_X264, rate=Fraction(fps).limit_denominator(1001), options=options)
    stream.width = width
    stream.height = height
    stream.pix_fmt = "yuv420p"
    set_color_properties(stream.codec_context)
    return stream


def codec_problem(codec: str, width: int = 640, height: int = 480) -> str:
    """Return why a codec encodes nothing here, in one line.

    It is empty if the codec has just encoded a picture of this size.
    """
    try:
        with _plain_errors():
            context = open_codec(codec, width, height, fps=30.0, bitrate=8_000_000)
        gray = video_frame(np.full((height * 3 // 2, width), 128, np.uint8), 0, key_frame=True)
        packets = [*encode(context, gray), *encode(context, None)]
    except (RuntimeError, ModuleNotFoundError) as error:
        return " ".join(str(error).split())
    has_bytes = any(bytes(packet) for packet in packets)
    return "" if has_bytes else f"{NAMES[codec]} opens, but gives no packet"


def video_frame(planes: np.ndarray, number: int, *, key_frame: bool = False) -> VideoFrame:
    """Return planes of `to_i420` as the n-th picture of a codec."""
    av = load("av")
    frame: VideoFrame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
    frame.pts = number
    if key_frame:
        frame.pict_type = av.video.frame.PictureType.I
    return frame


def encode(context: VideoCodecContext, frame: VideoFrame | None) -> list[Packet]:
    """Return the packets that a picture makes ready.

    With None, at the end, they are those still inside.

    Raises:
        RuntimeError: The codec fails.
    """
    av = load("av")
    try:
        packets: list[Packet] = context.encode(frame)
    except (av.FFmpegError, ValueError) as error:
        raise RuntimeError(f"{context.name} fails: {error_text(error)}") from error
    return packets


def error_text(error: Exception) -> str:
    """Return the message of a PyAV error in one line, libavcodec's own if any."""
    _, _, message = getattr(error, "log", None) or (0, "", "")
    own_words = message or getattr(error, "strerror", None)
    words = own_words or str(error) or type(error).__name__
    return " ".join(str(words).split())


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Have errors carry the words of libavcodec, such as "Cannot load libcuda.so.1".

    Otherwise they only name a number. This is for a moment: PyAV keeps such messages off, because a codec that logs
    from several threads may hang.
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
    """Write into the stream which colours its numbers mean."""
    context.color_primaries = PRIMARIES
    context.color_trc = TRANSFER
    context.colorspace = MATRIX
    context.color_range = LIMITED


def _set_options(codec: str, context: VideoCodecContext, bitrate: int) -> None:
    # Half a second of bits may be ahead or behind, so that one picture does not fill a viewer's connection.
    shared = {"profile": "baseline", "forced-idr": "1", "maxrate": str(bitrate), "bufsize": str(bitrate // 2)}
    if codec == "nvenc":
        context.bit_rate = bitrate
        context.options = shared | {"preset": "p1", "tune": "ull", "zerolatency": "1", "delay": "0", "rc": "cbr"}
    else:
        # Small pictures take less time than it takes to share them out.
        context.thread_count = 1 + context.width * context.height // _PIXELS_PER_THREAD
        context.options = shared | {"preset": "ultrafast", "tune": "zerolatency", "crf": str(_CRF)}
