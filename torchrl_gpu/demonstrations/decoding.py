"""Frames of MP4 files, decoded once from front to back and made small on the way: by PyAV, or by torchcodec on CUDA."""

from __future__ import annotations

import functools
import importlib
import io
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchrl_gpu.demonstrations.untrusted import MOST_FRAMES, check_file, reading, refuse
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.libavcodec import error_text, file_stream

_LOG = logging.getLogger(__name__)

MOST_PIXELS = 2**25
"""Of a frame: 8192×4096."""
_BATCH_BYTES = 2**26  # of frames that are decoded before they are handed on
_MOST_BATCH = 64
SMALL = 0x20 | 0x2000
"""SWS_AREA and SWS_FULL_CHR_H_INT of libswscale: without the second, colour has half the columns of the small frame."""
_OPENED: dict[str, Any] = {"format": "mp4", "buffer_size": 2**20, "options": {"max_pixels": str(MOST_PIXELS)}}
_VIDEO = "an MP4 file with a video that decodes"
_CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
_MOST_BOXES = 10**6
_OWN_FIELDS = 0xF00  # flags of a trun whose samples have fields of their own

Decoder = Literal["auto", "pyav", "torchcodec"]


class VideoHeader(NamedTuple):
    """Size, as its frames are to be shown, and rate that the file of a video declares."""

    height: int
    width: int
    fps: Fraction


