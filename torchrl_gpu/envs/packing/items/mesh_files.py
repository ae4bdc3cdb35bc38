"""Discovery and reading of mesh files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torchrl_gpu.envs.packing.items.mesh_formats import READERS
from torchrl_gpu.envs.packing.items.rasterise import Mesh
from torchrl_gpu.envs.packing.items.urdf import URDF, referred_meshes, urdf_groups
from torchrl_gpu.envs.packing.types import UNITS

MESH_SUFFIXES = (".obj", ".stl", ".ply", ".glb", URDF)


def find_meshes(paths: Sequence[Path]) -> list[Path]:
    """Mesh files among files and in folders, sorted within a folder.

    Folders are searched with all below them, but for names that begin with a dot. Of a URDF's meshes, which lie about
    it, none counts by itself. FileNotFoundError for a path that does not exist, ValueError for a folder without meshes.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = _inside(path)
            if not inside:
                raise ValueError(f"MeshItems: {path}: the folder has no {_wanted()} files")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f"MeshItems: {path}: there is no such file or folder")
    return list(dict.fromkeys(found))


def read_groups(path: Path, unit: str) -> list[Mesh]:
    """Read the groups of triangles in an OBJ, STL, PLY, GLB or URDF file.

    Coordinates are metres. Each object, group or node is one group.

    A URDF is in metres, whatever `unit` says. ValueError, with the reason alone, for a file that cannot be read.
    """
    if path.suffix.lower() == URDF:
        return urdf_groups(path, read_mesh)
    return [(vertices * UNITS[unit], faces) for vertices, faces in read_mesh(path)]


def read_mesh(path: Path) -> list[Mesh]:
    """Groups of triangles in a mesh file, in its own unit. Raises as `read_groups`."""
    import trimesh

    suffix = path.suffix.lower()
    if suffix not in MESH_SUFFIXES[:-1]:
        raise ValueError(f"the suffix of a mesh must be {_wanted()}, not {suffix!r}")
    try:
        if suffix in READERS:
            return READERS[suffix](path.read_bytes())
        # From memory: a file that names others, for materials or buffers, does not get them.
        scene = trimesh.load_scene(io.BytesIO(path.read_bytes()), file_type=suffix[1:], process=False)
        meshes = [mesh for mesh in scene.dump() if isinstance(mesh, trimesh.Trimesh)]
    except Exception as error:
        # The reader of each format fails in its own ways.
        reason = str(error).strip().split("\n")[0] or "no reason given"
        raise ValueError(f"invalid mesh; reading it fails with {type(error).__name__}: {reason}") from error
    return [(np.array(mesh.vertices, dtype=np.float64), np.array(mesh.faces, dtype=np.int64)) for mesh in meshes]


def _inside(folder: Path) -> list[Path]:
    below = (path for path in folder.rglob("*") if not _is_hidden(path.relative_to(folder)))
    found = sorted(path for path in below if path.is_file() and path.suffix.lower() in MESH_SUFFIXES)
    parts: set[Path] = set()
    for path in found:
        if path.suffix.lower() == URDF:
            parts |= referred_meshes(path)
    return [path for path in found if path.resolve() not in parts]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _wanted() -> str:
    return ", ".join(MESH_SUFFIXES[:-1]) + f" or {URDF}"
