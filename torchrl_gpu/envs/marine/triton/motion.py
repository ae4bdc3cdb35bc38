"""The motion of robots during one action inside a Triton kernel.

`dynamics` defines it. Blocks are (R, E): robots, padded to a power of two, of E worlds.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from torchrl_gpu.envs.marine import dynamics
from torchrl_gpu.envs.marine.triton.numbers import cos_sin, in_one_turn
from torchrl_gpu.envs.marine.types import CORE_RADIUS, DT, SUBSTEPS

_DT = tl.constexpr(DT)
_SUBSTEPS = tl.constexpr(SUBSTEPS)
_ACTION_S = tl.constexpr(DT * SUBSTEPS)
_CORE_SQUARE = tl.constexpr(CORE_RADIUS**2)

_MAX_SPEED = tl.constexpr(dynamics.MAX_SPEED)
_DRAG_STEP = tl.constexpr(dynamics.DRAG * DT)
_TURN_STEP = tl.constexpr(dynamics.TURN * DT)

_MASS = tl.constexpr(dynamics.MASS)
_ADDED_SURGE = tl.constexpr(dynamics.ADDED_SURGE)
_LINEAR_DRAG = tl.constexpr(dynamics.LINEAR_DRAG)
_QUADRATIC_DRAG = tl.constexpr(dynamics.QUADRATIC_DRAG)
_LINEAR_YAW_DRAG = tl.constexpr(dynamics.LINEAR_YAW_DRAG)
_QUADRATIC_YAW_DRAG = tl.constexpr(dynamics.QUADRATIC_YAW_DRAG)
_THRUST_ARM = tl.constexpr(dynamics.THRUST_ARM)
_LEAST_THRUST = tl.constexpr(dynamics.LEAST_THRUST)
_MOST_THRUST = tl.constexpr(dynamics.MOST_THRUST)
_THRUST_STEP = tl.constexpr(dynamics.THRUST_RATE * DT * SUBSTEPS)
_SURGE_STEP = tl.constexpr(DT / (dynamics.MASS - dynamics.ADDED_SURGE))
_SWAY_STEP = tl.constexpr(DT / dynamics.MASS)
_YAW_STEP = tl.constexpr(DT / (dynamics.YAW_INERTIA + dynamics.ADDED_YAW))


@triton.jit
def world_row(rows, number, worlds):
    """Load a row of a tensor (rows, N) for E worlds, (1, E), 0 for missing worlds."""
    env, envs, inside = worlds
    return tl.load(rows + number * envs + env, mask=inside, other=0)[None, :]


@triton.jit
def flow(x, y, scene, worlds, robots, cores):
    """As `dynamics.flow`: velocity of the water at places (R, E)."""
    along_x = tl.zeros(x.shape, x.dtype)
    along_y = tl.zeros(x.shape, x.dtype)
    for k in range(cores):
        qx = world_row(scene, 2 * robots + k, worlds) - x
        qy = world_row(scene, 2 * robots + cores + k, worlds) - y
        circulation = world_row(scene, 2 * robots + 2 * cores + k, worlds)
        strength = circulation / tl.maximum(qx * qx + qy * qy, _CORE_SQUARE)
        along_x -= qy * strength
        along_y += qx * strength
    return along_x, along_y


@triton.jit
def sail_unicycle(before, action, scene, worlds, robots, cores, LAGGED: tl.constexpr):
    """Move unicycles as `Unicycle.move` does.

    From 8 rows (R, E) and actions (R, E) int64 it returns 8 rows, and the energy.
    """
    x, y, heading, vx, vy, drift_x, drift_y, speed = before
    action = tl.where((action >= 0) & (action < 9), action, 4)
    push = (action // 3 - 1).to(x.dtype)
    turn = (action % 3 - 1).to(x.dtype)
    limit = push * _MAX_SPEED
    for _ in range(_SUBSTEPS):
        cos, sin = cos_sin(heading)
        vx = speed * cos + drift_x
        vy = speed * sin + drift_y
        x += vx * _DT
        y += vy * _DT
        speed = tl.minimum(tl.maximum(speed + (limit - speed) * _DRAG_STEP, 0.0), _MAX_SPEED)
        heading += turn * _TURN_STEP
        drift_x, drift_y = flow(x, y, scene, worlds, robots, cores)
    if not LAGGED:
        cos, sin = cos_sin(heading)
        vx = speed * cos + drift_x
        vy = speed * sin + drift_y
    heading = in_one_turn(heading)
    return (x, y, heading, vx, vy, drift_x, drift_y, speed), tl.abs(push) + tl.abs(turn)


@triton.jit
def thrust_level(number, dtype: tl.constexpr):
    """As `dynamics.THRUST_LEVELS`."""
    size = tl.where(number % 2 == 1, 0.5, 1.0).to(dtype)
    size = tl.where(number == 0, size * 0, size)
    return tl.where(number <= 2, -size, size)


@triton.jit
def command_of(action, dtype: tl.constexpr):
    """Commands of both thrusters for discrete actions (R, E) int64."""
    action = tl.where((action >= 0) & (action < 25), action, 0)
    return thrust_level(action // 5, dtype), thrust_level(action % 5, dtype)


@triton.jit
def sail_vessel(before, command, scene, worlds, robots, cores, LAGGED: tl.constexpr):
    """Move vessels as `Vessel.move` does.

    From 13 rows (R, E) and commands of both thrusters it returns 13 rows, and the energy.
    """
    x, y, heading, vx, vy, drift_x, drift_y, seen_yaw, wx, wy, yaw, left, right = before
    left = tl.minimum(tl.maximum(left + command[0] * _THRUST_STEP, _LEAST_THRUST), _MOST_THRUST)
    right = tl.minimum(tl.maximum(right + command[1] * _THRUST_STEP, _LEAST_THRUST), _MOST_THRUST)
    force = left + right
    torque = (left - right) * _THRUST_ARM
    for _ in range(_SUBSTEPS):
        vx = wx + drift_x
        vy = wy + drift_y
        seen_yaw = yaw
        x += vx * _DT
        y += vy * _DT
        heading += yaw * _DT
        wx, wy, yaw = _accelerate(vx, vy, wx, wy, yaw, heading, force, torque)
        drift_x, drift_y = flow(x, y, scene, worlds, robots, cores)
    if not LAGGED:
        vx = wx + drift_x
        vy = wy + drift_y
        seen_yaw = yaw
    heading = in_one_turn(heading)
    energy = (tl.abs(left) + tl.abs(right)) * _ACTION_S
    return (x, y, heading, vx, vy, drift_x, drift_y, seen_yaw, wx, wy, yaw, left, right), energy


@triton.jit
def _accelerate(vx, vy, wx, wy, r, heading, force, torque):
    """As `Vessel._accelerate`."""
    cos, sin = cos_sin(heading)
    u = cos * vx + sin * vy
    v = cos * vy - sin * vx
    u_r = cos * wx + sin * wy
    v_r = cos * wy - sin * wx
    surge = _MASS * r * v - (_LINEAR_DRAG + _QUADRATIC_DRAG * tl.abs(u_r)) * u_r + force
    sway = (_ADDED_SURGE * u_r - _MASS * u) * r - (_LINEAR_DRAG + _QUADRATIC_DRAG * tl.abs(v_r)) * v_r
    turned = torque - _ADDED_SURGE * u_r * v_r - (_LINEAR_YAW_DRAG + _QUADRATIC_YAW_DRAG * tl.abs(r)) * r
    u_r += surge * _SURGE_STEP
    v_r += sway * _SWAY_STEP
    r += turned * _YAW_STEP
    return cos * u_r - sin * v_r, sin * u_r + cos * v_r, r
