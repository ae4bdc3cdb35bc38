"""OBJ as programs write it: every file is a box of 1×2×3, or says what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.envs.packing.items.mesh_writing import arrays, box
from torchrl_gpu.envs.packing.items.mesh_shapes import MeshShape
from torchrl_gpu.envs.packing.items.obj import read_obj

VERTICES, FACES = (each.tolist() for each in arrays(box((1, 2, 3))))
QUADS = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]


def written(
    vertex: str = "v {} {} {}",
    corner: Callable[[int], str] = lambda k: str(k + 1),
    line: str = "\n",
    faces: list[list[int]] = FACES,
) -> bytes:
    lines = [vertex.format(*each) for each in VERTICES]
    return (line.join(lines + [f"f {' '.join(map(corner, face))}" for face in faces]) + line).encode()


PLAIN = written()
GOOD: dict[str, bytes] = {
    "as it should be": PLAIN,
    "faces of four": written(faces=QUADS),
    "faces from the end": written(corner=lambda k: str(k - 8)),
    "textures and normals": b"vt 0 0\nvn 0 0 1\n" + written(corner=lambda k: f"{k + 1}/1/1"),
    "textures and normals from the end": b"vt 0 0\nvn 0 0 1\n" + written(corner=lambda k: f"{k - 8}/-1/-1"),
    "normals": b"vn 0 0 1\n" + written(corner=lambda k: f"{k + 1}//1"),
    "slashes with nothing behind": written(corner=lambda k: f"{k + 1}//"),
    "weights": written("v {} {} {} 1.0"),
    "colours": written("v {} {} {} 0.1 0.2 0.3"),
    "tabs": written("v\t{}\t{}\t{}"),
    "Windows": written(line="\r\n"),
    "old Macs": written(line="\r"),
    "spaces before and behind": PLAIN.replace(b"v ", b"  v  ").replace(b"\n", b" \n"),
    "comments": b"# made by a program\n" + PLAIN.replace(b"\n", b" # why\n"),
    "a byte order mark": b"\xef\xbb\xbf" + PLAIN,
    "UTF-16": PLAIN.decode().encode("utf-16"),
    "Latin-1": b"o Gr\xf6\xdfe\n" + PLAIN,
    "capitals": PLAIN.upper(),
    "lines that go on": PLAIN.replace(b"f 2 ", b"f 2 \\\n"),
    "faces before vertices": b"".join(sorted(PLAIN.splitlines(True))),
    "a material for each face": PLAIN.replace(b"f ", b"usemtl a b\nf "),
    "a group for each face": PLAIN.replace(b"f ", b"g face\nf "),
    "lines, points and curves": PLAIN + b"l 1 2\np 1\nvp 0.1 0.2\ncstype bezier\n",
    "a vertex of no face that is no place": PLAIN + b"v nan nan nan\n",
    "faces without area": PLAIN + b"f 1 1 1\nf 1 2\n",
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_box_is_read(kind: str) -> None:
    assert MeshShape.of(kind, read_obj(GOOD[kind])).volume == pytest.approx(6)


def test_numbers_from_the_end_count_from_their_line() -> None:
    # Two boxes, each behind its own vertices: trimesh counts both from the end of the file.
    moved = PLAIN.replace(b"v 0.0", b"v 8.0").replace(b"v 1.0", b"v 9.0")
    whole = written(corner=lambda k: str(k - 8)) + moved.replace(PLAIN[PLAIN.index(b"f") :], b"")
    whole += b"".join(each + b"\n" for each in written(corner=lambda k: str(k - 8)).splitlines() if each[:1] == b"f")
    shape = MeshShape.of("two", read_obj(whole))
    assert (len(shape.parts), shape.volume) == (2, pytest.approx(12))


def test_objects_and_groups_stay_apart() -> None:
    lines = ["v 0 0 0", "v 1 0 0", "v 0 1 0", "o a", "f 1 2 3", "g x", "f 1 2 3", "o b", "f 1 2 3", "o a", "f 1 2 3"]
    assert [len(faces) for _, faces in read_obj("\n".join(lines).encode())] == [2, 1, 1]


@pytest.mark.parametrize(
    "data", [b"v 0 0\nf 1 1 1\n", b"v a b c\n", PLAIN + b"f 1 2 99\n", PLAIN + b"f 0 1 2\n", b"f x"]
)
def test_what_cannot_be_read(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_obj(data)
