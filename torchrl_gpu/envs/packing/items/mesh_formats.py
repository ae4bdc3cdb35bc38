"""Readers of OBJ, STL and PLY files, whatever program wrote them."""

from __future__ import annotations

import codecs
import re
from array import array
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from torchrl_gpu.envs.packing.items.polygons import triangulated
from torchrl_gpu.envs.packing.items.rasterise import Mesh

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

_STL_RECORD = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
_STL_HEADER = 84
_STL_VERTEX = re.compile(r"(?i)(?:^|\s)vertex\s+(\S+)\s+(\S+)\s+(\S+)")

_KINDS = ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"]
_PLY_TYPES = dict(zip(["char", "uchar", "short", "ushort", "int", "uint", "float", "double"], _KINDS, strict=True))
_PLY_TYPES |= dict(
    zip(["int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"], _KINDS, strict=True)
)
_PLY_END = re.compile(rb"(\r\n|\n|\r)end_header[ \t]*")


def read_obj(data: bytes) -> list[Mesh]:
    """Read the triangles of each object and group.

    ValueError, with the reason alone, for a broken number or face.
    """
    vertices = array("d")
    # Corners of the faces of each group, and the number of corners of each face.
    groups: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    name, corners, number = ("", ""), *groups.setdefault(("", ""), ([], []))
    for line in _decoded(data).replace("\\\n", " ").split("\n"):
        words = line.partition("#")[0].split()
        word = words[0].lower() if words else ""
        if word == "v":
            x, y, z = map(float, words[1:4])
            vertices.extend((x, y, z))
        elif word == "f":
            # Negative numbers count back from here.
            end = len(vertices) // 3
            corners += [_vertex_index(int(each.partition("/")[0]), end) for each in words[1:]]
            number.append(len(words) - 1)
        elif word in ("o", "g"):
            title = " ".join(words[1:])
            name = (title, "") if word == "o" else (name[0], title)
            corners, number = groups.setdefault(name, ([], []))
    points = np.array(vertices).reshape(-1, 3)
    meshes = []
    for corners, number in groups.values():
        faces = triangulated(points, np.array(corners, dtype=np.int64), np.array(number, dtype=np.int64))
        if len(faces):
            used, index = np.unique(faces, return_inverse=True)
            meshes.append((points[used], index.reshape(-1, 3)))
    return meshes


def _vertex_index(number: int, end: int) -> int:
    """Return the index of a vertex, −1 for number 0, which OBJ does not have."""
    if number > 0:
        return number - 1
    return number + end if number else -1


