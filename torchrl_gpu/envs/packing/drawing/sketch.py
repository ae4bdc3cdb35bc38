"""Boxes in a bin, painted from back to front: a hundredth of the time of a traced picture, without contact shadows.

For watching on a CPU, where a picture must not take the time of a training step. Through OpenCV.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from torchrl_gpu.envs.packing.drawing.boxes import trace_boxes
from torchrl_gpu.envs.packing.drawing.camera import Camera
from torchrl_gpu.envs.packing.drawing.palette import decode_srgb, encode_srgb, item_colors
from torchrl_gpu.envs.packing.drawing.shading import INK, LAMPS, compose
from torchrl_gpu.envs.packing.drawing.stage import WIRE, build_stage

MISSING = "sketch: want OpenCV, which an extra brings, pip install 'torchrl_gpu[stream]'; got an install without it"

_SHIFT = 4  # of OpenCV's fixed-point coordinates: sixteenths of a pixel
_EPS = 1e-6  # of the bin: what is closer touches
_COLORS = 512  # items by order of placement, then they begin again

# Corners of a box by the bits of their number: 1 for the upper end along x, 2 along y, 4 along z. The faces across x, y
# and z at the lower end; the same with the axis' bit set at the upper one.
_FACES = ((0, 2, 6, 4), (0, 1, 5, 4), (0, 1, 3, 2))


def sketch_boxes(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> np.ndarray:
    """A bin with its boxes.

    Args:
        lower, upper: Opposite corners of boxes that do not overlap, metres, float (M, 3), in order of placement, which
            decides the colours.
        camera: Its `supersample` does not count.

    Returns:
        uint8 (H, W, 3), RGB.

    Raises:
        ModuleNotFoundError: OpenCV is not installed; the message names the extra.
    """
    cv2 = load_cv2()
    empty, wire_at, wire_alpha = empty_bin(camera)
    canvas = empty.copy()
    faces, lines = _paints()  # also for an empty bin, so that the first box is drawn as fast as the next
    if not len(lower):
        return canvas
    for box, low, high in _back_to_front(np.asarray(lower, float), np.asarray(upper, float), camera):
        corners = _corners(low, high, camera)
        for axis, face in enumerate(_FACES):
            points = corners[[c | camera.near_face(axis) << axis for c in face]]
            slot = box % _COLORS
            cv2.fillConvexPoly(canvas, points, faces[slot][axis], cv2.LINE_AA, _SHIFT)
            cv2.polylines(canvas, [points], True, lines[slot][axis], 1, cv2.LINE_AA, _SHIFT)
    draw_wire(canvas, empty, wire_at, wire_alpha)
    return canvas


def load_cv2() -> Any:
    try:
        import cv2
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING, name=error.name) from error
    return cv2


# -- order ----------------------------------------------------------------------------------------------------------


def _back_to_front(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Boxes, or pieces of them, in an order in which none hides a later one: number, lower and upper corner.

    Seen from above and from one side, A must come before B where a part of A lies below, left of and behind a part of
    B. Three boxes can be before each other in a ring, as bars that lean on each other are; cut into layers between all
    their floors and lids they cannot (two dimensions have no such rings).
    """
    number = np.arange(len(lower))
    order = _ordered(lower, upper, camera)
    if len(order) < len(number):
        number, lower, upper = _layers(lower, upper)
        order = _ordered(lower, upper, camera)
        order += sorted(set(range(len(number))) - set(order))  # none but of boxes that overlap
    return [(int(number[i]), lower[i], upper[i]) for i in order]


