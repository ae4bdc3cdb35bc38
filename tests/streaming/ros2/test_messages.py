from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_gpu.streaming.broadcast.rate_limits import FrameSchedule
from torchrl_gpu.streaming.ros2.inputs import Arrival, NewestMessages, pace_of
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, DOUBLES, FLOATS, IMAGE, JOINTS, Messages
from torchrl_gpu.streaming.ros2.picture_files import check_picture
from torchrl_gpu.system.policy_messages import BadMessage

MESSAGES = Messages()
STAMP = 1_700_000_000_000_000_123
PICTURE = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
BYTES = {
    IMAGE: MESSAGES.pixels(PICTURE, "rgb8", STAMP, "cam"),
    COMPRESSED: MESSAGES.jpeg(cv2.imencode(".jpg", PICTURE)[1].tobytes(), STAMP, "cam"),
    JOINTS: MESSAGES.joints(["a", "b"], [1.5, -2.0], STAMP),
    FLOATS: MESSAGES.floats([1.0, 2.5]),
    DOUBLES: MESSAGES.floats([1.0, 2.5], DOUBLES),
}


def joints(**fields: list[float]) -> bytes:
    empty = {name: np.array(fields.get(name, ()), np.float64) for name in ("position", "velocity", "effort")}
    return MESSAGES.write(JOINTS, header=MESSAGES.header(STAMP, ""), name=[], **empty)


def test_bytes_of_known_messages() -> None:
    """Bytes worked by hand from the CDR rules.

    Header 00 01 00 00, little endian, each number aligned to its size.
    """
    array = bytes.fromhex("00010000 00000000 00000000 02000000 0000803f 00002040")
    assert BYTES[FLOATS] == array
    stamp = (1_700_000_000).to_bytes(4, "little") + (123).to_bytes(4, "little")
    image = bytes.fromhex("00010000") + stamp + bytes.fromhex("04000000 63616d00 04000000 06000000 05000000")
    image += b"rgb8\0" + bytes(3) + bytes.fromhex("12000000 48000000") + PICTURE.tobytes()
    assert BYTES[IMAGE] == image
    joint = bytes.fromhex("00010000") + stamp + bytes.fromhex("01000000 00000000 02000000")
    joint += bytes.fromhex("02000000 61000000 02000000 62000000 02000000")
    assert BYTES[JOINTS] == joint + np.array([1.5, -2.0]).tobytes() + bytes(8)


def test_an_image_there_and_back() -> None:
    found = MESSAGES.image(BYTES[IMAGE])
    np.testing.assert_array_equal(found.pixels, PICTURE)
    assert (found.encoding, found.stamp_ns, found.frame_id) == ("rgb8", STAMP, "cam")
    assert not found.pixels.flags.writeable


@pytest.mark.parametrize("kind", [".jpg", ".png"])
def test_a_compressed_image(kind: str) -> None:
    smooth = cv2.resize(PICTURE, (64, 48))
    found = MESSAGES.image(MESSAGES.jpeg(cv2.imencode(kind, smooth)[1].tobytes(), STAMP, "cam"), COMPRESSED)
    assert (found.encoding, found.stamp_ns, found.frame_id) == ("bgr8", STAMP, "cam")
    assert np.abs(found.pixels.astype(int) - smooth).mean() < (1 if kind == ".png" else 12)


@pytest.mark.parametrize("type_name", [FLOATS, DOUBLES])
def test_vector_is_read_from_its_message(type_name: str) -> None:
    found = MESSAGES.vector(BYTES[type_name], type_name, 2)
    assert found.values.dtype == np.float32
    assert (found.values.tolist(), found.stamp_ns) == ([1.0, 2.5], 0)


def test_joints_are_positions_then_velocities_then_efforts() -> None:
    data = joints(position=[1, 2], velocity=[3, 4])
    found = MESSAGES.vector(data, JOINTS, 4)
    assert (found.values.tolist(), found.stamp_ns) == ([1, 2, 3, 4], STAMP)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_are_finite_as_float32(bad: float) -> None:
    with pytest.raises(BadMessage, match="finite"):
        MESSAGES.vector(MESSAGES.floats([0.0, bad], DOUBLES), DOUBLES, 2)
    with pytest.raises(BadMessage, match="finite"):
        MESSAGES.vector(joints(position=[0.0, bad]), JOINTS, 2)


@pytest.mark.parametrize("count", [0, 1, 3, 100_000])
def test_a_vector_has_its_width(count: int) -> None:
    with pytest.raises(BadMessage, match=f"2 numbers, not {count}"):
        MESSAGES.vector(MESSAGES.floats(np.zeros(count)), FLOATS, 2)


