"""Validation of strangers' PNG and JPEG files before a library decodes them.

OpenCV takes the memory that the length of a PNG chunk asks for before it looks whether the file goes on that far,
decodes as many scans of a JPEG as there are, and makes up what is missing. So lengths are followed first, without any
memory, and compared with how tightly the formats can pack.
"""

from __future__ import annotations

import re

from torchrl_gpu.streaming.ros2.images import MAX_PIXELS, MAX_SIDE, BadMessage

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")  # that decide the pixels; others may be packed, or hold more pictures
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by PNG's type of colour
_TIGHTEST = 1100  # bytes that one of deflate can stand for: 1,032, and some for the ends of streams
# Pixels of a JPEG: its blocks of 64 take a bit or more, and colours may have half the columns and rows.
_MOST_PER_BYTE = 512
_MOST_SCANS = 20  # of a progressive JPEG; encoders write ten or so, and each is decoded over the whole picture
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)  # behind coded data, where FF00 and restarts are data


def checked_picture(data: bytes) -> bytes:
    """A PNG or JPEG file of eight bits a channel that may be decoded: of PNG, only the chunks of the picture itself.

    BadMessage for another file, one that is cut off, and one that takes too much memory or time.
    """
    if data.startswith(_PNG):
        return _checked_png(data)
    if data.startswith(_JPEG):
        return _checked_jpeg(data)
    raise BadMessage(f"want a JPEG or PNG file; got {len(data)} bytes of something else")


def _check_form(width: int, height: int, bits: int) -> None:
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise BadMessage(f"want sides of 1 to {MAX_SIDE} and {MAX_PIXELS} pixels at most; got {width}×{height}")
    if bits > 8:
        raise BadMessage(f"want 8 bits a channel, as colours have (depth comes as an Image of 16UC1); got {bits}")


def _cut(kind: str) -> BadMessage:
    return BadMessage(f"want a JPEG or PNG file that can be decoded; got a {kind} that is cut off or broken")


def _checked_png(data: bytes) -> bytes:
    kept, at, packed, size = [_PNG], len(_PNG), 0, 0
    while True:
        length, name = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if at + 12 + length > len(data) or (len(kept) == 1) is not (name == b"IHDR"):
            raise _cut("PNG")
        if name == b"IHDR":
            if length != 13:
                raise _cut("PNG")
            width, height = (int.from_bytes(data[at + i : at + i + 4], "big") for i in (8, 12))
            _check_form(width, height, data[at + 16])
            size = height * (1 + width * data[at + 16] * _CHANNELS.get(data[at + 17], 4) // 8)
        if name in _CHUNKS:
            kept.append(data[at : at + 12 + length])
            packed += length if name == b"IDAT" else 0
        at += 12 + length
        if name == b"IEND":
            break
    if size > _TIGHTEST * packed:
        raise _cut("PNG")
    return b"".join(kept)


def _checked_jpeg(data: bytes) -> bytes:
    at, frames, scans = len(_JPEG), 0, 0
    while True:
        found = _MARKER.search(data, at) if scans else _MARKER.match(data, at)
        if found is None:
            raise _cut("JPEG")
        marker, at = found[1][0], found.end()
        if marker == 0xD9:
            break
        length = int.from_bytes(data[at : at + 2], "big")
        if marker == 0x01 or length < 2 or at + length > len(data):
            raise _cut("JPEG")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # tables, and one that is reserved
            frames += 1
            height, width = (int.from_bytes(data[at + i : at + i + 2], "big") for i in (3, 5))
            _check_form(width, height, data[at + 2])
            if length < 8 or width * height > _MOST_PER_BYTE * len(data):
                raise _cut("JPEG")
        scans += marker == 0xDA
        at += length
    if frames != 1 or not 1 <= scans <= _MOST_SCANS:
        wanted = f"one picture in 1 to {_MOST_SCANS} scans"
        raise BadMessage(f"want a JPEG or PNG file, of JPEG {wanted}; got {frames} in {scans}")
    return data
