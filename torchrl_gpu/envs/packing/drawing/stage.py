"""The bin itself: floor and two back walls with a grid behind the items, a thin wireframe before them."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.drawing.camera import Camera, Vector
from torchrl_gpu.envs.packing.drawing.palette import linear_rgb

BACKGROUND = "#f3f4f6"
FLOOR = "#dfe3e8"
WALLS = ("#e9ecf0", "#e3e7ec")  # across x, across y
GRID = "#c3cad3"
WIRE = "#3c4653"
GRID_LINES = 12  # at most, along the longest side
FRONT_ALPHA, BACK_ALPHA = 0.7, 0.35


class Stage(NamedTuple):
    """The empty bin in a camera's viewport.

    rgb: Linear light, shape (3, h, w).
    t: Ray parameter of floor and walls, metres, shape (h, w).
    normal: Unit vectors into the bin, shape (3, h, w).
    inside: Samples that see the bin, bool, shape (h, w).
    wire: Coverage of each pixel by the front wireframe, shape (h / supersample, w / supersample).
    """

    rgb: Tensor
    t: Tensor
    normal: Tensor
    inside: Tensor
    wire: Tensor


@lru_cache(maxsize=8)
def build_stage(camera: Camera, device: torch.device) -> Stage:
    """The bin as a camera sees it; kept, since every frame of a run has the same."""
    with torch.inference_mode(False), torch.no_grad():
        return _build_stage(camera, device)


def _build_stage(camera: Camera, device: torch.device) -> Stage:
    ground = camera.ground(camera.viewport, device)
    starts = (*ground, torch.zeros_like(ground[0]))
    enter, leave = [], []
    for axis, side in enumerate(camera.bin_size):
        planes = [-starts[axis] / camera.forward[axis], (side - starts[axis]) / camera.forward[axis]]
        enter.append(planes[camera.near_face(axis)])
        leave.append(planes[1 - camera.near_face(axis)])
    t = torch.minimum(torch.minimum(leave[0], leave[1]), leave[2])  # (h, w)
    inside = torch.maximum(torch.maximum(enter[0], enter[1]), enter[2]) < t
    point = [start + t * slope for start, slope in zip(starts, camera.forward, strict=True)]
    faces = [leave[0] <= t, leave[1] <= t, leave[2] <= t]
    rgb = _color(BACKGROUND, device).expand(3, *t.shape)
    for axis, base in enumerate((*WALLS, FLOOR)):
        face = _blend(_color(base, device), _color(GRID, device), _grid_coverage(point, axis, camera))
        rgb = torch.where(inside & faces[axis], face, rgb)
    signs = [1.0 if slope < 0.0 else -1.0 for slope in camera.forward]
    normal = torch.stack([face.to(t.dtype) * sign for face, sign in zip(faces, signs, strict=True)])
    return Stage(rgb, t, normal, inside, _wireframe(camera, device))


def grid_step(bin_size: Vector) -> float:
    """Distance of grid lines, metres: the smallest of 1, 2, 5 × 10ⁿ that gives at most `GRID_LINES` of them."""
    least = max(bin_size) / GRID_LINES
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * 0.999)


def _grid_coverage(point: list[Tensor], axis: int, camera: Camera) -> Tensor:
    """Coverage by grid lines of the face across `axis`, (h, w)."""
    step = grid_step(camera.bin_size)
    coverage = torch.zeros_like(point[0])
    first, second = (a for a in range(3) if a != axis)
    for along, parallel in ((first, second), (second, first)):
        cells = point[along] / step
        samples = (cells - cells.round()).abs() * step * camera.spacing(along, parallel)
        coverage = torch.maximum(coverage, (0.5 * camera.supersample + 0.5 - samples).clamp(0.0, 1.0))
    return coverage


def _wireframe(camera: Camera, device: torch.device) -> Tensor:
    """Coverage by the bin's edges; those that the items can hide, at the back, are left to the grid."""
    viewport, s = camera.viewport, camera.supersample
    rows = torch.arange(viewport.row0 // s, viewport.row1 // s, device=device, dtype=torch.int64) + 0.5
    cols = torch.arange(viewport.col0 // s, viewport.col1 // s, device=device, dtype=torch.int64) + 0.5
    coverage = rows.new_zeros(len(rows), len(cols))
    width = max(1.0, camera.height / 420.0)
    for start, end, alpha in _edges(camera):
        (row0, col0), (row1, col1) = (tuple(c / s for c in camera.pixel(p)) for p in (start, end))
        drow, dcol = row1 - row0, col1 - col0
        length = max(math.hypot(drow, dcol), 1e-9)
        y, x = rows[:, None] - row0, cols - col0
        along = ((y * drow + x * dcol) / length**2).clamp(0.0, 1.0)
        distance = torch.hypot(y - along * drow, x - along * dcol)
        coverage = torch.maximum(coverage, alpha * (0.5 * width + 0.5 - distance).clamp(0.0, 1.0))
    return coverage


def _edges(camera: Camera) -> list[tuple[Vector, Vector, float]]:
    """The nine edges of the bin that touch a face on the viewer's side, with their strength."""
    edges: list[tuple[Vector, Vector, float]] = []
    for axis in range(3):
        others = [a for a in range(3) if a != axis]
        for sides in product((0, 1), repeat=2):
            near = sum(side == camera.near_face(a) for side, a in zip(sides, others, strict=True))
            if near == 0:
                continue  # both faces are at the back
            start, end = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
            end[axis] = camera.bin_size[axis]
            for side, a in zip(sides, others, strict=True):
                start[a] = end[a] = side * camera.bin_size[a]
            alpha = FRONT_ALPHA if near == 2 else BACK_ALPHA
            edges.append(((start[0], start[1], start[2]), (end[0], end[1], end[2]), alpha))
    return edges


def _color(hex_color: str, device: torch.device) -> Tensor:
    # Filled channel by channel: a tensor made from a list would be copied from the host.
    return torch.stack(
        [torch.full((1, 1), c, device=device, dtype=torch.float32) for c in linear_rgb(hex_color)]
    )  # (3, 1, 1)


def _blend(base: Tensor, over: Tensor, alpha: Tensor) -> Tensor:
    return base + (over - base) * alpha
