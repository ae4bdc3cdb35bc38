"""NVJPEG and what surrounds it.

Stand-ins take its place on the CPU, and it is itself tried where there is a GPU.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.streaming.pictures import decode_jpeg, psnr, scene
from torchrl_gpu.streaming.codecs import nvjpeg
from torchrl_gpu.streaming.codecs.nvjpeg import NvJpeg, planar

CPU = torch.device("cpu")


def by_opencv(planes: list[Tensor], quality: int) -> list[Tensor]:
    """A backend: planar RGB in, files out."""
    made = []
    for picture in planes:
        bgr = picture.permute(1, 2, 0).numpy()[..., ::-1]
        made.append(torch.from_numpy(cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].ravel()))
    return made


def encoder(backend: nvjpeg.Backend = by_opencv) -> NvJpeg:
    return NvJpeg(CPU, {"stand-in": backend})


@pytest.fixture(params=["stand-in", "torchvision"])
def either(request: pytest.FixtureRequest) -> NvJpeg:
    """Around a stand-in, and around what torchvision does with tensors on the CPU."""
    return encoder() if request.param == "stand-in" else NvJpeg(CPU, {"torchvision": nvjpeg.torchvision})


def test_nvjpeg_returns_files_in_order(either: NvJpeg) -> None:
    batch = np.stack([scene(shift=4 * shift) for shift in range(5)])
    several = [scene(40, 60), scene(33, 31), scene(120, 160)]
    for frames, given in ((batch, torch.from_numpy(batch)), (several, list(map(torch.from_numpy, several)))):
        files = either.encode(given, 90)
        assert all(psnr(decode_jpeg(file), frame) > 28 for file, frame in zip(files, frames, strict=True))


def test_blue_first_and_an_alpha_channel_left_out(either: NvJpeg) -> None:
    frames = torch.from_numpy(np.stack([scene(), scene(shift=5)]))
    plain = either.encode(frames, 80)
    assert either.encode(frames.flip(-1), 80, bgr=True) == plain
    assert either.encode(list(frames.flip(-1)), 80, bgr=True) == plain
    assert either.encode(torch.cat([frames, frames], -1)[..., :3], 80) == plain


def test_no_frames_no_files() -> None:
    assert encoder().encode([], 80) == []
    assert encoder().encode(torch.zeros(0, 4, 4, 3, dtype=torch.uint8), 80) == []


def test_a_batch_is_one_call_of_contiguous_planes() -> None:
    calls: list[list[Tensor]] = []

    def backend(planes: list[Tensor], quality: int) -> list[Tensor]:
        calls.append(planes)
        return by_opencv(planes, quality)

    made = encoder(backend)
    calls.clear()
    made.encode(torch.from_numpy(np.stack([scene()] * 4))[:, ::2], 80)
    assert [len(planes) for planes in calls] == [4]
    assert all(plane.is_contiguous() and plane.shape == (3, 60, 160) for plane in calls[0])


def test_planar_by_hand() -> None:
    # One row of two pixels.
    frame = torch.tensor([[[1, 2, 3], [4, 5, 6]]], dtype=torch.uint8)
    assert planar([frame], CPU)[0].tolist() == [[[1, 4]], [[2, 5]], [[3, 6]]]
    assert planar(frame[None], CPU, bgr=True)[0].tolist() == [[[3, 6]], [[2, 5]], [[1, 4]]]


def test_nvjpeg_encodes_in_one_thread() -> None:
    idents = set()
    inside = [0]
    most = [0]

    def backend(planes: list[Tensor], quality: int) -> list[Tensor]:
        idents.add(threading.get_ident())
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        # Let another thread in, if it could.
        time.sleep(0)
        files = by_opencv(planes, quality)
        inside[0] -= 1
        return files

    encoders = [encoder(backend), encoder(backend)]
    frames = [torch.from_numpy(scene(shift=shift)) for shift in range(24)]
    with ThreadPoolExecutor(4) as pool:
        files = list(pool.map(lambda i: encoders[i % 2].encode([frames[i]], 80)[0], range(24)))
    assert files == [encoders[0].encode([frame], 80)[0] for frame in frames]
    assert len(idents) == 1
    assert idents != {threading.get_ident()}
    assert most == [1]


def test_the_frames_live_until_the_files_are_out() -> None:
    alive = []

    def backend(planes: list[Tensor], quality: int) -> list[Tensor]:
        alive.append(watched() is not None)
        return by_opencv(planes, quality)

    watched: Any = lambda: None  # noqa: E731
    made = encoder(backend)

    def passed_on() -> Tensor:
        nonlocal watched
        frames = torch.from_numpy(scene())[None].clone()
        watched = weakref.ref(frames)
        return frames

    made.encode(passed_on(), 80)
    assert alive[-1]
    deadline = time.monotonic() + 20
    while watched() is not None:
        assert time.monotonic() < deadline, "longer"


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Stand-in for the streams and events of a GPU.

    It keeps the calls in their order.
    """
    calls = MagicMock()
    for name in ("Event", "stream", "current_stream", "default_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(calls, name))
    return calls


def test_nvjpeg_reads_no_frame_before_it_is_drawn(called: MagicMock, monkeypatch: pytest.MonkeyPatch) -> None:
    made = encoder()
    called.planes, called.encode = MagicMock(wraps=planar), MagicMock(wraps=by_opencv)
    monkeypatch.setattr(nvjpeg, "planar", called.planes)
    made._stream, made._encode = called.side, called.encode
    made.encode(torch.from_numpy(scene())[None], 80)
    assert [name for name, _, _ in called.mock_calls] == [
        *("Event", "current_stream", "Event().record", "stream", "stream().__enter__", "Event().synchronize"),
        *("planes", "side.synchronize", "encode", "stream().__exit__"),
    ]
    # Otherwise it would spin while the others wait for a core.
    called.Event.assert_called_with(blocking=True)
    called.Event().record.assert_called_with(called.current_stream())
    called.stream.assert_called_with(called.side)


def test_copies_of_torchvision_on_the_default_stream_are_waited_for(
    called: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SimpleNamespace(device=torch.device("cuda", 1))
    monkeypatch.setattr("torchvision.io.encode_jpeg", lambda planes, quality: [file, file])
    assert nvjpeg.torchvision([], 80) == [file, file]
    assert called.mock_calls == [
        *(call.Event(blocking=True), call.default_stream(file.device)),
        *(call.Event().record(called.default_stream.return_value), call.Event().synchronize()),
    ]


def refuses(planes: list[Tensor], quality: int) -> list[Tensor]:
    raise RuntimeError("no NVJPEG in\nthis build")


def gives_garbage(planes: list[Tensor], quality: int) -> list[Tensor]:
    return [torch.zeros(20, dtype=torch.uint8) for _ in planes]


def test_the_first_that_encodes_is_taken() -> None:
    assert NvJpeg(CPU, {"one": refuses, "two": gives_garbage, "three": by_opencv}).backend == "three"
    with pytest.raises(RuntimeError, match=r"^one: no NVJPEG .*; two: .*no JPEG file$"):
        NvJpeg(CPU, {"one": refuses, "two": gives_garbage})
    with pytest.raises(RuntimeError, match=r"^NVJPEG .*cpu$"):
        NvJpeg(CPU)


def test_torchcodec_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(nvjpeg.installed_backends(torch.device("cuda"))) == ["torchcodec", "torchvision"]

    class JpegEncoder:
        def __init__(self, picture: Tensor) -> None:
            self.picture = picture

        def to_tensor(self, *, quality: int) -> Tensor:
            return by_opencv([self.picture], quality)[0]

    module = ModuleType("torchcodec.encoders")
    monkeypatch.setitem(sys.modules, "torchcodec", ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.encoders", module)
    backends = {"torchcodec": nvjpeg.torchcodec, "torchvision": nvjpeg.torchvision}
    assert NvJpeg(CPU, backends).backend == "torchvision", "an older torchcodec has no JpegEncoder"
    monkeypatch.setattr(module, "JpegEncoder", JpegEncoder, raising=False)
    made = NvJpeg(CPU, backends)
    assert made.backend == "torchcodec"
    assert made.encode([torch.from_numpy(scene())], 70) == encoder().encode([torch.from_numpy(scene())], 70)
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    monkeypatch.setitem(sys.modules, "torchcodec.encoders", None)
    assert NvJpeg(CPU, backends).backend == "torchvision", "there is none"


def test_only_the_deprecation_of_the_encoder_is_silenced() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = NvJpeg(CPU, {"torchvision": nvjpeg.torchvision})
        made.encode([torch.from_numpy(scene())], 80)
        warnings.warn("something else of torchvision is deprecated", DeprecationWarning, stacklevel=1)
    assert [str(warning.message) for warning in seen] == ["something else of torchvision is deprecated"]


@pytest.fixture
def on_gpu() -> NvJpeg:
    return NvJpeg(torch.device("cuda", torch.cuda.current_device()))


@pytest.mark.gpu
def test_gpu_frames_come_back(on_gpu: NvJpeg) -> None:
    frames = np.stack([scene(240, 320, shift=4 * shift) for shift in range(8)])
    tensor = torch.from_numpy(frames).cuda()
    plain = on_gpu.encode(tensor, 90)
    assert all(psnr(decode_jpeg(file), frame) > 33 for file, frame in zip(plain, frames, strict=True))
    assert on_gpu.encode(torch.cat([tensor, tensor], -1)[..., :3], 90) == plain
    assert on_gpu.encode(list(tensor.flip(-1)), 90, bgr=True) == plain


@pytest.mark.gpu
def test_gpu_frames_are_read_after_they_are_drawn(on_gpu: NvJpeg) -> None:
    slow, frame = torch.randn(2048, 2048, device="cuda"), torch.zeros(64, 64, 3, dtype=torch.uint8, device="cuda")
    for value in range(0, 250, 10):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # The frame is drawn long after this line has been passed.
            for _ in range(20):
                slow = (slow @ slow).clamp(-1, 1)
            frame.fill_(value)
            (file,) = on_gpu.encode([frame], 95)
        assert np.abs(decode_jpeg(file).astype(int) - value).max() <= 2


@pytest.mark.gpu
def test_gpu_files_are_whole_while_others_compute(on_gpu: NvJpeg) -> None:
    frames = torch.from_numpy(np.stack([scene(240, 320, shift=4 * shift) for shift in range(16)])).cuda()
    quiet = on_gpu.encode(frames, 80)
    noise = torch.randn(2048, 2048, device="cuda")

    def play(_: int) -> list[bytes]:
        busy = noise @ noise
        files = on_gpu.encode(frames, 80)
        del busy
        return files

    with ThreadPoolExecutor(4) as pool:
        assert all(files == quiet for files in pool.map(play, range(40)))
