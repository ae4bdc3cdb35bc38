"""Contact shadow: how much of the space above a visible point its visible surroundings take."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from torchrl_gpu.envs.packing.drawing.camera import Camera

NUM_TAPS = 24
REACH = 0.11  # of the bin's diagonal: how far a contact shadow falls
BIAS = 0.06  # cosine below which a neighbour does not count: keeps flat faces clean
STRENGTH = 3.4


def openness(depth: Tensor, normal: Tensor, inside: Tensor, camera: Camera) -> Tensor:
    """Light left at each pixel by its surroundings.

    McGuire, Osman, Bukowski, Hennessy, "The Alchemy screen-space ambient obscurance algorithm", HPG 2011, with one
    fixed spiral of taps and a blur in place of noise.

    Args:
        depth: Distance from the screen plane, metres, one per pixel, (B, h, w).
        normal: Unit vectors out of the surface, (B, 3, h, w).
        inside: Pixels that see the bin or an item, bool (B, h, w).

    Returns:
        Light in (0, 1], (B, h, w).
    """
    reach = REACH * math.hypot(*camera.bin_size)
    metre = camera.scale / camera.supersample  # pixels
    pad = math.ceil(reach * metre)
    right, up, ahead = _in_view(normal, camera)
    depths = F.pad(depth, (pad, pad, pad, pad))
    known = F.pad(inside.to(depth.dtype), (pad, pad, pad, pad))
    shade = torch.zeros_like(depth)
    height, width = depth.shape[1:]
    for drow, dcol in _spiral(reach * metre):
        rows, cols = slice(pad + drow, pad + drow + height), slice(pad + dcol, pad + dcol + width)
        du, dv = dcol / metre, -drow / metre
        dd = depths[:, rows, cols] - depth
        square = dd * dd + (du * du + dv * dv)
        cosine = (right * du + up * dv + ahead * dd) * square.rsqrt() - BIAS
        shade += cosine.clamp_min_(0.0) * (1.0 - square / reach**2).clamp_min_(0.0) * known[:, rows, cols]
    shade = shade * (STRENGTH / NUM_TAPS)
    return 1.0 / (1.0 + _soften(shade, depth, reach))


def _in_view(normal: Tensor, camera: Camera) -> tuple[Tensor, Tensor, Tensor]:
    """Normals along the screen's right, its up, and away from the viewer, each (B, h, w)."""
    x, y, z = normal.unbind(1)
    right, up = (x * camera.axes[0][i] + y * camera.axes[1][i] + z * camera.axes[2][i] for i in range(2))
    return right, up, x * camera.forward[0] + y * camera.forward[1] + z * camera.forward[2]


def _spiral(radius: float) -> list[tuple[int, int]]:
    """Row and column offsets of the taps: equal steps outward, the golden angle between them."""
    taps = []
    for k in range(NUM_TAPS):
        r, turn = radius * ((k + 0.7) / NUM_TAPS) ** 0.8, k * math.pi * (3.0 - math.sqrt(5.0))
        drow, dcol = round(r * math.sin(turn)), round(r * math.cos(turn))
        taps.append((drow, dcol) if (drow, dcol) != (0, 0) else (1, 0))
    return taps


def _soften(shade: Tensor, depth: Tensor, reach: float) -> Tensor:
    """Mean over neighbours at about the same depth, first across, then down; (B, h, w)."""
    for axis in (1, 2):
        total, weight = shade.clone(), torch.ones_like(shade)
        for step in (1, 2, 3, 4):
            for near, far in ((slice(step, None), slice(None, -step)), (slice(None, -step), slice(step, None))):
                here, there = ((slice(None), s) if axis == 1 else (slice(None), slice(None), s) for s in (near, far))
                alike = (1.0 - (depth[here] - depth[there]).abs() / (0.35 * reach)).clamp_min_(0.0)
                total[here] += alike * shade[there]
                weight[here] += alike
        shade = total / weight
    return shade
