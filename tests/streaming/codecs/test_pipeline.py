"""The pipeline as its users call it: flags, forms of frames, fall-backs, the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.streaming.codecs.test_nvjpeg import by_opencv
from tests.streaming.pictures import decode_h264, decode_jpeg, psnr, scene, unit_types
from torchrl_gpu.streaming.codecs import pipeline, pixels, probes
from torchrl_gpu.streaming.codecs.images import encode_jpeg
from torchrl_gpu.streaming.codecs.nvjpeg import NvJpeg
from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline
from torchrl_gpu.streaming.codecs.pixels import color_map

CLOSED = "^GpuFramePipeline is closed$"


@pytest.fixture
def pipe() -> Iterator[GpuFramePipeline]:
    with GpuFramePipeline("cpu", h264="x264") as made:
        yield made


class Marked:
    """Stand-in for NVJPEG that marks the files that it makes.

    It takes tensors for frames on the GPU.
    """

    backend = "stand-in"

    def __init__(self, fails: Exception | None = None) -> None:
        self.calls: list[int] = []
        self.fails = fails
        self._encoder = NvJpeg(torch.device("cpu"), {"stand-in": by_opencv})

    def encode(self, frames: Any, quality: int, *, bgr: bool = False) -> list[bytes]:
        self.calls.append(len(frames))
        if self.fails is not None and len(frames):
            raise self.fails
        return [file + b"gpu" for file in self._encoder.encode(frames, quality, bgr=bgr)]


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[GpuFramePipeline, Marked]]]:
    """A pipeline on a machine on which tensors are frames on a GPU."""

    def make(*, fails: Exception | None = None) -> tuple[GpuFramePipeline, Marked]:
        nvjpeg = Marked(fails)
        monkeypatch.setattr(pipeline, "NvJpeg", lambda _: nvjpeg)
        monkeypatch.setattr(pipeline, "_is_on_gpu", lambda frame: isinstance(frame, Tensor))
        return GpuFramePipeline("cpu", "x264"), nvjpeg

    pipeline.WARNED.clear()
    yield make
    pipeline.WARNED.clear()


def test_flags_on_a_cpu(pipe: GpuFramePipeline) -> None:
    assert (pipe.device, pipe.has_cuda, pipe.has_nvjpeg) == (torch.device("cpu"), False, False)
    assert set(pipe.problems) >= {"cuda", "nvjpeg"}
    assert pipe.has_nvenc == ("nvenc" not in pipe.problems)
    assert all(problem and "\n" not in problem for problem in pipe.problems.values())


@pytest.mark.parametrize("works", list(product((0, 1), repeat=3)))
def test_flags_are_independent(works: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def nvjpeg(_: object) -> Marked:
        if not works[1]:
            raise RuntimeError("broken")
        return Marked()

    why = ["" if each else "broken" for each in works]
    monkeypatch.setattr(probes, "cuda_problem", lambda _: why[0])
    monkeypatch.setattr(pipeline, "NvJpeg", nvjpeg)
    monkeypatch.setattr(probes, "nvenc_problem", lambda: why[2])
    made = GpuFramePipeline("cpu")
    assert (made.has_cuda, made.has_nvjpeg, made.has_nvenc) == tuple(map(bool, works))
    assert list(made.problems) == [n for n, each in zip(("cuda", "nvjpeg", "nvenc"), works, strict=True) if not each]


def test_nvenc_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "nvenc_problem", lambda: "Cannot load libcuda.so.1")
    with pytest.raises(RuntimeError, match=r"^GpuFramePipeline: h264='nvenc' .*libcuda\.so\.1$"):
        GpuFramePipeline("cpu", h264="nvenc")


def test_words_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"^GpuFramePipeline: codec .*'vp8'$"):
        GpuFramePipeline("cpu", h264="vp8")
    with pytest.raises(ValueError, match=r"^get_device: device .*'tpu'$"):
        GpuFramePipeline("tpu")


def test_jpeg_of_an_array(pipe: GpuFramePipeline) -> None:
    assert pipe.encode_jpeg_numpy(scene(), 60) == encode_jpeg(scene(), 60)
    assert pipe.encode_jpeg_numpy(scene()[..., ::-1], bgr=True) == encode_jpeg(scene())
    with pytest.raises(ValueError, match=r"^encode_jpeg_numpy: rgb .*Tensor$"):
        pipe.encode_jpeg_numpy(torch.from_numpy(scene()))


def test_pipeline_encodes_batches(pipe: GpuFramePipeline) -> None:
    frames = np.stack([scene(shift=shift) for shift in range(3)])
    files = [encode_jpeg(frame) for frame in frames]
    assert pipe.encode_jpeg_batch(frames) == files
    assert pipe.encode_jpeg_batch(torch.from_numpy(frames)) == files
    assert pipe.encode_jpeg_batch(list(frames)) == files
    assert pipe.encode_jpeg_batch(torch.from_numpy(frames).flip(-1), bgr=True) == files
    assert pipe.encode_jpeg_batch([scene(20, 30), torch.from_numpy(scene())])[1] == encode_jpeg(scene())
    assert pipe.encode_jpeg_batch([]) == pipe.encode_jpeg_batch(frames[:0]) == []


def in_every_format() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Frames, and what is to be seen of them."""
    opaque = np.concatenate([scene(), np.full_like(scene()[..., :1], 255)], -1)
    gray = scene()[..., 0]
    depth = gray.astype(np.float32)
    shown = color_map()[np.round((depth - depth.min()) / np.ptp(depth) * 255).astype(int)]
    channel = gray[..., None]
    repeated = np.repeat(channel, 3, -1)
    batch = np.stack([opaque, opaque])
    side_by_side = np.concatenate([scene(), scene()], 1)
    made = {"rgba": (opaque, scene()), "depth": (depth, shown), "a batch": (batch, side_by_side)}
    return made | {"gray": (gray, repeated), "gray with an axis of channels": (channel, repeated)}


