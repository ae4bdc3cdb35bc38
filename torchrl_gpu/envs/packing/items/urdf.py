"""The collision geometry of a URDF."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from torchrl_gpu.envs.packing.items.rasterise import Mesh
from torchrl_gpu.envs.packing.rotations import turn

URDF = ".urdf"
# Sections of a cylinder.
_SECTIONS = 48


def urdf_groups(path: Path, read_mesh: Callable[[Path], list[Mesh]]) -> list[Mesh]:
    """Read the triangles of the collision elements of all links.

    Joints are at zero; coordinates are metres in the frame of the root link.

    Round primitives become polyhedra about them; `read_mesh` reads the files that the URDF refers to. ValueError, with
    the reason alone, where it is no URDF with collision geometry, or refers to what is not there.
    """
    robot = _parsed(path)
    poses = _link_poses(robot)
    # Several links may refer to the same file.
    read_mesh = cache(read_mesh)
    groups: list[Mesh] = []
    for link in robot.findall("link"):
        for collision in link.findall("collision"):
            pose = poses(link.get("name", "")) @ read_origin(collision)
            for vertices, faces in _geometry(collision, path, read_mesh):
                groups.append((vertices @ pose[:3, :3].T + pose[:3, 3], faces))
    if not groups:
        raise ValueError("no link has collision geometry; add a collision element")
    return groups


def referred_meshes(path: Path) -> set[Path]:
    """Return the existing files that a URDF refers to as meshes.

    Visual and collision meshes both count. An invalid URDF has none.
    """
    try:
        elements = list(_parsed(path).iter("mesh"))
    except ValueError:
        return set()
    found = set()
    for element in elements:
        try:
            found.add(_resolved(element.get("filename", ""), path).resolve())
        except ValueError:
            # Reading the URDF reports the fault, if the mesh is used.
            continue
    return found


class _NoDoctype(ET.TreeBuilder):
    """Tree builder that refuses what could define entities.

    Entities can grow without bounds, or fetch other files.
    """

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("the XML has a DOCTYPE, which is refused; remove it")


def _parsed(path: Path) -> ET.Element:
    parser = ET.XMLParser(target=_NoDoctype())
    try:
        parser.feed(path.read_bytes())
        robot = parser.close()
    except (ET.ParseError, OSError) as error:
        raise ValueError(f"invalid URDF; reading it fails with: {error}") from error
    if robot.tag != "robot":
        raise ValueError(f"the root of a URDF must be robot, not {robot.tag}")
    return robot


def _link_poses(robot: ET.Element) -> Callable[[str], np.ndarray]:
    """A function from the name of a link to its pose (4, 4) in the root's frame."""
    above: dict[str, tuple[str, np.ndarray]] = {}
    for joint in robot.findall("joint"):
        parent = joint.find("parent")
        child = joint.find("child")
        if parent is not None and child is not None:
            above[child.get("link", "")] = parent.get("link", ""), read_origin(joint)

    # Poses are kept, so that a chain of links is not followed to its root for every link.
    known: dict[str, np.ndarray] = {}

    def pose(link: str) -> np.ndarray:
        way: dict[str, np.ndarray] = {}
        while link in above and link not in known:
            if link in way:
                raise ValueError(f"the links must form a tree; link {link} is above itself")
            way[link] = above[link][1]
            link = above[link][0]
        found = known.setdefault(link, np.eye(4))
        for below, step in reversed(way.items()):
            found = known[below] = found @ step
        return found

    return pose


def read_origin(element: ET.Element) -> np.ndarray:
    """Return the pose (4, 4) of an element in its parent."""
    pose = np.eye(4)
    origin = element.find("origin")
    if origin is not None:
        pose[:3, 3] = _numbers(origin, "xyz", 3, "0 0 0")
        pose[:3, :3] = turn(*np.degrees(_numbers(origin, "rpy", 3, "0 0 0")))
    return pose


def _geometry(collision: ET.Element, path: Path, read_mesh: Callable[[Path], list[Mesh]]) -> list[Mesh]:
    from trimesh import creation

    shape = collision.find("geometry/*")
    if shape is None:
        raise ValueError("a collision element has no geometry")
    if shape.tag == "mesh":
        name = shape.get("filename", "")
        scale = np.array(_numbers(shape, "scale", 3, "1 1 1"))
        file = _resolved(name, path)
        try:
            groups = read_mesh(file)
        except ValueError as error:
            raise ValueError(f"mesh {name}: {error}") from error
        mirrored = scale.prod() < 0
        return [(vertices * scale, faces[:, ::-1] if mirrored else faces) for vertices, faces in groups]
    if shape.tag == "box":
        made = creation.box(_positive(shape, "size", 3))
    elif shape.tag == "cylinder":
        (radius,) = _positive(shape, "radius", 1)
        (length,) = _positive(shape, "length", 1)
        made = creation.cylinder(radius / math.cos(math.pi / _SECTIONS), length, _SECTIONS)
    elif shape.tag == "sphere":
        (radius,) = _positive(shape, "radius", 1)
        made = creation.icosphere(subdivisions=3)
        made.vertices *= radius / (made.face_normals * made.triangles_center).sum(1).min()
    else:
        raise ValueError(f"a geometry must be a mesh, box, cylinder or sphere, not {shape.tag}")
    return [(np.array(made.vertices), np.array(made.faces))]


def _resolved(name: str, path: Path) -> Path:
    """The file that a URDF means by a file name.

    `package://P/F` is F in the nearest folder P beside or above the URDF; other names are relative to the URDF.
    """
    scheme, _, rest = name.rpartition("://")
    if scheme in ("package", "model"):
        places = [folder / rest for folder in path.resolve().parents]
    elif scheme in ("", "file"):
        places = [path.resolve().parent / rest]
    else:
        raise ValueError(f"meshes must be files next to the URDF, not {name!r}")
    for place in places:
        if rest and place.is_file():
            return place
    raise ValueError(f"the mesh {name!r} does not exist at {places[0]}")


def _numbers(element: ET.Element, name: str, count: int, default: str = "") -> list[float]:
    text = element.get(name, default)
    try:
        numbers = [float(word) for word in text.split()]
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"{name} of {element.tag} must be {count} numbers, not {text!r}")
    return numbers


def _positive(element: ET.Element, name: str, count: int) -> list[float]:
    numbers = _numbers(element, name, count)
    if min(numbers) <= 0:
        raise ValueError(f"{name} of {element.tag} must be positive, not {element.get(name)!r}")
    return numbers
