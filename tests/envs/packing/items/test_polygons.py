"""Polygons are cut into triangles that cover them, and nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from torchrl_gpu.envs.packing.items.polygons import triangulated

TEETH = [(k / 2, 5 if k % 2 == 0 else 1) for k in range(12, 0, -1)]
OUTLINES: dict[str, list[tuple[float, float]]] = {}
OUTLINES["square"] = [(0, 0), (1, 0), (1, 1), (0, 1)]
OUTLINES["arrow"] = [(0, 0), (2, 1), (0, 2), (1, 1)]
OUTLINES["L"] = [(0, 0), (3, 0), (3, 1), (1, 1), (1, 3), (0, 3)]
OUTLINES["U"] = [(0, 0), (3, 0), (3, 3), (2, 3), (2, 1), (1, 1), (1, 3), (0, 3)]
OUTLINES["comb"] = [(0, 0), (6, 0), *TEETH, (0, 5)]


def area(points: np.ndarray) -> float:
    x, y = points.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


@pytest.mark.parametrize("name", OUTLINES)
def test_dents_stay_empty(name: str) -> None:
    for axis, way, first in itertools.product(range(3), (1, -1), range(len(OUTLINES[name]))):
        outline = np.array(OUTLINES[name], dtype=float)[::way]
        flat = np.roll(outline, first, 0)
        vertices = np.insert(flat, axis, 0.5, 1)
        faces = triangulated(vertices, np.arange(len(flat)), np.array([len(flat)]))
        cut = [area(flat[face]) for face in faces]
        assert sum(cut) == pytest.approx(area(outline))
        # No triangle lies on another.
        assert sum(map(abs, cut)) == pytest.approx(abs(area(outline)))


def test_polygons_of_all_sizes_at_once() -> None:
    rng = np.random.default_rng(0)
    corners = []
    number = [3, 4, 2, 1, 0, 6, 5]
    for size in number:
        corners += rng.permutation(8)[:size].tolist()
    faces = triangulated(rng.random((8, 3)), np.array(corners), np.array(number))
    assert len(faces) == 1 + 2 + 4 + 3


def test_a_large_polygon_takes_no_longer_than_its_corners() -> None:
    x = np.linspace(0, 1, 20_000)
    # A zigzag, which is all dents.
    vertices = np.stack([x, np.arange(20_000) % 2, 0 * x], 1)
    assert len(triangulated(vertices, np.arange(20_000), np.array([20_000]))) == 19_998
