"""Procedural irregular solids, with nothing to download.

Bowls, mugs, L and U shapes, cylinders and convex hulls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.items.source import Built, EndlessSequences, ItemSource
from torchrl_gpu.envs.packing.items.voxels import heightmaps, solid_of
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.types import Bin
from torchrl_gpu.system import arguments

Occupancy = np.ndarray  # (A, B, C) bool
MOST_OBJECTS = 100_000
# Along a side of an object.
MOST_VOXELS = 512
Shape = Callable[[np.ndarray, np.random.Generator], Occupancy]


def _grid(size: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return coordinates of voxel centres, each in (−1, 1).

    The three arrays broadcast to `size`.
    """
    axes = [(np.arange(n) + 0.5) / n * 2 - 1 for n in size]
    return axes[0][:, None, None], axes[1][None, :, None], axes[2][None, None, :]


def bowl(size: np.ndarray, rng: np.random.Generator) -> Occupancy:
    x, y, z = _grid(size)
    thickness = rng.uniform(0.12, 0.25)
    outer = x**2 + y**2 + ((z - 1) / 2) ** 2 <= 1
    inner = (x**2 + y**2) / (1 - thickness) ** 2 + ((z - 1) / (2 * (1 - thickness))) ** 2 <= 1
    return outer & ~inner


def mug(size: np.ndarray, rng: np.random.Generator) -> Occupancy:
    """A cup with a handle on one side."""
    x, y, z = _grid(size)
    centre, radius = -0.25, 0.75
    r = np.hypot(x - centre, y)
    wall = rng.uniform(0.10, 0.18)
    cup = (r <= radius) & ((r >= radius - wall) | (z < -1 + 2 * wall))
    ring = np.hypot((x - 0.45) / 0.55, z / 0.6)
    handle = (ring <= 1) & (ring >= 0.62) & (np.abs(y) <= 0.2) & (r >= radius - wall)
    solid = cup | handle
    # A thin wall may lie between the centres of voxels: then the mug is full.
    return solid if solid.any() else np.broadcast_to(r <= radius, solid.shape)


def l_shape(size: np.ndarray, rng: np.random.Generator) -> Occupancy:
    x, _, z = np.broadcast_arrays(*_grid(size))
    a, b = rng.uniform(-0.5, 0.2, 2)
    return (x <= a) | (z <= b)


def u_shape(size: np.ndarray, rng: np.random.Generator) -> Occupancy:
    x, _, z = np.broadcast_arrays(*_grid(size))
    wall, floor = rng.uniform(0.3, 0.6), rng.uniform(-0.7, -0.2)
    return (np.abs(x) >= 1 - wall) | (z <= floor)


def cylinder(size: np.ndarray, rng: np.random.Generator) -> Occupancy:
    x, y, _ = np.broadcast_arrays(*_grid(size))
    return x**2 + y**2 <= 1


def hull(size: np.ndarray, rng: np.random.Generator) -> Occupancy:
    """A convex polyhedron: an ellipsoid with up to eight faces cut off."""
    x, y, z = _grid(size)
    inside = x**2 + y**2 + z**2 <= 1.6
    for _ in range(8):
        normal = rng.normal(size=3)
        normal /= np.linalg.norm(normal)
        inside &= normal[0] * x + normal[1] * y + normal[2] * z <= rng.uniform(0.6, 0.95)
    return inside


SHAPES: tuple[Shape, ...] = (bowl, mug, l_shape, u_shape, cylinder, hull)


