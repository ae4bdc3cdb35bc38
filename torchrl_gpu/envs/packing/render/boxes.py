"""Boxes in a bin, painted from back to front."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from PIL import ImageDraw

from torchrl_gpu.envs.packing.render.camera import NEAR, Camera, empty_bin, finished
from torchrl_gpu.envs.packing.render.palette import INK, LAMPS, NUM_COLORS, shades

_EPS = 1e-6  # of the bin: boxes that are closer touch
_UPPER = np.arange(8)[:, None] >> np.arange(3) & 1 == 1  # (8, 3): whether a corner is at the upper end of each axis
# Corners around the lower face across x, y and z; that of the upper one has the axis' bit besides.
_FACES = ((0, 2, 6, 4, 0), (0, 1, 5, 4, 0), (0, 1, 3, 2, 0))


def paint_boxes(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> np.ndarray:
    """Picture uint8 (H, W, 3) of boxes between corners (M, 3) that do not overlap, metres, in order of placement."""
    image = empty_bin(camera).copy()
    pen = ImageDraw.Draw(image)
    number, lower, upper = back_to_front(lower, upper, camera)
    corners = camera.samples(np.where(_UPPER, upper[:, None], lower[:, None])) - 0.5  # (M, 8, 2), as Pillow counts
    faces = corners[:, [[corner | NEAR[axis] << axis for corner in face] for axis, face in enumerate(_FACES)]]
    for points, colors in zip(faces.reshape(-1, 3, 10).tolist(), shades()[number % NUM_COLORS], strict=True):
        for outline, lamp in zip(points, LAMPS, strict=True):
            pen.polygon(outline, fill=tuple(colors[lamp]))
            pen.line(outline, fill=tuple(colors[INK]), width=camera.line)
    return finished(image, camera)


def back_to_front(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes, or pieces of them, so that none hides a later one: box numbers (L,), lower and upper corners (L, 3).

    Seen from above and from one side, A must come before B where a part of A lies below, left of and behind a part of
    B. Boxes can be before each other in a ring, as bars that lean on each other are; cut into layers between all their
    floors and lids they cannot (two dimensions have no such rings).
    """
    number = np.arange(len(lower))
    order = _ordered(lower, upper, camera)
    if len(order) < len(number):
        number, lower, upper = _layers(lower, upper)
        order = _ordered(lower, upper, camera)
        order += sorted(set(range(len(number))) - set(order))  # none but of boxes that overlap
    return number[order], lower[order], upper[order]


def _ordered(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> list[int]:
    """Indices from back to front, without boxes in rings and those that must follow them."""
    far = np.where(NEAR, lower, -upper)  # with every axis pointing at the viewer
    near = np.where(NEAR, upper, -lower)
    before: np.ndarray = np.all(
        far[:, None] < near[None] - _EPS * max(camera.bin_size), -1
    )  # (M, M): row before column
    np.fill_diagonal(before, False)
    waits_for = before.sum(0)
    order: list[int] = []
    ready = list(np.flatnonzero(waits_for == 0))
    while ready:
        chosen = ready.pop()
        order.append(int(chosen))
        waits_for = waits_for - before[chosen]
        ready += [i for i in np.flatnonzero(before[chosen]) if waits_for[i] == 0]
    return order


def _layers(lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pieces of the boxes cut at every floor and lid: box numbers (L,), lower and upper corners (L, 3)."""
    cuts = np.unique(np.concatenate([lower[:, 2], upper[:, 2]]))
    number, below, above = [], [], []
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        for floor, lid in pairwise(cuts[(cuts >= low[2]) & (cuts <= high[2])]):
            number.append(i)
            below.append([low[0], low[1], floor])
            above.append([high[0], high[1], lid])
    return np.array(number), np.array(below), np.array(above)
