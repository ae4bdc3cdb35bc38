"""One stream of H.264, decoded again, and everything that may happen to it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import av
import numpy as np
import pytest
import torch

from tests.streaming.codecs.test_images import FORMS
from tests.streaming.pictures import decode_h264, psnr, scene, unit_types
from torchrl_gpu.streaming.codecs import h264, libavcodec, probes
from torchrl_gpu.streaming.codecs.h264 import H264Encoder

CLOSED = "^H264Encoder is closed$"


class Nvenc:
    """Stand-in for NVENC on a card that allows a number of sessions.

    It is x264 under NVENC's name, which may fail amid a stream.
    """

    def __init__(self, context: Any, frames_until_it_fails: float) -> None:
        self.name = "h264_nvenc"
        self._context = context
        self._left = frames_until_it_fails

    def encode(self, frame: Any) -> list[Any]:
        self._left -= 1
        if self._left < 0:
            raise av.error.ExternalError(-542398533, "Generic error in an external library")
        return self._context.encode(frame)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """Put a card with NVENC into the machine.

    Returns the codecs that are asked for, in order.
    """

    def insert(sessions: int = 2, frames_until_it_fails: float = float("inf")) -> list[str]:
        asked, real = [], libavcodec.open_codec

        def open_codec(word: str, width: int, height: int, **rest: Any) -> Any:
            asked.append(word)
            if word == "x264":
                return real(word, width, height, **rest)
            if asked.count("nvenc") > sessions:
                raise RuntimeError("h264_nvenc does not open at 160×120: Cannot allocate memory")
            return Nvenc(real("x264", width, height, **rest), frames_until_it_fails)

        monkeypatch.setattr(libavcodec, "open_codec", open_codec)
        monkeypatch.setattr(probes, "nvenc_problem", lambda: "")
        return asked

    h264.WARNED.clear()
    yield insert
    h264.WARNED.clear()


def x264(width: int = 160, height: int = 120, **rest: Any) -> H264Encoder:
    return H264Encoder(width, height, codec="x264", **rest)


@pytest.mark.parametrize("shape", [(120, 160), (121, 161), (2, 2), (1, 1), (62, 322), (240, 34)])
def test_h264_decodes_to_its_frames(shape: tuple[int, int]) -> None:
    frames = [scene(*shape, shift=shift) for shift in range(6)]
    encoder = x264(shape[1], shape[0])
    decoded = decode_h264([encoder.encode(frame).data for frame in frames])
    assert [picture.shape[:2] for picture in decoded] == [(encoder.height, encoder.width)] * 6
    assert (encoder.height, encoder.width) == (shape[0] + shape[0] % 2, shape[1] + shape[1] % 2)
    for picture, frame in zip(decoded, frames, strict=True):
        assert psnr(picture[: shape[0], : shape[1]], frame) > (28 if min(shape) > 60 else 20)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_frame_gives_the_same_packet(form: str) -> None:
    frame = scene(121, 161)
    assert x264().encode(FORMS[form](frame)) == x264().encode(frame)


def test_h264_gives_one_packet_a_frame_and_key_frames_where_asked() -> None:
    encoder = x264()
    packets = [encoder.encode(scene(shift=i), key_frame=i in (5, 6)) for i in range(10)]
    assert [i for i, packet in enumerate(packets) if packet.key] == [0, 5, 6]
    assert all((5 in unit_types(packet.data)) == packet.key for packet in packets)
    assert all(unit_types(packet.data)[:2] == [7, 8] for packet in packets if packet.key)
    assert len(decode_h264([packet.data for packet in packets[5:]])) == 5, "whoever joins at a key frame sees the rest"


def test_another_size_starts_anew() -> None:
    encoder = x264()
    sizes = [(120, 160), (120, 160), (90, 120), (89, 119), (120, 160)]
    packets = [encoder.encode(scene(*size)) for size in sizes]
    assert [packet.key for packet in packets] == [True, False, True, False, True]
    decoded = decode_h264([packet.data for packet in packets])
    assert [picture.shape[:2] for picture in decoded] == [(120, 160), (120, 160), (90, 120), (90, 120), (120, 160)]
    assert psnr(decoded[2], scene(90, 120)) > 28


def test_a_codec_that_keeps_a_frame_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late:
        """Gives every packet one call later."""

        name = "late"

        def __init__(self, context: Any) -> None:
            self.context, self.kept = context, []

        def encode(self, frame: Any) -> list[Any]:
            ready, self.kept = self.kept, self.context.encode(frame)
            return ready + (self.kept if frame is None else [])

    real = libavcodec.open_codec
    monkeypatch.setattr(libavcodec, "open_codec", lambda *args, **rest: Late(real(*args, **rest)))
    encoder = x264()
    packets = [encoder.encode(scene(shift=shift)) for shift in range(3)]
    assert packets[0] == (b"", False)
    assert [packet.key for packet in packets] == [False, True, False]
    assert len(decode_h264([packet.data for packet in packets] + [encoder.flush()])) == 3


def test_closed_h264_encoder_takes_no_frame() -> None:
    encoder = x264()
    encoder.encode(scene())
    encoder.close()
    encoder.close()
    for call in (lambda: encoder.encode(scene()), encoder.flush, lambda: encoder.encode(scene(20, 20))):
        with pytest.raises(RuntimeError, match=CLOSED):
            call()


def test_threads_share_an_encoder() -> None:
    encoder, frame = x264(320, 240), scene(240, 320)
    with ThreadPoolExecutor(4) as pool:
        packets = list(pool.map(lambda i: encoder.encode(frame, key_frame=i % 7 == 0), range(120)))
    assert sum(packet.key for packet in packets) >= 120 // 7
    assert all(packet.data for packet in packets)


def test_closed_by_another_thread() -> None:
    encoder = x264()
    at_work = threading.Barrier(3)

    def play() -> None:
        encoder.encode(scene())
        at_work.wait()
        with pytest.raises(RuntimeError, match=CLOSED):
            deque((encoder.encode(scene()) for _ in range(100_000)), maxlen=0)

    with ThreadPoolExecutor(2) as pool:
        played = [pool.submit(play) for _ in range(2)]
        at_work.wait()
        encoder.close()
        for each in played:
            each.result()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"codec": "h265"}, "codec .*'h265'"),
        ({"width": 0}, "width and height .*0×120"),
        ({"height": -2}, "width and height .*160×-2"),
        ({"fps": 0}, "fps .*, not 0"),
        ({"fps": float("nan")}, "fps .*nan"),
        ({"bitrate": 10}, "bitrate .*, not 10"),
    ],
)
def test_arguments_are_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=rf"^H264Encoder: {said}$"):
        H264Encoder(**({"width": 160, "height": 120} | change))


def test_a_size_that_x264_refuses_leaves_the_encoder_usable() -> None:
    encoder = x264()
    with pytest.raises(RuntimeError, match=r"^libx264 .*40000×2: "):
        encoder.encode(np.zeros((2, 40000, 3), np.uint8))
    assert encoder.encode(scene()).key


def test_auto_without_nvenc_is_x264(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "nvenc_problem", lambda: "no driver")
    encoder = H264Encoder(160, 120)
    assert encoder.codec == "x264"
    assert encoder.encode(scene()).key


def test_the_stream_beyond_the_session_limit_falls_back(
    card: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    asked = card(sessions=2)
    with caplog.at_level(logging.WARNING):
        encoders = [H264Encoder(160, 120) for _ in range(4)]
    assert [encoder.codec for encoder in encoders] == ["nvenc", "nvenc", "x264", "x264"]
    assert asked == ["nvenc", "nvenc", "nvenc", "x264", "nvenc", "x264"]
    assert [record.message for record in caplog.records] == [
        "H264Encoder: h264_nvenc does not open at 160×120: Cannot allocate memory; x264 encodes instead"
    ]
    for encoder in encoders:
        (decoded,) = decode_h264([encoder.encode(scene()).data])
        assert psnr(decoded, scene()) > 28


def test_no_session_left_after_a_change_of_size(card: Callable[..., list[str]]) -> None:
    card(sessions=1)
    encoder = H264Encoder(160, 120)
    packets = [encoder.encode(frame) for frame in (scene(), scene(90, 120), scene(90, 120))]
    assert encoder.codec == "x264"
    assert [packet.key for packet in packets] == [True, True, False]


def test_nvenc_that_fails_amid_the_stream(card: Callable[..., list[str]], caplog: pytest.LogCaptureFixture) -> None:
    asked = card(frames_until_it_fails=3)
    encoder = H264Encoder(160, 120)
    packets = [encoder.encode(scene(shift=shift)) for shift in range(6)]
    assert asked == ["nvenc", "x264"]
    assert [packet.key for packet in packets] == [True, False, False, True, False, False]
    decoded = decode_h264([packet.data for packet in packets])
    assert [psnr(picture, scene(shift=i)) > 28 for i, picture in enumerate(decoded)] == [True] * 6
    assert "h264_nvenc fails: Generic error in an external library; x264 encodes instead" in caplog.text


def test_h264_by_nvenc_is_never_by_x264(card: Callable[..., list[str]]) -> None:
    card(sessions=2, frames_until_it_fails=1)
    encoder = H264Encoder(160, 120, codec="nvenc")
    assert encoder.codec == "nvenc"
    encoder.encode(scene())
    with pytest.raises(RuntimeError, match=r"^h264_nvenc fails: Generic error"):
        encoder.encode(scene())
    assert encoder.encode(scene()).key, "the next frame tries again, with a new session"
    with pytest.raises(RuntimeError, match=r"^h264_nvenc .*160×120: Cannot allocate"):
        H264Encoder(160, 120, codec="nvenc")


@pytest.mark.gpu
def test_h264_encodes_frames_of_the_gpu() -> None:
    frame = torch.from_numpy(scene()).cuda()
    assert x264().encode(frame).data == x264().encode(scene()).data


@pytest.mark.gpu
def test_nvenc_where_there_is_one() -> None:
    if problem := probes.nvenc_problem():
        pytest.skip(problem)
    encoder = H264Encoder(640, 480, codec="nvenc")
    frames = [scene(480, 640, shift=shift) for shift in range(8)]
    packets = [encoder.encode(frame, key_frame=i == 4) for i, frame in enumerate(frames)]
    assert [i for i, packet in enumerate(packets) if packet.key] == [0, 4]
    assert all(unit_types(packets[i].data)[:2] == [7, 8] for i in (0, 4))
    decoded = decode_h264([packet.data for packet in packets])
    assert all(psnr(picture, frame) > 28 for picture, frame in zip(decoded, frames, strict=True))
