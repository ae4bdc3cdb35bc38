"""Frames of MP4 files, decoded once from front to back and made small on the way.

They are decoded by PyAV, or by torchcodec on CUDA.
"""

from __future__ import annotations

import functools
import importlib
import io
import logging
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchrl_gpu.demonstrations.untrusted import MOST_FRAMES, check_file, fail, reading, refuse
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.libavcodec import error_text, file_stream

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.sidedata.sidedata import SideData
    from av.video.frame import VideoFrame

_LOG = logging.getLogger(__name__)

MOST_PIXELS = 2**25
"""Of a frame: 8192×4096."""

# Bytes of frames that are decoded before they are handed on, and their number.
_BATCH_BYTES = 2**26
_MOST_BATCH = 64
SMALL = 0x20 | 0x2000
"""SWS_AREA and SWS_FULL_CHR_H_INT of libswscale: without the second, colour has half the columns of the small frame."""

_BUFFER_BYTES = 2**20
_OPTIONS = {"max_pixels": str(MOST_PIXELS)}
_VIDEO = "an MP4 file with a video that decodes"
_CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
_MOST_BOXES = 10**6
# Bytes of a box that are read: its length, its name and its first fields.
_HEAD_BYTES = 32
# Flags of a trun whose samples have fields of their own.
_OWN_FIELDS = 0xF00
# Entries of a display matrix are fixed-point numbers of 16 bits behind the point.
_FIXED_POINT = 65536
# A size that hardware decoders take, pixels.
_SAMPLE_SIDE = 256
_MOST_QUOTED = 200

Decoder = Literal["auto", "pyav", "torchcodec"]


class VideoHeader(NamedTuple):
    """Size, as its frames are to be shown, and rate that the file of a video declares."""

    height: int
    width: int
    fps: Fraction


