"""Sensors of a robot: itself, and the nearest objects within its range, in its own frame; their errors in v3.

Shapes: R robots that look, J objects looked at, N environments.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchrl_gpu.envs.counter_rng import draw_bits
from torchrl_gpu.envs.marine.types import (
    FAR,
    HEADING,
    NEAREST,
    PLACE,
    THRUST,
    VELOCITY,
    YAW_RATE,
    Craft,
    Scene,
    contiguous_copy,
)

ERROR = 0.05  # standard deviation along each axis, of a place in metres and of a velocity in m/s
KAPPA = 1.0  # concentration of the error of a radius
TRUE_SHARE = 0.8  # of the radius; the rest is multiplied by the error
KNOTS = 256  # intervals of the table of radii
NOISE_STREAM = 1  # place in the stream of an episode, after the number of its world
ABOVE_ZERO = 8.0  # m: no gap between surfaces is so far below 0
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


class Sight(NamedTuple):
    """Sensor readings of the robots of a batch of worlds, zeros for robots that are not active."""

    own: Tensor  # (R, 4 or 7, N): goal, velocity over ground; v3: yaw rate and thrusts, too
    objects: tuple[Tensor, ...]  # (R, 5, features, N) of each kind, nearest first, 0 where there is none
    mask: Tensor  # (R, num_seen, N), 1 where there is an object, else 0
    clearance: Tensor  # (R, N), metres between the hull and the nearest detected object; the range where there is none
    touches: Tensor  # (R, N) bool, true where the hull meets something, without sensor errors


class Frame(NamedTuple):
    """Frames of the robots: cosine and sine of their headings, (R, 1, N) each."""

    cos: Tensor
    sin: Tensor

    def turn(self, vectors: Tensor) -> list[Tensor]:
        """Vectors (R, 2, K, N) in the robots' frames: x and y, (R, K, N)."""
        x, y = vectors.unbind(1)
        return [self.cos * x + self.sin * y, self.cos * y - self.sin * x]


def see_v2(motion: Tensor, scene: Scene, active: Tensor, craft: Craft) -> Sight:
    """Sensor readings of unicycles: obstacles (x, y, r) and other robots (x, y, vx, vy), five of each.

    Motion is (8, R, N), and `active` (R, N) of 0 and 1.
    """
    frame = _frame(motion)
    radius = scene.obstacle_radius.expand(len(active), 1, -1, -1)  # (R, 1, M, N)
    to_obstacle, to_robot = _offsets(scene.obstacle, motion), _offsets(motion[PLACE], motion)  # (R, 2, J, N)
    velocity = motion[VELOCITY].expand(len(active), -1, -1, -1)
    gap = _length(to_obstacle) - scene.obstacle_radius - craft.radius  # (R, M, N)
    robot_gap = _length(to_robot) - 2 * craft.radius + _absent(active)  # (R, R, N)
    reach, robot_reach = reaches(craft)
    nearest, nearest_robots = Nearest.of(gap, reach, active), Nearest.of(robot_gap, robot_reach, active)
    static = nearest.listed([*frame.turn(nearest.pick(to_obstacle)), *nearest.pick(radius).unbind(1)])
    moving = [*frame.turn(nearest_robots.pick(to_robot)), *frame.turn(nearest_robots.pick(velocity))]
    least, least_robot = gap.amin(1), robot_gap.amin(1)
    clearance = torch.minimum(
        torch.where(least <= reach, least, craft.sight),
        torch.where(least_robot <= robot_reach, least_robot, craft.sight),
    )
    return Sight(
        own=torch.stack(_own(motion, scene, frame), 1) * active.unsqueeze(1),
        objects=(static, nearest_robots.listed(moving)),
        mask=torch.cat((nearest.mask, nearest_robots.mask), 1),
        clearance=clearance,
        touches=torch.minimum(least, least_robot) <= 0,
    )


def reaches(craft: Craft) -> tuple[float, float]:
    """Largest gaps, metres, at which a robot detects an obstacle and another robot."""
    return craft.sight - craft.radius, craft.sight + craft.detection_radius - 2 * craft.radius


