"""JPEG and H.264 encoding of frames, by the pipeline and by other libraries.

`python benchmarks/frame_pipeline.py [--output FILE]`

Every file is decoded and compared with its frame first; where one is further from it than it may be, nothing is timed.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeAlias

import av
import cv2
import numpy as np
import torch
from PIL import Image
from rich.table import Table

# The other benchmarks are found from here.
sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import report
from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.packing.bench import TimedRow
from torchrl_gpu.streaming.codecs.libavcodec import open_codec
from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline
from torchrl_gpu.system.console import wide_console

SIZES = ((640, 480), (1280, 720))
QUALITY, BITRATE = 80, 8_000_000
NUM_FRAMES = 64
BATCHES = (1, 8, 64)
# Least similarity of decoded frames, decibels.
PSNR = {"JPEG": 33.0, "H.264": 30.0}
Decode: TypeAlias = Callable[[Iterable[bytes]], list[np.ndarray]]
PACKAGES = ("av", "opencv-python-headless", "torchvision", "torchcodec", "pillow")


class Row(NamedTuple):
    """Something that encodes frames."""

    name: str
    # Takes the number of the first frame, and of the one behind the last.
    encode: Callable[[int, int], list[bytes]]
    per_call: int = 1
    notes: str = ""


def main(argv: list[str]) -> int:
    """Print the tables and write the JSON.

    Returns 1 where a decoded frame is wrong.
    """
    parser = report.parser("benchmarks/frame_pipeline.py", __doc__, seconds=2.0, repetitions=9)
    args = parser.parse_args(argv)
    pipe = GpuFramePipeline(args.device)
    measurement = report.Measurement("frame_pipeline", args, pipe.device)
    about, sections = measurement.result["machine"], measurement.result["sections"]
    about["versions"] |= {name: _version(name) for name in PACKAGES}
    about |= {"opencv_threads": cv2.getNumThreads(), "missing": pipe.problems}
    measurement.result |= {"quality": QUALITY, "bitrate": BITRATE}
    for width, height in SIZES:
        frames = scene(width, height)
        kinds = {"JPEG": (jpeg_rows(pipe, frames), decode_jpegs), "H.264": (h264_rows(pipe, frames), decode_h264)}
        for kind, (rows, decode) in kinds.items():
            for row in rows:
                measurement.check(**checked(row, frames, decode, kind))
            if measurement.refused("a file that shows another picture may be made at any speed"):
                return 1
            timed = [TimedRow(row.name, _work(row), row.per_call, notes=row.notes) for row in rows]
            title = f"{kind} {width}×{height}"
            measurement.take_turns(title, timed)
            sections.append(report.section(title, "frames/s", timed, {"first": timed[0].rate}))
            for each in sections[-1]["rows"]:
                each["ms_per_frame"] = 1000 / each["rate"]
    result = measurement.finish()
    for section in result["sections"]:
        wide_console().print(_table(section))
    wide_console().print(report.machine_line(result), markup=False)
    return 0


def scene(width: int, height: int) -> np.ndarray:
    """Draw frames as of a simulator's camera, (NUM_FRAMES, H, W, 3) RGB.

    They show shaded ground with grain, and boxes that move.
    """
    y, x = np.mgrid[0:height, 0:width]
    grain = np.random.default_rng(0).normal(0, 2, (height, width, 1))
    red = 90 + 80 * y / height
    green = 100 + 60 * x / width
    blue = 120 + 30 * np.sin((x + y) / 60)
    ground = np.stack([red, green, blue], -1) + grain
    frames = np.repeat(ground.astype(np.uint8)[None], NUM_FRAMES, 0)
    for number, frame in enumerate(frames):
        for box in range(24):
            side = 20 + 4 * (box % 8)
            left, top = (box * 197 + 3 * number) % (width - side), (box * 113 + (box % 3) * number) % (height - side)
            frame[top : top + side, left : left + side] = (box * 37 % 256, box * 91 % 256, box * 59 % 256)
    return frames


def jpeg_rows(pipe: GpuFramePipeline, frames: np.ndarray) -> list[Row]:
    """Build the rows of JPEG: the CPU path, other libraries, and NVJPEG.

    NVJPEG encodes batches that are on the GPU.
    """
    tensors = torch.from_numpy(frames)

    def by_opencv(first: int, end: int) -> list[bytes]:
        return [pipe.encode_jpeg_numpy(frame, QUALITY) for frame in frames[first:end]]

    def by_opencv_from_tensors(first: int, end: int) -> list[bytes]:
        return [pipe.encode_jpeg(frame, QUALITY) for frame in tensors[first:end]]

    def by_pillow(first: int, end: int) -> list[bytes]:
        return [_by_pillow(frame) for frame in frames[first:end]]

    rows = [Row("OpenCV", by_opencv), Row("OpenCV, tensor", by_opencv_from_tensors), Row("Pillow", by_pillow)]
    if pipe.has_cuda:
        there = tensors.to(pipe.device)
        copying = GpuFramePipeline("cpu", "x264")
        rows.append(Row("GPU to host, OpenCV", lambda a, b: copying.encode_jpeg_batch(there[a:b], QUALITY)))
    if pipe.has_nvjpeg:
        batch = Row("", lambda a, b: pipe.encode_jpeg_batch(there[a:b], QUALITY), notes="4:4:4")
        rows += [batch._replace(name=f"NVJPEG, batches of {count}", per_call=count) for count in BATCHES]
    return rows


def h264_rows(pipe: GpuFramePipeline, frames: np.ndarray) -> list[Row]:
    """Streams, each with an encoder of its own."""
    words = ["x264", *(["nvenc"] if pipe.has_nvenc else [])]
    rows = [Row(word, _stream(GpuFramePipeline("cpu", word), frames)) for word in words]
    return [*rows, Row("x264, colours by swscale", _by_swscale(frames))]


def checked(row: Row, frames: np.ndarray, decode: Decode, kind: str) -> JsonObject:
    """Measure the files of eight batches and their least similarity to the frames.

    `difference` describes a similarity that is too small.
    """
    files: list[bytes] = []
    shown: list[np.ndarray] = []
    for number in range(8):
        first, end = _span(number, row.per_call)
        files += row.encode(first, end)
        shown += [frames[k] for k in range(first, end)]
    decoded = decode(files)
    if [each.shape for each in decoded] != [each.shape for each in shown]:
        return {"setting": row.name, "difference": f"{len(decoded)} pictures of {len(shown)}, or of another size"}
    least = min(map(_psnr, decoded, shown))
    found = "" if least >= PSNR[kind] else f"{least:.1f} dB, want {PSNR[kind]:.0f}"
    kib = sum(map(len, files)) / len(files) / 1024
    return {"setting": f"{row.name} {shown[0].shape}", "psnr_db": least, "kib": kib, "difference": found}


def decode_jpegs(files: Iterable[bytes]) -> list[np.ndarray]:
    """RGB."""
    return [cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)[..., ::-1] for file in files]


def decode_h264(packets: Iterable[bytes]) -> list[np.ndarray]:
    """RGB."""
    context = av.CodecContext.create("h264", "r")
    units = context.parse(b"".join(packets)) + context.parse(None)
    decoded = []
    for unit in units:
        decoded += context.decode(unit)
    decoded += context.decode(None)
    return [frame.to_ndarray(format="rgb24") for frame in decoded]


def _work(row: Row) -> Callable[[int], None]:
    """Encode the frames in turn, from where the last call stopped."""
    done = [0]

    def run(calls: int) -> None:
        for _ in range(calls):
            row.encode(*_span(done[0], row.per_call))
            done[0] += 1

    return run


def _span(number: int, count: int) -> tuple[int, int]:
    start = number * count % NUM_FRAMES
    return start, start + count


def _stream(pipe: GpuFramePipeline, frames: np.ndarray) -> Callable[[int, int], list[bytes]]:
    return lambda a, b: [pipe.encode_h264(frame, BITRATE) for frame in frames[a:b]]


def _by_swscale(frames: np.ndarray) -> Callable[[int, int], list[bytes]]:
    """The same encoder, fed as PyAV's documentation does."""
    context = open_codec("x264", frames.shape[2], frames.shape[1], fps=30.0, bitrate=BITRATE)
    numbers: Iterator[int] = iter(range(1 << 62))

    def encode(frame: np.ndarray) -> bytes:
        picture = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format="yuv420p")
        picture.pts = next(numbers)
        return b"".join(map(bytes, context.encode(picture)))

    return lambda a, b: [encode(frame) for frame in frames[a:b]]


def _by_pillow(frame: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _psnr(one: np.ndarray, other: np.ndarray) -> float:
    error = float(np.square(one.astype(np.float32) - other).mean())
    return 10 * float(np.log10(255**2 / max(error, 1e-12)))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _table(section: JsonObject) -> Table:
    table = Table(title=f"{section['title']}, frames/s", title_justify="left")
    for heading in ("", "median", "range", "ms a frame", f"× {section['rows'][0]['name']}"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in section["rows"]:
        span = "–".join(map(report.number, row["range"]))
        ratio = report.number(row["ratios"]["first"])
        table.add_row(row["name"], report.number(row["rate"]), span, f"{row['ms_per_frame']:.3f}", ratio)
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
