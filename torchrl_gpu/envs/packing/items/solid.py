"""`Solid`: shape of an item for physics, scenes and plans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Solid:
    """A solid in a frame of its own, which the orientations turn, in metres.

    Attributes:
        name: Of the object, or of the file that it came from.
        parts: Vertices (V, 3) float64 of convex parts, which fill the solid together and may overlap.
        vertices: Vertices of the surface, (V, 3) float64.
        faces: Triangles, outward by the right hand, (F, 3) int64.
        centre: Centre of mass at even density, (3,) float64.
        volume: Cubic metres, of the union where parts overlap.
        scale: Factor from the object that `name` names to this solid.
    """

    name: str
    parts: tuple[np.ndarray, ...]
    vertices: np.ndarray
    faces: np.ndarray
    centre: np.ndarray
    volume: float
    scale: float = 1.0

    @staticmethod
    def of_box(name: str, size: np.ndarray) -> Solid:
        """Box of sides (3,) in the first octant, one corner at the origin."""
        corners = np.stack(np.meshgrid([0.0, 1.0], [0.0, 1.0], [0.0, 1.0], indexing="ij"), -1).reshape(8, 3) * size
        return Solid(name, (corners,), corners, _BOX_FACES, np.asarray(size) / 2, float(np.prod(size)))


# Corner 4a + 2b + c of a box lies at (a, b, c).
_BOX_SIDES = np.array([[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]])
_BOX_FACES = _BOX_SIDES[:, [[0, 1, 2], [0, 2, 3]]].reshape(-1, 3)
