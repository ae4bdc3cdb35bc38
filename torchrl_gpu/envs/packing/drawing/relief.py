"""Solids in a bin, each as the relief of its upper side: a hundredth of the time of a traced picture.

For watching on a CPU. An item is drawn down to its own base everywhere, and there are no contact shadows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from torchrl_gpu.envs.packing.drawing.camera import Camera
from torchrl_gpu.envs.packing.drawing.palette import decode_srgb, encode_srgb, item_colors
from torchrl_gpu.envs.packing.drawing.shading import INK, LAMPS
from torchrl_gpu.envs.packing.drawing.sketch import draw_wire, empty_bin, load_cv2, projection

_COLORS = 512  # items by order of placement, then they begin again
_LIGHTS = 32  # steps from dark to bright
_NOWHERE = -1


class Relief(NamedTuple):
    """An item where it lies.

    name: Equal for equal maps, such as (item, orientation).
    top: Upper side above its base, metres, float32 (P, Q); −1 where there is no material.
    corner: Least x and y of its maps and height of its base, metres.
    """

    name: tuple[int, ...]
    top: np.ndarray
    corner: tuple[float, float, float]


class ReliefSketch:
    """Pictures of a bin that fills: what the last one showed is kept, and only what has come is drawn.

    Args:
        cell: Metres per cell along x and y.
        camera: Its `supersample` does not count.
    """

    def __init__(self, cell: tuple[float, float], camera: Camera) -> None:
        self.cell, self.camera = cell, camera
        shape = camera.height, camera.width
        self._drawn: list[tuple[tuple[int, ...], tuple[float, float, float]]] = []
        self._nearest = np.full(shape, -np.inf, np.float32)
        self._label, self._paint = np.full(shape, _NOWHERE), np.zeros(shape, np.intp)

    def picture(self, items: Sequence[Relief]) -> np.ndarray:
        """uint8 (H, W, 3), RGB, of items in order of placement, which decides the colours."""
        names = [(each.name, each.corner) for each in items]
        if names[: len(self._drawn)] != self._drawn:
            self._clear()
        for i in range(len(self._drawn), len(items)):
            self._add(i, items[i])
        self._drawn = names
        empty, wire_at, wire_alpha = empty_bin(self.camera)
        canvas = empty.copy()
        colors = _paints().take(self._paint + _edges(self._label), axis=0)
        np.copyto(canvas, colors, where=(self._label != _NOWHERE)[..., None])
        draw_wire(canvas, empty, wire_at, wire_alpha)
        return canvas

    def _clear(self) -> None:
        self._nearest.fill(-np.inf)
        self._label.fill(_NOWHERE)
        self._drawn = []

    def _add(self, number: int, item: Relief) -> None:
        rows, cols, distance, light = _seen(item, self.cell, self.camera)
        nearest, label, paint = (each[rows, cols] for each in (self._nearest, self._label, self._paint))
        front = distance > nearest
        nearest[front] = distance[front]
        label[front] = number
        paint[front] = (number % _COLORS * _LIGHTS + light[front]) * 2


def _seen(item: Relief, cell: tuple[float, float], camera: Camera) -> tuple[slice, slice, np.ndarray, np.ndarray]:
    """What an item alone would show, in the part of the picture that it can touch.

    Returns:
        Its rows and columns; how near each pixel is, as the row of the floor that lies under what it shows, float32
        (h, w), −inf where it shows nothing; and its step of light, int (h, w).
    """
    rows, cols = _part(item, cell, camera)
    origin, axes = projection(camera)
    lifted = -axes[2, 1] * item.corner[2]  # pixels
    row, col = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
    to_floor = np.linalg.inv(axes[:2])
    right, down = col + 0.5 - origin[0], row + 0.5 + lifted - origin[1]
    metres = [right * to_floor[0, a] + down * to_floor[1, a] - item.corner[a] for a in range(2)]
    place = [np.floor(each / size).astype(np.intp) for each, size in zip(metres, cell, strict=True)]
    inside = (place[0] >= 0) & (place[0] < item.top.shape[0]) & (place[1] >= 0) & (place[1] < item.top.shape[1])
    number = np.where(inside, place[0] * item.top.shape[1] + place[1], item.top.size)
    rise = _padded(item.top * -axes[2, 1], -1.0).take(number)  # (h, w), pixels
    front = _foremost(rise)
    at = np.maximum(front, 0) * rise.shape[1] + np.arange(rise.shape[1])
    on_top = rise.take(at) - (front - np.arange(len(front))[:, None]) < 1.5
    light = np.where(on_top, *(_padded(each, 0).take(number.take(at)) for each in _lights(item.top, cell, camera)))
    return rows, cols, np.where(front < 0, -np.inf, front + rows.start + lifted).astype(np.float32), light


def _part(item: Relief, cell: tuple[float, float], camera: Camera) -> tuple[slice, slice]:
    """Rows and columns that the item's box can touch."""
    sides = (*(count * size for count, size in zip(item.top.shape, cell, strict=True)), max(0.0, float(item.top.max())))
    bits = np.arange(8)
    corners = np.stack([item.corner[a] + (bits >> a & 1) * sides[a] for a in range(3)], 1)
    origin, axes = projection(camera)
    pixels = origin + corners @ axes  # (8, 2), column and row
    low = np.maximum(np.floor(pixels.min(0)).astype(int) - 1, 0)
    high = np.minimum(np.ceil(pixels.max(0)).astype(int) + 1, (camera.width, camera.height))
    return slice(int(low[1]), int(high[1])), slice(int(low[0]), int(high[0]))


