"""Solids seen through an orthographic camera: rays through a volume of densities, slice by slice from the top.

The surface at half density is met between two slices by linear interpolation and lit by the gradient of the smoothed
volume, so that round items look round although the volume is coarse.
"""

from __future__ import annotations

import math
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from torchrl_gpu.envs.packing.drawing.camera import Camera, Viewport
from torchrl_gpu.envs.packing.drawing.surface import Surface, line_width
from torchrl_gpu.envs.packing.drawing.volume import Volume

SURFACE = 0.5  # density at which an item begins
THIN_GAIN = 1.5  # what walls thinner than two voxels gain in density
LABEL_DEPTH = 0.75  # voxels below the surface where its label is read
CREASE = 2.5  # voxels: a jump in depth that is drawn as an edge within one item


def trace_solids(volume: Volume, camera: Camera) -> Surface:
    """The item that each sample of the camera's viewport sees."""
    device = volume.density.device
    ground = camera.ground(camera.viewport, device)
    density = _thicken(volume.density)
    t, hit = _march(density, volume.voxel, ground, camera)
    x, y, z = camera.forward
    place = [ground[0] + t * x, ground[1] + t * y, t * z]  # 3 × (B, h, w)
    normal = _normals(density, volume.voxel, place)
    size = min(volume.voxel)
    inside = [p - n * (LABEL_DEPTH * size) for p, n in zip(place, normal.unbind(1), strict=True)]
    label = torch.where(
        hit, _sample(volume.label.unsqueeze(1).to(t.dtype), volume.voxel, inside, "nearest")[:, 0], -1.0
    )
    label = label.round().to(torch.int64)
    ink = _outlines(label, torch.where(hit, t, 0.0), CREASE * size, camera)
    return Surface(label, t, normal, ink)


