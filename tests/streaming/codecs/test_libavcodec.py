"""Codecs of libavcodec.

What opens, what comes out, and what is said of one that does not.
"""

from __future__ import annotations

import av
import av.logging
import numpy as np
import pytest

from tests.streaming.pictures import scene, unit_types
from torchrl_gpu.streaming.codecs import libavcodec
from torchrl_gpu.streaming.codecs.libavcodec import LIMITED, MATRIX, PRIMARIES, TRANSFER, even, to_i420


def opened(width: int = 160, height: int = 120, fps: float = 30.0, bitrate: int = 8_000_000):  # type: ignore[no-untyped-def]
    return libavcodec.open_codec("x264", width, height, fps=fps, bitrate=bitrate)


def packets_of(context, frames: list[np.ndarray]) -> list[bytes]:  # type: ignore[no-untyped-def]
    made = [libavcodec.encode(context, libavcodec.video_frame(to_i420(frame), i)) for i, frame in enumerate(frames)]
    assert [len(packets) for packets in made] == [1] * len(frames), "a frame comes out of the call that it goes into"
    return [bytes(packets[0]) for packets in made]


def test_key_frames_carry_what_a_decoder_starts_with() -> None:
    packets = packets_of(opened(fps=2.0), [scene(shift=i) for i in range(17)])
    kinds = [unit_types(packet) for packet in packets]
    # Every four seconds.
    assert [i for i, kind in enumerate(kinds) if 5 in kind] == [0, 8, 16]
    assert all(kind[:2] == [7, 8] for kind in kinds[::8])
    assert {kind for i, kind in enumerate(map(tuple, kinds)) if i % 8} == {(1,)}


def test_baseline_and_the_colours_are_told() -> None:
    packet = packets_of(opened(), [scene()])[0]
    # The byte is profile_idc.
    assert packet[packet.index(b"\x67") + 1] == 66
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
    with pytest.raises(RuntimeError, match=rf"^libx264 .*{width}×{height}: .+"):
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


def test_reasons_are_what_libavcodec_says() -> None:
    number = av.error.MemoryError(12, "Cannot allocate memory", 'avcodec_open2("h264_nvenc", {})')
    worded = av.error.ExternalError(1, "Generic error", None, (16, "h264_nvenc", "No capable devices found\n"))
    assert libavcodec.error_text(number) == "Cannot allocate memory"
    assert libavcodec.error_text(worded) == "No capable devices found"
    assert libavcodec.error_text(ValueError()) == "ValueError"


def test_a_codec_that_fails_amid_a_stream() -> None:
    context = opened()
    # libavcodec takes no more after this.
    libavcodec.encode(context, None)
    with pytest.raises(RuntimeError, match=r"^libx264 fails: .+"):
        libavcodec.encode(context, libavcodec.video_frame(to_i420(scene()), 0))


@pytest.mark.parametrize(
    ("rgb", "yuv"),
    # ITU-R BT.601: Y = 16 + 65.481 R + 128.553 G + 24.966 B of R, G, B from 0 to 1. U and V end at 16 and 240.
    [
        ((0, 0, 0), (16, 128, 128)),
        ((255, 255, 255), (235, 128, 128)),
        ((255, 0, 0), (81, 90, 240)),
        ((0, 255, 0), (145, 54, 34)),
        ((0, 0, 255), (41, 240, 110)),
    ],
)
def test_colours_of_yuv_by_hand(rgb: tuple[int, int, int], yuv: tuple[int, int, int]) -> None:
    planes = to_i420(np.full((4, 6, 3), rgb, np.uint8)).ravel()
    y, u, v = np.split(planes.astype(int), [24, 30])
    assert [np.abs(plane - wanted).max() <= 1 for plane, wanted in zip((y, u, v), yuv, strict=True)] == [True] * 3


def test_frames_may_have_blue_first() -> None:
    assert np.array_equal(to_i420(scene()[..., ::-1], bgr=True), to_i420(scene()))


@pytest.mark.parametrize("shape", [(4, 6), (3, 6), (4, 5), (1, 1), (121, 161)])
def test_odd_sides_grow_by_a_copy(shape: tuple[int, int]) -> None:
    frame = scene(*shape)
    planes = to_i420(frame)
    height, width = even(shape[0]), even(shape[1])
    assert planes.shape == (height * 3 // 2, width)
    grown = np.pad(frame, ((0, height - shape[0]), (0, width - shape[1]), (0, 0)), mode="edge")
    assert np.array_equal(planes, to_i420(grown))
