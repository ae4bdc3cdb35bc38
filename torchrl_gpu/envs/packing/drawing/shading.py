"""From what the samples see to a picture: colour, light, contact shadow, lines, averaging."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchrl_gpu.envs.packing.drawing.camera import Camera
from torchrl_gpu.envs.packing.drawing.occlusion import openness
from torchrl_gpu.envs.packing.drawing.palette import decode_srgb, encode_srgb, linear_rgb
from torchrl_gpu.envs.packing.drawing.stage import BACKGROUND, WIRE, Stage, build_stage
from torchrl_gpu.envs.packing.drawing.surface import Surface

INK = 0.10  # what an edge leaves of the colour below it
LAMPS = (0.60, 0.34, 1.0)  # light on the faces across x, y and z that the viewer sees
AVERTED = 0.25


def compose(surface: Surface, colors: Tensor, camera: Camera) -> Tensor:
    """The finished picture.

    Args:
        surface: What the samples of the camera's viewport see.
        colors: sRGB of each item in [0, 1], float32 (B, M, 3).

    Returns:
        uint8 (B, H, W, 3).
    """
    stage = build_stage(camera, surface.t.device)
    seen = (surface.label >= 0).unsqueeze(1)  # (B, 1, h, w)
    rgb = _of_label(decode_srgb(colors), surface.label) * _light(surface.normal, camera).unsqueeze(1)  # (B, 3, h, w)
    rgb = torch.where(seen, rgb, stage.rgb) * _contact_shadow(surface, stage, camera)
    rgb = rgb * (1.0 - (1.0 - INK) * surface.ink).unsqueeze(1)
    rgb = F.avg_pool2d(rgb, camera.supersample)
    return _on_canvas(_with_wire(rgb, stage), camera)


def _of_label(colors: Tensor, label: Tensor) -> Tensor:
    """Colour of each sample's item, (B, M, 3) to (B, 3, h, w)."""
    index = label.clamp_min(0).flatten(1).unsqueeze(1).expand(-1, 3, -1)  # (B, 3, h·w)
    return colors.transpose(1, 2).gather(2, index).unflatten(2, label.shape[1:])


def _light(normal: Tensor, camera: Camera) -> Tensor:
    """Light by the way a surface faces: squares of the normal weigh the lamps, (B, h, w)."""
    square = normal * normal
    light = square[:, 2] * LAMPS[2]
    for axis in range(2):
        # A face that is seen gets its lamp; the opposite one, seen only in hollows of round items, the dimmer.
        toward = normal[:, axis] > 0.0 if camera.near_face(axis) else normal[:, axis] < 0.0
        light = light + square[:, axis] * torch.where(toward, LAMPS[axis], AVERTED)
    return light


def _contact_shadow(surface: Surface, stage: Stage, camera: Camera) -> Tensor:
    """Light left by the surroundings, made once per pixel, (B, 1, h, w)."""
    s = camera.supersample
    label, t = surface.label[:, ::s, ::s], surface.t[:, ::s, ::s]
    seen = label >= 0
    depth = torch.where(seen, t, stage.t[::s, ::s]) + camera.ground_depth(camera.viewport, t.device)[::s]
    normal = torch.where(seen.unsqueeze(1), surface.normal[:, :, ::s, ::s], stage.normal[:, ::s, ::s])
    inside = seen | stage.inside[::s, ::s]
    light = openness(depth, normal, inside, camera)
    return torch.where(inside, light, 1.0).unsqueeze(1).repeat_interleave(s, 2).repeat_interleave(s, 3)


def _with_wire(rgb: Tensor, stage: Stage) -> Tensor:
    for channel, value in enumerate(linear_rgb(WIRE)):
        rgb[:, channel] += (value - rgb[:, channel]) * stage.wire
    return rgb


def _on_canvas(rgb: Tensor, camera: Camera) -> Tensor:
    """Linear light of the viewport to an 8-bit picture, (B, 3, h, w) to (B, H, W, 3)."""
    patch = (encode_srgb(rgb.clamp(0.0, 1.0)) * 255.0 + 0.5).to(torch.uint8).permute(0, 2, 3, 1)
    canvas = torch.empty(len(rgb), camera.height, camera.width, 3, dtype=torch.uint8, device=rgb.device)
    for channel in range(3):
        canvas[..., channel] = int(BACKGROUND[1 + 2 * channel : 3 + 2 * channel], 16)
    viewport, s = camera.viewport, camera.supersample
    canvas[:, viewport.row0 // s : viewport.row1 // s, viewport.col0 // s : viewport.col1 // s] = patch
    return canvas
