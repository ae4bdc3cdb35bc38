"""PLY as programs write it: every file is a box of 1×2×3, or says what is wrong."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest

from tests.envs.packing.items.test_obj import QUADS
from torchrl_gpu.envs.packing.items.mesh_shapes import MeshShape
from torchrl_gpu.envs.packing.items.ply import read_ply

CORNERS = list(itertools.product((0, 1), (0, 2), (0, 3)))
MIXED = [[0, 1, 3], [0, 3, 2], *QUADS[1:]]


def written(
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
    return (
        head
        + vertices
        + b"".join(
            struct.pack(f"{order}B{len(face)}i{'B' * bool(more)}", len(face), *face, *[1] * bool(more))
            for face in faces
        )
    )


LITTLE, BIG, FLAGS = "binary_little_endian", "binary_big_endian", "property uchar flags"
GOOD: dict[str, bytes] = {
    "text": written(),
    "text of Windows": written(line="\r\n"),
    "text of old Macs": written(line="\r"),
    "a byte order mark": b"\xef\xbb\xbf" + written(),
    "normals": written(axes="x y z nx ny nz"),
    "another order of columns": written(axes="x y z").replace(b"property float x\n", b"property double x\n"),
    "more of each face": written(more=FLAGS),
    "more in the list's name": written(name="vertex_index", kinds="uint8 uint32"),
    "a comment that ends the header": written(comment="comment end_header"),
    "a comment in Latin-1": written().replace(b"made by", b"Gr\xf6\xdfe"),
    "obj_info": written(comment="obj_info num_cols 512"),
    "faces of three and four": written(faces=MIXED),
    "little": written(LITTLE),
    "big": written(BIG),
    "little of Windows": written(LITTLE, line="\r\n"),
    "little of old Macs": written(LITTLE, line="\r"),
    "little, bytes behind": written(LITTLE) + b"\0\0\0",
    "text, words behind": written() + b"made by a program\n",
    "little, faces of three and four": written(LITTLE, faces=MIXED),
    "big, more of each face": written(BIG, more=FLAGS, axes="x y z nx ny nz"),
    "little, more of each face": written(LITTLE, more=FLAGS, faces=MIXED),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_box_is_read(kind: str) -> None:
    assert MeshShape.of(kind, read_ply(GOOD[kind])).volume == pytest.approx(6)


@pytest.mark.parametrize("form", ["ascii", LITTLE])
def test_points_are_no_mesh(form: str) -> None:
    assert read_ply(written(form, faces=[])) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ply\nhello",
        written(LITTLE)[:-3],
        written()[:-10],
        written(LITTLE).replace(b"face 6", b"face 999999999999"),
        written().replace(b"vertex 8", b"vertex 99999999999"),
        written().replace(b"vertex 8", b"vertex -8"),
        written().replace(b"4 0 1 3 2", b"4 0 1 3 99"),
        written().replace(b"4 0 1 3 2", b"4 0 1 3 -1"),
    ],
    ids=range(9),
)
def test_what_cannot_be_read(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_ply(data)
