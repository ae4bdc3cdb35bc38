"""JPEG and PNG files from the network, validated before they are decoded.

A decoder takes memory for the size that a file names, and time for every scan or chunk in it, so that a file of a few
bytes can stop a robot. Limits of memory and time around a decoder in a process of its own would hold up each picture of
a camera. So the structure of a file is walked first, which reads a few bytes of each part.
"""

from __future__ import annotations

import re

from torchrl_gpu.streaming.ros2.images import MAX_PIXELS, MAX_SIDE
from torchrl_gpu.system.policy_messages import BadMessage

_MAX_BITS = 8

_PNG = b"\x89PNG\r\n\x1a\n"
# The chunks that decide the pixels. Others may be packed, or hold more pictures.
_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
# Channels by PNG's type of colour.
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Bytes of a chunk apart from its data: length, name and checksum.
_CHUNK_BYTES = 12
_IHDR_LENGTH = 13
# Bytes that one of deflate can stand for: 1,032, and some for the ends of streams.
_TIGHTEST = 1100

_JPEG = b"\xff\xd8"
# A marker. Behind coded data, FF00 and restarts are data.
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)
_END_OF_IMAGE = 0xD9
_START_OF_SCAN = 0xDA
_TEMPORARY = 0x01
_FRAMES = range(0xC0, 0xD0)
# Tables, and one that is reserved.
_NO_FRAMES = (0xC4, 0xC8, 0xCC)
# Pixels for a byte of a JPEG: its blocks of 64 take a bit or more, and colours may have half the columns and rows.
_MOST_PER_BYTE = 512
# Scans of a progressive JPEG. Encoders write ten or so, and each is decoded over the whole picture.
_MOST_SCANS = 20


def check_picture(data: bytes) -> bytes:
    """Return a PNG or JPEG file of eight bits a channel that may be decoded.

    Of PNG, it has only the chunks of the picture itself.

    Raises:
        BadMessage: It is another file, one that is cut off, or one that takes too much memory or time.
    """
    if data.startswith(_PNG):
        return _check_png(data)
    if data.startswith(_JPEG):
        return _check_jpeg(data)
    raise BadMessage(f"these {len(data)} bytes are no JPEG or PNG file")


def _check_form(width: int, height: int, bits: int) -> None:
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise BadMessage(f"sides must be 1 to {MAX_SIDE} and have {MAX_PIXELS} pixels at most, not {width}×{height}")
    if bits > _MAX_BITS:
        raise BadMessage(f"colours must have {_MAX_BITS} bits a channel, not {bits}; depth comes as an Image of 16UC1")


def _cut_off(kind: str) -> BadMessage:
    return BadMessage(f"the {kind} file is cut off or broken")


def _number(data: bytes, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], "big")


def _check_png(data: bytes) -> bytes:
    """Return the chunks of a PNG file that decide its pixels."""
    kept = [_PNG]
    start = len(_PNG)
    # Bytes of the pixels, packed and unpacked.
    packed = 0
    unpacked = 0
    while True:
        length = _number(data, start, 4)
        name = data[start + 4 : start + 8]
        end = start + _CHUNK_BYTES + length
        is_first = len(kept) == 1
        if end > len(data) or is_first is not (name == b"IHDR"):
            raise _cut_off("PNG")
        if name == b"IHDR":
            if length != _IHDR_LENGTH:
                raise _cut_off("PNG")
            width = _number(data, start + 8, 4)
            height = _number(data, start + 12, 4)
            bits = data[start + 16]
            _check_form(width, height, bits)
            channels = _CHANNELS.get(data[start + 17], 4)
            # Each row has a byte for its filter.
            unpacked = height * (1 + width * bits * channels // 8)
        if name in _CHUNKS:
            kept.append(data[start:end])
            packed += length if name == b"IDAT" else 0
        start = end
        if name == b"IEND":
            break
    if unpacked > _TIGHTEST * packed:
        raise _cut_off("PNG")
    return b"".join(kept)


def _check_jpeg(data: bytes) -> bytes:
    """Return a JPEG file whose segments are whole, with one frame and few scans."""
    start = len(_JPEG)
    frames = 0
    scans = 0
    while True:
        # Before the first scan, segments follow each other without a gap.
        found = _MARKER.search(data, start) if scans else _MARKER.match(data, start)
        if found is None:
            raise _cut_off("JPEG")
        marker = found[1][0]
        start = found.end()
        if marker == _END_OF_IMAGE:
            break
        length = _number(data, start, 2)
        # A segment's length counts its own two bytes, so that a smaller number is none.
        is_whole = length >= 2 and start + length <= len(data)
        if marker == _TEMPORARY or not is_whole:
            raise _cut_off("JPEG")
        if marker in _FRAMES and marker not in _NO_FRAMES:
            frames += 1
            bits = data[start + 2]
            height = _number(data, start + 3, 2)
            width = _number(data, start + 5, 2)
            _check_form(width, height, bits)
            most_pixels = _MOST_PER_BYTE * len(data)
            if length < 8 or width * height > most_pixels:
                raise _cut_off("JPEG")
        scans += marker == _START_OF_SCAN
        start += length
    if frames != 1 or not 1 <= scans <= _MOST_SCANS:
        raise BadMessage(f"a JPEG must hold one picture in 1 to {_MOST_SCANS} scans, not {frames} in {scans}")
    return data
