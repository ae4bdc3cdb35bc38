"""What a mesh is as a solid: closed parts, volume, centre of mass, and convex pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.spatial import ConvexHull, QhullError

from torchrl_gpu.envs.packing.items.columns import union, voxelised
from torchrl_gpu.envs.packing.items.rasterise import Mesh
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.items.voxels import boxes_of, corners_of

_MERGE = 1e-6  # of the longest side: vertices closer than this are one
_VOXELS = 32, 96  # along the longest side of what is cut into boxes, fewest and most
_CONVEX = 0.97  # a part that fills so much of its convex hull is taken for it


@dataclass(frozen=True, eq=False)
class MeshShape:
    """A solid as its file gives it, in metres and in the file's frame.

    Attributes:
        name: The file.
        parts: Closed surfaces, outward by the right hand; those of hollows inward. They may overlap.
        volume: Cubic metres, of the union where parts overlap.
        centre: (3,) float64, centre of mass at even density.
    """

    name: str
    parts: tuple[Mesh, ...]
    volume: float
    centre: np.ndarray

    @staticmethod
    def of(name: str, groups: Sequence[Mesh]) -> MeshShape:
        """The solid that groups of triangles make: each group a union of closed parts, or all of them together.

        Raises:
            ValueError: Empty, not finite, not closed, or without volume; the reason alone, without the file.
        """
        parts = _oriented(_closed_parts(groups))
        if len(parts) == 1:
            volume, centre = _moments(parts[0])
        else:
            volume, centre = union(np.concatenate([vertices[faces] for vertices, faces in parts]))
        size = np.ptp(np.concatenate([vertices for vertices, _ in parts]), 0)
        if not volume > 1e-9 * size.max() ** 3:
            raise ValueError(f"want a solid; got one of {volume:.3g} m³ within {_written(size)} m")
        return MeshShape(name, tuple(parts), volume, centre)

    @cached_property
    def mesh(self) -> Mesh:
        """All parts as one."""
        starts = np.cumsum([0] + [len(vertices) for vertices, _ in self.parts])
        faces = [faces + start for (_, faces), start in zip(self.parts, starts, strict=False)]
        return np.concatenate([vertices for vertices, _ in self.parts]), np.concatenate(faces)

    @cached_property
    def digest(self) -> str:
        """Names the surface: the same for the same vertices and faces."""
        vertices, faces = self.mesh
        return hashlib.sha256(vertices.tobytes() + b"/" + faces.astype(np.int64).tobytes()).hexdigest()

    @cached_property
    def pieces(self) -> tuple[np.ndarray, ...]:
        """Vertices (V, 3) of convex pieces that together fill the solid.

        A convex part is a piece; another is cut into boxes of voxels. With hollows all of the solid is.
        """
        if any(_moments(part)[0] < 0 for part in self.parts):
            vertices, faces = self.mesh
            return tuple(_boxes(vertices[faces], self.volume))
        pieces: list[np.ndarray] = []
        for vertices, faces in self.parts:
            hull = _hull(vertices)
            volume = _moments((vertices, faces))[0]
            convex = volume >= _CONVEX * hull.volume
            pieces += [vertices[hull.vertices]] if convex else _boxes(vertices[faces], volume)
        return tuple(pieces)

    def solid(self, scale: float) -> Solid:
        """The shape, `scale` times as large."""
        vertices, faces = self.mesh
        pieces = tuple(piece * scale for piece in self.pieces)
        return Solid(self.name, pieces, vertices * scale, faces, self.centre * scale, self.volume * scale**3, scale)


def _closed_parts(groups: Sequence[Mesh]) -> list[Mesh]:
    """Parts of the groups, each closed; of all groups together where one alone is open."""
    groups = [group for group in groups if len(group[1])]
    if not groups:
        raise ValueError("want triangles; got none")
    for vertices, faces in groups:
        _check_numbers(vertices, faces)
    longest = np.ptp(np.concatenate([vertices[faces].reshape(-1, 3) for vertices, faces in groups]), 0).max()
    parts = [part for group in groups for part in _split(_merged(group, longest))]
    if len(groups) > 1 and any(_open_edges(faces) for _, faces in parts):
        starts = np.cumsum([0] + [len(vertices) for vertices, _ in groups])
        whole = np.concatenate([f + start for (_, f), start in zip(groups, starts, strict=False)])
        parts = _split(_merged((np.concatenate([v for v, _ in groups]), whole), longest))
    if not parts:
        raise ValueError("want triangles with area; got none")
    still_open = sum(_open_edges(faces) for _, faces in parts)
    if still_open:
        raise ValueError(f"want a closed surface, or closed parts; got {still_open} open edges")
    return parts


def _check_numbers(vertices: np.ndarray, faces: np.ndarray) -> None:
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise ValueError(f"want faces of its {len(vertices)} vertices; got vertex {faces.max()}")
    finite = np.isfinite(vertices[faces]).all((1, 2))
    if not finite.all():
        raise ValueError(f"want finite coordinates; got {vertices[faces[~finite][0]].tolist()}")


def _merged(mesh: Mesh, longest: float) -> Mesh:
    """Vertices at the same place made one; faces that this leaves without area are dropped."""
    vertices, faces = mesh
    used, faces = np.unique(faces, return_inverse=True)
    vertices = vertices[used]
    rounded = np.round((vertices - vertices.min(0)) / (_MERGE * max(longest, 1e-300)))
    _, first, index = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
    faces = index.reshape(-1)[faces.reshape(-1, 3)]
    a, b, c = faces.T
    return vertices[first], faces[(a != b) & (b != c) & (c != a)]


def _split(mesh: Mesh) -> list[Mesh]:
    """Parts that hang together by edges of two faces, their faces turned to agree."""
    vertices, faces = mesh
    if not len(faces):
        return []
    pairs, disagree = _neighbours(faces)
    graph = coo_array((np.ones(len(pairs)), pairs.T), (len(faces), len(faces))).tocsr()
    count, label = connected_components(graph, directed=False)
    faces = np.where(_turned(graph, label, pairs, disagree)[:, None], faces[:, ::-1], faces)
    parts = []
    for part in range(count):
        used, own = np.unique(faces[label == part], return_inverse=True)
        parts.append((vertices[used], own.reshape(-1, 3)))
    return parts


def _directed(faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges of faces, face by face: (3F, 2) sorted, and whether each runs from its lower to its higher vertex."""
    edges = faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)
    return np.sort(edges, 1), edges[:, 0] < edges[:, 1]


