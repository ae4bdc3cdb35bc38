"""Sensors of a robot, and in v3 their errors.

A robot observes itself and the nearest objects within its range, in its own frame. Shapes: R robots that look, J
objects looked at, N environments.
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

# Standard deviation along each axis, of a place in metres and of a velocity in m/s.
ERROR = 0.05

# Concentration of the error of a radius. The error multiplies what `TRUE_SHARE` leaves of the radius.
KAPPA = 1.0
TRUE_SHARE = 0.8

# Intervals of the table of radii.
KNOTS = 256

# Place of the sensor noise in the stream of an episode, after the number of its world.
NOISE_STREAM = 1

# Added to gaps between surfaces to make them positive: no gap is this far below 0.
ABOVE_ZERO = 8.0  # m

# Integers with as many bits as a float.
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


class Sight(NamedTuple):
    """Sensor readings of the robots of a batch of worlds.

    Robots that are not active have zeros.

    Attributes:
        own: Goal and velocity over ground, and in v3 yaw rate and thrusts, (R, 4 or 7, N).
        objects: Features (R, 5, features, N) of each kind of objects, nearest first; 0 in empty slots.
        mask: 1 for slots that hold an object, else 0.
        clearance: Distance from the hull to the nearest detected object; the range if there is none.
        touches: Robots whose hull meets something, without sensor errors.
    """

    own: Tensor
    objects: tuple[Tensor, ...]
    mask: Tensor  # (R, num_seen, N)
    clearance: Tensor  # (R, N), metres
    touches: Tensor  # (R, N) bool


class Frame(NamedTuple):
    """Frames of the robots, by cosine and sine of their headings."""

    cos: Tensor  # (R, 1, N)
    sin: Tensor  # (R, 1, N)

    def turn(self, vectors: Tensor) -> list[Tensor]:
        """Return x and y, (R, K, N) each, of vectors (R, 2, K, N) in the robots' frames."""
        x, y = vectors.unbind(1)
        return [self.cos * x + self.sin * y, self.cos * y - self.sin * x]


def see_v2(motion: Tensor, scene: Scene, active: Tensor, craft: Craft) -> Sight:
    """Return the sensor readings of unicycles.

    They see five obstacles (x, y, r) and five other robots (x, y, vx, vy). Motion is (8, R, N), and `active` (R, N) of
    0 and 1.
    """
    frame = _frame(motion)
    radius = scene.obstacle_radius.expand(len(active), 1, -1, -1)  # (R, 1, M, N)
    to_obstacle = _offsets(scene.obstacle, motion)  # (R, 2, M, N)
    to_robot = _offsets(motion[PLACE], motion)  # (R, 2, R, N)
    velocity = motion[VELOCITY].expand(len(active), -1, -1, -1)
    gap = _length(to_obstacle) - scene.obstacle_radius - craft.radius  # (R, M, N)
    robot_gap = _length(to_robot) - 2 * craft.radius + _absent(active)  # (R, R, N)
    reach, robot_reach = reaches(craft)
    nearest = Nearest.of(gap, reach, active)
    nearest_robots = Nearest.of(robot_gap, robot_reach, active)
    static = nearest.stack([*frame.turn(nearest.pick(to_obstacle)), *nearest.pick(radius).unbind(1)])
    moving = [*frame.turn(nearest_robots.pick(to_robot)), *frame.turn(nearest_robots.pick(velocity))]
    least = gap.amin(1)
    least_robot = robot_gap.amin(1)
    room = torch.where(least <= reach, least, craft.sight)
    robot_room = torch.where(least_robot <= robot_reach, least_robot, craft.sight)
    clearance = torch.minimum(room, robot_room)
    own = torch.stack(_own(motion, scene, frame), 1) * active.unsqueeze(1)
    return Sight(
        own=own,
        objects=(static, nearest_robots.stack(moving)),
        mask=torch.cat((nearest.mask, nearest_robots.mask), 1),
        clearance=clearance,
        touches=torch.minimum(least, least_robot) <= 0,
    )


def reaches(craft: Craft) -> tuple[float, float]:
    """Return the largest gaps, metres, at which obstacles and robots are detected."""
    to_obstacle = craft.sight - craft.radius
    to_robot = craft.sight + craft.detection_radius - 2 * craft.radius
    return to_obstacle, to_robot


