"""OBJ files: their vertices and faces, by objects and groups."""

from __future__ import annotations

from array import array

import numpy as np

from torchrl_gpu.envs.packing.items.polygons import triangulated
from torchrl_gpu.envs.packing.items.rasterise import Mesh
from torchrl_gpu.envs.packing.items.text import decoded


def read_obj(data: bytes) -> list[Mesh]:
    """Triangles of each object and group.

    Raises:
        ValueError: A number is none, or a face is of a vertex that is not there; the reason alone.
    """
    vertices = array("d")
    groups: dict[tuple[str, str], tuple[list[int], list[int]]] = {}  # corners of its faces, and how many of each
    name, corners, number = ("", ""), *groups.setdefault(("", ""), ([], []))
    for line in decoded(data).replace("\\\n", " ").split("\n"):
        words = line.partition("#")[0].split()
        word = words[0].lower() if words else ""
        if word == "v":
            x, y, z = map(float, words[1:4])
            vertices.extend((x, y, z))
        elif word == "f":
            end = len(vertices) // 3  # from which negative numbers count back
            face = [int(each.partition("/")[0]) for each in words[1:]]
            corners += [each - 1 if each > 0 else each + end if each else -1 for each in face]
            number.append(len(face))
        elif word in ("o", "g"):
            title = " ".join(words[1:])
            name = (title, "") if word == "o" else (name[0], title)
            corners, number = groups.setdefault(name, ([], []))
    points = np.array(vertices).reshape(-1, 3)
    made = [triangulated(points, np.array(c, dtype=np.int64), np.array(n, dtype=np.int64)) for c, n in groups.values()]
    return [_used(points, faces) for faces in made if len(faces)]


def _used(vertices: np.ndarray, faces: np.ndarray) -> Mesh:
    used, index = np.unique(faces, return_inverse=True)
    return vertices[used], index.reshape(-1, 3)