@pytest.mark.parametrize("type_name", BYTES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mangled_bytes_are_one_kind_of_error(type_name: str, data: Any) -> None:
    body = bytearray(BYTES[type_name])
    for _ in range(data.draw(st.integers(0, 4))):
        body[data.draw(st.integers(0, min(len(body), 120) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    with suppress(BadMessage):
        if type_name in (IMAGE, COMPRESSED):
            assert MESSAGES.image(cut, type_name).pixels.nbytes < 1 << 24
        else:
            assert np.isfinite(MESSAGES.vector(cut, type_name, 2).values).all()


def held(rate: float, arrivals: list[float]) -> list[float]:
    pace, times = pace_of(rate), []
    for at in arrivals:
        now = max(at, pace.next_at)
        pace.advance(now)
        times.append(now - at)
    return times


def test_a_sender_of_the_same_rate_is_never_held_up() -> None:
    jitter = [0.006 * (-1) ** (i // 3) for i in range(3000)]
    assert max(held(30, [1.002 * i / 30 + jitter[i] for i in range(3000)])) == 0
    assert max(held(30, [0.998 * i / 30 + jitter[i] for i in range(3000)])) < 0.02


def test_after_a_burst_nothing_stays_held_up() -> None:
    times = held(30, [0.0, 0.001, 0.002, *(i / 30 for i in range(1, 60))])
    assert max(times) > 0.02
    assert max(times[35:]) == 0


def test_the_newest_of_each_once_the_first_is_there() -> None:
    inputs, pace = NewestMessages(["image", "vector"]), FrameSchedule()
    for data in (b"1", b"2"):
        inputs.put("vector", data)
    waiting = threading.Thread(target=lambda: found.append(inputs.next(pace)))
    found: list[dict[str, Arrival] | None] = []
    waiting.start()
    time.sleep(0.02)
    # Vectors alone are not decided on.
    assert waiting.is_alive()
    inputs.put("image", b"3")
    waiting.join(20)
    assert found[0] is not None
    assert {name: arrival.data for name, arrival in found[0].items()} == {"image": b"3", "vector": b"2"}
    assert (inputs.received, inputs.dropped) == ({"image": 1, "vector": 2}, {"image": 0, "vector": 1})
    inputs.put("image", b"4")
    only = inputs.next(pace)
    assert only is not None
    assert set(only) == {"image"}


@pytest.mark.parametrize(
    ("stamp_ns", "same_clock", "taken_at"),
    [(0, True, 50.0), (7 * 10**9, True, 47.0), (10**10 + 10**8, True, 50.0), (1, False, 50.0), (7, True, 40.0)],
)
def test_when_a_message_was_taken(stamp_ns: int, same_clock: bool, taken_at: float) -> None:
    arrival = Arrival(b"", 50.0, 10**10)
    assert arrival.taken_at(stamp_ns, same_clock, 0.2) == pytest.approx(taken_at)


def test_a_stamp_from_the_future_is_of_another_clock() -> None:
    with pytest.raises(BadMessage, match=r"stamp.*1\.0 s ahead .*same_clock=False"):
        Arrival(b"", 50.0, 10**10).taken_at(11 * 10**9, True, 0.2)


SMOOTH = cv2.resize(np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8), (64, 48))


def decoded(file: bytes) -> np.ndarray:
    return MESSAGES.image(MESSAGES.jpeg(file, 0), COMPRESSED).pixels


def chunk(name: bytes, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return size.to_bytes(4, "big") + name + body + zlib.crc32(name + body).to_bytes(4, "big")


def png(
    *more: bytes, width: int = 8, height: int = 8, bits: int = 8, colors: int = 2, body: bytes | None = None
) -> bytes:
    """A file with more chunks between the header and the pixels."""
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([bits, colors, 0, 0, 0])
    rows = (1 + width * {0: 1, 2: 3, 6: 4}[colors] * bits // 8) * height
    packed = chunk(b"IDAT", zlib.compress(bytes(rows))) if body is None else body
    return b"".join([b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), *more, packed, chunk(b"IEND", b"")])


def encoded(kind: str, *options: int, picture: np.ndarray = SMOOTH) -> bytes:
    return cv2.imencode(kind, picture, options)[1].tobytes()


def with_size(jpeg: bytes, side: int) -> bytes:
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + 2 * side.to_bytes(2, "big") + jpeg[at + 4 :]


def with_scans(count: int) -> bytes:
    """A progressive file whose last scan comes again and again."""
    file = encoded(".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    return file[:-2] + file[file.rindex(b"\xff\xda") : -2] * count + file[-2:]


STRANGE: dict[str, tuple[Callable[[], bytes], str]] = {
    **{
        f"a length of 1.8 GiB of {name.decode()}": (
            lambda name=name: png(body=chunk(name, b"abcd", 0x70000000)),  # type: ignore[misc]
            "PNG file is cut off",
        )
        for name in (b"IDAT", b"tEXt", b"iCCP", b"eXIf", b"fdAT", b"PLTE")
    },
    **{
        f"a PNG of {width}×{height}": (
            lambda width=width, height=height: png(width=width, height=height, body=chunk(b"IDAT", bytes(60))),  # type: ignore[misc]
            f"sides .*{width}×{height}",
        )
        for width, height in ((20_000, 100), (8000, 8000), (60_000, 60_000))
    },
    "nothing": (lambda: b"", "these 0 bytes"),
    "words": (lambda: b"no picture", "bytes are no JPEG or PNG"),
    "a length that wraps around": (lambda: png(chunk(b"tEXt", b"", 0xFFFFFFF4)), "cut off"),
    "a long header": (lambda: png()[:8] + chunk(b"IHDR", bytes(26)), "cut off"),
    "no header": (lambda: png()[:8] + chunk(b"IDAT", b""), "cut off"),
    "two headers": (lambda: png(png()[8:33]), "cut off"),
    "no end": (lambda: png()[:-12], "cut off"),
    "no pixels": (lambda: png(body=b""), "cut off"),
    "pixels that cannot be in there": (lambda: png(width=5000, height=5000, body=chunk(b"IDAT", bytes(60))), "cut off"),
    "16 bits of colour": (lambda: encoded(".png", picture=SMOOTH.astype(np.uint16) * 257), "8 bits a channel, not 16"),
    "16 bits of depth": (lambda: encoded(".png", picture=SMOOTH[..., 0].astype(np.uint16)), "not 16.*16UC1"),
    "a JPEG of 12 bits": (
        lambda: encoded(".jpg").replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
        "8 bits .*not 12",
    ),
    "a segment beyond the end": (lambda: b"\xff\xd8\xff\xe0\xff\xff" + bytes(100), "JPEG file is cut off"),
    "a segment of no length": (lambda: b"\xff\xd8\xff\xe0\0\0" + bytes(100), "JPEG file is cut off"),
    "a JPEG without its end": (lambda: encoded(".jpg")[:-2], "JPEG file is cut off"),
    "no scan": (lambda: b"\xff\xd8\xff\xd9", "not 0 in 0"),
    "two pictures": (lambda: encoded(".jpg")[:-2] + encoded(".jpg")[2:], "not 2 in 2"),
    "a scan again and again": (lambda: with_scans(200), "1 to 20 scans, not 1 in 2"),
    "a JPEG that is too small for its pixels": (lambda: with_size(encoded(".jpg"), 5000), "JPEG file is cut off"),
    "a JPEG of too many pixels": (lambda: with_size(encoded(".jpg"), 6000), "sides .*6000×6000"),
    "GIF": (lambda: b"GIF89a" + bytes(100), "these 106 bytes are no JPEG or PNG"),
    "BMP": (lambda: encoded(".bmp"), "bytes are no JPEG or PNG"),
    "WebP": (lambda: b"RIFF\x64\0\0\0WEBPVP8X" + bytes(100), "bytes are no JPEG or PNG"),
    "TIFF": (lambda: b"II*\0" + bytes(100), "bytes are no JPEG or PNG"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_messages_are_not_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, says = STRANGE[name]
    file = make()
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(BadMessage, match=rf"^sensor_msgs/msg/CompressedImage: .*{says}"):
        decoded(file)


def test_chunks_beside_the_picture_are_left_out() -> None:
    """They may be packed a thousand to one, or hold further pictures."""
    packed = zlib.compress(bytes(1 << 20))
    texts = chunk(b"zTXt", b"k\0\0" + packed), chunk(b"iCCP", b"k\0\0" + packed), chunk(b"acTL", bytes(8))
    assert check_picture(png(*texts)) == png()


SOUND = {
    "PNG": encoded(".png"),
    "grey PNG": encoded(".png", picture=SMOOTH[..., 0]),
    "PNG with alpha": encoded(".png", picture=np.dstack([SMOOTH, SMOOTH[..., :1]])),
    "PNG of one bit": encoded(".png", cv2.IMWRITE_PNG_BILEVEL, 1, picture=(SMOOTH[..., 0] > 99).astype(np.uint8)),
    "black PNG": encoded(".png", picture=np.zeros((900, 900, 3), np.uint8)),
    "JPEG": encoded(".jpg"),
    "grey JPEG": encoded(".jpg", picture=SMOOTH[..., 0]),
    "progressive JPEG": encoded(".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
    "JPEG with restarts": encoded(".jpg", cv2.IMWRITE_JPEG_RST_INTERVAL, 1),
    "black JPEG": encoded(".jpg", cv2.IMWRITE_JPEG_QUALITY, 1, picture=np.zeros((900, 900, 3), np.uint8)),
    "black progressive JPEG": encoded(
        ".jpg", cv2.IMWRITE_JPEG_QUALITY, 1, cv2.IMWRITE_JPEG_PROGRESSIVE, 1, picture=np.zeros((900, 900, 3), np.uint8)
    ),
    "JPEG with something behind it": encoded(".jpg") + bytes(40),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_pictures_are_decoded_as_before(name: str) -> None:
    wanted = cv2.imdecode(np.frombuffer(SOUND[name], np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    np.testing.assert_array_equal(decoded(SOUND[name]), wanted)


@pytest.mark.parametrize("name", ["PNG", "progressive JPEG"])
def test_mangled_messages_raise_one_kind_of_error(name: str) -> None:
    rng = random.Random(0)
    for _ in range(300):
        file = bytearray(SOUND[name])
        for _ in range(rng.randrange(1, 4)):
            file[rng.randrange(len(file))] = rng.randrange(256)
        try:
            checked = check_picture(bytes(file[: rng.randrange(len(file)) + 1]))
        except BadMessage:
            continue
        assert len(checked) <= len(file)