def see_v3(motion: Tensor, scene: Scene, active: Tensor, craft: Craft, noise: Tensor | None) -> Sight:
    """Return the sensor readings of vessels, with sensor errors.

    They see five objects (x, y, vx, vy, r), obstacles and robots alike. Motion is (13, R, N), `active` (R, N) of 0 and
    1, and `noise` (5, R, M + R, N) as `draw_noise` returns it, or None.
    """
    frame = _frame(motion)
    offset = torch.cat((_offsets(scene.obstacle, motion), _offsets(motion[PLACE], motion)), 2)  # (R, 2, J, N)
    velocity = torch.cat((torch.zeros_like(scene.obstacle), motion[VELOCITY]), 1)
    velocity = velocity.expand(len(active), -1, -1, -1)
    radius = torch.cat((scene.obstacle_radius, torch.full_like(active, craft.radius)))
    radius = radius.expand(len(active), -1, -1)  # (R, J, N)
    num_obstacles = scene.obstacle.shape[1]
    # Obstacles come first among the objects, and are never absent.
    away = functional.pad(_absent(active), (0, 0, num_obstacles, 0))
    touches = (_length(offset) - radius - craft.radius + away).amin(1) <= 0
    if noise is not None:
        offset = offset + noise[:2].transpose(0, 1)
        velocity = velocity + noise[2:4].transpose(0, 1)
        radius = radius * noise[4]
    gap = _length(offset) - radius - craft.radius + away
    reach = craft.sight - craft.radius
    nearest = Nearest.of(gap, reach, active)
    least = gap.amin(1)
    seen = [*frame.turn(nearest.pick(offset)), *frame.turn(nearest.pick(velocity))]
    seen.append(nearest.pick(radius.unsqueeze(1))[:, 0])
    own = [*_own(motion, scene, frame), motion[YAW_RATE], *motion[THRUST]]
    return Sight(
        own=torch.stack(own, 1) * active.unsqueeze(1),
        objects=(nearest.stack(seen),),
        mask=nearest.mask,
        clearance=torch.where(least <= reach, least, craft.sight),
        touches=touches,
    )


def observation(sight: Sight) -> Tensor:
    """Return contiguous observation vectors (N, R, F).

    A robot's own numbers come first, then the objects, kind after kind.
    """
    rows = contiguous_copy(torch.cat([sight.own, *(kind.flatten(1, 2) for kind in sight.objects)], 1))  # (R, F, N)
    robots, features, num_envs = rows.shape
    # Transposing one matrix is several times as fast as permuting three axes.
    return rows.view(robots * features, num_envs).t().contiguous().view(num_envs, robots, features)


def object_mask(sight: Sight) -> Tensor:
    """Return contiguous object masks (N, R, num_seen).

    They are 1 for slots of the observation that hold an object, else 0.
    """
    robots, slots, num_envs = sight.mask.shape
    return contiguous_copy(sight.mask).view(robots * slots, num_envs).t().contiguous().view(num_envs, robots, slots)


class Nearest(NamedTuple):
    """The five objects nearest to each robot, in order, or all if there are fewer.

    Attributes:
        number: Indices of the objects.
        mask: 1 for objects within reach, else 0.
    """

    number: Tensor  # (R, 1, K, N) int64
    mask: Tensor  # (R, 5, N)

    @staticmethod
    def of(gap: Tensor, reach: float, active: Tensor) -> Nearest:
        """Return the nearest objects by gaps between surfaces (R, J, N), metres.

        Robots that are not active detect nothing.
        """
        key = _nearest_keys(gap)
        number = (key.view(_INTEGERS[key.dtype]) & places_mask(gap.shape[1])).long().unsqueeze(1)
        is_detected = (key <= reach + ABOVE_ZERO).to(gap.dtype)
        mask = is_detected * active.unsqueeze(1)
        num_missing = NEAREST - key.shape[1]
        return Nearest(number, functional.pad(mask, (0, 0, 0, num_missing)))

    def pick(self, values: Tensor) -> Tensor:
        """Return the values (R, features, K, N) of these objects.

        Given are those of all objects, (R, features, J, N).
        """
        return values.gather(2, self.number.expand(-1, values.shape[1], -1, -1))

    def stack(self, features: list[Tensor]) -> Tensor:
        """Stack features (R, K, N) to (R, 5, features, N), with 0 in empty slots."""
        missing = NEAREST - self.number.shape[2]
        return functional.pad(torch.stack(features, 2), (0, 0, 0, 0, 0, missing)) * self.mask.unsqueeze(2)


def _frame(motion: Tensor) -> Frame:
    heading = motion[HEADING].unsqueeze(1)
    return Frame(heading.cos(), heading.sin())


def _own(motion: Tensor, scene: Scene, frame: Frame) -> list[Tensor]:
    """Return goal and velocity over ground in the robots' frames, by axis, (R, N)."""
    vectors = torch.stack((scene.goal - motion[PLACE], motion[VELOCITY]), 2)  # (2, R, 2, N)
    x, y = frame.turn(vectors.transpose(0, 1))  # (R, 2, N)
    return [x[:, 0], y[:, 0], x[:, 1], y[:, 1]]


