"""OBJ, STL and PLY as programs write them.

Every file is a box of 1×2×3, or its fault is named.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.envs.packing.items.mesh_writing import arrays, box
from torchrl_gpu.envs.packing.items.mesh_formats import read_obj, read_ply, read_stl
from torchrl_gpu.envs.packing.items.mesh_shapes import MeshShape

VERTICES = arrays(box((1, 2, 3)))[0].tolist()
FACES = arrays(box((1, 2, 3)))[1].tolist()
QUADS = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]


def obj(
    vertex: str = "v {} {} {}",
    corner: Callable[[int], str] = lambda k: str(k + 1),
    line: str = "\n",
    faces: list[list[int]] = FACES,
) -> bytes:
    lines = [vertex.format(*each) for each in VERTICES]
    return (line.join(lines + [f"f {' '.join(map(corner, face))}" for face in faces]) + line).encode()


PLAIN = obj()
OBJ: dict[str, bytes] = {}
OBJ["as it should be"] = PLAIN
OBJ["faces of four"] = obj(faces=QUADS)
OBJ["faces from the end"] = obj(corner=lambda k: str(k - 8))
OBJ["textures and normals"] = b"vt 0 0\nvn 0 0 1\n" + obj(corner=lambda k: f"{k + 1}/1/1")
OBJ["textures and normals from the end"] = b"vt 0 0\nvn 0 0 1\n" + obj(corner=lambda k: f"{k - 8}/-1/-1")
OBJ["normals"] = b"vn 0 0 1\n" + obj(corner=lambda k: f"{k + 1}//1")
OBJ["slashes with nothing behind"] = obj(corner=lambda k: f"{k + 1}//")
OBJ["weights"] = obj("v {} {} {} 1.0")
OBJ["colours"] = obj("v {} {} {} 0.1 0.2 0.3")
OBJ["tabs"] = obj("v\t{}\t{}\t{}")
OBJ["Windows"] = obj(line="\r\n")
OBJ["old Macs"] = obj(line="\r")
OBJ["spaces before and behind"] = PLAIN.replace(b"v ", b"  v  ").replace(b"\n", b" \n")
OBJ["comments"] = b"# made by a program\n" + PLAIN.replace(b"\n", b" # why\n")
OBJ["a byte order mark"] = b"\xef\xbb\xbf" + PLAIN
OBJ["UTF-16"] = PLAIN.decode().encode("utf-16")
OBJ["Latin-1"] = b"o Gr\xf6\xdfe\n" + PLAIN
OBJ["capitals"] = PLAIN.upper()
OBJ["lines that go on"] = PLAIN.replace(b"f 2 ", b"f 2 \\\n")
OBJ["faces before vertices"] = b"".join(sorted(PLAIN.splitlines(True)))
OBJ["a material for each face"] = PLAIN.replace(b"f ", b"usemtl a b\nf ")
OBJ["a group for each face"] = PLAIN.replace(b"f ", b"g face\nf ")
OBJ["lines, points and curves"] = PLAIN + b"l 1 2\np 1\nvp 0.1 0.2\ncstype bezier\n"
OBJ["a vertex of no face that is no place"] = PLAIN + b"v nan nan nan\n"
OBJ["faces without area"] = PLAIN + b"f 1 1 1\nf 1 2\n"


def test_numbers_from_the_end_count_from_their_line() -> None:
    # Two boxes, each behind its own vertices: trimesh counts both from the end of the file.
    moved = PLAIN.replace(b"v 0.0", b"v 8.0").replace(b"v 1.0", b"v 9.0")
    whole = obj(corner=lambda k: str(k - 8)) + moved.replace(PLAIN[PLAIN.index(b"f") :], b"")
    whole += b"".join(each + b"\n" for each in obj(corner=lambda k: str(k - 8)).splitlines() if each[:1] == b"f")
    shape = MeshShape.of("two", read_obj(whole))
    assert (len(shape.parts), shape.volume) == (2, pytest.approx(12))


def test_objects_and_groups_stay_apart() -> None:
    lines = ["v 0 0 0", "v 1 0 0", "v 0 1 0", "o a", "f 1 2 3", "g x", "f 1 2 3", "o b", "f 1 2 3", "o a", "f 1 2 3"]
    assert [len(faces) for _, faces in read_obj("\n".join(lines).encode())] == [2, 1, 1]


TRIANGLES = np.array(box((1, 2, 3)).triangles)


def stl(count: int = 12, header: bytes = b"an exporter", behind: bytes = b"", attribute: int = 0) -> bytes:
    records = [struct.pack("<12fH", 0, 0, 0, *corners.reshape(-1), attribute) for corners in TRIANGLES]
    return header.ljust(80, b"\0")[:80] + struct.pack("<I", count) + b"".join(records) + behind


def text_stl(name: str = "solid box", end: str = "endsolid box", line: str = "\n", number: str = "{:g}") -> bytes:
    lines = [name]
    for corners in TRIANGLES:
        vertices = ["      vertex " + " ".join(map(number.format, corner)) for corner in corners]
        lines += ["  facet normal 0 0 0", "    outer loop", *vertices, "    endloop", "  endfacet"]
    return (line.join([*lines, end]) + line).encode()


STL: dict[str, bytes] = {}
STL["as it should be"] = stl()
STL["a byte behind"] = stl(behind=b"\n")
STL["zeros behind"] = stl(behind=b"\0" * 100)
STL["words behind"] = stl(behind=b"made by a program " * 20)
STL["count 0"] = stl(0)
STL["count too small"] = stl(6)
STL["count too large"] = stl(100)
STL["count of -1"] = stl(2**32 - 1)
STL["count of -1 and bytes behind"] = stl(2**32 - 1, behind=b"xyz")
STL["the last attribute missing"] = stl()[:-2]
STL["half of the last attribute"] = stl()[:-1]
STL["solid in a binary header"] = stl(header=b"solid box")
STL["solid in a binary header, bytes behind"] = stl(header=b"solid box", behind=b"\0\0\0")
STL["solid in a binary header, another count"] = stl(7, header=b"solid box facet normal vertex 1 2 3")
STL["colours"] = stl(header=b"COLOR=\xff\xff\xff\xff", attribute=0x8FFF)
STL["text"] = text_stl()
STL["text of Windows"] = text_stl(line="\r\n")
STL["text of old Macs"] = text_stl(line="\r")
STL["capitals"] = text_stl().upper()
STL["no name"] = text_stl("solid", "endsolid")
STL["no end"] = text_stl(end="")
STL["a name of keywords"] = text_stl("solid facet vertex 1 2 3", "endsolid vertex")
STL["a name in Latin-1"] = text_stl().replace(b"solid box", b"solid Gr\xf6\xdfe")
STL["a byte order mark"] = b"\xef\xbb\xbf" + text_stl()
STL["UTF-16"] = text_stl().decode().encode("utf-16")
STL["blank lines"] = b"\n \n" + text_stl(line=" \n\n")
STL["exponents"] = text_stl(number="{:.9E}")
STL["an end of file of DOS"] = text_stl() + b"\x1a"
STL["zeros behind text"] = text_stl() + b"\0\0"


def test_solids_of_a_text_are_groups() -> None:
    assert [len(faces) for _, faces in read_stl(text_stl() + text_stl("solid other"))] == [12, 12]


def test_a_file_that_ends_early_is_open() -> None:
    with pytest.raises(ValueError, match="3 open edges"):
        MeshShape.of("short", read_stl(stl()[:-30]))
    with pytest.raises(ValueError, match=r"three vertices.* 35 "):
        read_stl(text_stl().replace(b"vertex", b"vortex", 1))


CORNERS = list(itertools.product((0, 1), (0, 2), (0, 3)))
MIXED = [[0, 1, 3], [0, 3, 2], *QUADS[1:]]


def ply(
    form: str = "ascii",
    *,
    line: str = "\n",
    axes: str = "x y z",
    more: str = "",
    comment: str = "comment made by a program",
    kinds: str = "uchar int",
    faces: Any = QUADS,
    name: str = "vertex_indices",
) -> bytes:
    lines = ["ply", f"format {form} 1.0", comment, "element vertex 8"]
    lines += [f"property float {axis}" for axis in axes.split()]
    lines += [
        f"element face {len(faces)}",
        f"property list {kinds} {name}",
        *([more] if more else []),
        "end_header",
        "",
    ]
    head, extra = line.join(lines).encode(), len(axes.split()) - 3
    if form == "ascii":
        body = [" ".join(map(str, corner)) + " 0" * extra for corner in CORNERS]
        body += [" ".join(map(str, [len(face), *face])) + " 1" * bool(more) for face in faces]
        return head + (line.join(body) + line).encode()
    order = "<" if "little" in form else ">"
    vertices = b"".join(struct.pack(f"{order}{3 + extra}f", *corner, *[0] * extra) for corner in CORNERS)

    def face_of(face: Sequence[int]) -> bytes:
        flags = [1] if more else []
        return struct.pack(f"{order}B{len(face)}i{'B' * len(flags)}", len(face), *face, *flags)

    return head + vertices + b"".join(face_of(face) for face in faces)


LITTLE = "binary_little_endian"
BIG = "binary_big_endian"
FLAGS = "property uchar flags"
PLY: dict[str, bytes] = {}
PLY["text"] = ply()
PLY["text of Windows"] = ply(line="\r\n")
PLY["text of old Macs"] = ply(line="\r")
PLY["a byte order mark"] = b"\xef\xbb\xbf" + ply()
PLY["normals"] = ply(axes="x y z nx ny nz")
PLY["another order of columns"] = ply(axes="x y z").replace(b"property float x\n", b"property double x\n")
PLY["more of each face"] = ply(more=FLAGS)
PLY["more in the list's name"] = ply(name="vertex_index", kinds="uint8 uint32")
PLY["a comment that ends the header"] = ply(comment="comment end_header")
PLY["a comment in Latin-1"] = ply().replace(b"made by", b"Gr\xf6\xdfe")
PLY["obj_info"] = ply(comment="obj_info num_cols 512")
PLY["faces of three and four"] = ply(faces=MIXED)
PLY["little"] = ply(LITTLE)
PLY["big"] = ply(BIG)
PLY["little of Windows"] = ply(LITTLE, line="\r\n")
PLY["little of old Macs"] = ply(LITTLE, line="\r")
PLY["little, bytes behind"] = ply(LITTLE) + b"\0\0\0"
PLY["text, words behind"] = ply() + b"made by a program\n"
PLY["little, faces of three and four"] = ply(LITTLE, faces=MIXED)
PLY["big, more of each face"] = ply(BIG, more=FLAGS, axes="x y z nx ny nz")
PLY["little, more of each face"] = ply(LITTLE, more=FLAGS, faces=MIXED)


READERS = {"obj": (read_obj, OBJ), "stl": (read_stl, STL), "ply": (read_ply, PLY)}
GOOD = {}
for _kind, (_read, _files) in READERS.items():
    GOOD |= {f"{_kind}: {name}": (_read, data) for name, data in _files.items()}


def test_a_box_is_read() -> None:
    for kind, (read, data) in GOOD.items():
        assert MeshShape.of(kind, read(data)).volume == pytest.approx(6), kind


NOTHING = [(read_obj, b""), (read_obj, b"hello"), (read_ply, ply(faces=[])), (read_ply, ply(LITTLE, faces=[]))]
NOTHING += [(read_stl, data) for data in (b"", b"hello", b"\0" * 84, b"solid empty\nendsolid empty\n")]


def test_nothing_in_it() -> None:
    assert [data for read, data in NOTHING if read(data) != []] == []


BAD = [
    (read_obj, data)
    for data in (b"v 0 0\nf 1 1 1\n", b"v a b c\n", PLAIN + b"f 1 2 99\n", PLAIN + b"f 0 1 2\n", b"f x")
]
BAD += [(read_ply, data) for data in (b"", b"ply\nhello", ply(LITTLE)[:-3], ply()[:-10])]
BAD += [(read_ply, ply(LITTLE).replace(b"face 6", b"face 999999999999"))]
BAD += [(read_ply, ply().replace(b"vertex 8", number)) for number in (b"vertex 99999999999", b"vertex -8")]
BAD += [(read_ply, ply().replace(b"4 0 1 3 2", face)) for face in (b"4 0 1 3 99", b"4 0 1 3 -1")]


@pytest.mark.parametrize(("read", "data"), BAD)
def test_what_cannot_be_read(read: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read(data)
