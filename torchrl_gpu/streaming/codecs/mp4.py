"""Frames as a video file that every player takes."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.images import Frame, check_frame, to_array
from torchrl_gpu.streaming.codecs.libavcodec import error_text, even, file_stream, to_i420, video_frame
from torchrl_gpu.system.parts import Part

_KEY_FRAME_PERIOD_S = 2.0  # how far a player that seeks has to decode
_OPTIONS = {"preset": "veryfast", "crf": "20"}


class Mp4Writer:
    """An MP4 file, H.264 in yuv420p, at a constant frame rate, with its index in front, so that browsers start at once.

    The first frame makes the file and sets its size, odd sides one pixel larger; later frames of another size are
    scaled into the middle of it, on black. The file has its name from `close` on; until then ".part" stands behind it.
    Leaving a `with` block closes it, by an exception too: what led there is worth seeing. Without a frame there is no
    file. One thread at a time.

    Args:
        path: Where to; parent folders are made, and a file of that name is replaced.
        fps: Frames per second, 0.1 to 1000.

    Attributes:
        num_frames: Frames written.
    """

    def __init__(self, path: str | os.PathLike[str], fps: float) -> None:
        if not 0.1 <= fps <= 1000:
            raise ValueError(f"Mp4Writer: want 0.1 to 1000 frames per second; got {fps!r}")
        load("av"), load("cv2")
        self.path, self.fps, self.num_frames = Path(path), float(fps), 0
        self._part: Part | None = None
        self._file: Any = None
        self._stream: Any = None
        self._closed = False

    def write(self, frame: Frame, *, bgr: bool = False) -> None:
        """Appends a frame H×W×3 uint8, on any device; RuntimeError where x264 refuses the size of the first."""
        check_frame(frame, "Mp4Writer")
        if self._closed:
            raise RuntimeError("Mp4Writer: want an open writer; got one that was closed")
        array = to_array(frame)
        if self._file is None:
            self._open(even(array.shape[1]), even(array.shape[0]))
        planes = to_i420(letterboxed(array, self._stream.width, self._stream.height), bgr=bgr)
        self._file.mux(self._stream.encode(video_frame(planes, self.num_frames)))
        self.num_frames += 1

    def close(self) -> None:
        """Finishes the file and gives it its name, once. Where that is an OSError, nothing is left of the file."""
        file, self._file, self._closed = self._file, None, True
        if file is None or self._part is None:
            return
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
        file = None
        try:
            file = av.open(part.part, "w", format="mp4", options={"movflags": "+faststart"})
            self._stream = _video_stream(file, width, height, self.fps)
            file.start_encoding()  # makes the file: better now than with the first packet, many frames later
        except BaseException:
            if file is not None:
                file.close()
            part.discard()
            raise
        self._part = part
        self._file = file


def letterboxed(frame: np.ndarray, width: int, height: int) -> np.ndarray:
    """A frame scaled as large as fits, in the middle, on black; itself where it has this size but for odd sides."""
    if (even(frame.shape[1]), even(frame.shape[0])) == (width, height):
        return frame
    cv2 = load("cv2")
    scale = min(width / frame.shape[1], height / frame.shape[0])
    size = max(1, round(frame.shape[1] * scale)), max(1, round(frame.shape[0] * scale))
    small = cv2.resize(frame, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    canvas = np.zeros((height, width, 3), np.uint8)
    left, top = (width - size[0]) // 2, (height - size[1]) // 2
    canvas[top : top + size[1], left : left + size[0]] = small
    return canvas


def _video_stream(file: Any, width: int, height: int, fps: float) -> Any:
    """An open x264 stream of one thread: what runs beside the recording needs the others."""
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
