"""What strangers' pictures may ask of a decoder."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import cv2
import numpy as np
import pytest

from torchrl_gpu.streaming.ros2.images import BadMessage
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, Messages
from torchrl_gpu.streaming.ros2.picture_files import checked_picture

MESSAGES = Messages()
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
            "PNG that is cut off",
        )
        for name in (b"IDAT", b"tEXt", b"iCCP", b"eXIf", b"fdAT", b"PLTE")
    },
    **{
        f"a PNG of {width}×{height}": (
            lambda width=width, height=height: png(width=width, height=height, body=chunk(b"IDAT", bytes(60))),  # type: ignore[misc]
            f"got {width}×{height}",
        )
        for width, height in ((20_000, 100), (8000, 8000), (60_000, 60_000))
    },
    "nothing": (lambda: b"", "got 0 bytes of something else"),
    "words": (lambda: b"no picture", "something else"),
    "a length that wraps around": (lambda: png(chunk(b"tEXt", b"", 0xFFFFFFF4)), "cut off"),
    "a long header": (lambda: png()[:8] + chunk(b"IHDR", bytes(26)), "cut off"),
    "no header": (lambda: png()[:8] + chunk(b"IDAT", b""), "cut off"),
    "two headers": (lambda: png(png()[8:33]), "cut off"),
    "no end": (lambda: png()[:-12], "cut off"),
    "no pixels": (lambda: png(body=b""), "cut off"),
    "pixels that cannot be in there": (lambda: png(width=5000, height=5000, body=chunk(b"IDAT", bytes(60))), "cut off"),
    "16 bits of colour": (lambda: encoded(".png", picture=SMOOTH.astype(np.uint16) * 257), "want 8 bits a channel"),
    "16 bits of depth": (lambda: encoded(".png", picture=SMOOTH[..., 0].astype(np.uint16)), "16UC1.*; got 16"),
    "a JPEG of 12 bits": (lambda: encoded(".jpg").replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), "got 12"),
    "a segment beyond the end": (lambda: b"\xff\xd8\xff\xe0\xff\xff" + bytes(100), "JPEG that is cut off"),
    "a segment of no length": (lambda: b"\xff\xd8\xff\xe0\0\0" + bytes(100), "JPEG that is cut off"),
    "a JPEG without its end": (lambda: encoded(".jpg")[:-2], "JPEG that is cut off"),
    "no scan": (lambda: b"\xff\xd8\xff\xd9", "got 0 in 0"),
    "two pictures": (lambda: encoded(".jpg")[:-2] + encoded(".jpg")[2:], "got 2 in 2"),
    "a scan again and again": (lambda: with_scans(200), "in 1 to 20 scans; got 1 in 2"),
    "a JPEG that is too small for its pixels": (lambda: with_size(encoded(".jpg"), 5000), "JPEG that is cut off"),
    "a JPEG of too many pixels": (lambda: with_size(encoded(".jpg"), 6000), "got 6000×6000"),
    "GIF": (lambda: b"GIF89a" + bytes(100), "want a JPEG or PNG file; got 106 bytes of something else"),
    "BMP": (lambda: encoded(".bmp"), "something else"),
    "WebP": (lambda: b"RIFF\x64\0\0\0WEBPVP8X" + bytes(100), "something else"),
    "TIFF": (lambda: b"II*\0" + bytes(100), "something else"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_strange_is_not_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, says = STRANGE[name]
    file = make()
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(BadMessage, match=rf"^sensor_msgs/msg/CompressedImage: .*{says}"):
        decoded(file)


def test_chunks_beside_the_picture_are_left_out() -> None:
    """They may be packed a thousand to one, or hold further pictures."""
    packed = zlib.compress(bytes(1 << 20))
    texts = chunk(b"zTXt", b"k\0\0" + packed), chunk(b"iCCP", b"k\0\0" + packed), chunk(b"acTL", bytes(8))
    assert checked_picture(png(*texts)) == png()


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
def test_what_is_mangled_is_one_kind_of_error(name: str) -> None:
    rng = random.Random(0)
    for _ in range(300):
        file = bytearray(SOUND[name])
        for _ in range(rng.randrange(1, 4)):
            file[rng.randrange(len(file))] = rng.randrange(256)
        try:
            checked = checked_picture(bytes(file[: rng.randrange(len(file)) + 1]))
        except BadMessage:
            continue
        assert len(checked) <= len(file)
