"""Validation of the boxes of an MP4 file before libavformat reads them.

libavformat makes an index entry for every sample that a header counts, and samples of one size need no table: a file of
two kilobytes can count a hundred million. A sample takes a byte or more, so that the file's size bounds their count.
"""

from __future__ import annotations

from typing import BinaryIO

_CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
_MOST_BOXES = 10**6
_OWN_FIELDS = 0xF00  # flags of a trun whose samples have fields of their own


def check_samples(file: BinaryIO) -> None:
    """ValueError where a file counts more samples than it has bytes for; rewinds the file."""
    size = file.seek(0, 2)
    ends, at, samples, boxes = [size], 0, 0, 0
    while ends and boxes < _MOST_BOXES:
        if at + 8 > ends[-1]:
            at = ends.pop()
            continue
        boxes += 1
        file.seek(at)
        head = file.read(32)
        length, name, begin = int.from_bytes(head[:4], "big"), head[4:8], 8
        if length == 1:
            length, begin = int.from_bytes(head[8:16], "big"), 16
        end = min(ends[-1], at + length) if length >= begin else ends[-1]  # 0: to the end; others are broken
        flags = int.from_bytes(head[begin + 1 : begin + 4], "big")
        first, second = (int.from_bytes(head[begin + i : begin + i + 4], "big") for i in (4, 8))
        if name == b"stsz":
            samples += first * second  # bytes of samples of one size
        elif name == b"trun" and not flags & _OWN_FIELDS:
            samples += first
        if samples > size:
            raise ValueError(f"at least {samples:,} bytes of samples in a file of {size:,}")
        if name in _CONTAINERS:
            ends.append(end)
            at += begin
        else:
            at = end
    if boxes == _MOST_BOXES:
        raise ValueError(f"more than {_MOST_BOXES:,} boxes")
    file.seek(0)
