"""Renderer of solids in a bin, as the columns of their cells, with a depth buffer."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from torchrl_gpu.envs.packing.render.camera import Camera, empty_bin, finished
from torchrl_gpu.envs.packing.render.palette import INK, LAMPS, NUM_COLORS, shades

_SMOOTH = 4  # samples to each side over which the surface is smoothed before it is lit
_CREASE = 1 / 60  # of the picture's height: a jump in depth within one item that is drawn as an edge

Placed = tuple[int, int, float, float, float]
"""Item and orientation, least x and y of its maps and height of its base, metres."""


class SolidsPainting:
    """Picture of a bin to which solids are added one by one: each is drawn once.

    `cell` are metres per cell of the items' maps along x and y.
    """

    def __init__(self, cell: tuple[float, float], camera: Camera) -> None:
        self.cell, self.camera = cell, camera
        self._clear()

    def _clear(self) -> None:
        self._drawn: list[Placed] = []
        self._canvas = np.array(empty_bin(self.camera))  # (H, W, 3) samples
        self._depth = np.full(self._canvas.shape[:2], -np.inf, np.float32)  # row of the floor below, larger is nearer
        self._label = np.full(self._canvas.shape[:2], -1, np.int32)

    def keep(self, items: list[Placed]) -> int:
        """Number of the items that are on the canvas already.

        Clears a canvas with others.
        """
        if items[: len(self._drawn)] != self._drawn:
            self._clear()
        return len(self._drawn)

    def add(self, item: Placed, top: np.ndarray, bottom: np.ndarray) -> None:
        """Draws the next item: upper and lower side above its base, metres, (P, Q).

        Bottom is +inf without material.
        """
        number = len(self._drawn)
        self._drawn.append(item)
        p, q = (1 + int(np.flatnonzero(np.isfinite(bottom).any(axis)).max(initial=0)) for axis in (1, 0))
        top, bottom = top[:p, :q], bottom[:p, :q]  # maps are as large as those of the largest item
        rows, cols = window = self._window(item, top)
        floor = _visible(*self._columns(item, top, bottom, window))
        color = shades()[number % NUM_COLORS][self._light(floor)]
        depth = np.where(floor < 0, -np.inf, floor + rows.start - self.camera.axes[2, 1] * item[4])
        front = depth > self._depth[window]
        self._depth[window][front] = depth[front]
        self._label[window][front] = number
        self._canvas[window][front] = color[front]
        self._ink(slice(max(0, rows.start - 1), rows.stop + 1), slice(max(0, cols.start - 1), cols.stop + 1))

    def picture(self) -> np.ndarray:
        """Picture of the bin, uint8 (H, W, 3)."""
        return finished(Image.fromarray(self._canvas), self.camera)

    def _window(self, item: Placed, top: np.ndarray) -> tuple[slice, slice]:
        sides = top.shape[0] * self.cell[0], top.shape[1] * self.cell[1], float(top.max())
        corners = self.camera.samples(np.array([*product(*zip(item[2:], np.add(item[2:], sides), strict=True))]))
        low = np.maximum(np.floor(corners.min(0)).astype(int) - 1, 0)
        high = np.minimum(np.ceil(corners.max(0)).astype(int) + 1, self.camera.size)
        return slice(int(low[1]), int(high[1])), slice(int(low[0]), int(high[0]))

    def _columns(
        self, item: Placed, top: np.ndarray, bottom: np.ndarray, window: tuple[slice, slice]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows above each sample's own that the item reaches up to, and from, over the floor there, int (h, w) each."""
        rows, cols = window
        (x0, y0, z0), axes = item[2:], self.camera.axes
        right = np.arange(cols.start, cols.stop) + 0.5 - self.camera.origin[0]
        down = np.arange(rows.start, rows.stop)[:, None] + 0.5 - self.camera.origin[1] - axes[2, 1] * z0
        to_floor = np.linalg.inv(axes[:2])
        x, y = (
            np.floor((right * to_floor[0, axis] + down * to_floor[1, axis] - corner) / self.cell[axis]).astype(int)
            for axis, corner in enumerate((x0, y0))
        )
        p, q = top.shape
        cell = np.where((x >= 0) & (x < p) & (y >= 0) & (y < q), x * q + y, p * q)  # the last one has no material
        material = np.isfinite(bottom)
        high, low = (
            np.append(np.rint(np.where(material, side * -axes[2, 1], outside)), outside).astype(np.int16)
            for side, outside in ((top, -1), (np.where(material, bottom, 0), 1))
        )
        return high[cell], low[cell]

    def _light(self, floor: np.ndarray) -> np.ndarray:
        """Shade of each sample by the way that its surface faces, int (h, w).

        Of rows (h, w) of the floor.
        """
        known = torch.from_numpy(np.stack([np.maximum(floor, 0), floor >= 0]).astype(np.float32))
        size = 2 * _SMOOTH + 1
        rows, share = F.avg_pool2d(F.avg_pool2d(known, (size, 1), 1, (_SMOOTH, 0)), (1, size), 1, (0, _SMOOTH)).numpy()
        down, right = np.gradient(rows / np.maximum(share, 1e-6)) if min(floor.shape) > 1 else (floor * 0.0,) * 2
        to_floor, height = np.linalg.inv(self.camera.axes[:2]), -self.camera.axes[2, 1]
        # Where one sample to the right and one down lead on the surface, metres along x, y and z.
        along = [to_floor[0, axis] + to_floor[1, axis] * right for axis in (0, 1)] + [right / height]
        below = [to_floor[1, axis] * down for axis in (0, 1)] + [(down - 1) / height]
        square = [(along[a - 2] * below[a - 1] - along[a - 1] * below[a - 2]) ** 2 for a in range(3)]
        lit = sum(lamp * part for lamp, part in zip(LAMPS, square, strict=True))
        return np.rint(lit / np.maximum(sum(square), 1e-30)).astype(int)

    def _ink(self, *window: slice) -> None:
        """Darkens samples of items where another item begins, or the same one far behind."""
        label, depth = self._label[window], self._depth[window]
        edge = np.zeros(label.shape, bool)
        for one, other in ((edge[1:], edge[:-1]), (edge[:, 1:], edge[:, :-1])):
            axis = int(one.shape[0] == len(edge))
            with np.errstate(invalid="ignore"):  # of nothing beside nothing
                jump = np.abs(np.diff(depth, axis=axis)) > _CREASE * self.camera.size[1]
            jump |= np.diff(label, axis=axis) != 0
            one |= jump
            other |= jump
        edge &= label >= 0
        self._canvas[window][edge] = shades()[label[edge] % NUM_COLORS, INK]


def _visible(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Floor row of the frontmost surface at each sample, int (h, w).

    −1 where there is none.

    Material on row b of a column covers the samples b − high to b − low of it; the largest row is in front.
    """
    rows = np.arange(len(high), dtype=np.int32)[:, None]
    seen = np.full(high.shape, -1, np.int32)
    for up in range(min(int(high.max(initial=-1)) + 1, len(high))):
        np.copyto(seen[: len(high) - up], rows[up:], where=((low <= up) & (up <= high))[up:])
    return seen