def _ordered(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> list[int]:
    """Indices back to front, but for those of rings and of what comes behind them."""
    low, high = _towards_viewer(lower, upper, camera)
    eps = _EPS * max(camera.bin_size)
    before: np.ndarray = np.all(low[:, None] < high[None] - eps, -1)  # (M, M): the row's box before the column's
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


def _towards_viewer(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """The same boxes with every axis pointing at the viewer."""
    flipped = np.array([not camera.near_face(axis) for axis in range(3)])
    return np.where(flipped, -upper, lower), np.where(flipped, -lower, upper)


def _layers(lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The boxes cut at every floor and lid: numbers (L,), lower and upper corners (L, 3)."""
    cuts = np.unique(np.concatenate([lower[:, 2], upper[:, 2]]))
    number, below, above = [], [], []
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        inside = cuts[(cuts >= low[2]) & (cuts <= high[2])]
        for floor, lid in pairwise(inside):
            number.append(i)
            below.append([low[0], low[1], floor])
            above.append([high[0], high[1], lid])
    return np.array(number), np.array(below), np.array(above)


# -- paint ----------------------------------------------------------------------------------------------------------


def _corners(low: np.ndarray, high: np.ndarray, camera: Camera) -> np.ndarray:
    """The eight corners on the picture, in OpenCV's fixed-point numbers, int32 (8, 2): column, row."""
    bits = np.arange(8)
    points = np.stack([np.where(bits >> axis & 1, high[axis], low[axis]) for axis in range(3)], 1)  # (8, 3)
    origin, axes = projection(camera)
    pixels = origin + points @ axes - 0.5  # OpenCV counts from the centre of the first pixel
    return np.round(pixels * (1 << _SHIFT)).astype(np.int32)


@lru_cache(maxsize=8)
def projection(camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Where the bin's corner is, (2,), and where a metre along each axis leads, (3, 2): column, row in pixels."""

    def pixel(*point: float) -> np.ndarray:
        return np.array(camera.pixel((point[0], point[1], point[2]))[::-1]) / camera.supersample

    origin = pixel(0.0, 0.0, 0.0)
    return origin, np.stack([pixel(*row) - origin for row in np.eye(3)])


@lru_cache(maxsize=1)
def _paints() -> tuple[list[list[tuple[int, ...]]], list[list[tuple[int, ...]]]]:
    """Colours of the three faces of each item, and of their edges."""
    light = (
        decode_srgb(item_colors(torch.arange(_COLORS, dtype=torch.int64, device="cpu")))[:, None]
        * torch.tensor(LAMPS, dtype=torch.float32, device="cpu")[:, None]
    )  # (M, 3, 3)
    filled, drawn = ((encode_srgb(part) * 255.0).round().int().tolist() for part in (light, light * INK))
    return [[tuple(face) for face in each] for each in filled], [[tuple(face) for face in each] for each in drawn]


@lru_cache(maxsize=8)
def empty_bin(camera: Camera) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The viewer's own picture of the empty bin, pixels of its front wireframe, and its strength there."""
    fine = Camera(camera.bin_size, camera.width, camera.height, camera.azimuth_deg, camera.elevation_deg, 2)
    corner = torch.zeros(1, 1, 3, dtype=torch.float32, device="cpu")
    nothing = trace_boxes(corner, corner, torch.zeros(1, 1, dtype=torch.bool, device="cpu"), fine)
    picture = compose(nothing, item_colors(torch.zeros(1, 1, dtype=torch.float32, device="cpu")), fine)[0].numpy()
    wire = build_stage(fine, torch.device("cpu")).wire.numpy()
    row, col = np.nonzero(wire > 0.01)
    at = (row + fine.viewport.row0 // 2) * camera.width + col + fine.viewport.col0 // 2
    return picture, at, wire[row, col][:, None].astype(np.float32)


def draw_wire(canvas: np.ndarray, empty: np.ndarray, at: np.ndarray, alpha: np.ndarray) -> None:
    """The bin's front edges, once more where something has been painted over them; arguments as of `empty_bin`."""
    here, before = (each.reshape(-1, 3).take(at, axis=0) for each in (canvas, empty))
    ink = np.array([int(WIRE[i : i + 2], 16) for i in (1, 3, 5)], np.float32)
    drawn = (here + (ink - here) * alpha + 0.5).astype(np.uint8)
    canvas.reshape(-1, 3)[at] = np.where((here != before).any(1, keepdims=True), drawn, here)