def _foremost(rise: np.ndarray) -> np.ndarray:
    """Row over which each pixel's visible surface stands, int (h, w); −1 for none.

    What stands on row b of a column covers the pixels from b up to b − rise, none where rise is negative; of the rows
    that cover a pixel, the largest is in front.
    """
    height, width = rise.shape
    base = np.arange(height)[:, None]
    ends = np.maximum((base - rise + 0.5).astype(np.intp), 0) * width + np.arange(width)
    ends[rise < 0] = height * width
    found = np.full(height * width + 1, _NOWHERE)
    # Of several values for one place the last one stays: the largest, row after row.
    found[ends.reshape(-1)] = np.broadcast_to(base, rise.shape).reshape(-1)
    front = np.maximum.accumulate(found[:-1].reshape(rise.shape), axis=0)
    return np.where(front >= base, front, _NOWHERE)


def _lights(top: np.ndarray, cell: tuple[float, float], camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Steps of light on the top of each cell and on its wall towards the viewer, int (P, Q).

    As in the viewer, squares of the normal weigh the lamps. What falls by more than two cells at once is a wall, whose
    normal is that of the cells around it together.
    """
    squares, walls = [], []
    solid = np.pad(np.maximum(top, 0.0), 1)
    for axis in range(2):
        fall = (solid - np.roll(solid, -1 if camera.near_face(axis) else 1, axis))[1:-1, 1:-1]
        slope = fall / cell[axis]
        squares.append(np.where(np.abs(slope) <= 2.0, slope, 0.0) ** 2)
        walls.append(load_cv2().blur(np.maximum(fall, 0.0), (5, 5)) ** 2)
    upper = (LAMPS[0] * squares[0] + LAMPS[1] * squares[1] + LAMPS[2]) / (squares[0] + squares[1] + 1.0)
    wall = (LAMPS[0] * walls[0] + LAMPS[1] * walls[1]) / np.maximum(walls[0] + walls[1], 1e-12)
    first, second = (np.round(each * (_LIGHTS - 1)).astype(np.intp) for each in (upper, wall))
    return first, second


def _padded(values: np.ndarray, outside: float) -> np.ndarray:
    """Values of all cells in one row, and behind them that of what is outside."""
    return np.append(values.reshape(-1), values.dtype.type(outside))


def _edges(label: np.ndarray) -> np.ndarray:
    """Pixels where an item begins, from the left or from above, bool (H, W); none where it is a pixel wide."""
    edge = np.zeros(label.shape, bool)
    edge[:, 1:-1] |= (label[:, 1:-1] != label[:, :-2]) & (label[:, 1:-1] == label[:, 2:])
    edge[1:-1] |= (label[1:-1] != label[:-2]) & (label[1:-1] == label[2:])
    return edge


@lru_cache(maxsize=1)
def _paints() -> np.ndarray:
    """Colours by item, step of light, and whether there is an edge; uint8 (items · steps · 2, 3)."""
    color = decode_srgb(item_colors(torch.arange(_COLORS, dtype=torch.int64, device="cpu")))[:, None, None]
    light = torch.linspace(0, 1, _LIGHTS, dtype=torch.float32, device="cpu")[:, None, None]
    ink = torch.tensor([1.0, INK], dtype=torch.float32, device="cpu")[:, None]
    shades = encode_srgb((color * light * ink).clamp(0, 1)) * 255.0
    return shades.round().to(torch.uint8).numpy().reshape(-1, 3)