def read_stl(data: bytes) -> list[Mesh]:
    """Read the triangles of each solid of a text or binary file.

    Each triangle has three vertices of its own.

    Bytes may follow the triangles, or the header count others. ValueError, with the reason alone, for broken text.
    """
    # The header of a binary file may begin with the word solid, too; but text has no zeros, and it has vertices.
    body = data.rstrip(b"\0\x1a")
    text = _decoded(body) if body[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" not in body else ""
    solids = [_text_triangles(part) for part in re.split(r"(?im)^\s*endsolid\b.*$", text)]
    triangles = [each for each in solids if len(each)] or [_binary_triangles(data)]
    return [(each.reshape(-1, 3), np.arange(3 * len(each)).reshape(-1, 3)) for each in triangles if len(each)]


def _text_triangles(text: str) -> np.ndarray:
    # The name of a solid may be anything, even words that look like a vertex.
    found = _STL_VERTEX.findall(re.sub(r"(?im)^\s*solid\b.*$", "", text))
    if len(found) % 3:
        raise ValueError(f"each facet must have three vertices; there are {len(found)} in all")
    return np.array(found, dtype=np.float64).reshape(-1, 3, 3)


def _binary_triangles(data: bytes) -> np.ndarray:
    """Return the triangles of a binary file, (F, 3, 3) float64.

    Their number is the one in the header, or what the file holds if that is wrong.
    """
    if len(data) < _STL_HEADER + 48:
        return np.zeros((0, 3, 3))
    body = data[_STL_HEADER:]
    # The last attribute may be missing.
    body += b"\0\0" * (len(body) % 50 >= 48)
    count, most = int.from_bytes(data[80:_STL_HEADER], "little"), len(body) // 50
    records = np.frombuffer(body, _STL_RECORD, most)
    with np.errstate(all="ignore"):
        length = np.linalg.norm(records["normal"].astype(np.float64), axis=1)
        sound = np.isfinite(records["corners"]).all((1, 2)) & ((np.abs(length - 1) < 0.1) | (length == 0))
    # Number of leading records that look like triangles.
    alike = most if sound.all() else int(np.argmin(sound))
    number = max(count, alike) if count <= most else alike or most
    return records["corners"][:number].astype(np.float64)


def _decoded(data: bytes) -> str:
    """Text of a file without a byte order mark, its lines ended by line feeds."""
    mark = next((each for each in _MARKS if data.startswith(each)), b"")
    # Names may be in any encoding.
    text = data[len(mark) :].decode(_MARKS.get(mark, "utf-8"), errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


class _Property(NamedTuple):
    """Column of a PLY element.

    `length` is the type of the length of a list, and empty for a plain column.
    """

    name: str
    kind: str
    length: str


class _Element(NamedTuple):
    name: str
    number: int
    properties: list[_Property]


def read_ply(data: bytes) -> list[Mesh]:
    """Read triangles as one group, or no group if there are points only.

    ValueError, with the reason alone, for a broken file.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    end = _PLY_END.search(data)
    if not data[:3].lower() == b"ply" or end is None:
        raise ValueError("the file must begin with a header from ply to end_header")
    lines = [line.split() for line in re.split(r"\r\n|\n|\r", data[: end.start()].decode("latin-1"))]
    kind = next((line[1] for line in lines if line[:1] == ["format"]), "")
    body = data[end.end() :].removeprefix(end[1])
    source = _Text(body) if kind == "ascii" else _Binary(body, ">" if "big" in kind else "<")
    vertices, polygons = np.zeros((0, 3)), None
    for element in _elements(lines):
        columns = source.read(element)
        if element.name == "vertex":
            vertices = np.stack([columns[axis] for axis in "xyz"], 1).astype(np.float64)
        elif element.name == "face":
            polygons = next(each for name, each in columns.items() if isinstance(each, tuple))
            # Elements behind the faces are not needed.
            break
    if polygons is None:
        return []
    faces = triangulated(vertices, *polygons)
    return [(vertices, faces)] if len(faces) else []


def _elements(lines: list[list[str]]) -> list[_Element]:
    found: list[_Element] = []
    for line in lines:
        if line[:1] == ["element"] and len(line) == 3:
            found.append(_Element(line[1], int(line[2]), []))
        elif line[:1] == ["property"] and found and len(line) in (3, 5):
            types = [_PLY_TYPES[word] for word in line[1:-1] if word != "list"]
            found[-1].properties.append(_Property(line[-1], types[-1], types[0] if len(types) == 2 else ""))
    return found


class _Source:
    """Rest of a body: words or bytes."""

    def __init__(self, values: Any, told: str) -> None:
        self.values = values
        self.told = told
        self.at = 0

    def _take(self, number: int) -> Any:
        self.at += number
        if number < 0 or self.at > len(self.values):
            raise ValueError(f"the file ends early: {len(self.values)} {self.told} where at least {self.at} are needed")
        return self.values[self.at - number : self.at]


class _Text(_Source):
    """Reader of text bodies: numbers between spaces."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body.split(), "numbers")

    def read(self, element: _Element) -> dict[str, Any]:
        """Columns by name: (N,), or of a list all its values, and how many of each row."""
        names = [name for name, _, _ in element.properties]
        if not any(length for *_, length in element.properties):
            taken = self._take(element.number * len(names))
            return dict(zip(names, np.array(taken).astype(np.float64).reshape(-1, len(names)).T, strict=True))
        values: dict[str, list[bytes]] = {name: [] for name in names}
        number: dict[str, list[int]] = {name: [] for name in names}
        for _ in range(element.number):
            for name, _, length in element.properties:
                number[name].append(int(self._take(1)[0]) if length else 1)
                values[name] += self._take(number[name][-1])
        return {name: (np.array(values[name]).astype(np.int64), np.array(number[name], np.int64)) for name in names}


class _Binary(_Source):
    """Reader of binary bodies: numbers as they lie in memory."""

    def __init__(self, body: bytes, order: str) -> None:
        super().__init__(body, "bytes behind the header")
        self.order = order

    def read(self, element: _Element) -> dict[str, Any]:
        """Columns by name, as in `_Text.read`.

        Of an element with lists only the lists are returned.
        """
        if any(length for *_, length in element.properties):
            return self._lists(element)
        kind = np.dtype([(name, self.order + each) for name, each, _ in element.properties])
        rows = np.frombuffer(self._take(element.number * kind.itemsize), kind)
        return {name: rows[name] for name, *_ in element.properties}

    def _lists(self, element: _Element) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        order: Literal["big", "little"] = "big" if self.order == ">" else "little"
        sizes = [(name, np.dtype(kind).itemsize, int(length[1:] or 0)) for name, kind, length in element.properties]
        values: dict[str, list[bytes]] = {name: [] for name, _, length in sizes if length}
        number: dict[str, list[int]] = {name: [] for name in values}
        for _ in range(element.number):
            for name, size, length in sizes:
                count = int.from_bytes(self._take(length), order) if length else 1
                taken = self._take(count * size)
                if length:
                    values[name].append(taken)
                    number[name].append(count)
        kinds = {name: self.order + kind for name, kind, _ in element.properties}
        found = {name: np.frombuffer(b"".join(taken), kinds[name]).astype(np.int64) for name, taken in values.items()}
        return {name: (each, np.array(number[name], np.int64)) for name, each in found.items()}


# Trimesh reads some of these wrongly, or not at all, though many programs write and read them: see the tests.
READERS: dict[str, Callable[[bytes], list[Mesh]]] = {".obj": read_obj, ".stl": read_stl, ".ply": read_ply}