def _offsets(place: Tensor, motion: Tensor) -> Tensor:
    """Return vectors (R, 2, J, N) from every robot to every position (2, J, N).

    They are in the frame of the map.
    """
    return place - motion[PLACE].transpose(0, 1).unsqueeze(2)


def _length(vectors: Tensor) -> Tensor:
    """Return the lengths (R, J, N) of vectors (R, 2, J, N)."""
    square = vectors * vectors
    return (square[:, 0] + square[:, 1]).sqrt()


def _absent(active: Tensor) -> Tensor:
    """Return extra distances (R, R, N) that move some robots out of range.

    These are robots that are not active, and the observer itself.
    """
    robots = len(active)
    itself = torch.eye(robots, dtype=active.dtype, device=active.device).unsqueeze(-1)
    return (1 - active + itself) * FAR


def places_mask(count: int) -> int:
    """Return a mask of the lowest bits that hold an index below `count`."""
    return (1 << max(count - 1, 1).bit_length()) - 1


def _nearest_keys(gap: Tensor) -> Tensor:
    """Return the sort keys of the five least gaps of each robot, in order.

    The lowest bits of a key hold the object's index. In float32 they displace a thirtieth of a millimetre: objects that
    differ by less come in the order of their list.

    `torch.topk` would be simpler, but small sorts take torch long. Here they are a few minima and maxima along N.
    """
    objects = gap.shape[1]
    bits = places_mask(objects)
    index = torch.arange(objects, dtype=_INTEGERS[gap.dtype], device=gap.device).unsqueeze(-1)
    # Positive floats have the order of their bits, so an index in the lowest bits decides only between equal gaps.
    rounded = (gap + ABOVE_ZERO).view(index.dtype) & ~bits
    keys = list((rounded | index).view(gap.dtype).unbind(1))
    # A bubble sort that stops early: each pass brings the least of the remaining keys to position `first`.
    for first in range(min(NEAREST, objects)):
        for j in range(objects - 1, first, -1):
            lower = torch.minimum(keys[j - 1], keys[j])
            upper = torch.maximum(keys[j - 1], keys[j])
            keys[j - 1] = lower
            keys[j] = upper
    return torch.stack(keys[:NEAREST], 1)


def draw_noise(key: Tensor, step: Tensor, objects: int, table: Tensor) -> Tensor:
    """Draw sensor errors of J objects for every robot, (5, R, J, N).

    The first four are added to x, y (metres), vx and vy (m/s), along the axes of the map. The last one multiplies the
    radius. `key` (R, 1, N) names the draws of each robot. `table` is the result of `radius_factors`, and the errors
    have its dtype.
    """
    place = torch.arange(3 * objects, device=key.device, dtype=torch.int64).view(3, 1, objects, 1)
    bits = draw_bits(key, place + step * (3 * objects))  # (3, R, J, N)
    # Each 32 bits become two standard normal numbers (Box and Muller, 1958). The half keeps the logarithm finite.
    radius = ((bits[:2] >> 16).to(table.dtype) + 0.5) * 2.0**-16
    angle = (bits[:2] & 0xFFFF).to(table.dtype) * (2 * math.pi * 2.0**-16)
    normal = (-2 * radius.log()).sqrt().unsqueeze(1) * torch.stack((angle.cos(), angle.sin()), 1)
    errors = normal * ERROR
    factors = _look_up(bits[2:], table)
    return torch.cat((*errors, factors))


def radius_factors(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the table (257,) from which factors of radii are drawn.

    It holds quantiles of 0.8 + 0.2 φ/π at equally spaced probabilities, where φ is von Mises of concentration 1.
    Rejection sampling would be simpler, but its loop would read from the device. The table is made on the host.
    """
    angle = np.linspace(-math.pi, math.pi, 100_001)
    density = np.exp(KAPPA * np.cos(angle))
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    quantile = np.interp(np.linspace(0.0, 1.0, KNOTS + 1), below / below[-1], angle)
    return torch.from_numpy(TRUE_SHARE + (1 - TRUE_SHARE) * quantile / math.pi).to(device, dtype)


def _look_up(bits: Tensor, table: Tensor) -> Tensor:
    """Interpolate linearly between the knots of a table of quantiles."""
    place = bits.to(table.dtype) * (KNOTS * 2.0**-32)
    # float32 may round up to the last knot.
    knot = place.long().clamp_max(KNOTS - 1)
    share = place - knot
    return torch.lerp(table[knot], table[knot + 1], share)
