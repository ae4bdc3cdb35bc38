"""Colours of items, far apart for items placed one after the other."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

# Share of a full circle: the hue step that keeps any run of neighbours apart.
GOLDEN_TURN = 0.61803398875
# Of OKLCH, the middle of the three levels.
LIGHTNESS = 0.73
LIGHTNESS_STEP = 0.075
CHROMA = 0.135

# Colours of items by order of placement; then they begin again.
NUM_COLORS = 512
# Shades of a colour from dark to bright.
NUM_SHADES = 65
# Shade of a face across x, y and z on the viewer's side.
LAMPS = (38, 22, 64)
# Shade of an edge.
INK = 5


def item_colors(slots: Tensor) -> Tensor:
    """Return distinct colours by order of placement, sRGB in [0, 1], float32 (..., 3).

    Any integer id will do. Hue moves by the golden ratio, lightness runs through three levels, both in OKLCH
    (B. Ottosson, "A perceptual color space for image processing", 2020).
    """
    order = slots.to(torch.float32)
    hue = 2.0 * math.pi * torch.frac(order * GOLDEN_TURN + 0.07)
    lightness = LIGHTNESS + LIGHTNESS_STEP * (torch.remainder(slots, 3).to(torch.float32) - 1.0)
    linear = _oklab_to_linear(lightness, CHROMA * torch.cos(hue), CHROMA * torch.sin(hue))
    return encode_srgb(linear.clamp(0.0, 1.0))


def encode_srgb(linear: Tensor) -> Tensor:
    """Return the sRGB in [0, 1] of linear light in [0, 1], any shape."""
    curve = 1.055 * linear.clamp_min(0.0031308) ** (1.0 / 2.4) - 0.055
    return torch.where(linear <= 0.0031308, 12.92 * linear, curve)


def decode_srgb(srgb: Tensor) -> Tensor:
    """Return the linear light in [0, 1] of sRGB in [0, 1], any shape."""
    curve = ((srgb.clamp_min(0.04045) + 0.055) / 1.055) ** 2.4
    return torch.where(srgb <= 0.04045, srgb / 12.92, curve)


@lru_cache(maxsize=1)
def shades() -> np.ndarray:
    """Return colours of items by order of placement and by light.

    Uint8 (NUM_COLORS, NUM_SHADES, 3).
    """
    number = torch.arange(NUM_COLORS, dtype=torch.int64, device="cpu")
    color = decode_srgb(item_colors(number))[:, None]
    light = torch.linspace(0, 1, NUM_SHADES, dtype=torch.float32, device="cpu")[:, None]
    srgb = encode_srgb((color * light).clamp(0, 1))
    found: np.ndarray = (srgb * 255.0).round().to(torch.uint8).numpy()
    return found


def _oklab_to_linear(lightness: Tensor, a: Tensor, b: Tensor) -> Tensor:
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short
    return torch.stack((red, green, blue), dim=-1)  # (..., 3)
