"""Frames of the device are streamed without a wait of their publisher.

It holds with NVJPEG and without.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import torch

from tests.pretend_cuda import waits
from tests.streaming.broadcast.test_encoder_thread import encoding_hub, shown
from tests.streaming.pictures import decode_h264, decode_jpeg, psnr, scene
from tests.streaming.viewers import run
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.codecs import h264, images, pipeline, pixels
from torchrl_gpu.streaming.codecs.encoder import JpegEncoder
from torchrl_gpu.streaming.codecs.images import to_array
from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline
from torchrl_gpu.system import self_tests

RGB = torch.from_numpy(scene())
FRAMES = {"rgb": RGB, "strided": RGB.flip(0).transpose(0, 1)}
FRAMES |= {"rgba": torch.cat([RGB, RGB[..., :1]], -1), "gray": RGB[..., 0]}
FRAMES |= {"depth": RGB[..., 0].float() / 50, "batch": torch.stack([RGB, RGB.flip(0), RGB])}
# The map is copied to the device once.
pixels.color_map_on(torch.device("cuda", 0))
# Each self-test starts processes once.
SELF_TESTS: dict[str, dict[str, str]] = {"NVJPEG": {}, "none": {}}
each_format = pytest.mark.parametrize("kind", FRAMES)


def by_opencv(planes: list[torch.Tensor], quality: int) -> list[torch.Tensor]:
    """Stand in for NVJPEG, whose files are on the device."""
    made = []
    for picture in planes:
        assert picture.is_cuda
        assert picture.is_contiguous()
        bgr = np.ascontiguousarray(picture.inside.permute(1, 2, 0).numpy()[..., ::-1])
        file = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].ravel()
        made.append(torch.empty(len(file), dtype=torch.uint8, device="cuda").fill_(0))
        made[-1].inside.copy_(torch.from_numpy(file))
    return made


@pytest.fixture(params=SELF_TESTS)
def nvjpeg(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:

    def refusing(planes: list[torch.Tensor], quality: int) -> list[torch.Tensor]:
        raise RuntimeError("no libnvjpeg")

    works = request.param == "NVJPEG"
    monkeypatch.setattr(self_tests, "KNOWN_FAILURES", SELF_TESTS[request.param])
    monkeypatch.setattr("torchvision.io.encode_jpeg", by_opencv if works else refusing)
    return works


@pytest.mark.parametrize(
    ("kind", "nvjpeg"),
    [*((kind, "NVJPEG") for kind in FRAMES), ("rgb", "none"), ("depth", "none")],
    indirect=["nvjpeg"],
)
def test_the_pipeline_makes_of_them_what_it_makes_of_the_cpus(kind: str, nvjpeg: bool) -> None:
    with GpuFramePipeline("cuda", h264="x264") as pipe, GpuFramePipeline("cpu", h264="x264") as plain:
        assert (pipe.has_cuda, pipe.has_nvjpeg) == (True, nvjpeg)
        frame = FRAMES[kind].cuda()
        with waits() as counted:
            file = pipe.encode_jpeg(frame, 90)
        assert not any("pageable" in each or each == "copy from device to host" for each in counted.by_kind()), (
            counted.report()
        )
        wanted = decode_jpeg(plain.encode_jpeg(FRAMES[kind], 90))
        assert psnr(decode_jpeg(file), wanted) > 35
        (picture,) = decode_h264([pipe.encode_h264(frame)])
        assert picture.shape == wanted.shape


@each_format
def test_who_publishes_waits_for_nothing(kind: str) -> None:
    hub, frame = Hub(fps=1000.0), FRAMES[kind].cuda()
    hub.declare("main")
    with waits() as counted:
        hub.publish(frame, "main", {"step": 1}, bgr=False)
    stream = hub.find("main")
    assert stream is not None
    captured = stream.mailbox.take()
    assert captured is not None
    assert captured.pixels.is_cuda
    assert captured.copied is not None
    assert counted.total == 0, counted.report()


@pytest.mark.parametrize("codec", ["jpeg", "h264"])
def test_the_encoder_copies_through_pinned_memory_on_a_stream_of_its_own(
    codec: Any, nvjpeg: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its self-tests start processes, which takes longer than a picture may.
    GpuFramePipeline("cuda").close()
    streams = []

    def noted(frame: Any) -> np.ndarray:
        streams.append(torch.cuda.current_stream() is torch.cuda.default_stream())
        return to_array(frame)

    for module in (pipeline, images, h264):
        monkeypatch.setattr(module, "to_array", noted)

    async def inner() -> None:
        async with encoding_hub() as (hub, encoder):
            hub.declare("main")
            frame = RGB.cuda()
            # OpenCV makes the pictures until the pipeline of a GPU's frames is there.
            if codec == "jpeg":
                await shown(hub, frame, hub.subscribe("main", codec))
            for made in encoder.encoders.values():
                if isinstance(made, JpegEncoder) and made.own_pipeline is not None:
                    made.own_pipeline.result()
            streams.clear()
            with waits() as counted:
                (picture,) = await shown(hub, frame, hub.subscribe("main", codec))
            decoded = decode_jpeg(picture.data) if codec == "jpeg" else decode_h264([picture.data])[0]
            assert psnr(decoded, scene()) > 28
            assert encoder.error is None
            # The probe of NVJPEG and of CUDA copy numbers of their own, once.
            copies = [place for place in counted.by_place() if "pageable" in place or "device to host" in place]
            assert not [place for place in copies if "probe" not in place], counted.report()

    run(inner())
    assert not any(streams)
    assert bool(streams) is not (codec == "jpeg" and nvjpeg)


def test_where_no_memory_can_be_pinned_frames_are_copied_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, empty = RGB.cuda(), torch.empty

    def refusing(*args: object, pin_memory: bool = False, **kwargs: object) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", refusing)
    assert (to_array(frame) == scene()).all()