class ProceduralSolids(ItemSource):
    """Irregular solids of household size.

    Args:
        num_objects: Objects in the catalogue; shapes take turns.
        min_size: Shortest side, metres, before scaling.
        max_size: Longest side, metres, before scaling.
        scale: Smallest and largest factor on the sides.
        seed: Decides the objects.
        shapes: Which kinds, by name, such as "bowl"; None stands for all of `SHAPES`.
    """

    boxes = False

    def __init__(
        self,
        num_objects: int = 60,
        min_size: float = 0.04,
        max_size: float = 0.14,
        scale: tuple[float, float] = (0.8, 1.2),
        seed: int = 0,
        shapes: Sequence[str] | None = None,
    ) -> None:
        self._shapes = _shapes_of(shapes)
        where = "ProceduralSolids"
        self.num_objects = arguments.whole(where, "num_objects", num_objects, 1, MOST_OBJECTS)
        self.min_size = arguments.number(where, "min_size", min_size)
        self.max_size = arguments.number(where, "max_size", max_size)
        self.scale = scale_of(where, scale)
        if not 0 < self.min_size <= self.max_size or not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(
                "ProceduralSolids: sizes and scales must be positive and in order;"
                f" got {min_size} to {max_size} m, scale {scale}"
            )
        self.seed, self.shapes = arguments.seed(where, "seed", seed, low=0), shapes
        self._made: tuple[float, list[Occupancy], dict[int, Solid]] = (0.0, [], {})

    def reseeded(self, seed: int) -> ProceduralSolids:
        return ProceduralSolids(self.num_objects, self.min_size, self.max_size, self.scale, seed, self.shapes)

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        if abs(bin_.cell[0] - bin_.cell[1]) > 1e-9:
            raise ValueError(f"ProceduralSolids: cells must be square; got {bin_.cell} m")
        largest = self.max_size * self.scale[1] / bin_.cell[0]
        if largest > MOST_VOXELS:
            raise ValueError(
                f"ProceduralSolids: max_size and scale must give objects of at most {MOST_VOXELS} cells a side;"
                f" got {largest:.6g} cells of {bin_.cell[0]:.6g} m"
            )
        rotations = orientation_set(orientations, boxes=False)
        catalogue = heightmaps(self.solids(bin_.cell[0]), rotations, bin_)
        return catalogue, EndlessSequences(catalogue.num_items, num_items)

    def solid(self, item: int, bin_: Bin) -> Solid:
        """Return the `Solid` of a row.

        Boxes of voxels are its parts, their outer faces its surface.
        """
        cell = bin_.cell[0]
        if self._made[0] != cell:
            self._made = cell, self.solids(cell), {}
        _, voxels, done = self._made
        if item not in done:
            done[item] = solid_of(self._name(item), voxels[item], cell)
        return done[item]

    def label(self, item: int, bin_: Bin) -> dict[str, object]:
        return {"item": item, "name": self._name(item)}

    def _name(self, item: int) -> str:
        return f"{self._shapes[item % len(self._shapes)].__name__}-{item}"

    def solids(self, cell: float) -> list[Occupancy]:
        """The objects as voxels of `cell` metres."""
        rng = np.random.default_rng(self.seed)
        made = []
        for i in range(self.num_objects):
            sides = rng.uniform(self.min_size, self.max_size, 3) * rng.uniform(*self.scale)
            made.append(self._shapes[i % len(self._shapes)](np.maximum(np.round(sides / cell), 3).astype(int), rng))
        return made


def scale_of(where: str, given: object) -> tuple[float, float]:
    """Read the smallest and the largest factor.

    ValueError unless they are two finite numbers.
    """
    wanted = "two numbers, the smallest and the largest factor"
    factors = arguments.listed(where, "scale", wanted, given)
    if len(factors) != 2:
        arguments.refuse(where, "scale", wanted, given)
    return arguments.number(where, "scale", factors[0]), arguments.number(where, "scale", factors[1])


def _shapes_of(names: Sequence[str] | None) -> tuple[Shape, ...]:
    known = {shape.__name__: shape for shape in SHAPES}
    if isinstance(names, str) or not (names is None or isinstance(names, Sequence)):
        arguments.refuse("ProceduralSolids", "shapes", f"a list of words out of {', '.join(known)}", names)
    for name in known if names is None else names:
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"ProceduralSolids: shapes must be among {', '.join(known)}; got {arguments.shown(name)}")
    if names is not None and not names:
        raise ValueError("ProceduralSolids: shapes must name at least one kind; got none")
    return SHAPES if names is None else tuple(known[name] for name in names)
