"""Reference rasteriser: one triangle and one cell at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np

from torchrl_gpu.envs.packing.items.segments import EDGE

Maps = tuple[np.ndarray, np.ndarray]


def naive_maps(vertices: np.ndarray, faces: np.ndarray, cell: tuple[float, float]) -> Maps:
    """Return top and bottom (P, Q) of a mesh in its pose.

    They are −inf and +inf where there is no material.

    Each triangle is cut with each shrunk cell, and the heights of the corners of the cut are taken.
    """
    points = (vertices - vertices.min(0)) / np.array([*cell, 1.0])
    size = points.max(0)
    p = max(1, math.floor(size[0] - EDGE) + 1)
    q = max(1, math.floor(size[1] - EDGE) + 1)
    top, bottom = np.full((p, q), -np.inf), np.full((p, q), np.inf)
    for triangle in points[faces]:
        for i, j in _near(triangle, p, q):
            heights = _cut(triangle, i, j)
            if len(heights):
                top[i, j] = max(top[i, j], heights.max())
                bottom[i, j] = min(bottom[i, j], heights.min())
    return top, bottom


def _near(triangle: np.ndarray, p: int, q: int) -> list[tuple[int, int]]:
    low, high = np.floor(triangle[:, :2].min(0)).astype(int), np.floor(triangle[:, :2].max(0)).astype(int)
    rows = range(max(low[0] - 1, 0), min(high[0] + 2, p))
    columns = range(max(low[1] - 1, 0), min(high[1] + 2, q))
    return list(itertools.product(rows, columns))


def _cut(polygon: np.ndarray, i: int, j: int) -> np.ndarray:
    """Return heights of the corners of the polygon within a shrunk cell.

    It is Sutherland and Hodgman's algorithm, 1974.
    """
    along_x = ((0, 1, i + EDGE), (0, -1, i + 1 - EDGE))
    along_y = ((1, 1, j + EDGE), (1, -1, j + 1 - EDGE))
    for axis, sign, bound in (*along_x, *along_y):
        distance = sign * (polygon[:, axis] - bound)
        kept = []
        for k in range(len(polygon)):
            a = polygon[k - 1]
            b = polygon[k]
            da = distance[k - 1]
            db = distance[k]
            if (da < 0) != (db < 0):
                kept.append(a + da / (da - db) * (b - a))
            if db >= 0:
                kept.append(b)
        if not kept:
            return np.zeros(0)
        polygon = np.array(kept)
    return polygon[:, 2]