def see_v3(motion: Tensor, scene: Scene, active: Tensor, craft: Craft, noise: Tensor | None) -> Sight:
    """Sensor readings of vessels: five objects (x, y, vx, vy, r), obstacles and robots alike, with sensor errors.

    Motion is (13, R, N), `active` (R, N) of 0 and 1, and `noise` (5, R, M + R, N) as `draw_noise` returns it, or None.
    """
    frame = _frame(motion)
    offset = torch.cat((_offsets(scene.obstacle, motion), _offsets(motion[PLACE], motion)), 2)  # (R, 2, J, N)
    velocity = torch.cat((torch.zeros_like(scene.obstacle), motion[VELOCITY]), 1)
    velocity = velocity.expand(len(active), -1, -1, -1)
    radius = torch.cat((scene.obstacle_radius, torch.full_like(active, craft.radius)))
    radius = radius.expand(len(active), -1, -1)  # (R, J, N)
    away = functional.pad(_absent(active), (0, 0, scene.obstacle.shape[1], 0))
    touches = (_length(offset) - radius - craft.radius + away).amin(1) <= 0
    if noise is not None:
        offset, velocity = offset + noise[:2].transpose(0, 1), velocity + noise[2:4].transpose(0, 1)
        radius = radius * noise[4]
    gap, reach = _length(offset) - radius - craft.radius + away, craft.sight - craft.radius
    nearest, least = Nearest.of(gap, reach, active), gap.amin(1)
    seen = [*frame.turn(nearest.pick(offset)), *frame.turn(nearest.pick(velocity))]
    seen.append(nearest.pick(radius.unsqueeze(1))[:, 0])
    own = [*_own(motion, scene, frame), motion[YAW_RATE], *motion[THRUST]]
    return Sight(
        own=torch.stack(own, 1) * active.unsqueeze(1),
        objects=(nearest.listed(seen),),
        mask=nearest.mask,
        clearance=torch.where(least <= reach, least, craft.sight),
        touches=touches,
    )


def observation(sight: Sight) -> Tensor:
    """Observation vectors (N, R, F), contiguous: the own numbers, then each kind of objects one after the other."""
    rows = contiguous_copy(torch.cat([sight.own, *(kind.flatten(1, 2) for kind in sight.objects)], 1))  # (R, F, N)
    robots, features, num_envs = rows.shape
    # One transposition of a matrix: several times as fast as that of three axes.
    return rows.view(robots * features, num_envs).t().contiguous().view(num_envs, robots, features)


def object_mask(sight: Sight) -> Tensor:
    """Object masks (N, R, num_seen), contiguous: 1 where a slot of the observation holds an object, else 0."""
    robots, slots, num_envs = sight.mask.shape
    return contiguous_copy(sight.mask).view(robots * slots, num_envs).t().contiguous().view(num_envs, robots, slots)


class Nearest(NamedTuple):
    """The five objects with the least gap to each robot, in order, or all of them where there are fewer."""

    number: Tensor  # indices of the objects, int64 (R, 1, K, N)
    mask: Tensor  # (R, 5, N), 1 where the object is within reach, else 0

    @staticmethod
    def of(gap: Tensor, reach: float, active: Tensor) -> Nearest:
        """Nearest objects by gaps between surfaces (R, J, N), metres; robots that are not active detect nothing."""
        key = _nearest_keys(gap)
        number = (key.view(_INTEGERS[key.dtype]) & places_mask(gap.shape[1])).long().unsqueeze(1)
        mask = (key <= reach + ABOVE_ZERO).to(gap.dtype) * active.unsqueeze(1)
        return Nearest(number, functional.pad(mask, (0, 0, 0, NEAREST - key.shape[1])))

    def pick(self, values: Tensor) -> Tensor:
        """Values of these objects, (R, features, K, N), out of those of all objects (R, features, J, N)."""
        return values.gather(2, self.number.expand(-1, values.shape[1], -1, -1))

    def listed(self, features: list[Tensor]) -> Tensor:
        """Features (R, K, N) each as (R, 5, features, N), 0 where there is no object."""
        missing = NEAREST - self.number.shape[2]
        return functional.pad(torch.stack(features, 2), (0, 0, 0, 0, 0, missing)) * self.mask.unsqueeze(2)


def _frame(motion: Tensor) -> Frame:
    heading = motion[HEADING].unsqueeze(1)
    return Frame(heading.cos(), heading.sin())


def _own(motion: Tensor, scene: Scene, frame: Frame) -> list[Tensor]:
    """Goal and velocity over ground in the robots' frames, x and y each, (R, N)."""
    vectors = torch.stack((scene.goal - motion[PLACE], motion[VELOCITY]), 2)  # (2, R, 2, N)
    x, y = frame.turn(vectors.transpose(0, 1))  # (R, 2, N)
    return [x[:, 0], y[:, 0], x[:, 1], y[:, 1]]