class Orientation(NamedTuple):
    """How frames are to be shown: rows and columns swapped first, then mirrored.

    A phone records as its sensor lies, on its side if it is held upright, and writes a matrix into the file.

    Attributes:
        mirrors_columns: Whether left becomes right.
        mirrors_rows: Whether top becomes bottom.
    """

    is_transposed: bool = False
    mirrors_columns: bool = False
    mirrors_rows: bool = False

    def apply(self, frame: np.ndarray) -> np.ndarray:
        """Return a frame H×W×C as it is to be shown, a view of its memory."""
        if self.is_transposed:
            frame = frame.swapaxes(0, 1)
        if self.mirrors_columns:
            frame = frame[:, ::-1]
        if self.mirrors_rows:
            frame = frame[::-1]
        return frame

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after the change from those before it.

        It also works the other way round.
        """
        return (width, height) if self.is_transposed else (height, width)


class Batch(NamedTuple):
    """Some frames of a video.

    Attributes:
        frames: (n, 3, H, W) uint8 RGB, on any device.
        seconds: Presentation time of each.
    """

    frames: Tensor
    seconds: list[float]


def read_header(path: Path, name: str) -> VideoHeader:
    """Return the header of an MP4 file.

    Raises:
        ValueError: It is another file, or one without video or with too large frames.
    """
    return _read_first(path, name)[0]


def count_frames(path: Path, name: str) -> int:
    """Return the number of frames that an MP4 file declares.

    In a file that is written in fragments they are counted. Errors are those of `read_header`.
    """
    with _open(path, name) as container:
        _header(container, name)
        stream = container.streams.video[0]
        # A file in fragments declares none.
        return int(stream.frames) or sum(packet.size > 0 for packet in container.demux(stream))


def decode(
    path: Path,
    name: str,
    size: tuple[int, int] | None = None,
    *,
    device: torch.device | None = None,
    decoder: Decoder = "auto",
) -> Iterator[Batch]:
    """Yield all frames of an MP4 file in order and as they are to be shown.

    Args:
        path: Of the file.
        name: Of the file, for errors.
        size: Height and width that they are resized to by area means; None for their own.
        device: For torchcodec; None for the CPU.
        decoder: "auto" is torchcodec if that works on a CUDA device, else PyAV, which is faster on a CPU as it resizes
            frames before they are RGB.

    Raises:
        ValueError: The file cannot be decoded, or frames change their size.
    """
    device = device or torch.device("cpu")
    if not _takes_torchcodec(decoder, device):
        yield from _by_pyav(path, name, size)
        return
    # Before torchcodec, so that it gets valid files alone.
    header, orientation = _read_first(path, name)
    if orientation == Orientation():
        yield from _by_torchcodec(path, name, header, size, device)
    else:
        warn_turned()
        yield from _by_pyav(path, name, size)


# -- boxes: what an MP4 file consists of -------------------------------------------------------------------------------


class _Box(NamedTuple):
    """A box of an MP4 file.

    Attributes:
        name: Four bytes.
        content: Where its content begins.
        end: Where the next box begins.
        samples: Samples that it counts whose sizes are in no table.
    """

    name: bytes
    content: int
    end: int
    samples: int


def check_samples(file: BinaryIO) -> None:
    """Check that an MP4 file counts no more samples than it has bytes for.

    Rewinds the file.

    libavformat makes an index entry for every sample that a header counts, and samples of one size need no table: a
    file of two kilobytes can count a hundred million.

    Raises:
        ValueError: It does, or has too many boxes.
    """
    size = file.seek(0, 2)
    # Where the boxes end that the present one is in, the innermost last.
    ends = [size]
    start = 0
    samples = 0
    boxes = 0
    while ends and boxes < _MOST_BOXES:
        if start + 8 > ends[-1]:
            start = ends.pop()
            continue
        boxes += 1
        box = _read_box(file, start, ends[-1])
        samples += box.samples
        if samples > size:
            raise ValueError(f"at least {samples:,} bytes of samples in a file of {size:,}")
        if box.name in _CONTAINERS:
            ends.append(box.end)
            start = box.content
        else:
            start = box.end
    # A file of nothing but tiny boxes would take minutes to go through.
    if boxes == _MOST_BOXES:
        raise ValueError(f"more than {_MOST_BOXES:,} boxes")
    file.seek(0)


def _read_box(file: BinaryIO, start: int, outer_end: int) -> _Box:
    """Read the beginning of a box inside one that ends at `outer_end`."""
    file.seek(start)
    head = file.read(_HEAD_BYTES)
    name = head[4:8]
    length = _number(head, 0)
    begin = 8
    if length == 1:
        # The length is one of 64 bits, behind the name.
        length = int.from_bytes(head[8:16], "big")
        begin = 16
    # A length of 0 means: to the end. Any other that is too short is broken.
    end = min(outer_end, start + length) if length >= begin else outer_end
    flags = int.from_bytes(head[begin + 1 : begin + 4], "big")
    samples = 0
    if name == b"stsz":
        # Bytes of a sample, if all have the same, and the number of samples.
        samples = _number(head, begin + 4) * _number(head, begin + 8)
    elif name == b"trun" and not flags & _OWN_FIELDS:
        samples = _number(head, begin + 4)
    return _Box(name, start + begin, end, samples)


def _number(data: bytes, start: int) -> int:
    return int.from_bytes(data[start : start + 4], "big")


# -- PyAV --------------------------------------------------------------------------------------------------------------


@contextmanager
def _open(path: Path, name: str) -> Iterator[InputContainer]:
    """Give an open container.

    It is read through a Python file, so that libavformat opens no other, and only as an MP4.
    """
    av = load("av", "video", "demonstrations")
    with (
        _open_mp4(path, name) as file,
        _plain_errors(name),
        av.open(file, format="mp4", buffer_size=_BUFFER_BYTES, options=_OPTIONS) as container,
    ):
        yield container


@contextmanager
def _open_mp4(path: Path, name: str) -> Iterator[BinaryIO]:
    check_file(path, name)
    with reading(name, "a file"):
        file = path.open("rb")
    with closing(file):
        if file.read(8)[4:] != b"ftyp":
            fail(name, "it does not begin like an MP4 file")
        with reading(name, _VIDEO):
            check_samples(file)
        yield file


@contextmanager
def _plain_errors(name: str) -> Iterator[None]:
    """Turn errors of libav into ValueErrors of one line."""
    av = load("av", "video", "demonstrations")
    try:
        yield
    except av.FFmpegError as error:
        raise ValueError(f"demonstrations: {name}: it cannot be read as {_VIDEO}: {error_text(error)}") from error
    except (OverflowError, MemoryError, UnicodeError, RuntimeError, TypeError) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"demonstrations: {name}: it cannot be read as {_VIDEO}: {reason}") from error


def _header(container: InputContainer, name: str) -> VideoHeader:
    """Return the header of a container, its frames as they are coded."""
    if not container.streams.video:
        fail(name, "it has no video stream")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        fail(name, "its video has an unknown codec")
    height = stream.height
    width = stream.width
    rate = stream.average_rate
    if not height or not width or not rate or not 0.1 <= rate <= 1000:
        refuse(name, f"{_VIDEO}, of 0.1 to 1000 frames a second", f"{height}×{width} at {rate} frames a second")
    if height * width > MOST_PIXELS:
        refuse(name, f"frames of at most {MOST_PIXELS:,} pixels", f"{height}×{width}")
    if stream.frames > MOST_FRAMES:
        refuse(name, f"at most {MOST_FRAMES:,} frames", f"{stream.frames:,}")
    return VideoHeader(height, width, Fraction(rate))


def _read_first(path: Path, name: str) -> tuple[VideoHeader, Orientation]:
    """Return the header of an MP4 file, and how its frames are to be shown.

    Only a decoded frame tells the latter.
    """
    with _open(path, name) as container:
        coded = _header(container, name)
        container.streams.video[0].codec_context.options = {"max_pixels": str(MOST_PIXELS)}
        frame = next(container.decode(container.streams.video[0]), None)
        orientation = Orientation() if frame is None else _orientation(frame, name)
    height, width = orientation.size(coded.height, coded.width)
    return VideoHeader(height, width, coded.fps), orientation


def _orientation(frame: VideoFrame, name: str) -> Orientation:
    """Return how a frame is to be shown.

    Raises:
        ValueError: It is no quarter turn or mirror image.
    """
    # PyAV's own types take this for a mapping of names.
    side_data = cast("Iterable[SideData]", frame.side_data)
    matrices = [data for data in side_data if data.type.name == "DISPLAYMATRIX"]
    if not matrices:
        return Orientation()
    # Its rows are a b u, c d v, x y w (ISO 14496-12): what the sensor has in column p and row q is to be shown in
    # column a·p + c·q and row b·p + d·q.
    a, b, _, c, d, *_ = np.frombuffer(bytes(matrices[0]), np.int32).tolist()
    if a and d and not b and not c and abs(a) == abs(d):
        return Orientation(False, a < 0, d < 0)
    if b and c and not a and not d and abs(b) == abs(c):
        return Orientation(True, c < 0, b < 0)
    entries = ", ".join(f"{entry / _FIXED_POINT:g}" for entry in (a, b, c, d))
    raise ValueError(
        f"demonstrations: {name}: frames may be turned by quarters or mirrored; their display matrix is {entries}"
    )


def _batch_size(height: int, width: int) -> int:
    return max(1, min(_MOST_BATCH, _BATCH_BYTES // (3 * height * width)))


def _by_pyav(path: Path, name: str, size: tuple[int, int] | None) -> Iterator[Batch]:
    with _open(path, name) as container:
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
            _check_frame(frame, given, name)
            assert frame.time is not None
            if orientation is None:
                orientation = _orientation(frame, name)
                height, width = size or orientation.size(given.height, given.width)
                at_once = _batch_size(height, width)
                frames = np.empty((at_once, height, width, 3), np.uint8)
                coded_height, coded_width = orientation.size(height, width)
                has_size = (coded_height, coded_width) == (given.height, given.width)
                interpolation = None if has_size else SMALL
            elif _orientation(frame, name) != orientation:
                fail(name, f"its frames must all be shown the same way; one is turned otherwise at {frame.time} s")
            small = reformatter.reformat(frame, coded_width, coded_height, "rgb24", interpolation=interpolation)
            frames[len(seconds)] = orientation.apply(small.to_ndarray())
            seconds.append(frame.time)
            # The next batch is decoded into the same memory: who keeps frames copies them before asking for more.
            if len(seconds) == len(frames):
                yield Batch(torch.from_numpy(frames).permute(0, 3, 1, 2), seconds)
                seconds = []
        if seconds:
            rest = torch.from_numpy(frames[: len(seconds)])
            yield Batch(rest.permute(0, 3, 1, 2), seconds)


def _check_frame(frame: VideoFrame, given: VideoHeader, name: str) -> None:
    """Check that a frame is whole, and has its time and the size of the header."""
    if frame.is_corrupt:
        fail(name, "one of its frames is corrupt")
    if (frame.height, frame.width) != (given.height, given.width) or frame.time is None:
        wanted = f"frames of {given.height}×{given.width}, each with its time"
        refuse(name, wanted, f"{frame.height}×{frame.width} at {frame.time} s")


# -- torchcodec --------------------------------------------------------------------------------------------------------


def _takes_torchcodec(decoder: Decoder, device: torch.device) -> bool:
    if decoder not in ("auto", "pyav", "torchcodec"):
        raise ValueError(f"demonstrations: decoder must be auto, pyav or torchcodec, not {decoder!r}")
    if decoder == "pyav" or (decoder == "auto" and device.type == "cpu"):
        return False
    problem = torchcodec_problem(device)
    if problem and decoder == "torchcodec":
        raise ValueError(f"demonstrations: decoder must be one that works here; torchcodec does not: {problem}")
    return not problem


@functools.cache
def torchcodec_problem(device: torch.device) -> str:
    """Return why torchcodec fails on a device, "" if it has just decoded.

    It is one line, which is logged once.
    """
    try:
        decoders = importlib.import_module("torchcodec.decoders")
        frame = decoders.VideoDecoder(_sample(), device=str(device)).get_frames_in_range(0, 2)
        problem = "" if frame.data.shape[:2] == (2, 3) else f"it gives frames of shape {tuple(frame.data.shape)}"
    except Exception as error:
        # Libraries that do not fit raise errors of any kind.
        lines = str(error).strip().splitlines()
        problem = lines[0][:_MOST_QUOTED] if lines else type(error).__name__
    if problem:
        _LOG.warning(
            "demonstrations: videos are decoded by PyAV, as torchcodec does not work on %s: %s", device, problem
        )
    return problem


def _sample() -> bytes:
    """Return two grey frames as an MP4 file."""
    av = load("av", "video", "demonstrations")
    file = io.BytesIO()
    gray = np.full((_SAMPLE_SIDE, _SAMPLE_SIDE, 3), 128, np.uint8)
    with av.open(file, "w", format="mp4") as container:
        stream = file_stream(container, _SAMPLE_SIDE, _SAMPLE_SIDE, 30)
        for _ in range(2):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(gray, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


@functools.cache
def warn_turned() -> None:
    # Versions of torchcodec differ in whether they turn frames themselves.
    _LOG.warning("demonstrations: videos to be shown turned or mirrored are decoded by PyAV, not by torchcodec")


def _by_torchcodec(
    path: Path, name: str, given: VideoHeader, size: tuple[int, int] | None, device: torch.device
) -> Iterator[Batch]:
    decoders = importlib.import_module("torchcodec.decoders")
    step = _batch_size(given.height, given.width)
    with _open_mp4(path, name) as file, reading(name, _VIDEO):
        source = decoders.VideoDecoder(file, device=str(device), num_ffmpeg_threads=torch.get_num_threads())
        for first in range(0, len(source), step):
            found = source.get_frames_in_range(first, min(first + step, len(source)))
            if found.data.shape[1:] != (3, given.height, given.width):
                refuse(name, f"frames of {given.height}×{given.width}", f"shape {tuple(found.data.shape[1:])}")
            yield Batch(resize(found.data, size), found.pts_seconds.tolist())


def resize(frames: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Return frames (n, 3, H, W) uint8 in another size.

    A pixel is the mean of its area.
    """
    if size is None or tuple(frames.shape[2:]) == size:
        return frames
    means = functional.interpolate(frames.float(), size, mode="area")
    return means.round_().to(torch.uint8)
