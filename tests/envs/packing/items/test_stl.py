"""STL as programs write it: every file is a box of 1×2×3, or says what is wrong."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.envs.packing.items.mesh_writing import box
from torchrl_gpu.envs.packing.items.mesh_shapes import MeshShape
from torchrl_gpu.envs.packing.items.stl import read_stl

TRIANGLES = np.array(box((1, 2, 3)).triangles)


def binary(count: int = 12, header: bytes = b"an exporter", behind: bytes = b"", attribute: int = 0) -> bytes:
    records = [struct.pack("<12fH", 0, 0, 0, *corners.reshape(-1), attribute) for corners in TRIANGLES]
    return header.ljust(80, b"\0")[:80] + struct.pack("<I", count) + b"".join(records) + behind


def text(name: str = "solid box", end: str = "endsolid box", line: str = "\n", number: str = "{:g}") -> bytes:
    lines = [name]
    for corners in TRIANGLES:
        vertices = [f"      vertex {' '.join(number.format(x) for x in corner)}" for corner in corners]
        lines += ["  facet normal 0 0 0", "    outer loop", *vertices, "    endloop", "  endfacet"]
    return (line.join([*lines, end]) + line).encode()


GOOD: dict[str, bytes] = {
    "as it should be": binary(),
    "a byte behind": binary(behind=b"\n"),
    "zeros behind": binary(behind=b"\0" * 100),
    "words behind": binary(behind=b"made by a program " * 20),
    "count 0": binary(0),
    "count too small": binary(6),
    "count too large": binary(100),
    "count of -1": binary(2**32 - 1),
    "count of -1 and bytes behind": binary(2**32 - 1, behind=b"xyz"),
    "the last attribute missing": binary()[:-2],
    "half of the last attribute": binary()[:-1],
    "solid in a binary header": binary(header=b"solid box"),
    "solid in a binary header, bytes behind": binary(header=b"solid box", behind=b"\0\0\0"),
    "solid in a binary header, another count": binary(7, header=b"solid box facet normal vertex 1 2 3"),
    "colours": binary(header=b"COLOR=\xff\xff\xff\xff", attribute=0x8FFF),
    "text": text(),
    "text of Windows": text(line="\r\n"),
    "text of old Macs": text(line="\r"),
    "capitals": text().upper(),
    "no name": text("solid", "endsolid"),
    "no end": text(end=""),
    "a name of keywords": text("solid facet vertex 1 2 3", "endsolid vertex"),
    "a name in Latin-1": text().replace(b"solid box", b"solid Gr\xf6\xdfe"),
    "a byte order mark": b"\xef\xbb\xbf" + text(),
    "UTF-16": text().decode().encode("utf-16"),
    "blank lines": b"\n \n" + text(line=" \n\n"),
    "exponents": text(number="{:.9E}"),
    "an end of file of DOS": text() + b"\x1a",
    "zeros behind text": text() + b"\0\0",
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_box_is_read(kind: str) -> None:
    assert MeshShape.of(kind, read_stl(GOOD[kind])).volume == pytest.approx(6)


def test_solids_of_a_text_are_groups() -> None:
    assert [len(faces) for _, faces in read_stl(text() + text("solid other"))] == [12, 12]


def test_a_file_that_ends_early_is_open() -> None:
    with pytest.raises(ValueError, match="want a closed surface, or closed parts; got 3 open edges"):
        MeshShape.of("short", read_stl(binary()[:-30]))
    with pytest.raises(ValueError, match="three vertices wanted for each facet, 35 are in all"):
        read_stl(text().replace(b"vertex", b"vortex", 1))


@pytest.mark.parametrize("data", [b"", b"hello", b"\0" * 84, b"solid empty\nendsolid empty\n"])
def test_nothing_in_it(data: bytes) -> None:
    assert read_stl(data) == []
