"""Sensors inside a Triton kernel, and the turns that rules ask for.

`sensors` and `reward` define them. Blocks are (R, E): robots, padded to a power of two, of E worlds. Other robots are
read back from memory, where the program has just written them.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math

import triton
import triton.language as tl

from torchrl_gpu.envs.marine import reward, sensors
from torchrl_gpu.envs.marine.triton.motion import world_row
from torchrl_gpu.envs.marine.triton.numbers import angle_of, cos_sin, draw_bits
from torchrl_gpu.envs.marine.types import FAR, NEAREST

_FAR = tl.constexpr(FAR)
_SEEN = tl.constexpr(NEAREST)
_ABOVE_ZERO = tl.constexpr(sensors.ABOVE_ZERO)
_ERROR = tl.constexpr(sensors.ERROR)
_KNOTS = tl.constexpr(sensors.KNOTS)
_ANGLE_STEP = tl.constexpr(2 * math.pi * 2.0**-16)
# Above every sort key. The same bits are not a number as a float32.
_NOTHING = tl.constexpr(2**31 - 1)

_MARGIN = tl.constexpr(reward.MARGIN)
_LEAST_SPEED = tl.constexpr(reward.LEAST_SPEED)
_HEAD_ON_LENGTH = tl.constexpr(reward.HEAD_ON_LENGTH)
_HEAD_ON_HALF_WIDTH = tl.constexpr(reward.HEAD_ON_HALF_WIDTH)
_AHEAD_FROM = tl.constexpr(reward.CROSSING_AHEAD[0])
_AHEAD_TO = tl.constexpr(reward.CROSSING_AHEAD[1])
_ASIDE_FROM = tl.constexpr(reward.CROSSING_ASIDE[0])
_ASIDE_TO = tl.constexpr(reward.CROSSING_ASIDE[1])
_CORNER_AHEAD = tl.constexpr(reward.CORNER[0])
_CORNER_ASIDE = tl.constexpr(reward.CORNER[1])


@triton.jit
def length(x, y):
    """Lengths of vectors."""
    return tl.sqrt(x * x + y * y)


@triton.jit
def nothing_seen(like):
    """Sort keys of five objects that are not there."""
    if like.dtype == tl.float64:
        return tl.full(like.shape, 0x7FFFFFFFFFFFFFFF, tl.int64)
    else:  # noqa: RET505 (a constexpr decides)
        return tl.full(like.shape, _NOTHING, tl.int32)


@triton.jit
def sort_key(gap, number, places):
    """Return the sort keys of `sensors._nearest_keys`, as integers.

    Integers order positive floats as the floats themselves do. `places` is the mask of the lowest bits, which hold the
    object's number: whatever the gap is, the number is one of an object.
    """
    if gap.dtype == tl.float64:
        bits = (gap + _ABOVE_ZERO).to(tl.int64, bitcast=True)
    else:
        bits = (gap + _ABOVE_ZERO).to(tl.int32, bitcast=True)
    return (bits & ~places.to(bits.dtype)) | number


@triton.jit
def inserted(key, first, second, third, fourth, fifth):
    """The five least of six sort keys, of which five are in order."""
    larger = tl.maximum(key, first)
    first = tl.minimum(key, first)
    key = tl.maximum(larger, second)
    second = tl.minimum(larger, second)
    larger = tl.maximum(key, third)
    third = tl.minimum(key, third)
    key = tl.maximum(larger, fourth)
    fourth = tl.minimum(larger, fourth)
    return first, second, third, fourth, tl.minimum(key, fifth)


@triton.jit
def picked(key, places, count, reach, dtype: tl.constexpr):
    """Return the object of a sort key, and whether it is within reach.

    The object is always one of `count`.
    """
    number = tl.minimum((key & places.to(key.dtype)).to(tl.int32), count - 1)
    return number, key.to(dtype, bitcast=True) <= reach + _ABOVE_ZERO


@triton.jit
def other_robot(moved, active, number, itself, worlds, robots):
    """Load the place of a robot in E worlds, (1, E) each, and its extra distance.

    That distance, (R, E), moves it out of range of itself, or of all robots if it is not active.
    """
    x = world_row(moved, number, worlds)
    y = world_row(moved, robots + number, worlds)
    absent = 1 - world_row(active, number, worlds).to(x.dtype)
    return x, y, (absent + (itself[:, None] == number).to(x.dtype)) * _FAR


@triton.jit
def obstacle(scene, number, worlds, robots, cores, obstacles):
    """Place and radius of an obstacle in E worlds, (1, E) each."""
    first = 2 * robots + 3 * cores + number
    x = world_row(scene, first, worlds)
    y = world_row(scene, first + obstacles, worlds)
    return x, y, world_row(scene, first + 2 * obstacles, worlds)


@triton.jit
def value_at(rows, number, worlds, mask):
    """Load values of a tensor (rows, N) at other rows (R, E), or 0 outside the mask."""
    env, envs, inside = worlds
    return tl.load(rows + number.to(tl.int64) * envs + env[None, :], mask=mask & inside[None, :], other=0)


@triton.jit
def sensor_errors(stream, counter, objects, factors, dtype: tl.constexpr):
    """Draw the errors of one object for each robot, as `sensors.draw_noise` does.

    They are those of x, y, vx and vy, and the factor of the radius. `stream` names the draws of the robots, uint32 (R,
    E); `counter` is the object's place in them, uint32.
    """
    place, velocity = draw_bits(stream, counter), draw_bits(stream, counter + objects)
    x, y = _normal(place, dtype)
    vx, vy = _normal(velocity, dtype)
    quantile = draw_bits(stream, counter + 2 * objects).to(dtype) * (_KNOTS * 2.0**-32)
    knot = tl.minimum(quantile.to(tl.int32), _KNOTS - 1)
    low, high = tl.load(factors + knot), tl.load(factors + knot + 1)
    return x, y, vx, vy, low + (high - low) * (quantile - knot.to(dtype))


@triton.jit
def _normal(bits, dtype: tl.constexpr):
    """Two normal errors from 32 bits: Box and Muller, 1958."""
    share = ((bits >> 16).to(dtype) + 0.5) * 2.0**-16
    cos, sin = cos_sin((bits & 0xFFFF).to(dtype) * _ANGLE_STEP)
    size = tl.sqrt(-2 * tl.log(share))
    return size * cos * _ERROR, size * sin * _ERROR


@triton.jit
def starboard_turn(own_x, own_y, x, y, vx, vy, r, radius):
    """As `reward.starboard_turn`, for one object of each robot.

    The angles from the own course to the object, to the tangent of its circle and past the own hull are added as
    complex numbers are multiplied, which also brings their sum into one turn.
    """
    speed = length(vx, vy)
    cos = vx / tl.maximum(speed, _LEAST_SPEED)
    sin = vy / tl.maximum(speed, _LEAST_SPEED)
    ahead = -(cos * x + sin * y)
    aside = sin * x - cos * y
    along = cos * own_x + sin * own_y
    across = cos * own_y - sin * own_x
    before = (ahead >= 0) & (ahead <= _HEAD_ON_LENGTH) & (tl.abs(aside) <= _HEAD_ON_HALF_WIDTH)
    head_on = before & (tl.abs(across) < -along)
    beside = (aside >= _ASIDE_FROM) & (aside <= _ASIDE_TO) & (ahead >= _AHEAD_FROM) & (ahead <= _AHEAD_TO)
    in_front = aside - _CORNER_ASIDE > _CORNER_ASIDE / _CORNER_AHEAD * (ahead - _CORNER_AHEAD)
    gives_way = head_on | (beside & ~in_front & (across >= tl.abs(along)))
    moving = (speed >= _LEAST_SPEED) & (length(own_x, own_y) >= _LEAST_SPEED)
    distance, wide = length(x, y), r + _MARGIN
    tangent = tl.sqrt(tl.maximum(distance * distance - wide * wide, 0.0))
    bearing_x, bearing_y = own_x * x + own_y * y, own_x * y - own_y * x
    past_x, past_y = bearing_x * tangent - bearing_y * wide, bearing_x * wide + bearing_y * tangent
    turn = angle_of(past_x * tangent - past_y * radius, past_x * radius + past_y * tangent)
    return tl.where(gives_way & moving & (distance >= wide), turn, 0.0)
