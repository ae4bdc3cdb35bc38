"""Boxes in a bin, painted from back to front."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from PIL import ImageDraw

from torchrl_gpu.envs.packing.render.camera import NEAR, Camera, empty_bin, finish
from torchrl_gpu.envs.packing.render.palette import INK, LAMPS, NUM_COLORS, shades

# Share of the bin: boxes that are closer touch.
_EPS = 1e-6
# Whether each corner of a box is at the upper end of each axis, (8, 3).
_UPPER = np.arange(8)[:, None] >> np.arange(3) & 1 == 1
# Corners around the lower face across x, y and z. Around the upper one they have the axis' bit as well.
_FACES = ((0, 2, 6, 4, 0), (0, 1, 5, 4, 0), (0, 1, 3, 2, 0))


def paint_boxes(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> np.ndarray:
    """Return the picture of boxes that do not overlap, uint8 (H, W, 3).

    Args:
        lower, upper: Corners in order of placement, metres, (M, 3).
        camera: The view.
    """
    image = empty_bin(camera).copy()
    pen = ImageDraw.Draw(image)
    number, lower, upper = back_to_front(lower, upper, camera)
    # (M, 8, 2), as Pillow counts.
    corners = camera.samples(np.where(_UPPER, upper[:, None], lower[:, None])) - 0.5
    seen = [_corners_of_face(axis) for axis in range(3)]
    faces = corners[:, seen].reshape(-1, 3, 10)
    for points, colors in zip(faces.tolist(), shades()[number % NUM_COLORS], strict=True):
        for outline, lamp in zip(points, LAMPS, strict=True):
            pen.polygon(outline, fill=tuple(colors[lamp]))
            pen.line(outline, fill=tuple(colors[INK]), width=camera.line)
    return finish(image, camera)


def _corners_of_face(axis: int) -> list[int]:
    """Return the corners around the face across an axis that the viewer sees."""
    return [corner | NEAR[axis] << axis for corner in _FACES[axis]]


def back_to_front(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return boxes, or pieces of them, so that none hides a later one.

    Seen from above and from one side, A must come before B where a part of A lies below, left of and behind a part of
    B. Boxes can be before each other in a ring, as bars that lean on each other are; cut into layers between all their
    floors and lids they cannot (two dimensions have no such rings).

    Returns:
        Box numbers, (L,), lower and upper corners, (L, 3).
    """
    number = np.arange(len(lower))
    order = _ordered(lower, upper, camera)
    if len(order) < len(number):
        number, lower, upper = _layers(lower, upper)
        order = _ordered(lower, upper, camera)
        # Only boxes that overlap are missing.
        order += sorted(set(range(len(number))) - set(order))
    return number[order], lower[order], upper[order]


def _ordered(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> list[int]:
    """Return indices from back to front.

    Boxes in rings, and those that must follow them, are left out.
    """
    # With every axis pointing at the viewer.
    far = np.where(NEAR, lower, -upper)
    near = np.where(NEAR, upper, -lower)
    # Whether the box of a row comes before that of a column, (M, M).
    gap = _EPS * max(camera.bin_size)
    before: np.ndarray = np.all(far[:, None] < near[None] - gap, -1)
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
    """Return pieces of the boxes cut at every floor and lid, as `back_to_front` does."""
    cuts = np.unique(np.concatenate([lower[:, 2], upper[:, 2]]))
    number = []
    below = []
    above = []
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        within = cuts[(cuts >= low[2]) & (cuts <= high[2])]
        for floor, lid in pairwise(within):
            number.append(i)
            below.append([low[0], low[1], floor])
            above.append([high[0], high[1], lid])
    return np.array(number), np.array(below), np.array(above)