def _offsets(place: Tensor, motion: Tensor) -> Tensor:
    """Vectors (R, 2, J, N) from every robot to every position (2, J, N), in the frame of the map."""
    return place - motion[PLACE].transpose(0, 1).unsqueeze(2)


def _length(vectors: Tensor) -> Tensor:
    """Lengths (R, J, N) of vectors (R, 2, J, N)."""
    square = vectors * vectors
    return (square[:, 0] + square[:, 1]).sqrt()


def _absent(active: Tensor) -> Tensor:
    """Extra distances (R, R, N) that move robots out of range which are not active, or are the observer itself."""
    robots = len(active)
    itself = torch.eye(robots, dtype=active.dtype, device=active.device).unsqueeze(-1)
    return (1 - active + itself) * FAR


def places_mask(count: int) -> int:
    """Bit mask of the lowest bits, as many as `count` indices take."""
    return (1 << max(count - 1, 1).bit_length()) - 1


def _nearest_keys(gap: Tensor) -> Tensor:
    """Sort keys of the five least gaps of each robot in order, or of all; their lowest bits hold the object's index.

    Small sorts take torch long; here they are a few minima and maxima along N. What the index displaces is, in float32,
    a thirtieth of a millimetre, below which objects come in the order of their list.
    """
    objects, bits = gap.shape[1], places_mask(gap.shape[1])
    index = torch.arange(objects, dtype=_INTEGERS[gap.dtype], device=gap.device).unsqueeze(-1)
    # Positive floats are ordered as their bits are: an index in the lowest decides only where the others are equal.
    keys = list((((gap + ABOVE_ZERO).view(index.dtype) & ~bits) | index).view(gap.dtype).unbind(1))
    # Bubble sort, cut short: each pass brings the least of the remaining keys to position `first`.
    for first in range(min(NEAREST, objects)):
        for j in range(objects - 1, first, -1):
            lower, upper = torch.minimum(keys[j - 1], keys[j]), torch.maximum(keys[j - 1], keys[j])
            keys[j - 1], keys[j] = lower, upper
    return torch.stack(keys[:NEAREST], 1)


def draw_noise(key: Tensor, step: Tensor, objects: int, table: Tensor) -> Tensor:
    """Sensor errors for each of J objects as every robot observes it, (5, R, J, N), of the dtype of the table.

    They are what is added to x, y (metres), vx and vy (m/s), along the axes of the map, and what the radius is
    multiplied by. `key` (R, 1, N) names the draws of each robot, `table` is the result of `radius_factors`.
    """
    place = torch.arange(3 * objects, device=key.device, dtype=torch.int64).view(3, 1, objects, 1)
    bits = draw_bits(key, place + step * (3 * objects))  # (3, R, J, N)
    # Two standard normal numbers from each 32 bits: Box and Muller, 1958.
    radius = ((bits[:2] >> 16).to(table.dtype) + 0.5) * 2.0**-16
    angle = (bits[:2] & 0xFFFF).to(table.dtype) * (2 * math.pi * 2.0**-16)
    normal = (-2 * radius.log()).sqrt().unsqueeze(1) * torch.stack((angle.cos(), angle.sin()), 1)
    return torch.cat((*(normal * ERROR), _looked_up(bits[2:], table)))


def radius_factors(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Quantiles (257,) of 0.8 + 0.2 φ/π at equally spaced probabilities, with φ von Mises of concentration 1.

    Made on the host: a table needs no rejection and so no host reads where it is drawn from.
    """
    angle = np.linspace(-math.pi, math.pi, 100_001)
    density = np.exp(KAPPA * np.cos(angle))
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    quantile = np.interp(np.linspace(0.0, 1.0, KNOTS + 1), below / below[-1], angle)
    return torch.from_numpy(TRUE_SHARE + (1 - TRUE_SHARE) * quantile / math.pi).to(device, dtype)


def _looked_up(bits: Tensor, table: Tensor) -> Tensor:
    """Values of a table of quantiles, interpolated linearly between its knots."""
    place = bits.to(table.dtype) * (KNOTS * 2.0**-32)
    knot = place.long().clamp_max(KNOTS - 1)  # float32 may round up to the last one
    return torch.lerp(table[knot], table[knot + 1], place - knot)
