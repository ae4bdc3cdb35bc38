"""Meshes and files of them for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from trimesh import Trimesh, creation

from torchrl_gpu.envs.packing.items.rasterise import Mesh


def box(size: Sequence[float], at: Sequence[float] = (0, 0, 0)) -> Trimesh:
    made = creation.box(size)
    made.apply_translation(np.array(at) + np.array(size) / 2)
    return made


def arrays(made: Trimesh) -> Mesh:
    return np.array(made.vertices, dtype=np.float64), np.array(made.faces, dtype=np.int64)


def exploded(made: Trimesh) -> Mesh:
    return np.array(made.triangles).reshape(-1, 3), np.arange(3 * len(made.faces)).reshape(-1, 3)


def write_obj(path: Path, parts: Sequence[Mesh], keyword: str = "o") -> Path:
    lines, start = [], 1
    for k, (vertices, faces) in enumerate(parts):
        lines.append(f"{keyword} part_{k}")
        lines += [f"v {x!r} {y!r} {z!r}" for x, y, z in vertices.tolist()]
        lines += [f"f {a} {b} {c}" for a, b, c in (faces + start).tolist()]
        start += len(vertices)
    path.write_text("\n".join(lines) + "\n")
    return path
