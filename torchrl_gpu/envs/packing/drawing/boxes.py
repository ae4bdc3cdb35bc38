"""Boxes seen through an orthographic camera: ray against slabs, exact to the sample."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.drawing.camera import Camera, Viewport
from torchrl_gpu.envs.packing.drawing.surface import Surface, line_width

CPU_SAMPLES = 1 << 16  # a pass over a band of this many samples stays in the cache
CUDA_SAMPLES = 1 << 24  # one launch per operator for a whole picture


def trace_boxes(lower: Tensor, upper: Tensor, present: Tensor, camera: Camera) -> Surface:
    """The box that each sample of the camera's viewport sees.

    Args:
        lower, upper: Opposite corners, metres, float32 (B, M, 3).
        present: Boxes to draw, bool (B, M).
    """
    viewport = camera.viewport
    limit = CPU_SAMPLES if lower.device.type == "cpu" else CUDA_SAMPLES
    rows = max(1, limit // (lower.shape[0] * (viewport.col1 - viewport.col0)))
    bands = [
        _trace_band(
            lower, upper, present, camera, Viewport(row, min(row + rows, viewport.row1), viewport.col0, viewport.col1)
        )
        for row in range(viewport.row0, viewport.row1, rows)
    ]
    return Surface(*(torch.cat(parts, dim=-2) for parts in zip(*bands, strict=True)))


def _trace_band(lower: Tensor, upper: Tensor, present: Tensor, camera: Camera, band: Viewport) -> Surface:
    ground = camera.ground(band, lower.device)  # 2 × (h, w)
    enter, leave = _slabs(lower, upper, present, camera)
    shift = [-ground[axis] / camera.forward[axis] for axis in range(2)]  # (h, w)
    t, label = _nearest(shift, enter, leave)
    normal, ink = _faces(ground, label, lower, upper, camera)
    return Surface(label, t, normal, ink)


def _slabs(lower: Tensor, upper: Tensor, present: Tensor, camera: Camera) -> tuple[Tensor, Tensor]:
    """Where a ray from the origin enters and leaves each slab, (B, M, 3); it never meets an absent box."""
    near = [upper[..., axis] if camera.near_face(axis) else lower[..., axis] for axis in range(3)]
    far = [lower[..., axis] if camera.near_face(axis) else upper[..., axis] for axis in range(3)]
    enter = torch.stack([plane / camera.forward[axis] for axis, plane in enumerate(near)], dim=-1)
    leave = torch.stack([plane / camera.forward[axis] for axis, plane in enumerate(far)], dim=-1)
    return enter.masked_fill(~present[..., None], torch.inf), leave


def _nearest(shift: list[Tensor], enter: Tensor, leave: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest ray parameter over the boxes and the box it belongs to, each (B, h, w)."""
    batch, num_boxes = enter.shape[:2]
    shape = (batch, *shift[0].shape)
    t = enter.new_full(shape, torch.inf)
    label = torch.full(shape, -1, dtype=torch.int16, device=enter.device)
    first, last, other = torch.empty_like(t), torch.empty_like(t), torch.empty_like(t)
    hit = torch.empty_like(t, dtype=torch.bool)
    for m in range(num_boxes):
        (x0, y0, z0), (x1, y1, z1) = (c[:, m, :, None, None].unbind(1) for c in (enter, leave))  # (B, 1, 1)
        torch.add(shift[0], x0, out=first)
        torch.add(shift[1], y0, out=other)
        torch.maximum(first, other, out=first).clamp_min_(z0)
        torch.add(shift[0], x1, out=last)
        torch.add(shift[1], y1, out=other)
        torch.minimum(last, other, out=last).clamp_max_(z1)
        torch.minimum(last, t, out=last)  # leaving behind what is nearer already: hidden
        torch.lt(first, last, out=hit)
        torch.where(hit, first, t, out=t)
        label.masked_fill_(hit, m)
    return t, label.to(torch.int64)


def _faces(
    ground: tuple[Tensor, Tensor], label: Tensor, lower: Tensor, upper: Tensor, camera: Camera
) -> tuple[Tensor, Tensor]:
    """Normals (B, 3, h, w) and edge lines (B, h, w) of the faces that are seen."""
    corners = [_of_label(torch.stack((lower, upper)), label, axis) for axis in range(3)]  # 3 × (2, B, h, w)
    enter = []
    for axis, pair in enumerate(corners):
        start = ground[axis] if axis < 2 else 0.0
        enter.append((pair[camera.near_face(axis)] - start) / camera.forward[axis])
    t = torch.maximum(torch.maximum(enter[0], enter[1]), enter[2])
    on_top = enter[2] >= t
    on_x = (enter[0] >= t) & ~on_top
    faces = zip((on_x, ~(on_x | on_top), on_top), camera.forward, strict=True)
    normal = torch.stack([face.to(t.dtype) * (1.0 if slope < 0.0 else -1.0) for face, slope in faces], dim=1)
    margins = []  # distance to the face's nearer border along each axis, metres
    for axis, (low, high) in enumerate(corners):
        place = t * camera.forward[axis] + (ground[axis] if axis < 2 else 0.0)
        margins.append(torch.minimum(place - low, high - place))
    x, y, z = margins
    far = torch.where(
        on_top,
        torch.minimum(x * camera.spacing(0, 1), y * camera.spacing(1, 0)),
        torch.where(
            on_x,
            torch.minimum(y * camera.spacing(1, 2), z * camera.spacing(2, 1)),
            torch.minimum(x * camera.spacing(0, 2), z * camera.spacing(2, 0)),
        ),
    )
    half = 0.5 * line_width(camera.height, camera.supersample)
    return normal, (half + 0.5 - far).clamp(0.0, 1.0) * (label >= 0)


def _of_label(corners: Tensor, label: Tensor, axis: int) -> Tensor:
    """One coordinate of the labelled boxes' corners, (2, B, M, 3) to (2, B, h, w)."""
    index = label.clamp_min(0).flatten(1).expand(2, -1, -1)  # (2, B, h·w)
    return corners[..., axis].gather(2, index).unflatten(2, label.shape[1:])
