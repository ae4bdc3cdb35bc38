"""The orthographic projection of a bin onto a picture, and the empty bin on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
from PIL import Image, ImageDraw

from torchrl_gpu.envs.pictures import BACKGROUND

Vector = tuple[float, float, float]

# Samples per pixel along each side.
SUPERSAMPLE = 2
# Share of the picture's smaller side that is left free around the bin.
MARGIN = 0.045
# Side of a box that is seen along x, y and z: 1 for the upper one.
NEAR = (1, 0, 1)
# Colours of the walls across x and y, and of the floor.
BACK = ("#e9ecf0", "#e3e7ec", "#dfe3e8")
GRID = "#c3cad3"
WIRE = "#3c4653"
# Most grid lines along the longest side.
GRID_LINES = 12
# Opacity, of 255, of an edge by how many of its faces are on the viewer's side.
_OPACITY = {1: 90, 2: 180}

# Where the viewer is: from +x towards +y, and above the floor.
_AZIMUTH = math.radians(-56.0)
_ELEVATION = math.radians(29.0)
# To the right and down on the screen, per metre along x, y and z.
_SCREEN = np.zeros((3, 2))
_SCREEN[0] = -math.sin(_AZIMUTH), math.sin(_ELEVATION) * math.cos(_AZIMUTH)
_SCREEN[1] = math.cos(_AZIMUTH), math.sin(_ELEVATION) * math.sin(_AZIMUTH)
_SCREEN[2] = 0.0, -math.cos(_ELEVATION)


@dataclass(frozen=True)
class Camera:
    """Orthographic view of a bin, on pixels of `SUPERSAMPLE`² samples each.

    Attributes:
        bin_size: Metres.
        width, height: Pixels.
    """

    bin_size: Vector
    width: int
    height: int

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 1:
            raise ValueError(f"viewer: width and height must be at least 1, not {self.width} and {self.height}")

    @cached_property
    def size(self) -> tuple[int, int]:
        """Samples across and down."""
        return SUPERSAMPLE * self.width, SUPERSAMPLE * self.height

    @cached_property
    def _extent(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and greatest place of the bin's corners on the screen, metres."""
        length, width, height = self.bin_size
        corners = np.array(list(product((0.0, length), (0.0, width), (0.0, height)))) @ _SCREEN
        return corners.min(0), corners.max(0)

    @cached_property
    def axes(self) -> np.ndarray:
        """Samples to the right and down per metre along x, y and z, (3, 2)."""
        low, high = self._extent
        room = np.array(self.size) - 2.0 * MARGIN * min(self.size)
        return _SCREEN * (room / (high - low)).min()

    @cached_property
    def origin(self) -> np.ndarray:
        """Sample of the bin's corner x = y = z = 0, (2,): column, row."""
        low, high = self._extent
        scale = self.axes[2, 1] / _SCREEN[2, 1]
        return np.array(self.size) / 2 - scale * (low + high) / 2

    def samples(self, points: np.ndarray) -> np.ndarray:
        """Return column and row (…, 2) of points (…, 3).

        The centre of sample (i, j) is at (i + 0.5, j + 0.5).
        """
        return self.origin + points @ self.axes

    @property
    def line(self) -> int:
        """Width of a line, samples."""
        return max(1, round(SUPERSAMPLE * self.height / 420))


@lru_cache(maxsize=8)
def empty_bin(camera: Camera) -> Image.Image:
    """Return floor and back walls with a grid, one pixel per sample.

    The image is kept, so copy it before drawing on it.
    """
    image = Image.new("RGB", camera.size, BACKGROUND)
    pen = ImageDraw.Draw(image)
    step = grid_step(camera.bin_size)
    for axis in range(3):
        first = 1 if axis == 0 else 0
        second = 1 if axis == 2 else 2
        corners = np.zeros((4, 3))
        corners[:, axis] = (1 - NEAR[axis]) * camera.bin_size[axis]
        corners[1:3, first] = camera.bin_size[first]
        corners[2:, second] = camera.bin_size[second]
        pen.polygon(_flat(camera.samples(corners)), fill=BACK[axis])
        for along, across in ((first, second), (second, first)):
            for at in np.arange(0.0, camera.bin_size[along] * 1.001, step):
                ends = corners[[0, 0]]
                ends[:, along] = at
                ends[1, across] = camera.bin_size[across]
                pen.line(_flat(camera.samples(ends)), fill=GRID, width=camera.line)
    return image


def finish(image: Image.Image, camera: Camera) -> np.ndarray:
    """Return the picture of an image of samples, uint8 (H, W, 3).

    The bin's front edges are drawn over it.
    """
    pen = ImageDraw.Draw(image, "RGBA")
    for points, opacity in _front_edges(camera):
        pen.line(points, fill=f"{WIRE}{opacity:02x}", width=camera.line)
    return np.array(image.reduce(SUPERSAMPLE))


@lru_cache(maxsize=8)
def _front_edges(camera: Camera) -> list[tuple[list[float], int]]:
    edges = []
    for axis in range(3):
        others = [other for other in range(3) if other != axis]
        for sides in product((0, 1), repeat=2):
            near = sum(side == NEAR[other] for side, other in zip(sides, others, strict=True))
            ends = np.zeros((2, 3))
            ends[1, axis] = camera.bin_size[axis]
            ends[:, others] = np.array(sides) * np.array(camera.bin_size)[others]
            if near:
                edges.append((_flat(camera.samples(ends)), _OPACITY[near]))
    return edges


def grid_step(bin_size: Vector) -> float:
    """Return the distance of grid lines, metres.

    It is the smallest of 1, 2, 5 × 10ⁿ that gives at most `GRID_LINES` of them.
    """
    least = max(bin_size) / GRID_LINES
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * 0.999)


def _flat(points: np.ndarray) -> list[float]:
    """Return flat coordinates for Pillow, which counts from the first pixel's centre."""
    return (points - 0.5).ravel().tolist()
