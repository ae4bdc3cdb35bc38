"""Sensor errors of v3, drawn by counter."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.counter_rng import draw_bits

ERROR = 0.05  # standard deviation along each axis, of a place in metres and of a velocity in m/s
KAPPA = 1.0  # concentration of the error of a radius
TRUE_SHARE = 0.8  # of the radius; the rest is multiplied by the error
_KNOTS = 256


def draw_noise(key: Tensor, step: Tensor, objects: int, table: Tensor) -> Tensor:
    """Sensor errors for each of J objects as every robot observes it, (5, R, J, N), of the dtype of the table.

    They are what is added to x, y (metres), vx and vy (m/s), along the axes of the map, and what the radius is
    multiplied by. `key` (R, 1, N) names the draws of each robot, `table` is the result of `radius_factors`.
    """
    place = torch.arange(3 * objects, device=key.device, dtype=torch.int64).view(3, 1, objects, 1)
    bits = draw_bits(key, place + step * (3 * objects))  # (3, R, J, N)
    normal = _normal_pairs(bits[:2], table.dtype) * ERROR
    return torch.cat((*normal, _looked_up(bits[2:], table)))


def radius_factors(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Quantiles (257,) of 0.8 + 0.2 φ/π at equally spaced probabilities, with φ von Mises of concentration 1.

    Made on the host: a table needs no rejection and so no host reads where it is drawn from.
    """
    angle = np.linspace(-math.pi, math.pi, 100_001)
    density = np.exp(KAPPA * np.cos(angle))
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    quantile = np.interp(np.linspace(0.0, 1.0, _KNOTS + 1), below / below[-1], angle)
    return torch.from_numpy(TRUE_SHARE + (1 - TRUE_SHARE) * quantile / math.pi).to(device, dtype)


def _normal_pairs(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers (K, 2, …), two from each 32 bits (K, …): Box and Muller, 1958."""
    radius = ((bits >> 16).to(dtype) + 0.5) * 2.0**-16
    angle = (bits & 0xFFFF).to(dtype) * (2 * math.pi * 2.0**-16)
    return (-2 * radius.log()).sqrt().unsqueeze(1) * torch.stack((angle.cos(), angle.sin()), 1)


def _looked_up(bits: Tensor, table: Tensor) -> Tensor:
    """Values of a table of quantiles, interpolated linearly between its knots."""
    place = bits.to(table.dtype) * (_KNOTS * 2.0**-32)
    knot = place.long().clamp_max(_KNOTS - 1)  # float32 may round up to the last one
    return torch.lerp(table[knot], table[knot + 1], place - knot)
