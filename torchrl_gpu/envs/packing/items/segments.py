"""The highest and lowest points of triangle meshes over cells of a grid.

No loop runs over triangles or cells: a mesh has many of both, and each step of a loop would start an operator.

A triangle touches a cell where it meets the cell shrunk by `EDGE` on every side, so that what only touches a border
does not spill over it. What it cuts from such a cell is a flat polygon, which is highest and lowest at corners; these
lie on two kinds of segments: edges of the mesh, and the chords in which triangles meet the cell's two borders across x.
Hence all segments are cut to strips of cells with the same x, then to cells, and the heights at the ends of the pieces
are all that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

EDGE = 1e-4
"""What reaches less far into a cell, in cells, does not count: more than coordinates in float32 are off."""

# Stands for 1 / 0: a segment without length lies in the cell that it touches as a whole.
_STEEPEST = 1e18
# Pieces of segments at a time. On a CPU they should fit the cache.
_CHUNK = {"cpu": 1 << 17, "cuda": 1 << 24}


class Surfaces(NamedTuple):
    """Meshes, concatenated.

    Attributes:
        vertices: (3, V) float64.
        faces: Triangles, (3, F) int64.
        edges: Edges of the triangles, each once, (2, E) int64.
        mesh: Mesh of each vertex, (V,) int64.
        num_meshes: Number of meshes, M.
    """

    vertices: Tensor
    faces: Tensor
    edges: Tensor
    mesh: Tensor
    num_meshes: int


def extremes(surfaces: Surfaces, footprint: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the highest and the lowest point over each cell.

    Both are float64 (M, P, Q), −inf and +inf where there is no material.

    Coordinates x and y are in cells, not negative, and less than `EDGE` beyond the footprint.
    """
    points = surfaces.vertices
    high = points.new_full((surfaces.num_meshes * footprint[0] * footprint[1],), -torch.inf)
    low = torch.full_like(high, torch.inf)
    kinds: list[tuple[Tensor, Callable[[Tensor, Tensor], tuple[Tensor, ...]]]]
    kinds = [(surfaces.faces, _chords), (surfaces.edges, _pieces)]
    for corners, segments in kinds:
        for some in corners.split(_portions(points, corners), 1):
            owner, strip, *ends = segments(points, some)
            strip += _of(surfaces.mesh[some[0]] * footprint[0], owner)
            _mark(_Segments(strip * footprint[1], *ends), high, low)
    return high.view(surfaces.num_meshes, *footprint), low.view(surfaces.num_meshes, *footprint)


class _Segments(NamedTuple):
    """Segments that each lie over one strip of cells with the same x.

    All are (S,), float64 except `first`, the strip's first cell in the flattened maps.
    """

    first: Tensor  # (S,) int64
    start_y: Tensor  # cells
    start_z: Tensor  # metres
    end_y: Tensor
    end_z: Tensor


def _portions(points: Tensor, corners: Tensor) -> list[int]:
    """Numbers of triangles or edges (C, F) to process at a time."""
    flat = _corners(points[:2], corners)
    cells = 2 * (flat.amax(1) - flat.amin(1) + 2).prod(0)
    portion = (cells.cumsum(0) / _CHUNK[points.device.type]).long()
    return torch.unique_consecutive(portion, return_counts=True)[1].tolist()


def _corners(points: Tensor, corners: Tensor) -> Tensor:
    """Coordinates (D, V) at the indices (C, F), (D, C, F)."""
    index = corners.reshape(1, -1).expand(len(points), -1)
    return points.gather(1, index).view(len(points), *corners.shape)


def _chords(points: Tensor, faces: Tensor) -> tuple[Tensor, ...]:
    """Return the chords in which triangles (3, F) meet borders of strips.

    They are triangle and strip of each chord, and y and z of its ends.
    """
    order = _corners(points[:1], faces)[0].argsort(0)
    # The second axis is in the order of x.
    corners = _corners(points, faces.gather(0, order))
    owner, border = _runs(_border_above(corners[0, 0]), _border_below(corners[0, 2]))
    strip = border >> 1
    x = strip.double() + (border & 1).double() * (1 - 2 * EDGE) + EDGE
    first, second, third = corners.unbind(1)
    a = [_of(coordinate, owner) for coordinate in first]
    b = [_of(coordinate, owner) for coordinate in second]
    c = [_of(coordinate, owner) for coordinate in third]
    near = x <= b[0]
    before = [torch.where(near, *coordinates) for coordinates in zip(a, b, strict=True)]
    behind = [torch.where(near, *coordinates) for coordinates in zip(b, c, strict=True)]
    return owner, strip, *_at(x, a, c), *_at(x, before, behind)


