"""PLY files: text or binary, of either order of bytes, whatever follows their faces."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from torchrl_gpu.envs.packing.items.polygons import triangulated
from torchrl_gpu.envs.packing.items.rasterise import Mesh

_KINDS = ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"]
_TYPES = dict(zip(["char", "uchar", "short", "ushort", "int", "uint", "float", "double"], _KINDS, strict=True))
_TYPES |= dict(zip(["int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"], _KINDS, strict=True))
_END = re.compile(rb"(\r\n|\n|\r)end_header[ \t]*")
Property = tuple[str, str, str]  # name, type, and of a list the type of its length


class _Element(NamedTuple):
    name: str
    number: int
    properties: list[Property]


def read_ply(data: bytes) -> list[Mesh]:
    """Triangles, as one group; none where there are only points.

    Raises:
        ValueError: It is no PLY, or shorter than it says; the reason alone.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    end = _END.search(data)
    if not data[:3].lower() == b"ply" or end is None:
        raise ValueError("a header from ply to end_header wanted")
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
            break  # what comes behind is nothing to us
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
            types = [_TYPES[word] for word in line[1:-1] if word != "list"]
            found[-1].properties.append((line[-1], types[-1], types[0] if len(types) == 2 else ""))
    return found


class _Text:
    """Reader of text bodies: numbers between spaces."""

    def __init__(self, body: bytes) -> None:
        self.words, self.at = body.split(), 0

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
        return {
            name: (np.array(values[name]).astype(np.int64), np.array(number[name], dtype=np.int64)) for name in names
        }

    def _take(self, number: int) -> list[bytes]:
        self.at += number
        if number < 0 or self.at > len(self.words):
            raise ValueError(f"at least {self.at} numbers wanted, there are {len(self.words)}")
        return self.words[self.at - number : self.at]


class _Binary:
    """Reader of binary bodies: numbers as they lie in memory."""

    def __init__(self, body: bytes, order: str) -> None:
        self.body, self.order, self.at = body, order, 0

    def read(self, element: _Element) -> dict[str, Any]:
        """Columns by name, as `_Text.read`; of an element with lists the lists alone."""
        if any(length for *_, length in element.properties):
            return self._lists(element)
        kind = np.dtype([(name, self.order + each) for name, each, _ in element.properties])
        start = self.at
        self._pass(element.number * kind.itemsize)
        rows = np.frombuffer(self.body, kind, element.number, start)
        return {name: rows[name] for name, *_ in element.properties}

    def _lists(self, element: _Element) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        order = "big" if self.order == ">" else "little"
        steps = [(name, np.dtype(kind).itemsize, int(length[1:] or 0)) for name, kind, length in element.properties]
        places: dict[str, list[int]] = {name: [] for name, _, length in steps if length}
        number: dict[str, list[int]] = {name: [] for name in places}
        for _ in range(element.number):
            for name, size, length in steps:
                count = 1
                if length:
                    count = int.from_bytes(self.body[self.at : self.at + length], order)  # type: ignore[arg-type]
                    places[name].append(self.at + length)
                    number[name].append(count)
                self._pass(length + count * size)
        kinds = {name: np.dtype(self.order + kind) for name, kind, _ in element.properties}
        return {
            name: (self._gather(kinds[name], places[name], number[name]), np.array(number[name], dtype=np.int64))
            for name in places
        }

    def _gather(self, kind: np.dtype, places: list[int], number: list[int]) -> np.ndarray:
        count = np.array(number, dtype=np.int64)
        behind = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        start = np.repeat(np.array(places, dtype=np.int64), count) + behind * kind.itemsize
        taken = np.frombuffer(self.body, np.uint8)[start[:, None] + np.arange(kind.itemsize)]
        return np.ascontiguousarray(taken).view(kind).reshape(-1).astype(np.int64)

    def _pass(self, number: int) -> None:
        self.at += number
        if number < 0 or self.at > len(self.body):
            raise ValueError(f"at least {self.at} bytes behind the header wanted, there are {len(self.body)}")
