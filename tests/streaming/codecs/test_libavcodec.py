"""Codecs of libavcodec: what opens, what comes out, and what is said of one that does not."""

from __future__ import annotations

import av
import av.logging
import numpy as np
import pytest

from tests.streaming.pictures import scene, unit_types
from torchrl_gpu.streaming.codecs import libavcodec
from torchrl_gpu.streaming.codecs.yuv import LIMITED, MATRIX, PRIMARIES, TRANSFER, to_i420


def opened(width: int = 160, height: int = 120, fps: float = 30.0, bitrate: int = 8_000_000):  # type: ignore[no-untyped-def]
    return libavcodec.open_codec("x264", width, height, fps=fps, bitrate=bitrate)


def packets_of(context, frames: list[np.ndarray]) -> list[bytes]:  # type: ignore[no-untyped-def]
    made = [libavcodec.encode(context, libavcodec.video_frame(to_i420(frame), i)) for i, frame in enumerate(frames)]
    assert [len(packets) for packets in made] == [1] * len(frames), "a frame comes out of the call that it goes into"
    return [bytes(packets[0]) for packets in made]


def test_key_frames_carry_what_a_decoder_starts_with() -> None:
    packets = packets_of(opened(fps=2.0), [scene(shift=i) for i in range(17)])
    kinds = [unit_types(packet) for packet in packets]
    assert [i for i, kind in enumerate(kinds) if 5 in kind] == [0, 8, 16]  # every four seconds
    assert all(kind[:2] == [7, 8] for kind in kinds[::8])
    assert {kind for i, kind in enumerate(map(tuple, kinds)) if i % 8} == {(1,)}


def test_baseline_and_the_colours_are_told() -> None:
    packet = packets_of(opened(), [scene()])[0]
    assert packet[packet.index(b"\x67") + 1] == 66  # profile_idc
    decoder = av.CodecContext.create("h264", "r")
    (frame,) = decoder.decode(av.Packet(packet)) + decoder.decode(None)
    told = frame.color_primaries, frame.color_trc, frame.colorspace, frame.color_range
    assert told == (PRIMARIES, TRANSFER, MATRIX, LIMITED)


def test_the_bitrate_is_a_ceiling() -> None:
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (120, 160, 3), np.uint8) for _ in range(90)]
    sizes = {rate: 8 * sum(map(len, packets_of(opened(bitrate=rate), noise))) for rate in (300_000, 3_000_000)}
    for rate, bits in sizes.items():
        assert bits < 1.25 * rate * len(noise) / 30
    assert sizes[3_000_000] > 3 * sizes[300_000]
    still = packets_of(opened(), [scene()] * 60)
    assert 8 * sum(map(len, still)) < 0.02 * 8_000_000 * 2, "what stands still costs next to nothing"


@pytest.mark.parametrize(("width", "height"), [(161, 120), (160, 121), (65500, 65500)])
def test_a_size_that_x264_refuses(width: int, height: int) -> None:
    with pytest.raises(RuntimeError, match=rf"^libx264 does not open at {width}×{height}: .+"):
        opened(width, height)


def test_a_codec_that_libavcodec_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(libavcodec.NAMES, "nvenc", "no_such_codec")
    assert libavcodec.codec_problem("nvenc").startswith("no_such_codec does not open at 640×480: ")


def test_x264_has_no_problem_and_logging_stays_off() -> None:
    before = av.logging.get_level()
    assert libavcodec.codec_problem("x264") == ""
    assert "libx264 does not open at 641×480: " in libavcodec.codec_problem("x264", 641)
    assert av.logging.get_level() == before


def test_a_codec_that_opens_and_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libavcodec, "encode", lambda *_: [])
    assert libavcodec.codec_problem("x264") == "libx264 opens, but gives no packet"


def test_listed_does_not_mean_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("h264_nvenc does not open at 640×480: no\nengine")

    assert "h264_nvenc" in av.codecs_available
    monkeypatch.setattr(libavcodec, "open_codec", refuse)
    assert libavcodec.codec_problem("nvenc") == "h264_nvenc does not open at 640×480: no engine"


def test_reasons_are_what_libavcodec_says() -> None:
    number = av.error.MemoryError(12, "Cannot allocate memory", 'avcodec_open2("h264_nvenc", {})')
    worded = av.error.ExternalError(1, "Generic error", None, (16, "h264_nvenc", "No capable devices found\n"))
    assert libavcodec.error_text(number) == "Cannot allocate memory"
    assert libavcodec.error_text(worded) == "No capable devices found"
    assert libavcodec.error_text(ValueError()) == "ValueError"


def test_a_codec_that_fails_amid_a_stream() -> None:
    context = opened()
    libavcodec.encode(context, None)  # after which libavcodec takes no more
    with pytest.raises(RuntimeError, match=r"^libx264 fails: .+"):
        libavcodec.encode(context, libavcodec.video_frame(to_i420(scene()), 0))