class Orientation(NamedTuple):
    """How frames are to be shown: rows and columns swapped first, then mirrored.

    A phone records as its sensor lies, on its side where it is held upright, and writes a matrix into the file.
    """

    is_transposed: bool = False
    mirrors_columns: bool = False  # left becomes right
    mirrors_rows: bool = False  # top becomes bottom

    def apply(self, frame: np.ndarray) -> np.ndarray:
        """A frame H×W×C as it is to be shown; a view of its memory."""
        if self.is_transposed:
            frame = frame.swapaxes(0, 1)
        if self.mirrors_columns:
            frame = frame[:, ::-1]
        if self.mirrors_rows:
            frame = frame[::-1]
        return frame

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width before and after; each gives the other."""
        return (width, height) if self.is_transposed else (height, width)


class Batch(NamedTuple):
    """Some frames of a video."""

    frames: Tensor  # (n, 3, H, W) uint8 RGB, on any device
    seconds: list[float]  # presentation time of each


def read_header(path: Path, name: str) -> VideoHeader:
    """The header of an MP4 file; ValueError for another file, or one without video or with too large frames."""
    return _read(path, name)[0]


def count_frames(path: Path, name: str) -> int:
    """Number of frames that an MP4 file declares, or counted in one that is written in fragments; see `read_header`."""
    with _opened(path, name) as container:
        _header(container, name)
        stream = container.streams.video[0]
        return int(stream.frames) or sum(packet.size > 0 for packet in container.demux(stream))


def decode(
    path: Path,
    name: str,
    size: tuple[int, int] | None = None,
    *,
    device: torch.device | None = None,
    decoder: Decoder = "auto",
) -> Iterator[Batch]:
    """All frames of an MP4 file in order and as they are to be shown, resized by area means to a height and width.

    "auto" is torchcodec where that works on a CUDA device, else PyAV, which is faster on a CPU as it resizes frames
    before they are RGB. ValueError where the file cannot be decoded, or frames change their size.
    """
    device = device or torch.device("cpu")
    if not _takes_torchcodec(decoder, device):
        yield from _by_pyav(path, name, size)
        return
    header, orientation = _read(path, name)  # so that torchcodec gets valid files alone
    if orientation == Orientation():
        yield from _by_torchcodec(path, name, header, size, device)
    else:
        _say_turned()
        yield from _by_pyav(path, name, size)


# -- boxes -----------------------------------------------------------------------------------------------------------


def check_samples(file: BinaryIO) -> None:
    """ValueError where an MP4 file counts more samples than it has bytes for; rewinds the file.

    libavformat makes an index entry for every sample that a header counts, and samples of one size need no table: a
    file of two kilobytes can count a hundred million.
    """
    size = file.seek(0, 2)
    ends, at, samples, boxes = [size], 0, 0, 0
    while ends and boxes < _MOST_BOXES:
        if at + 8 > ends[-1]:
            at = ends.pop()
            continue
        boxes += 1
        file.seek(at)
        head = file.read(32)
        length, name, begin = int.from_bytes(head[:4], "big"), head[4:8], 8
        if length == 1:
            length, begin = int.from_bytes(head[8:16], "big"), 16
        end = min(ends[-1], at + length) if length >= begin else ends[-1]  # 0: to the end; others are broken
        flags = int.from_bytes(head[begin + 1 : begin + 4], "big")
        first, second = (int.from_bytes(head[begin + i : begin + i + 4], "big") for i in (4, 8))
        if name == b"stsz":
            samples += first * second  # bytes of samples of one size
        elif name == b"trun" and not flags & _OWN_FIELDS:
            samples += first
        if samples > size:
            raise ValueError(f"at least {samples:,} bytes of samples in a file of {size:,}")
        if name in _CONTAINERS:
            ends.append(end)
            at += begin
        else:
            at = end
    if boxes == _MOST_BOXES:
        raise ValueError(f"more than {_MOST_BOXES:,} boxes")
    file.seek(0)


# -- PyAV --------------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path, name: str) -> Iterator[Any]:
    """An open container. It is read through a Python file, so that libavformat opens no other, and only as an MP4."""
    av = load("av", "video", "demonstrations")
    with _mp4(path, name) as file, _in_words(name), av.open(file, **_OPENED) as container:
        yield container


@contextmanager
def _mp4(path: Path, name: str) -> Iterator[BinaryIO]:
    check_file(path, name)
    with reading(name, "a file that can be read"):
        file = path.open("rb")
    with closing(file):
        if file.read(8)[4:] != b"ftyp":
            refuse(name, "an MP4 file", "one that does not begin like one")
        with reading(name, _VIDEO):
            check_samples(file)
        yield file


@contextmanager
def _in_words(name: str) -> Iterator[None]:
    """Errors of libav as ValueErrors of one line."""
    av = load("av", "video", "demonstrations")
    try:
        yield
    except av.FFmpegError as error:
        raise ValueError(f"demonstrations: {name}: want {_VIDEO}; got {error_text(error)}") from error
    except (OverflowError, MemoryError, UnicodeError, RuntimeError, TypeError) as error:
        raise ValueError(f"demonstrations: {name}: want {_VIDEO}; got {str(error) or type(error).__name__}") from error


def _header(container: Any, name: str) -> VideoHeader:
    if not container.streams.video:
        refuse(name, _VIDEO, "one without a video stream")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        refuse(name, _VIDEO, "one of an unknown codec")
    height, width, rate = stream.height, stream.width, stream.average_rate
    if not (height and width and rate) or not 0.1 <= rate <= 1000:
        refuse(name, f"{_VIDEO}, of 0.1 to 1000 frames a second", f"{height}×{width} at {rate} frames a second")
    if height * width > MOST_PIXELS:
        refuse(name, f"frames of at most {MOST_PIXELS:,} pixels", f"{height}×{width}")
    if stream.frames > MOST_FRAMES:
        refuse(name, f"at most {MOST_FRAMES:,} frames", f"{stream.frames:,}")
    return VideoHeader(height, width, Fraction(rate))


def _read(path: Path, name: str) -> tuple[VideoHeader, Orientation]:
    """The header of an MP4 file, and how its frames are to be shown, which only a decoded one tells."""
    with _opened(path, name) as container:
        coded = _header(container, name)
        container.streams.video[0].codec_context.options = {"max_pixels": str(MOST_PIXELS)}
        frame = next(container.decode(container.streams.video[0]), None)
        orientation = Orientation() if frame is None else _orientation(frame, name)
    height, width = orientation.size(coded.height, coded.width)
    return VideoHeader(height, width, coded.fps), orientation


def _orientation(frame: Any, name: str) -> Orientation:
    """How a frame is to be shown; ValueError for what is no quarter turn or mirror image."""
    matrices = [data for data in frame.side_data if data.type.name == "DISPLAYMATRIX"]
    if not matrices:
        return Orientation()
    # Its rows are a b u, c d v, x y w (ISO 14496-12): what the sensor has in column p and row q is to be shown in
    # column a·p + c·q and row b·p + d·q.
    a, b, _, c, d, *_ = np.frombuffer(bytes(matrices[0]), np.int32).tolist()
    if a and d and not b and not c and abs(a) == abs(d):
        return Orientation(False, a < 0, d < 0)
    if b and c and not a and not d and abs(b) == abs(c):
        return Orientation(True, c < 0, b < 0)
    entries = ", ".join(f"{entry / 65536:g}" for entry in (a, b, c, d))
    raise ValueError(
        f"demonstrations: {name}: want frames that are shown as they are, turned by quarters or mirrored; "
        f"got a display matrix {entries}"
    )


def _batch_size(height: int, width: int) -> int:
    return max(1, min(_MOST_BATCH, _BATCH_BYTES // (3 * height * width)))


def _by_pyav(path: Path, name: str, size: tuple[int, int] | None) -> Iterator[Batch]:
    with _opened(path, name) as container:
        given = _header(container, name)
        orientation: Orientation | None = None
        stream = container.streams.video[0]
        context = stream.codec_context
        # Without "explode", corrupt frames are made up from those before.
        context.options = {"err_detect": "explode", "max_pixels": str(MOST_PIXELS)}
        context.thread_count = torch.get_num_threads()
        # One for all frames: to set it up takes longer than a frame.
        reformatter = load("av.video.reformatter", "video", "demonstrations").VideoReformatter()
        frames = np.empty((0, 0, 0, 3), np.uint8)
        seconds: list[float] = []
        for frame in container.decode(stream):
            if (frame.height, frame.width) != given[:2] or frame.is_corrupt or frame.time is None:
                came = "a corrupt one" if frame.is_corrupt else f"{frame.height}×{frame.width} at {frame.time} s"
                refuse(name, f"frames of {given.height}×{given.width}, each with its time", came)
            if orientation is None:
                orientation = _orientation(frame, name)
                height, width = size or orientation.size(*given[:2])
                frames = np.empty((_batch_size(height, width), height, width, 3), np.uint8)
                coded_height, coded_width = orientation.size(height, width)
                how = SMALL if (coded_height, coded_width) != given[:2] else None
            elif _orientation(frame, name) != orientation:
                refuse(name, "frames that are all shown the same way", f"one turned otherwise at {frame.time} s")
            small = reformatter.reformat(frame, coded_width, coded_height, "rgb24", interpolation=how)
            frames[len(seconds)] = orientation.apply(small.to_ndarray())
            seconds.append(frame.time)
            if len(seconds) == len(frames):
                yield Batch(torch.from_numpy(frames).permute(0, 3, 1, 2), seconds)
                seconds = []
        if seconds:
            yield Batch(torch.from_numpy(frames[: len(seconds)]).permute(0, 3, 1, 2), seconds)


# -- torchcodec --------------------------------------------------------------------------------------------------------


def _takes_torchcodec(decoder: Decoder, device: torch.device) -> bool:
    if decoder not in ("auto", "pyav", "torchcodec"):
        raise ValueError(f"demonstrations: decoder must be auto, pyav or torchcodec; got {decoder!r}")
    if decoder == "pyav" or (decoder == "auto" and device.type == "cpu"):
        return False
    problem = torchcodec_problem(device)
    if problem and decoder == "torchcodec":
        raise ValueError(f"demonstrations: decoder must be one that works here; torchcodec does not: {problem}")
    return not problem


@functools.cache
def torchcodec_problem(device: torch.device) -> str:
    """The reason why torchcodec fails on a device, in one line that is logged once; "" where it has just decoded."""
    try:
        decoders = importlib.import_module("torchcodec.decoders")
        frame = decoders.VideoDecoder(_sample(), device=str(device)).get_frames_in_range(0, 2)
        problem = "" if frame.data.shape[:2] == (2, 3) else f"it gives frames of shape {tuple(frame.data.shape)}"
    except Exception as error:  # libraries that do not fit raise errors of any kind
        problem = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    if problem:
        _LOG.warning(
            "demonstrations: videos are decoded by PyAV, as torchcodec does not work on %s: %s", device, problem
        )
    return problem


def _sample() -> bytes:
    """Two grey frames as an MP4 file, of a size that hardware decoders take."""
    av = load("av", "video", "demonstrations")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = file_stream(container, 256, 256, 30)
        for _ in range(2):
            frame = av.VideoFrame.from_ndarray(np.full((256, 256, 3), 128, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@functools.cache
def _say_turned() -> None:
    # Its versions differ in whether they turn frames themselves.
    _LOG.warning("demonstrations: videos to be shown turned or mirrored are decoded by PyAV, not by torchcodec")


def _by_torchcodec(
    path: Path, name: str, given: VideoHeader, size: tuple[int, int] | None, device: torch.device
) -> Iterator[Batch]:
    decoders = importlib.import_module("torchcodec.decoders")
    step = _batch_size(given.height, given.width)
    with _mp4(path, name) as file, reading(name, _VIDEO):
        source = decoders.VideoDecoder(file, device=str(device), num_ffmpeg_threads=torch.get_num_threads())
        for first in range(0, len(source), step):
            found = source.get_frames_in_range(first, min(first + step, len(source)))
            if found.data.shape[1:] != (3, *given[:2]):
                refuse(name, f"frames of {given.height}×{given.width}", f"shape {tuple(found.data.shape[1:])}")
            yield Batch(resized(found.data, size), found.pts_seconds.tolist())


def resized(frames: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Frames (n, 3, H, W) uint8 in another size; a pixel is the mean of its area."""
    if size is None or tuple(frames.shape[2:]) == size:
        return frames
    return functional.interpolate(frames.float(), size, mode="area").round_().to(torch.uint8)
