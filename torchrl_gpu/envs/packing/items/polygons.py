"""Triangulation of the polygons of mesh files."""

from __future__ import annotations

import numpy as np

# Corners that the fan of a polygon with dents is tried from.
_STARTS = 8
# Most corners of a polygon that is cut ear by ear, as the time may grow by the cube.
_MOST_EARS = 200
# Most of such polygons in a file.
_MOST_CUT = 1000


def triangulated(vertices: np.ndarray, corners: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Triangulate polygons, which may have dents, to triangles (F, 3).

    Polygons of fewer than three corners are left out.

    Large polygons with dents that no corner sees all of become fans: their volume is right, their outline may not be.
    `corners` (C,) int64 are the vertices (V, 3) of one polygon after the other, `number` (P,) how many each has.
    ValueError where a corner is no vertex.
    """
    if len(corners) and not 0 <= corners.min() <= corners.max() < len(vertices):
        raise ValueError(f"a face has a corner that is none of the {len(vertices)} vertices")
    found = []
    for _ in range(_STARTS):
        faces, polygon = _fans(corners, number)
        dented = _dented(vertices, faces, polygon, len(number)) & (number > 3)
        found.append(faces[~dented[polygon]])
        corners, number = corners[np.repeat(dented, number)], number[dented]
        if not len(number):
            return np.concatenate(found)
        starts = np.repeat(np.cumsum(number) - number, number)
        # Each fan is tried from the next corner.
        corners = corners[starts + (np.arange(len(corners)) - starts + 1) % np.repeat(number, number)]
    cut = np.flatnonzero(number <= _MOST_EARS)[:_MOST_CUT]
    starts = np.cumsum(number) - number
    found += [_ears(vertices, corners[starts[k] : starts[k] + number[k]]) for k in cut]
    faces, polygon = _fans(corners, number)
    return np.concatenate([*found, faces[~np.isin(polygon, cut)]])


def _fans(corners: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return fans from the first corner of each polygon.

    Triangles (F, 3), and the polygon index of each.
    """
    sizes = np.maximum(number - 2, 0)
    polygon = np.repeat(np.arange(len(number)), sizes)
    first = (np.cumsum(number) - number)[polygon]
    step = np.arange(len(polygon)) - (np.cumsum(sizes) - sizes)[polygon]
    return np.stack([corners[first], corners[first + step + 1], corners[first + step + 2]], 1), polygon


def _dented(vertices: np.ndarray, faces: np.ndarray, polygon: np.ndarray, number: int) -> np.ndarray:
    """Return the mask (P,) of the polygons with dents.

    Their fan has a triangle that faces against the others.
    """
    a = vertices[faces[:, 0]]
    b = vertices[faces[:, 1]]
    c = vertices[faces[:, 2]]
    normals = np.cross(b - a, c - a)
    whole = np.stack([np.bincount(polygon, axis, number) for axis in normals.T], 1)[polygon]
    against = (normals * whole).sum(1) < -1e-9 * (whole**2).sum(1)
    return np.bincount(polygon, against, number) > 0


def _ears(vertices: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Triangulate a polygon by ear clipping.

    What is left when there is no ear becomes a fan.
    """
    # Ears are cut one by one, which is the simplest way that keeps the outline of a polygon with dents. A fan from one
    # corner would be simpler still, but its triangles may lie outside of the polygon.
    points = vertices[corners] - vertices[corners[0]]
    normal = np.cross(points, np.roll(points, -1, 0)).sum(0)
    # The axis along which the polygon is seen.
    axis = int(np.abs(normal).argmax())
    flat = points[:, [(axis + 1) % 3, (axis + 2) % 3]] * [np.sign(normal[axis]), 1]
    left, found = list(range(len(corners))), []
    while len(left) > 3:
        ear = next((k for k in range(len(left)) if _is_ear(flat[left], k)), None)
        if ear is None:
            break
        found.append((left[ear - 1], left[ear], left[(ear + 1) % len(left)]))
        del left[ear]
    found += [(left[0], left[k], left[k + 1]) for k in range(1, len(left) - 1)]
    return corners[np.array(found)]


def _is_ear(flat: np.ndarray, k: int) -> bool:
    """Return whether corner k of a counter-clockwise polygon (C, 2) is an ear.

    An ear is convex, and no other corner lies in its triangle.
    """
    at = np.array([k - 1, k, k + 1]) % len(flat)
    corner, along = flat[at], np.roll(flat[at], -1, 0) - flat[at]
    others = np.delete(flat, at, 0)[:, None] - corner
    inside = (along[:, 0] * others[..., 1] - along[:, 1] * others[..., 0] >= 0).all(1).any()
    return bool(along[0, 0] * along[1, 1] - along[0, 1] * along[1, 0] > 0 and not inside)
