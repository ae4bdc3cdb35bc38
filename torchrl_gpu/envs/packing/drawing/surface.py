"""What a pass over the items hands to the shading: one record per sample."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Surface(NamedTuple):
    """The items that the samples of a camera's viewport see.

    label: Item, int64, −1 where a sample sees none, shape (B, h, w).
    t: Ray parameter of the hit, metres (see `Camera`), anything where there is none, shape (B, h, w).
    normal: Unit vector out of the surface, shape (B, 3, h, w).
    ink: Coverage by dark lines, 0 to 1, shape (B, h, w).
    """

    label: Tensor
    t: Tensor
    normal: Tensor
    ink: Tensor


def line_width(height: int, supersample: int) -> float:
    """Width of an edge in samples: 1.1 pixels in small pictures, a little more in large ones."""
    return supersample * max(1.1, height / 360.0)
