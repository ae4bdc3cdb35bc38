"""Sets of orientations as rotation matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from torchrl_gpu.system import arguments

_WORDS = ("fixed", "yaw", "axis", "cube")
# Degrees: with a smaller step the distinct rotations are tens of thousands and take minutes to find.
LEAST_STEP = 15


def orientation_set(orientations: str | float, *, boxes: bool) -> np.ndarray:
    """Return the rotations of an orientation set, the identity first.

    Args:
        orientations: "fixed" (as given), "yaw" (turns by π/2 about the vertical; the 2 that differ for boxes, else 4),
            "axis" (each axis up: 6), "cube" (the 24 turns by π/2), or a step in degrees that divides 360: every
            distinct rotation by roll, pitch and yaw in multiples of it; at least `LEAST_STEP`.
        boxes: Whether the items are boxes, for which half turns change nothing.

    Returns:
        Rotation matrices, (O, 3, 3) float64.

    Raises:
        ValueError: The word is unknown, or the step is too small or does not divide 360.
    """
    if isinstance(orientations, str):
        if orientations not in _WORDS:
            known = ", ".join(_WORDS)
            raise ValueError(f"orientation_set: orientations must be one of {known} or degrees, not {orientations!r}")
        return _quarter_turns(orientations, boxes)
    try:
        step = arguments.number("orientation_set", "the step", orientations)
        count = 360 / step if step > 0 else math.nan
    except ValueError:
        count = math.nan
    if not 1 <= count < math.inf or abs(count - round(count)) > 1e-9:
        arguments.refuse("orientation_set", "the step", "positive and divide 360 degrees", orientations)
    if step < LEAST_STEP:
        raise ValueError(f"orientation_set: the step must be at least {LEAST_STEP} degrees, not {step:g}")
    angles = [step * k for k in range(round(count))]
    distinct = _distinct([turn(*rpy) for rpy in itertools.product(angles, repeat=3)])
    return _distinct_by(distinct, np.abs) if boxes else distinct


def _quarter_turns(word: str, boxes: bool) -> np.ndarray:
    if word == "fixed":
        return np.eye(3)[None]
    if word == "yaw":
        return np.stack([turn(0, 0, 90 * k) for k in range(2 if boxes else 4)])
    cube = _distinct([turn(90 * r, 90 * p, 90 * y) for r, p, y in itertools.product(range(4), repeat=3)])
    if word == "cube":
        return cube
    # Which side of a box lies where, and which face of a solid is up.
    return _distinct_by(cube, np.abs if boxes else (lambda rotation: rotation[2]))


def turn(roll: float, pitch: float, yaw: float) -> np.ndarray:
    """Return the rotation Rz(yaw) Ry(pitch) Rx(roll), of degrees, (3, 3) float64."""
    cos_x, sin_x = _cos_and_sin(roll)
    cos_y, sin_y = _cos_and_sin(pitch)
    cos_z, sin_z = _cos_and_sin(yaw)
    about_x = np.array([[1, 0, 0], [0, cos_x, -sin_x], [0, sin_x, cos_x]])
    about_y = np.array([[cos_y, 0, sin_y], [0, 1, 0], [-sin_y, 0, cos_y]])
    about_z = np.array([[cos_z, -sin_z, 0], [sin_z, cos_z, 0], [0, 0, 1]])
    rotation = about_z @ about_y @ about_x
    nearest = rotation.round()
    return np.where(np.abs(rotation - nearest) < 1e-12, nearest, rotation)


def _cos_and_sin(degrees: float) -> tuple[float, float]:
    radians = math.radians(degrees)
    return math.cos(radians), math.sin(radians)


def _distinct(rotations: list[np.ndarray]) -> np.ndarray:
    return _distinct_by(np.stack(rotations), lambda rotation: rotation)


def _distinct_by(rotations: np.ndarray, key: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the first of all rotations whose key is the same to six digits."""
    seen: dict[bytes, np.ndarray] = {}
    for rotation in rotations:
        # Adding 0 makes −0 the same as 0.
        digits = np.round(key(rotation), 6) + 0.0
        seen.setdefault(digits.tobytes(), rotation)
    return np.stack(list(seen.values()))