def _neighbours(faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (E, 2) of faces that alone share an edge, and whether one must be turned for the two to agree."""
    edges, upward = _directed(faces)
    order = np.lexsort(edges.T)
    edges, upward, face = edges[order], upward[order], order // 3
    starts = np.flatnonzero(np.r_[True, (edges[1:] != edges[:-1]).any(1)])
    twice = starts[np.diff(np.r_[starts, len(edges)]) == 2]
    return np.stack([face[twice], face[twice + 1]], 1), upward[twice] == upward[twice + 1]


def _turned(graph: coo_array, label: np.ndarray, pairs: np.ndarray, disagree: np.ndarray) -> np.ndarray:
    """Which faces to turn, (F,) bool, so that all of a part agree with its first face."""
    turned = np.zeros(len(label), dtype=bool)
    if not disagree.any():
        return turned
    differ = {(int(a), int(b)): bool(d) for (a, b), d in zip(pairs, disagree, strict=True)}
    for root in np.unique(label, return_index=True)[1]:
        order, before = breadth_first_order(graph, root, directed=False)
        for face in order[1:]:
            pair = (int(before[face]), int(face))
            turned[face] = turned[pair[0]] ^ differ.get(pair, differ.get(pair[::-1], False))
    return turned


def _open_edges(faces: np.ndarray) -> int:
    """Edges that faces pass in one direction more often than in the other."""
    edges, upward = _directed(faces)
    _, index = np.unique(edges, axis=0, return_inverse=True)
    return int((np.bincount(index.reshape(-1), np.where(upward, 1, -1)) != 0).sum())


def _oriented(parts: list[Mesh]) -> list[Mesh]:
    """Parts turned outward, but for those inside out and within the bounds of another: hollows."""
    volumes = [_moments(part)[0] for part in parts]
    if sum(volumes) < 0:
        parts, volumes = [_flipped(part) for part in parts], [-volume for volume in volumes]
    bounds = [(vertices.min(0), vertices.max(0)) for vertices, _ in parts]
    outer = [bound for bound, volume in zip(bounds, volumes, strict=True) if volume > 0]
    found = []
    for part, volume, (low, high) in zip(parts, volumes, bounds, strict=True):
        hollow = any((a < low).all() and (high < b).all() for a, b in outer)
        found.append(_flipped(part) if volume < 0 and not hollow else part)
    return found


def _flipped(part: Mesh) -> Mesh:
    return part[0], part[1][:, ::-1]


def _moments(part: Mesh) -> tuple[float, np.ndarray]:
    """Signed volume and centre of mass of a closed surface: sums over tetrahedra about the middle of its bounds."""
    middle = (part[0].min(0) + part[0].max(0)) / 2
    triangles = part[0][part[1]] - middle
    volumes = np.linalg.det(triangles) / 6
    total = float(volumes.sum())
    weighted = volumes @ triangles.sum(1) / 4
    return total, middle + weighted / total if total else middle


def _hull(vertices: np.ndarray) -> ConvexHull:
    try:
        return ConvexHull(vertices)
    except QhullError:
        return ConvexHull(vertices, qhull_options="QJ")  # of a sliver: joggled until it has volume


def _boxes(triangles: np.ndarray, volume: float) -> list[np.ndarray]:
    """Corners of boxes that fill what triangles (F, 3, 3) enclose, of voxels no larger than walls are thick."""
    areas = np.linalg.norm(np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]), axis=1) / 2
    wall = 2 * volume / areas.sum()
    longest = np.ptp(triangles.reshape(-1, 3), 0).max()
    occupied, corner, side = voxelised(triangles, int(np.clip(1.5 * longest / wall, *_VOXELS)))
    return [corner + side * box for box in corners_of(boxes_of(occupied))]


def _written(size: np.ndarray) -> str:
    return " × ".join(f"{s:.3g}" for s in size)
