"""Workloads of the kernel benchmark.

They are piles, items to drop on them, and the catalogues of these.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.packing.numpy_packing import Shape, shapes_of
from benchmarks.packing.settings import irregular, make
from torchrl_gpu.envs.packing.items import ItemSource, ProceduralSolids
from torchrl_gpu.envs.packing.items.source import EndlessSequences, ItemSequences
from torchrl_gpu.envs.packing.items.voxels import heightmaps
from torchrl_gpu.envs.packing.kernels import reference
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.types import Bin, Catalogue

# Different piles; environments beyond that share them.
_PILES = 16
# |x|^e + |y|^e + |z|^e ≤ 1 fills 80% of the square around it, seen from any side.
_ROUNDNESS = 2.1
# Objects of a catalogue of large pebbles, and the most cells along the side of a small one.
_FEW = 2, 64


class Workload(NamedTuple):
    """Arguments of one call of `drop_map`."""

    heightmap: Tensor  # (N, X, Y) float32, metres
    item_id: Tensor  # (N, K) int64
    catalogue: Catalogue
    bin_: Bin

    @property
    def num_envs(self) -> int:
        """N."""
        return len(self.heightmap)

    @property
    def maps_per_env(self) -> int:
        """K·O, z-maps of one environment."""
        return self.item_id.shape[1] * self.catalogue.num_orientations

    def to(self, device: torch.device) -> Workload:
        """The same on `device`."""
        return Workload(self.heightmap.to(device), self.item_id.to(device), self.catalogue.to(device), self.bin_)

    def first(self, num_envs: int) -> Workload:
        """The same items in fewer environments."""
        return Workload(self.heightmap[:num_envs], self.item_id[:num_envs], self.catalogue, self.bin_)


class Pebbles(ItemSource):
    """Rounded cubes with dents.

    All have the same length, width and height, so that every z-map is the same work.

    A pebble fills 80% of its footprint in each of the 24 orientations. Top and bottom are uneven, by whole cells.

    Args:
        side: Cells along each side of the footprint.
        num_objects: Objects, which differ in their dents.
        seed: Decides the dents.
    """

    boxes = False

    def __init__(self, side: int, num_objects: int = 8, seed: int = 0) -> None:
        self.side = side
        self.num_objects = num_objects
        self.seed = seed

    def build(
        self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int
    ) -> tuple[Catalogue, ItemSequences]:
        """As `ItemSource.build`."""
        catalogue = heightmaps(self.solids(), orientation_set(orientations, boxes=False), bin_)
        return catalogue, EndlessSequences(catalogue.num_items, num_items)

    def solids(self) -> list[np.ndarray]:
        """(side, side, side) bool each."""
        rng = np.random.default_rng(self.seed)
        axis = (np.arange(self.side) + 0.5) / self.side * 2 - 1
        x, y, z = np.meshgrid(axis, axis, axis, indexing="ij", sparse=True)
        whole = np.abs(x) ** _ROUNDNESS + np.abs(y) ** _ROUNDNESS + np.abs(z) ** _ROUNDNESS <= 1
        return [self._dented(whole.copy(), [x, y, z], rng) for _ in range(self.num_objects)]

    @staticmethod
    def _dented(solid: np.ndarray, at: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        """Cut a dent of its own depth into each of the eight shoulders.

        No outline reaches there.
        """
        x, y, z = at
        for a, b, c in np.ndindex(2, 2, 2):
            # On the diagonal, on the surface.
            centre = 0.593 * (2 * np.array([a, b, c]) - 1)
            apart = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 + (z - centre[2]) ** 2
            solid &= apart > rng.uniform(0.1, 0.3) ** 2
        return solid


def pebbles(num_envs: int, num_visible: int, *, side: int, resolution: int, step: int) -> Workload:
    """Return items of one size, each environment with its own, on piles of the same.

    Args:
        num_envs: N.
        num_visible: K.
        side: Cells along each side of a footprint.
        resolution: Cells along x and y of a bin of 0.4 m × 0.4 m × 0.3 m.
        step: Cells between placements.
    """
    catalogue, bin_, piles = _pebbles(side, resolution, step)
    return _workload(num_envs, num_visible, catalogue, bin_, piles)


def procedural(num_envs: int, num_visible: int, *, resolution: int, step: int) -> Workload:
    """The household solids of the reference setting `irregular`, of all sizes, mixed."""
    catalogue, bin_, piles = _procedural(resolution, step)
    return _workload(num_envs, num_visible, catalogue, bin_, piles)


def boxes(num_envs: int) -> Workload:
    """bpp10: 10×10 cells, one visible box, two orientations."""
    catalogue, bin_, piles = _boxes()
    return _workload(num_envs, 1, catalogue, bin_, piles)


# The last are piles (R, X, Y), metres.
Ground = tuple[Catalogue, Bin, Tensor]


@lru_cache(maxsize=16)
def _pebbles(side: int, resolution: int, step: int) -> Ground:
    bin_ = _irregular_bin(resolution, step)
    few, small = _FEW
    return _ground(Pebbles(side, 8 if side <= small else few).build(bin_, "cube", 1, 1)[0], bin_)


@lru_cache(maxsize=4)
def _procedural(resolution: int, step: int) -> Ground:
    bin_ = _irregular_bin(resolution, step)
    return _ground(ProceduralSolids().build(bin_, "cube", 1, 1)[0], bin_)


@lru_cache(maxsize=1)
def _boxes() -> Ground:
    env = make({}, 1, "cpu")
    return _ground(env.catalogue, env.bin)


def _irregular_bin(resolution: int, step: int) -> Bin:
    size: tuple[float, float, float] = irregular(1, 1, resolution, step)["bin_size"]
    return Bin(size, (resolution, resolution), step)


def _ground(catalogue: Catalogue, bin_: Bin) -> Ground:
    return catalogue, bin_, torch.from_numpy(np.stack([pile(catalogue, bin_, seed) for seed in range(_PILES)]))


def pile(catalogue: Catalogue, bin_: Bin, seed: int) -> np.ndarray:
    """Build a heightmap (X, Y), metres, of items dropped at random.

    There are as many as would cover the floor once.
    """
    rng = np.random.default_rng(seed)
    heights, bare = np.zeros(bin_.cells, np.float32), bin_.cells[0] * bin_.cells[1]
    shapes: dict[int, list[Shape]] = {}
    while bare > 0:
        item = int(rng.integers(catalogue.num_items))
        if item not in shapes:
            shapes[item] = shapes_of(catalogue, item)
        turned = shapes[item]
        shape = turned[int(rng.integers(len(turned)))]
        room = [(c - s) // bin_.step for c, s in zip(bin_.cells, shape.top.shape, strict=True)]
        bare -= shape.top.size
        if min(room) >= 0:
            x = int(rng.integers(room[0] + 1)) * bin_.step
            y = int(rng.integers(room[1] + 1)) * bin_.step
            _drop(heights, shape, x, y, np.float32(bin_.size[2]))
    return heights


def _drop(heights: np.ndarray, shape: Shape, x: int, y: int, ceiling: np.float32) -> None:
    window = heights[x : x + shape.top.shape[0], y : y + shape.top.shape[1]]
    z = (window - shape.bottom).max(initial=np.float32(0.0))
    if z + shape.height <= ceiling:
        reference.place_item(heights, shape.top, shape.bottom, x, y, z)


def _workload(num_envs: int, num_visible: int, catalogue: Catalogue, bin_: Bin, piles: Tensor) -> Workload:
    rng = np.random.default_rng(0)
    item_id = torch.from_numpy(rng.integers(0, catalogue.num_items, (num_envs, num_visible)))
    return Workload(piles[torch.arange(num_envs) % len(piles)], item_id, catalogue, bin_)