def _border_above(x: Tensor) -> Tensor:
    """Return the first border at or above x, int64.

    Strip i has borders 2i and 2i + 1, each `EDGE` inside it.
    """
    whole = x.floor()
    rest = x - whole
    return 2 * whole.long() + (rest > EDGE).long() + (rest > 1 - EDGE).long()


def _border_below(x: Tensor) -> Tensor:
    whole = x.floor()
    rest = x - whole
    return 2 * whole.long() - 1 + (rest >= EDGE).long() + (rest >= 1 - EDGE).long()


def _at(x: Tensor, a: Sequence[Tensor], b: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return y and z where segments from a to b pass x (S,).

    a and b are x, y and z (S,) each, and x of a is at most x of b.
    """
    share = ((x - a[0]) / (b[0] - a[0]).clamp_min(1e-300)).clamp_(0, 1)
    # lerp stays between its ends to the last bit.
    return a[1].lerp(b[1], share), a[2].lerp(b[2], share)


def _pieces(points: Tensor, edges: Tensor) -> tuple[Tensor, ...]:
    """Cut edges (2, E) to strips.

    Returns the same values as `_chords`.
    """
    (ax, bx), (ay, by), (az, bz) = _corners(points, edges)
    owner, strip = _runs(*_touched(ax, bx))
    slope = _of(_inverse(bx - ax), owner)
    ax = _of(ax, owner)
    ay = _of(ay, owner)
    az = _of(az, owner)
    by = _of(by, owner)
    bz = _of(bz, owner)
    ahead = strip - ax
    start, end = ((ahead + EDGE) * slope).clamp_(0, 1), ((ahead + (1 - EDGE)) * slope).clamp_(0, 1)
    return owner, strip, ay.lerp(by, start), az.lerp(bz, start), ay.lerp(by, end), az.lerp(bz, end)


def _mark(segments: _Segments, high: Tensor, low: Tensor) -> None:
    """Cut segments to cells and mark the ends of the pieces.

    Raises `high` and lowers `low`, both flattened maps, to these ends.
    """
    owner, row = _runs(*_touched(segments.start_y, segments.end_y))
    slope = _of(_inverse(segments.end_y - segments.start_y), owner)
    first = _of(segments.first, owner)
    start_y = _of(segments.start_y, owner)
    start_z = _of(segments.start_z, owner)
    end_z = _of(segments.end_z, owner)
    ahead = row - start_y
    near = start_z.lerp(end_z, ((ahead + EDGE) * slope).clamp_(0, 1))
    far = start_z.lerp(end_z, ((ahead + (1 - EDGE)) * slope).clamp_(0, 1))
    cell = first + row
    high.scatter_reduce_(0, cell, torch.maximum(near, far), "amax")
    low.scatter_reduce_(0, cell, torch.minimum(near, far), "amin")


def _touched(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last cell that intervals meet, int64.

    The intervals are between a and b, the cells shrunk by `EDGE`.
    """
    return (torch.minimum(a, b) - (1 - EDGE)).ceil().long(), (torch.maximum(a, b) - EDGE).floor().long()


def _inverse(length: Tensor) -> Tensor:
    return (1 / length).clamp_(-_STEEPEST, _STEEPEST)


def _runs(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Enumerate the whole numbers from `first` to `last`, both (S,).

    Returns the index of the run of each number, and the number. An empty run has none.
    """
    count = (last - first + 1).clamp_min_(0)
    end = count.cumsum(0)
    total = int(end[-1]) if len(end) else 0
    owner = torch.repeat_interleave(count, output_size=total)
    number = torch.arange(total, device=first.device, dtype=torch.int64) + _of(first - end + count, owner)
    return owner, number


def _of(values: Tensor, owner: Tensor) -> Tensor:
    # Several times as fast as indexing.
    return values.index_select(0, owner)
