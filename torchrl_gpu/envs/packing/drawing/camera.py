"""An orthographic camera on a bin: plain numbers, so that nothing of it ever has to be read back from a device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

Vector = tuple[float, float, float]

AZIMUTH_DEG = -56.0
ELEVATION_DEG = 29.0
MARGIN = 0.045  # of the picture's smaller side, left free around the bin
MIN_SLOPE = 1e-3  # keeps rays off being parallel to a face


class Viewport(NamedTuple):
    """The pixels that the bin can touch: rows [row0, row1), columns [col0, col1)."""

    row0: int
    row1: int
    col0: int
    col1: int


@dataclass(frozen=True)
class Camera:
    """Looks at the whole bin from `azimuth_deg` around it (from +x towards +y) and `elevation_deg` above the floor.

    Distances are metres, pictures `width` × `height` pixels of `supersample`² samples each. The ray of a sample starts
    where it crosses the floor plane z = 0 and is o + t·forward: smaller t is nearer to the viewer, t = z / forward_z.
    """

    bin_size: Vector
    width: int
    height: int
    azimuth_deg: float = AZIMUTH_DEG
    elevation_deg: float = ELEVATION_DEG
    supersample: int = 2

    def __post_init__(self) -> None:
        if min(self.width, self.height, self.supersample) < 1:
            raise ValueError(
                f"viewer: width, height and supersample must be at least 1, "
                f"got {self.width}, {self.height} and {self.supersample}"
            )
        if not 5.0 <= self.elevation_deg <= 90.0:
            raise ValueError(f"viewer: elevation_deg must lie in [5, 90], got {self.elevation_deg}")
        if len(self.bin_size) != 3 or min(self.bin_size) <= 0.0:
            raise ValueError(f"viewer: bin_size must be three positive lengths, got {self.bin_size}")

    @cached_property
    def forward(self) -> Vector:
        """Unit vector from the viewer into the scene."""
        azimuth, elevation = math.radians(self.azimuth_deg), math.radians(self.elevation_deg)
        x = -math.cos(elevation) * math.cos(azimuth)
        y = -math.cos(elevation) * math.sin(azimuth)
        return _off_zero(x), _off_zero(y), -math.sin(elevation)

    @cached_property
    def axes(self) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
        """Where one metre along x, y and z leads on the screen: (right, up) in metres."""
        azimuth, elevation = math.radians(self.azimuth_deg), math.radians(self.elevation_deg)
        x = (-math.sin(azimuth), -math.sin(elevation) * math.cos(azimuth))
        y = (math.cos(azimuth), -math.sin(elevation) * math.sin(azimuth))
        return x, y, (0.0, math.cos(elevation))

    @cached_property
    def _corners(self) -> list[Vector]:
        length, width, height = self.bin_size
        return [*product((0.0, length), (0.0, width), (0.0, height))]

    @cached_property
    def _bounds(self) -> tuple[float, float, float, float]:
        points = [self._project(corner) for corner in self._corners]
        rights, ups = [p[0] for p in points], [p[1] for p in points]
        return min(rights), max(rights), min(ups), max(ups)

    @cached_property
    def scale(self) -> float:
        """Samples per metre on the screen."""
        left, right, low, high = self._bounds
        margin = 2.0 * MARGIN * min(self.width, self.height)
        fit = min((self.width - margin) / (right - left), (self.height - margin) / (high - low))
        return self.supersample * fit

    def pixel(self, point: Vector) -> tuple[float, float]:
        """(row, column) of a point in samples; the centre of sample (i, j) is at (i + 0.5, j + 0.5)."""
        left, right, low, high = self._bounds
        u, v = self._project(point)
        row = 0.5 * self.height * self.supersample - (v - 0.5 * (low + high)) * self.scale
        return row, 0.5 * self.width * self.supersample + (u - 0.5 * (left + right)) * self.scale

    @cached_property
    def viewport(self) -> Viewport:
        """The samples that the bin and its outline can touch, in whole pixels."""
        return self.around(self._corners, margin=3)

    def around(self, points: list[Vector], margin: int) -> Viewport:
        """Smallest viewport of whole pixels about points, with a margin in pixels, inside the picture."""
        pixels = [self.pixel(point) for point in points]
        row0, row1 = _span([p[0] / self.supersample for p in pixels], margin, self.height)
        col0, col1 = _span([p[1] / self.supersample for p in pixels], margin, self.width)
        s = self.supersample
        return Viewport(row0 * s, row1 * s, col0 * s, col1 * s)

    def ground(self, viewport: Viewport, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where the rays of a viewport cross the floor plane: x and y, metres, each float32 (h, w)."""
        left, right, low, high = self._bounds
        rows = torch.arange(viewport.row0, viewport.row1, device=device, dtype=torch.float32) + 0.5
        cols = torch.arange(viewport.col0, viewport.col1, device=device, dtype=torch.float32) + 0.5
        up = 0.5 * (low + high) - (rows[:, None] - 0.5 * self.height * self.supersample) / self.scale  # (h, 1)
        along = 0.5 * (left + right) + (cols - 0.5 * self.width * self.supersample) / self.scale  # (w,)
        (ax, cx), (ay, cy), _ = self.axes
        slope = self.axes[2][1] / self.forward[2]
        return along * ax + up * (cx - slope * self.forward[0]), along * ay + up * (cy - slope * self.forward[1])

    def ground_depth(self, viewport: Viewport, device: torch.device) -> Tensor:
        """Distance along the view from the screen plane to the floor plane, metres, shape (h, 1)."""
        _, _, low, high = self._bounds
        rows = torch.arange(viewport.row0, viewport.row1, device=device, dtype=torch.float32) + 0.5
        up = 0.5 * (low + high) - (rows[:, None] - 0.5 * self.height * self.supersample) / self.scale
        return up * (-self.axes[2][1] / self.forward[2])

    def spacing(self, axis: int, line_axis: int) -> float:
        """Samples between two lines parallel to `line_axis` that lie one metre apart along `axis`."""
        (a, b), (c, d) = self.axes[axis], self.axes[line_axis]
        return abs(a * d - b * c) / max(math.hypot(c, d), 1e-9) * self.scale

    def near_face(self, axis: int) -> int:
        """1 where the viewer sees the upper face of a box along `axis`, 0 where the lower one."""
        return int(self.forward[axis] < 0.0)

    def _project(self, point: Vector) -> tuple[float, float]:
        right = sum(p * axis[0] for p, axis in zip(point, self.axes, strict=True))
        return right, sum(p * axis[1] for p, axis in zip(point, self.axes, strict=True))


def _off_zero(slope: float) -> float:
    return math.copysign(max(abs(slope), MIN_SLOPE), slope)


def _span(values: list[float], margin: int, size: int) -> tuple[int, int]:
    low = min(max(math.floor(min(values)) - margin, 0), size - 1)
    return low, max(min(math.ceil(max(values)) + margin, size), low + 1)
