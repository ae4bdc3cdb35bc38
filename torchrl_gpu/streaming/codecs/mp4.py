"""Frames as a video file that every player takes."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.images import Frame, check_frame, to_array
from torchrl_gpu.streaming.codecs.libavcodec import error_text, even, file_stream, to_i420, video_frame
from torchrl_gpu.system.parts import Part

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

# Seconds that a player which seeks has to decode at most.
_KEY_FRAME_PERIOD_S = 2.0
_OPTIONS = {"preset": "veryfast", "crf": "20"}
_MIN_FPS = 0.1
_MAX_FPS = 1000


class Mp4Writer:
    """An MP4 file of H.264 in yuv420p, at a constant frame rate.

    Its index is in front, so that browsers start at once. The first frame makes the file and sets its size, odd sides
    one pixel larger; later frames of another size are scaled into the middle of it, on black. The file has its name
    from `close` on; until then the name ends with ".part". Leaving a `with` block closes it, by an exception too: what
    led there is worth seeing. Without a frame there is no file. One thread at a time.

    Args:
        path: Where to; parent folders are made, and a file of that name is replaced.
        fps: Frames per second, 0.1 to 1000.

    Attributes:
        num_frames: Frames written.

    Raises:
        ValueError: `fps` is something else.
    """

    def __init__(self, path: str | os.PathLike[str], fps: float) -> None:
        if not _MIN_FPS <= fps <= _MAX_FPS:
            raise ValueError(f"Mp4Writer: fps must be {_MIN_FPS} to {_MAX_FPS} frames per second, not {fps!r}")
        load("av")
        load("cv2")
        self.path = Path(path)
        self.fps = float(fps)
        self.num_frames = 0
        self._part: Part | None = None
        self._file: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self._closed = False

    def write(self, frame: Frame, *, bgr: bool = False) -> None:
        """Append a frame H×W×3 uint8, on any device.

        Raises:
            ValueError: It is something else.
            RuntimeError: The writer is closed, or x264 refuses the size of the first frame.
        """
        check_frame(frame, "Mp4Writer")
        if self._closed:
            raise RuntimeError("Mp4Writer is closed")
        array = to_array(frame)
        if self._file is None:
            height, width = array.shape[:2]
            self._open(even(width), even(height))
        assert self._file is not None
        assert self._stream is not None
        fitted = letterbox(array, self._stream.width, self._stream.height)
        planes = to_i420(fitted, bgr=bgr)
        self._file.mux(self._stream.encode(video_frame(planes, self.num_frames)))
        self.num_frames += 1

    def close(self) -> None:
        """Finish the file and give it its name. Closing again does nothing.

        Raises:
            OSError: It cannot be written. Nothing is left of the file.
        """
        file, self._file = self._file, None
        self._closed = True
        if file is None or self._part is None:
            return
        assert self._stream is not None
        try:
            with closing(file):
                file.mux(self._stream.encode(None))
            self._part.publish()
        except BaseException:
            self._part.discard()
            raise
        finally:
            self._stream = None

    def __enter__(self) -> Mp4Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, width: int, height: int) -> None:
        av = load("av")
        part = Part(self.path, "Mp4Writer")
        file: OutputContainer | None = None
        try:
            file = av.open(part.part, "w", format="mp4", options={"movflags": "+faststart"})
            assert file is not None
            self._stream = _video_stream(file, width, height, self.fps)
            # This makes the file: better now than with the first packet, many frames later.
            file.start_encoding()
        except BaseException:
            if file is not None:
                file.close()
            part.discard()
            raise
        self._part = part
        self._file = file


def letterbox(frame: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return a frame scaled as large as fits, in the middle, on black.

    A frame that has this size, apart from odd sides, is returned itself.
    """
    frame_height, frame_width = frame.shape[:2]
    if (even(frame_width), even(frame_height)) == (width, height):
        return frame
    cv2 = load("cv2")
    scale = min(width / frame_width, height / frame_height)
    inner_width = max(1, round(frame_width * scale))
    inner_height = max(1, round(frame_height * scale))
    # Linear interpolation looks at four pixels only, and would let details of a frame that shrinks flicker.
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    scaled = cv2.resize(frame, (inner_width, inner_height), interpolation=interpolation)
    canvas = np.zeros((height, width, 3), np.uint8)
    left = (width - inner_width) // 2
    top = (height - inner_height) // 2
    rows = slice(top, top + inner_height)
    columns = slice(left, left + inner_width)
    canvas[rows, columns] = scaled
    return canvas


def _video_stream(file: OutputContainer, width: int, height: int, fps: float) -> VideoStream:
    """Return an open x264 stream of one thread.

    A recording runs next to training, which needs the other cores.
    """
    av = load("av")
    stream = file_stream(file, width, height, fps, _OPTIONS)
    context = stream.codec_context
    context.gop_size = max(1, round(_KEY_FRAME_PERIOD_S * fps))
    context.thread_count = 1
    try:
        context.open()
    except (av.FFmpegError, ValueError) as error:
        raise RuntimeError(f"Mp4Writer: x264 does not open at {width}×{height}: {error_text(error)}") from error
    return stream
