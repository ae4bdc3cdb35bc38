"""STL files, as programs write them: text or binary, with bytes behind the triangles, or another count of them."""

from __future__ import annotations

import re

import numpy as np

from torchrl_gpu.envs.packing.items.rasterise import Mesh
from torchrl_gpu.envs.packing.items.text import decoded

_RECORD = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
_HEADER = 84
_VERTEX = re.compile(r"(?i)(?:^|\s)vertex\s+(\S+)\s+(\S+)\s+(\S+)")


def read_stl(data: bytes) -> list[Mesh]:
    """Triangles of each solid, three vertices of its own for each.

    Raises:
        ValueError: It is text of broken facets; the reason alone.
    """
    # The header of a binary file may begin with the word solid, too; but text has no zeros, and it has vertices.
    body = data.rstrip(b"\0\x1a")
    text = decoded(body) if body[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" not in body else ""
    solids = [_text_triangles(part) for part in re.split(r"(?im)^\s*endsolid\b.*$", text)]
    triangles = [each for each in solids if len(each)] or [_binary_triangles(data)]
    return [(each.reshape(-1, 3), np.arange(3 * len(each)).reshape(-1, 3)) for each in triangles if len(each)]


def _text_triangles(text: str) -> np.ndarray:
    """Triangles of a text solid, (F, 3, 3) float64."""
    found = _VERTEX.findall(re.sub(r"(?im)^\s*solid\b.*$", "", text))  # a name may be anything
    if len(found) % 3:
        raise ValueError(f"three vertices wanted for each facet, {len(found)} are in all")
    return np.array(found, dtype=np.float64).reshape(-1, 3, 3)


def _binary_triangles(data: bytes) -> np.ndarray:
    """Triangles of a binary file, (F, 3, 3) float64: as many as the header counts, or as there are if it is wrong."""
    if len(data) < _HEADER + 48:
        return np.zeros((0, 3, 3))
    body = data[_HEADER:]
    body += b"\0\0" * (len(body) % 50 >= 48)  # the last attribute may be missing
    count, most = int.from_bytes(data[80:_HEADER], "little"), len(body) // 50
    records = np.frombuffer(body, _RECORD, most)
    with np.errstate(all="ignore"):
        length = np.linalg.norm(records["normal"].astype(np.float64), axis=1)
        sound = np.isfinite(records["corners"]).all((1, 2)) & ((np.abs(length - 1) < 0.1) | (length == 0))
    alike = most if sound.all() else int(np.argmin(sound))  # records from the first on that look like triangles
    number = max(count, alike) if count <= most else alike or most
    return records["corners"][:number].astype(np.float64)