def _march(
    density: Tensor, voxel: tuple[float, float, float], ground: tuple[Tensor, Tensor], camera: Camera
) -> tuple[Tensor, Tensor]:
    """Ray parameter of the first surface, (B, h, w), and whether there is one."""
    layers = density.shape[1]
    steps = _steps_per_layer(voxel, camera)
    extents = [n * side for n, side in zip(density.shape[2:], voxel[:2], strict=True)]
    # grid_sample wants the last axis first, each from −1 to 1.
    base = torch.stack([2.0 * ground[axis] / extents[axis] - 1.0 for axis in (1, 0)], dim=-1)  # (h, w, 2)
    rate = [2.0 * camera.forward[axis] / extents[axis] for axis in (1, 0)]
    shape = (len(density), *base.shape[:2])
    last, t = density.new_zeros(shape), density.new_full(shape, torch.inf)
    padded = torch.cat((density[:, :1], density, torch.zeros_like(density[:, :1])), dim=1)  # (B, Z+2, X, Y)
    for k in range((layers + 1) * steps, steps // 2 - 1, -1):
        below, part = divmod(k, steps)
        z = (k / steps - 0.5) * voxel[2]
        rows, cols = _slice_viewport(z, camera)
        image = padded[:, below]
        if part:
            image = torch.lerp(image, padded[:, below + 1], part / steps)
        t_here = z / camera.forward[2]
        grid = base[rows, cols].clone()
        grid[..., 0] += rate[0] * t_here
        grid[..., 1] += rate[1] * t_here
        here = F.grid_sample(
            image.unsqueeze(1), grid.expand(len(density), -1, -1, -1), padding_mode="zeros", align_corners=False
        )[:, 0]
        before, best = last[:, rows, cols], t[:, rows, cols]
        back = (here - SURFACE) / (here - before).clamp_min(1e-4) * (voxel[2] / steps / camera.forward[2])
        best.copy_(torch.where((here >= SURFACE) & torch.isinf(best), t_here + back.clamp_max(0.0), best))
        before.copy_(here)
    hit = torch.isfinite(t)
    return torch.where(hit, t, 0.0), hit


def _thicken(density: Tensor) -> Tensor:
    """Densities with those of thin walls raised, which would fall into holes else, (B, Z, X, Y).

    Thin is what a morphological opening by three voxels takes away; all else stays as it is.
    """
    inner = -F.max_pool3d(-density, 3, stride=1, padding=1)
    thin = (density - F.max_pool3d(inner, 3, stride=1, padding=1)).clamp_min_(0.0)
    return (density + THIN_GAIN * thin).clamp_max_(1.0)


def _steps_per_layer(voxel: tuple[float, float, float], camera: Camera) -> int:
    """Slices per layer of voxels such that a ray moves about half a voxel sideways between two."""
    aside = math.hypot(camera.forward[0] / voxel[0], camera.forward[1] / voxel[1]) * voxel[2] / -camera.forward[2]
    return min(8, max(2, math.ceil(1.2 * aside)))


def _slice_viewport(z: float, camera: Camera) -> tuple[slice, slice]:
    """Samples, counted in the camera's viewport, that see a level of the bin."""
    x, y, _ = camera.bin_size
    viewport = camera.viewport
    row0, row1, col0, col1 = camera.around([(*corner, z) for corner in product((0.0, x), (0.0, y))], margin=2)
    inner = Viewport(
        max(row0, viewport.row0), min(row1, viewport.row1), max(col0, viewport.col0), min(col1, viewport.col1)
    )
    return (
        slice(inner.row0 - viewport.row0, inner.row1 - viewport.row0),
        slice(inner.col0 - viewport.col0, inner.col1 - viewport.col0),
    )


def _smooth(volume: Tensor, times: int) -> Tensor:
    """Binomial blur with three taps along each axis, (B, Z, X, Y)."""
    for _ in range(times):
        for axis in (1, 2, 3):
            low = volume.narrow(axis, 0, 1)
            high = volume.narrow(axis, volume.shape[axis] - 1, 1)
            wide = torch.cat((low, volume, high), dim=axis)
            size = volume.shape[axis]
            volume = 0.5 * volume + 0.25 * (wide.narrow(axis, 0, size) + wide.narrow(axis, 2, size))
    return volume


def _normals(density: Tensor, voxel: tuple[float, float, float], place: list[Tensor]) -> Tensor:
    """Unit vectors out of the material, (B, 3, h, w)."""
    field = F.pad(_smooth(density, 2), (1, 1, 1, 1, 1, 1))
    gradient = torch.stack(
        (
            (field[:, 1:-1, :-2, 1:-1] - field[:, 1:-1, 2:, 1:-1]) / voxel[0],
            (field[:, 1:-1, 1:-1, :-2] - field[:, 1:-1, 1:-1, 2:]) / voxel[1],
            (field[:, :-2, 1:-1, 1:-1] - field[:, 2:, 1:-1, 1:-1]) / voxel[2],
        ),
        dim=1,
    )  # (B, 3, Z, X, Y)
    normal = _sample(gradient, voxel, place, "bilinear")
    x, y, z = normal.unbind(1)
    return normal * (x * x + y * y + z * z).clamp_min(1e-12).rsqrt().unsqueeze(1)


def _sample(volume: Tensor, voxel: tuple[float, float, float], place: list[Tensor], mode: str) -> Tensor:
    """Values of a volume (B, C, Z, X, Y) at points, (B, C, h, w)."""
    extents = [n * side for n, side in zip(volume.shape[3:] + volume.shape[2:3], voxel, strict=True)]
    grid = torch.stack([2.0 * place[axis] / extents[axis] - 1.0 for axis in (1, 0, 2)], dim=-1).unsqueeze(1)
    return F.grid_sample(volume, grid, mode=mode, padding_mode="border", align_corners=False)[:, :, 0]


def _outlines(label: Tensor, t: Tensor, jump: float, camera: Camera) -> Tensor:
    """Coverage by edges: where the label changes, and where an item stands before a part of itself, (B, h, w)."""
    ink = torch.zeros_like(t)
    for axis in (1, 2):
        size = t.shape[axis] - 2
        before, here, after = (t.narrow(axis, i, size) for i in range(3))
        bend = before + after - 2.0 * here  # positive where this sample is the nearer one
        change = label.narrow(axis, 1, size) != label.narrow(axis, 2, size)
        edge = (change | (bend > jump)).to(t.dtype)
        inner = ink.narrow(axis, 1, size)
        torch.maximum(inner, edge, out=inner)
    wide = round(line_width(camera.height, camera.supersample))
    left, right = (wide - 1) // 2, wide // 2
    return F.max_pool2d(F.pad(ink, (left, right, left, right)), wide, stride=1)