@pytest.mark.parametrize("bgr", [False, True])
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("name", in_every_format())
def test_pipeline_takes_every_format_of_a_frame(
    name: str, library: Callable[[np.ndarray], Any], bgr: bool, pipe: GpuFramePipeline
) -> None:
    frame, shown = in_every_format()[name]
    if bgr and frame.shape[-1] == 4:
        frame = np.ascontiguousarray(frame[..., [2, 1, 0, 3]])
    frame = library(frame)
    assert psnr(decode_jpeg(pipe.encode_jpeg(frame, 90, bgr=bgr)), shown) > 30
    assert psnr(decode_jpeg(pipe.encode_jpeg_batch([frame, frame], 90, bgr=bgr)[1]), shown) > 30
    assert psnr(decode_h264([pipe.encode_h264(frame, key_frame=True, bgr=bgr)])[0], shown) > 25
    with pytest.raises(ValueError, match=r"^encode_jpeg: depth_range .*\(1, 0\)$"):
        pipe.encode_jpeg(frame, depth_range=(1, 0))


def test_a_batch_of_depth_is_a_file_for_each(pipe: GpuFramePipeline) -> None:
    frames = np.stack([scene()[..., :1], scene(shift=3)[..., :1] // 2]).astype(np.float32)
    assert pipe.encode_jpeg_batch(frames) == [pipe.encode_jpeg(frame) for frame in frames]
    assert pipe.encode_jpeg_batch(frames, depth_range=(0, 255))[1] == pipe.encode_jpeg(frames[1], depth_range=(0, 255))
    assert pipe.encode_jpeg_batch([frames[0], scene()], bgr=True) == [
        pipe.encode_jpeg(frames[0]),
        pipe.encode_jpeg(scene(), bgr=True),
    ]


def test_frames_of_the_gpu_are_made_rgb_there(with_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, nvjpeg = with_gpu()
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(pixels, "to_array", None)
    depth = torch.from_numpy(scene()[..., 0].astype(np.float32))
    for frame in (torch.from_numpy(scene()[..., 0]), torch.zeros(4, 5, 4, dtype=torch.uint8), depth):
        assert pipe.encode_jpeg(frame).endswith(b"gpu")
    assert nvjpeg.calls == [1, 1, 1]


def test_pipeline_refuses_wrong_frames_and_arguments(pipe: GpuFramePipeline) -> None:
    batch = np.stack([scene()] * 2)
    depth = scene()[..., 0].astype(np.float32)

    def refuse(encode: Callable[..., object], *arguments: object, **options: object) -> None:
        with pytest.raises(ValueError, match=r"^\w+: .*, not .+$"):
            encode(*arguments, **options)

    refuse(pipe.encode_jpeg, scene()[..., :2])
    refuse(pipe.encode_jpeg_batch, scene())
    refuse(pipe.encode_jpeg_batch, "frames")
    refuse(pipe.encode_jpeg_batch, [np.zeros((4, 5, 3), np.int8)])
    refuse(pipe.encode_jpeg_batch, [scene(), depth.astype(float)])
    refuse(pipe.encode_h264, batch[..., 0])
    refuse(pipe.encode_h264, batch[:0])
    refuse(pipe.encode_jpeg, scene(), depth_range=(0, 1))
    refuse(pipe.encode_jpeg_batch, batch, depth_range=(0, 1))
    refuse(pipe.encode_jpeg, depth, depth_range=(1, 0))
    refuse(pipe.encode_jpeg, scene(), 0)
    refuse(pipe.encode_jpeg_batch, batch, 101)


def test_frames_on_the_gpu_go_to_nvjpeg_in_one_call(with_gpu: Callable[..., tuple[GpuFramePipeline, Marked]]) -> None:
    pipe, nvjpeg = with_gpu()
    frames = [scene(shift=4 * shift) for shift in range(5)]
    mixed = [torch.from_numpy(frame) if i in (1, 2, 4) else frame for i, frame in enumerate(frames)]
    files = pipe.encode_jpeg_batch(mixed)
    assert [file.endswith(b"gpu") for file in files] == [False, True, True, False, True]
    assert all(psnr(decode_jpeg(file), frame) > 30 for file, frame in zip(files, frames, strict=True))
    assert nvjpeg.calls == [3]
    assert all(file.endswith(b"gpu") for file in pipe.encode_jpeg_batch(torch.from_numpy(np.stack(frames))))
    assert pipe.encode_jpeg(torch.from_numpy(frames[0])).endswith(b"gpu")
    assert not pipe.encode_jpeg_numpy(frames[0]).endswith(b"gpu")
    assert nvjpeg.calls[1:3] == [5, 1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("CUDA out of memory\nand a long story"), "CUDA out of memory"),
        (RuntimeError(), "RuntimeError"),
        (TypeError("to_tensor() got an unexpected keyword argument"), "to_tensor() got an unexpected keyword argument"),
        (OSError("libnvjpeg.so.12: cannot open"), "libnvjpeg.so.12: cannot open"),
    ],
)
def test_frames_that_nvjpeg_refuses_are_left_to_opencv(
    error: Exception,
    said: str,
    with_gpu: Callable[..., tuple[GpuFramePipeline, Marked]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipe, nvjpeg = with_gpu(fails=error)
    frames = torch.from_numpy(np.stack([scene(), scene(shift=3)]))
    expected = [encode_jpeg(scene()), encode_jpeg(scene(shift=3))]
    with caplog.at_level(logging.WARNING):
        assert pipe.encode_jpeg_batch(frames) == expected
        assert pipe.encode_jpeg_batch(list(frames)) == expected
        assert pipe.encode_jpeg(frames[0].flip(-1), bgr=True) == expected[0]
    assert nvjpeg.calls == [2, 2, 1]
    assert [record.message for record in caplog.records] == [
        f"GpuFramePipeline: NVJPEG through stand-in fails ({said}); OpenCV encodes such frames instead"
    ]


def test_new_size_or_request_gives_an_h264_key_frame(pipe: GpuFramePipeline) -> None:
    def has_key(**rest: Any) -> bool:
        return 5 in unit_types(pipe.encode_h264(**({"rgb": scene()} | rest)))

    assert pipe.flush() == b""
    assert has_key()
    assert not has_key()
    assert has_key(key_frame=True)
    assert has_key(rgb=scene(90, 121))
    assert has_key()
    assert has_key(bitrate=500_000)
    assert not has_key(bitrate=500_000)
    assert (pipe.flush(), pipe.flush()) == (b"", b"")
    assert has_key(bitrate=500_000)


def test_closed_pipeline_takes_no_frame() -> None:
    with GpuFramePipeline("cpu", h264="x264") as pipe:
        pipe.encode_h264(scene())
    pipe.close()
    for call in (
        lambda: pipe.encode_jpeg(scene()),
        lambda: pipe.encode_jpeg_numpy(scene()),
        lambda: pipe.encode_jpeg_batch([scene()]),
        lambda: pipe.encode_h264(scene()),
        pipe.flush,
    ):
        with pytest.raises(RuntimeError, match=CLOSED):
            call()


def test_threads_share_a_pipeline(pipe: GpuFramePipeline) -> None:
    def play(number: int) -> bytes:
        if number % 3:
            return pipe.encode_jpeg(scene(shift=number))
        return pipe.encode_h264(scene(120 + 2 * (number % 2), 160))

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(play, range(60)))
    assert all(made[i] == encode_jpeg(scene(shift=i)) for i in range(60) if i % 3)
    assert all(made[::3])


@pytest.mark.gpu
def test_pipeline_encodes_frames_of_the_gpu() -> None:
    with GpuFramePipeline("cuda", h264="x264") as pipe:
        assert (pipe.has_cuda, pipe.has_nvjpeg) == (True, True)
        frame = torch.from_numpy(scene(240, 320)).cuda()
        assert psnr(decode_jpeg(pipe.encode_jpeg(frame, 90)), scene(240, 320)) > 33
        assert pipe.encode_jpeg(torch.cat([frame, frame], -1)[..., :3], 90) == pipe.encode_jpeg(frame, 90)
        files = pipe.encode_jpeg_batch([frame, scene(), frame])
        assert files[0] == files[2]
        assert files[1] == encode_jpeg(scene())
        (decoded,) = decode_h264([pipe.encode_h264(frame)])
        assert psnr(decoded, scene(240, 320)) > 28


@pytest.mark.gpu
def test_gpu_frames_where_the_pipeline_is_of_the_cpu() -> None:
    frames = torch.from_numpy(np.stack([scene(), scene(shift=3)])).cuda()
    pipe = GpuFramePipeline("cpu")
    assert pipe.encode_jpeg_batch(frames) == [encode_jpeg(scene()), encode_jpeg(scene(shift=3))]
