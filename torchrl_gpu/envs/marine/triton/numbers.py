"""Angles and random bits inside a Triton kernel.

Blocks are float32 or float64, of any shape. Sines and angles are computed from their series. CUDA's own functions keep
a stack for arguments of any size, and an arc tangent is not among Triton's, so that its interpreter would have none.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math

import triton
import triton.language as tl

_HALF_PI = tl.constexpr(math.pi / 2)
_PI = tl.constexpr(math.pi)
_TURN = tl.constexpr(2 * math.pi)

# A quarter turn in three parts. The first two have so few digits that a float32 multiple of up to 4,096 is exact.
_QUARTER_HIGH = tl.constexpr(201 / 128)
_QUARTER_MIDDLE = tl.constexpr(round((math.pi / 2 - 201 / 128) * 2**23) / 2**23)
_QUARTER_LOW = tl.constexpr(
    math.pi / 2 - 201 / 128 - round((math.pi / 2 - 201 / 128) * 2**23) / 2**23 + 6.123233995736766e-17
)


@triton.jit
def cos_sin(angle):
    """Cosine and sine of angles, radians, of up to some thousand turns."""
    quarters = tl.floor(angle * (1 / _HALF_PI) + 0.5)
    rest = ((angle - quarters * _QUARTER_HIGH) - quarters * _QUARTER_MIDDLE) - quarters * _QUARTER_LOW
    # An infinite angle has no rest. The bounds keep the result finite.
    rest = tl.minimum(tl.maximum(rest, -1.0), 1.0)
    square = rest * rest
    # The series up to the 17th and the 16th power: what they leave out is below the last digit of float64.
    sin = 1 - square * (1 / 272)
    sin = 1 - square * (1 / 210) * sin
    sin = 1 - square * (1 / 156) * sin
    sin = 1 - square * (1 / 110) * sin
    sin = 1 - square * (1 / 72) * sin
    sin = 1 - square * (1 / 42) * sin
    sin = 1 - square * (1 / 20) * sin
    sin = rest * (1 - square * (1 / 6) * sin)
    cos = 1 - square * (1 / 240)
    cos = 1 - square * (1 / 182) * cos
    cos = 1 - square * (1 / 132) * cos
    cos = 1 - square * (1 / 90) * cos
    cos = 1 - square * (1 / 56) * cos
    cos = 1 - square * (1 / 30) * cos
    cos = 1 - square * (1 / 12) * cos
    cos = 1 - square * (1 / 2) * cos
    quarter = quarters - tl.floor(quarters * 0.25) * 4
    swapped = (quarter == 1) | (quarter == 3)
    turned_cos = tl.where(swapped, sin, cos)
    turned_sin = tl.where(swapped, cos, sin)
    turned_cos = tl.where((quarter == 1) | (quarter == 2), -turned_cos, turned_cos)
    turned_sin = tl.where(quarter >= 2, -turned_sin, turned_sin)
    return turned_cos, turned_sin


@triton.jit
def angle_of(x, y):
    """Return the angle of vectors, from −π to π, as `torch.atan2(y, x)` does.

    A vector of length 0 has the angle 0.
    """
    along, across = tl.abs(x), tl.abs(y)
    longer, shorter = tl.maximum(along, across), tl.minimum(along, across)
    slope = tl.where(longer > 0, shorter / tl.where(longer > 0, longer, 1.0), 0.0)
    # tan(a / 2) = t / (1 + √(1 + t²)): of a quarter of the angle, at most π / 16, the series is short.
    slope = slope / (1 + tl.sqrt(1 + slope * slope))
    slope = slope / (1 + tl.sqrt(1 + slope * slope))
    square = slope * slope
    series = 1 / 19 - square * (1 / 21)
    series = 1 / 17 - square * series
    series = 1 / 15 - square * series
    series = 1 / 13 - square * series
    series = 1 / 11 - square * series
    series = 1 / 9 - square * series
    series = 1 / 7 - square * series
    series = 1 / 5 - square * series
    series = 1 / 3 - square * series
    angle = 4 * slope * (1 - square * series)
    angle = tl.where(across > along, _HALF_PI - angle, angle)
    angle = tl.where(x < 0, _PI - angle, angle)
    return tl.where(y < 0, -angle, angle)


@triton.jit
def in_one_turn(angle):
    """Angles in [0, 2π)."""
    within = angle - tl.floor(angle * (1 / _TURN)) * _TURN
    within = tl.where(within < 0, within + _TURN, within)
    return tl.where(within >= _TURN, within - _TURN, within)


@triton.jit
def mix(x):
    """As `counter_rng.mix`, of uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def draw_bits(key, counter):
    """As `counter_rng.draw_bits`, of uint32, which is all that it reads of an int64."""
    return mix(mix(key) ^ mix(counter + 0x9E3779B9))
