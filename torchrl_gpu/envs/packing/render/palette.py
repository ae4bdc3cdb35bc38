"""Colours of items: as far apart as possible for items placed one after the other."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

GOLDEN_TURN = 0.61803398875  # of a full circle: the hue step that keeps any run of neighbours apart
LIGHTNESS = 0.73  # OKLCH, middle of the three levels
LIGHTNESS_STEP = 0.075
CHROMA = 0.135

NUM_COLORS = 512  # of items by order of placement, then they begin again
NUM_SHADES = 65  # from dark to bright
LAMPS = (38, 22, 64)  # shade of a face across x, y and z on the viewer's side
INK = 5  # shade of an edge


def item_colors(slots: Tensor) -> Tensor:
    """Distinct colours by order of placement (any integer id does): sRGB in [0, 1], float32 (..., 3).

    Hue moves by the golden ratio, lightness runs through three levels, both in OKLCH (B. Ottosson, "A perceptual color
    space for image processing", 2020).
    """
    order = slots.to(torch.float32)
    hue = 2.0 * math.pi * torch.frac(order * GOLDEN_TURN + 0.07)
    lightness = LIGHTNESS + LIGHTNESS_STEP * (torch.remainder(slots, 3).to(torch.float32) - 1.0)
    return encode_srgb(_oklab_to_linear(lightness, CHROMA * torch.cos(hue), CHROMA * torch.sin(hue)).clamp(0.0, 1.0))


def encode_srgb(linear: Tensor) -> Tensor:
    """Linear light in [0, 1] to sRGB in [0, 1], any shape."""
    curve = 1.055 * linear.clamp_min(0.0031308) ** (1.0 / 2.4) - 0.055
    return torch.where(linear <= 0.0031308, 12.92 * linear, curve)


def decode_srgb(srgb: Tensor) -> Tensor:
    """sRGB in [0, 1] to linear light in [0, 1], any shape."""
    return torch.where(srgb <= 0.04045, srgb / 12.92, ((srgb.clamp_min(0.04045) + 0.055) / 1.055) ** 2.4)


@lru_cache(maxsize=1)
def shades() -> np.ndarray:
    """Colours of items by order of placement and by light, uint8 (NUM_COLORS, NUM_SHADES, 3)."""
    color = decode_srgb(item_colors(torch.arange(NUM_COLORS, dtype=torch.int64, device="cpu")))[:, None]
    light = torch.linspace(0, 1, NUM_SHADES, dtype=torch.float32, device="cpu")[:, None]
    found: np.ndarray = (encode_srgb((color * light).clamp(0, 1)) * 255.0).round().to(torch.uint8).numpy()
    return found


def _oklab_to_linear(lightness: Tensor, a: Tensor, b: Tensor) -> Tensor:
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short
    return torch.stack((red, green, blue), dim=-1)  # (..., 3)
