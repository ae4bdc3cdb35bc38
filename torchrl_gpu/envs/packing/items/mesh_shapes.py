"""`MeshShape`: a mesh as a solid.

It has closed parts, volume, centre of mass, and convex pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import ConvexHull, QhullError

from torchrl_gpu.envs.packing.items.columns import union, voxelised
from torchrl_gpu.envs.packing.items.rasterise import Mesh, joined
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.items.voxels import boxes_of, corners_of

# Vertices closer than this share of the longest side are one.
_MERGE = 1e-6
# Faces at a smaller angle lie on each other, radians.
_SAME_ANGLE = 1e-4
# Most pairs of parts that are compared.
_MOST_PAIRS = 20_000_000
# Fewest and most voxels along the longest side of what is cut into boxes.
_VOXELS = 32, 96
# A part that fills this share of its convex hull counts as convex.
_CONVEX = 0.97


@dataclass(frozen=True, eq=False)
class MeshShape:
    """A solid as its file gives it, in metres and in the file's frame.

    Attributes:
        name: Path of the file.
        parts: Closed surfaces, which may overlap; outward by the right hand, those of hollows inward.
        volume: Volume of the union of the parts, cubic metres.
        centre: Centre of mass at even density, (3,) float64.
    """

    name: str
    parts: tuple[Mesh, ...]
    volume: float
    centre: np.ndarray

    @staticmethod
    def of(name: str, groups: Sequence[Mesh]) -> MeshShape:
        """Make a solid of groups of triangles.

        Each group is a union of closed parts, or all of them together are.

        ValueError, with the reason alone, where it is empty, not finite, not closed, or without volume.
        """
        parts = _oriented(_closed_parts(groups))
        if len(parts) == 1:
            volume, centre = _moments(parts[0])
        elif _lie_apart(parts):
            moments = [_moments(part) for part in parts]
            volume = sum(each for each, _ in moments)
            centre = np.sum([each * at for each, at in moments], 0) / (volume or 1.0)
        else:
            volume, centre = union(np.concatenate([vertices[faces] for vertices, faces in parts]), parts=len(parts))
        size = np.ptp(np.concatenate([vertices for vertices, _ in parts]), 0)
        if not volume > 1e-9 * size.max() ** 3:
            sides = " × ".join(f"{side:.3g}" for side in size)
            raise ValueError(f"the mesh has no volume: {volume:.3g} m³ within {sides} m")
        return MeshShape(name, tuple(parts), volume, centre)

    @cached_property
    def mesh(self) -> Mesh:
        """All parts as one mesh."""
        return joined(self.parts)

    @cached_property
    def digest(self) -> str:
        """Hash of the surface: the same for the same vertices and faces."""
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
        """`Solid` of the shape, `scale` times as large."""
        vertices, faces = self.mesh
        pieces = tuple(piece * scale for piece in self.pieces)
        return Solid(self.name, pieces, vertices * scale, faces, self.centre * scale, self.volume * scale**3, scale)


def _closed_parts(groups: Sequence[Mesh]) -> list[Mesh]:
    """Return the closed parts of the groups.

    If a group alone is open, the parts are those of all groups together.
    """
    groups = [group for group in groups if len(group[1])]
    if not groups:
        raise ValueError("the file has no triangles")
    for vertices, faces in groups:
        if faces.min() < 0 or faces.max() >= len(vertices):
            raise ValueError(f"a face has vertex {faces.max()}, of {len(vertices)} vertices")
        finite = np.isfinite(vertices[faces]).all((1, 2))
        if not finite.all():
            raise ValueError(f"coordinates must be finite, not {vertices[faces[~finite][0]].tolist()}")
    longest = np.ptp(np.concatenate([vertices[faces].reshape(-1, 3) for vertices, faces in groups]), 0).max()
    parts, still_open = _split_all(groups, longest)
    if len(groups) > 1 and still_open:
        parts, still_open = _split_all([joined(groups)], longest)
    if not parts:
        raise ValueError("no triangle has an area")
    if still_open:
        raise ValueError(f"the surface is not closed: {still_open} open edges; close it, or use closed parts")
    return parts


def _split_all(groups: Sequence[Mesh], longest: float) -> tuple[list[Mesh], int]:
    found = [_split(group, longest) for group in groups]
    all_parts: list[Mesh] = []
    for parts, _ in found:
        all_parts += parts
    return all_parts, sum(number for _, number in found)


def _merged(mesh: Mesh, longest: float) -> Mesh:
    """Merge vertices at the same place.

    Faces that this leaves without area are dropped.
    """
    vertices, faces = mesh
    used, faces = np.unique(faces, return_inverse=True)
    vertices = vertices[used]
    rounded = np.round((vertices - vertices.min(0)) / (_MERGE * max(longest, 1e-300)))
    order = np.lexsort(rounded.T[::-1])
    fresh = np.r_[True, (np.diff(rounded[order], axis=0) != 0).any(1)]
    first, index = order[fresh], np.empty(len(order), dtype=np.int64)
    index[order] = np.cumsum(fresh) - 1
    faces = index[faces.reshape(-1, 3)]
    a, b, c = faces.T
    return vertices[first], faces[(a != b) & (b != c) & (c != a)]


def _split(mesh: Mesh, longest: float) -> tuple[list[Mesh], int]:
    """Split a mesh into parts whose faces agree, and count the open edges.

    Parts are connected by edges of two faces; faces are turned to agree.

    Where some are open, parts may touch along edges or faces. Then they are the components that the file's own shared
    vertices connect, or else their faces are separated by their winding.
    """
    vertices, faces = _merged(mesh, longest)
    if not len(faces):
        return [], 0
    pairs, label, turned = _patches(faces)
    if not _open_edges(_turn(faces, turned), label):
        return _parts(vertices, _turn(faces, turned), label), 0
    _, own, own_turned = _patches(mesh[1])
    apart = _turn(mesh[1], own_turned)
    if not _open_edges(apart, own):
        return _parts(mesh[0], apart, own), 0
    # Whatever most faces of a part had before they were turned is taken for its winding.
    mostly = np.bincount(label, turned) > 0.5 * np.bincount(label)
    faces = _turn(faces, turned ^ mostly[label])
    label = _components(len(faces), np.concatenate([pairs, _touching(vertices, faces)]))
    return _parts(vertices, faces, label), _open_edges(faces, label)


def _patches(faces: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pairs of faces, their components, and the faces to turn.

    Pairs (E, 2) are those faces that share an edge with no other face, labels (F,) are of their components.
    """
    _, upward, side, starts = _by_edge(faces)
    twice = starts[:-1][np.diff(starts) == 2]
    pairs = np.stack([side[twice] // 3, side[twice + 1] // 3], 1)
    # The faces of such a pair agree only if one of the two is turned.
    disagree = upward[twice] == upward[twice + 1]
    label = _components(len(faces), pairs)
    return pairs, label, _turned(label, pairs, disagree)


def _turn(faces: np.ndarray, turned: np.ndarray) -> np.ndarray:
    return np.where(turned[:, None], faces[:, ::-1], faces)


def _components(number: int, pairs: np.ndarray) -> np.ndarray:
    """Labels (F,) of the components that pairs (E, 2) connect."""
    graph = coo_array((np.ones(len(pairs)), pairs.T), (number, number))
    return connected_components(graph, directed=False)[1]


def _parts(vertices: np.ndarray, faces: np.ndarray, label: np.ndarray) -> list[Mesh]:
    """A mesh for each label of faces (F,), with the vertices that it uses."""
    order = np.argsort(label, kind="stable")
    used, index = np.unique(label[order, None] * len(vertices) + faces[order], return_inverse=True)
    # Where the vertices of each part begin.
    starts = np.searchsorted(used, np.arange(label.max() + 2) * len(vertices))
    ends = np.cumsum(np.bincount(label))
    own = index.reshape(-1, 3) - starts[label[order], None]
    pairs = zip(np.split(vertices[used % len(vertices)], starts[1:-1]), np.split(own, ends[:-1]), strict=True)
    return list(pairs)


def _directed(faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of faces, face by face.

    They are (3F, 2) sorted, with a mask of those from their lower to their higher vertex.
    """
    edges = faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)
    return np.sort(edges, 1), edges[:, 0] < edges[:, 1]


def _by_edge(faces: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sides of faces, those along the same edge beside each other.

    Returned are edges (3F, 2), whether each runs upward, its number 3 · face + side, and where each edge begins, and
    the end.
    """
    edges, upward = _directed(faces)
    order = np.lexsort(edges.T)
    edges = edges[order]
    starts = np.flatnonzero(np.r_[True, (edges[1:] != edges[:-1]).any(1), True])
    return edges, upward[order], order, starts


def _turned(label: np.ndarray, pairs: np.ndarray, disagree: np.ndarray) -> np.ndarray:
    """Return the mask (F,) of the faces to turn.

    All faces of a part then agree with its first face.
    """
    if not disagree.any():
        return np.zeros(len(label), dtype=bool)
    # Each face is two nodes, as it is and turned: pairs that agree connect nodes of a kind, the others crosswise.
    number, (a, b) = len(label), pairs.T
    crossed = number * disagree
    twice = _components(
        2 * number, np.concatenate([np.stack([a, b + crossed], 1), np.stack([a + number, b + number - crossed], 1)])
    )
    first = np.unique(label, return_index=True)[1][label]
    return (twice[:number] != twice[first]) & (twice[:number] == twice[first + number])


def _touching(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Return pairs (E, 2) of faces with material between them.

    They lie along edges of more than two faces.

    Going about such an edge, one enters the material through a face and leaves it through another. Where one leaves and
    enters at once, as between boxes that are stacked, one leaves first. Edges that are passed in one direction more
    often than in the other have none.
    """
    # A face that runs upward along its edge has its inside behind it.
    edges, leaves, side, starts = _by_edge(faces)
    number = np.diff(starts)
    balance = np.add.reduceat(np.where(leaves, 1, -1), starts[:-1])
    chosen = np.repeat((number > 2) & (balance == 0), number)
    if not chosen.any():
        return np.zeros((0, 2), dtype=np.int64)
    edge = np.repeat(np.arange(len(number)), number)[chosen]
    edges = edges[chosen]
    leaves = leaves[chosen]
    side = side[chosen]
    angle = _angles(vertices, faces, edges, side, edge)
    order = np.lexsort((angle, edge))
    apart = np.diff(edge[order]) | (np.diff(angle[order]) > _SAME_ANGLE)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.cumsum(np.r_[0, apart.astype(bool)])
    face = side // 3
    # Of copies of a face the last one is left first.
    order = np.lexsort((np.where(leaves, -face, face), ~leaves, place))
    edge = edge[order]
    leaves = leaves[order]
    face = face[order]
    within = np.cumsum(np.where(leaves, -1, 1))
    # The steps of the depth sum to nothing over an edge.
    depth = np.where(leaves, within + 1, within)
    # At one depth one enters and leaves in turn.
    order = np.lexsort((depth, edge))
    edge = edge[order]
    leaves = leaves[order]
    face = face[order]
    depth = depth[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(edge) != 0) | (np.diff(depth) != 0)])
    after = np.arange(1, len(face) + 1)
    after[np.r_[starts[1:], len(face)] - 1] = starts
    return np.stack([face[~leaves], face[after[~leaves]]], 1)


def _angles(
    vertices: np.ndarray, faces: np.ndarray, edges: np.ndarray, side: np.ndarray, edge: np.ndarray
) -> np.ndarray:
    """Return the angles (S,) of faces about their edges, 0 to 2π.

    They count from the first face of each edge. Sides and edges are those of `_by_edge`.
    """
    low, third = vertices[edges[:, 0]], vertices[faces[side // 3, (side + 2) % 3]]
    along = vertices[edges[:, 1]] - low
    along /= np.linalg.norm(along, axis=1)[:, None]
    out = third - low
    out -= (out * along).sum(1)[:, None] * along
    first = out[np.unique(edge, return_index=True)[1]].repeat(np.unique(edge, return_counts=True)[1], 0)
    angle = np.arctan2((np.cross(first, out) * along).sum(1), (first * out).sum(1)) % (2 * np.pi)
    return np.where(angle > 2 * np.pi - _SAME_ANGLE, 0.0, angle)


def _open_edges(faces: np.ndarray, label: np.ndarray) -> int:
    """Count the open edges of faces by label (F,).

    The faces of a label pass them in one direction more often than in the other.
    """
    edges, upward = _directed(faces)
    part = np.repeat(label, 3)
    order = np.lexsort((*edges.T, part))
    key = np.c_[part, edges][order]
    starts = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]).any(1)])
    return int((np.add.reduceat(np.where(upward[order], 1, -1), starts) != 0).sum())


def _oriented(parts: list[Mesh]) -> list[Mesh]:
    """Turn parts outward, except hollows.

    A hollow is inside out and within the bounds of another part.
    """
    volumes = [_moments(part)[0] for part in parts]
    if sum(volumes) < 0:
        parts, volumes = [_flipped(part) for part in parts], [-volume for volume in volumes]
    low, high = _bounds(parts)
    outer = np.array(volumes) > 0
    found = []
    for i, (part, volume) in enumerate(zip(parts, volumes, strict=True)):
        hollow = volume < 0 and bool(((low[outer] < low[i]) & (high[i] < high[outer])).all(1).any())
        found.append(_flipped(part) if volume < 0 and not hollow else part)
    return found


def _bounds(parts: Sequence[Mesh]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([vertices.min(0) for vertices, _ in parts]), np.array([vertices.max(0) for vertices, _ in parts])


def _lie_apart(parts: Sequence[Mesh]) -> bool:
    """Return whether no two parts have bounds that overlap.

    False if there are too many pairs to compare.
    """
    low, high = _bounds(parts)
    room = _MERGE * (high.max(0) - low.min(0)).max()
    axes = []
    for axis in range(3):
        order = np.argsort(low[:, axis], kind="stable")
        # Parts behind this place begin where the part has ended.
        last = np.searchsorted(low[order, axis], high[order, axis] - room)
        axes.append((np.maximum(last - np.arange(len(order)) - 1, 0), order))
    number, order = min(axes, key=lambda each: each[0].sum())
    if number.sum() > _MOST_PAIRS:
        return False
    one = np.repeat(np.arange(len(order)), number)
    other = np.arange(len(one)) - np.repeat(np.cumsum(number) - number, number) + one + 1
    one, other = order[one], order[other]
    return not ((low[one] < high[other] - room) & (low[other] < high[one] - room)).all(1).any()


def _flipped(part: Mesh) -> Mesh:
    return part[0], part[1][:, ::-1]


def _moments(part: Mesh) -> tuple[float, np.ndarray]:
    """Return the signed volume and the centre of mass of a closed surface.

    They are sums over tetrahedra about the middle of its bounds.
    """
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
        # A sliver is joggled until it has a volume.
        return ConvexHull(vertices, qhull_options="QJ")


def _boxes(triangles: np.ndarray, volume: float) -> list[np.ndarray]:
    """Return the corners of boxes that fill the solid in triangles (F, 3, 3).

    The boxes consist of voxels no larger than the walls of the solid are thick.
    """
    areas = np.linalg.norm(np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]), axis=1) / 2
    wall = 2 * volume / areas.sum()
    longest = np.ptp(triangles.reshape(-1, 3), 0).max()
    occupied, corner, side = voxelised(triangles, int(np.clip(1.5 * longest / wall, *_VOXELS)))
    return [corner + side * box for box in corners_of(boxes_of(occupied))]
