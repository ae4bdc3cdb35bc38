"""Renderer of solids in a bin, as the columns of their cells, with a depth buffer."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from torchrl_gpu.envs.packing.render.camera import Camera, empty_bin, finish
from torchrl_gpu.envs.packing.render.palette import INK, LAMPS, NUM_COLORS, shades

# Samples to each side over which the surface is smoothed before it is lit.
_SMOOTH = 4
# Share of the picture's height: a jump in depth within one item that is drawn as an edge.
_CREASE = 1 / 60

# Item and orientation, least x and y of its maps and height of its base, metres.
Placed = tuple[int, int, float, float, float]


class SolidsPainting:
    """Picture of a bin to which solids are added one by one.

    Each is drawn once. For a sample of the picture, a solid is the interval of rows above the floor that its column of
    material covers; the frontmost of all is kept in a depth buffer. To draw triangles would take a renderer, or a loop
    in Python over tens of thousands of them.

    Args:
        cell: Metres per cell of the items' maps along x and y.
        camera: The view.
    """

    def __init__(self, cell: tuple[float, float], camera: Camera) -> None:
        self.cell = cell
        self.camera = camera
        self._clear()

    def _clear(self) -> None:
        self._drawn: list[Placed] = []
        # Samples, (H, W, 3).
        self.canvas = np.array(empty_bin(self.camera))
        # Row of the floor below each sample; larger is nearer.
        self._depth = np.full(self.canvas.shape[:2], -np.inf, np.float32)
        self.label = np.full(self.canvas.shape[:2], -1, np.int32)

    def keep(self, items: list[Placed]) -> int:
        """Return how many of the items are on the canvas already.

        A canvas with others is cleared.
        """
        if items[: len(self._drawn)] != self._drawn:
            self._clear()
        return len(self._drawn)

    def add(self, item: Placed, top: np.ndarray, bottom: np.ndarray) -> None:
        """Draw the next item.

        Args:
            item: The item and its place.
            top: Upper side above its base, metres, (P, Q).
            bottom: Lower side above its base, metres, (P, Q); +inf without material.
        """
        number = len(self._drawn)
        self._drawn.append(item)
        # Maps are as large as those of the largest item.
        material = np.isfinite(bottom)
        p = 1 + int(np.flatnonzero(material.any(1)).max(initial=0))
        q = 1 + int(np.flatnonzero(material.any(0)).max(initial=0))
        top = top[:p, :q]
        bottom = bottom[:p, :q]
        window = self._window(item, top)
        rows, cols = window
        high, low = self._columns(item, top, bottom, window)
        floor = visible_columns(high, low)
        color = shades()[number % NUM_COLORS][self._light(floor)]
        raised = self.camera.axes[2, 1] * item[4]
        depth = np.where(floor < 0, -np.inf, floor + rows.start - raised)
        front = depth > self._depth[window]
        self._depth[window][front] = depth[front]
        self.label[window][front] = number
        self.canvas[window][front] = color[front]
        around_rows = slice(max(0, rows.start - 1), rows.stop + 1)
        around_cols = slice(max(0, cols.start - 1), cols.stop + 1)
        self._ink(around_rows, around_cols)

    def picture(self) -> np.ndarray:
        """Return the picture of the bin, uint8 (H, W, 3)."""
        return finish(Image.fromarray(self.canvas), self.camera)

    def _window(self, item: Placed, top: np.ndarray) -> tuple[slice, slice]:
        """Return rows and columns of the samples that an item may cover."""
        _, _, x, y, z = item
        high_x = x + top.shape[0] * self.cell[0]
        high_y = y + top.shape[1] * self.cell[1]
        high_z = z + float(top.max())
        corners_m = np.array(list(product((x, high_x), (y, high_y), (z, high_z))))
        corners = self.camera.samples(corners_m)
        low = np.maximum(np.floor(corners.min(0)).astype(int) - 1, 0)
        high = np.minimum(np.ceil(corners.max(0)).astype(int) + 1, self.camera.size)
        return slice(int(low[1]), int(high[1])), slice(int(low[0]), int(high[0]))

    def _columns(
        self, item: Placed, top: np.ndarray, bottom: np.ndarray, window: tuple[slice, slice]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows above each sample's own that the item reaches up to, and from.

        They are over the floor there, int16 (h, w) each.
        """
        rows, cols = window
        _, _, x0, y0, z0 = item
        axes = self.camera.axes
        right = np.arange(cols.start, cols.stop) + 0.5 - self.camera.origin[0]
        base = self.camera.origin[1]
        down = np.arange(rows.start, rows.stop)[:, None] + 0.5 - base - axes[2, 1] * z0
        to_floor = np.linalg.inv(axes[:2])
        metres_x = right * to_floor[0, 0] + down * to_floor[1, 0] - x0
        metres_y = right * to_floor[0, 1] + down * to_floor[1, 1] - y0
        x = np.floor(metres_x / self.cell[0]).astype(int)
        y = np.floor(metres_y / self.cell[1]).astype(int)
        p, q = top.shape
        # The last column has no material.
        inside = (x >= 0) & (x < p) & (y >= 0) & (y < q)
        cell = np.where(inside, x * q + y, p * q)
        material = np.isfinite(bottom)
        high = self._rows_of(top, material, -1)
        low = self._rows_of(np.where(material, bottom, 0), material, 1)
        return high[cell], low[cell]

    def _rows_of(self, side: np.ndarray, material: np.ndarray, outside: int) -> np.ndarray:
        """Return the rows of heights (P, Q) in metres, and of no material in the last one."""
        rows = np.rint(np.where(material, side * -self.camera.axes[2, 1], outside))
        return np.append(rows, outside).astype(np.int16)

    def _light(self, floor: np.ndarray) -> np.ndarray:
        """Return the shade of each sample by the way that its surface faces, int (h, w).

        Args:
            floor: Rows of the floor below, −1 for no surface, (h, w).
        """
        known = torch.from_numpy(np.stack([np.maximum(floor, 0), floor >= 0]).astype(np.float32))
        size = 2 * _SMOOTH + 1
        along_rows = F.avg_pool2d(known, (size, 1), 1, (_SMOOTH, 0))
        rows, share = F.avg_pool2d(along_rows, (1, size), 1, (0, _SMOOTH)).numpy()
        down = floor * 0.0
        right = down
        if min(floor.shape) > 1:
            down, right = np.gradient(rows / np.maximum(share, 1e-6))
        to_floor = np.linalg.inv(self.camera.axes[:2])
        height = -self.camera.axes[2, 1]
        # Where one sample to the right and one down lead on the surface, metres along x, y and z.
        along_x = to_floor[0, 0] + to_floor[1, 0] * right
        along_y = to_floor[0, 1] + to_floor[1, 1] * right
        below_x = to_floor[1, 0] * down
        below_y = to_floor[1, 1] * down
        along = [along_x, along_y, right / height]
        below = [below_x, below_y, (down - 1) / height]
        # Squares of the parts of the surface's normal, which is the cross product of the two.
        square = []
        for axis in range(3):
            part = along[axis - 2] * below[axis - 1] - along[axis - 1] * below[axis - 2]
            square.append(part**2)
        lit = sum(lamp * part for lamp, part in zip(LAMPS, square, strict=True))
        return np.rint(lit / np.maximum(sum(square), 1e-30)).astype(int)

    def _ink(self, *window: slice) -> None:
        """Darken samples of items where another item begins, or the same one far behind."""
        label = self.label[window]
        depth = self._depth[window]
        edge = np.zeros(label.shape, bool)
        for one, other in ((edge[1:], edge[:-1]), (edge[:, 1:], edge[:, :-1])):
            axis = int(one.shape[0] == len(edge))
            # Depths of nothing next to nothing are infinite, and their difference is NaN.
            with np.errstate(invalid="ignore"):
                jump = np.abs(np.diff(depth, axis=axis)) > _CREASE * self.camera.size[1]
            jump |= np.diff(label, axis=axis) != 0
            one |= jump
            other |= jump
        edge &= label >= 0
        self.canvas[window][edge] = shades()[label[edge] % NUM_COLORS, INK]


def visible_columns(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return the floor row of the frontmost surface at each sample, int (h, w).

    It is −1 for none. Material on row b of a column covers the samples b − high to b − low of it; the largest row is in
    front.
    """
    rows = np.arange(len(high), dtype=np.int32)[:, None]
    seen = np.full(high.shape, -1, np.int32)
    for up in range(min(int(high.max(initial=-1)) + 1, len(high))):
        covers = (low <= up) & (up <= high)
        np.copyto(seen[: len(high) - up], rows[up:], where=covers[up:])
    return seen
