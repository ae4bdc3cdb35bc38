"""An action of every robot in Triton, in one launch.

The launch computes motion, sensors, rewards, ends and all outputs of the environment. A program plays all robots of a
few worlds, a robot a lane. It writes how they have moved, waits for its own threads, and reads the others back to look
at them: no lane computes another's motion, and no shared memory has to be laid out.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.marine import reward as rewards
from torchrl_gpu.envs.marine.fused import Rules
from torchrl_gpu.envs.marine.levels import Sizes
from torchrl_gpu.envs.marine.reward import Outcome
from torchrl_gpu.envs.marine.sensors import NOISE_STREAM, places_mask, reaches
from torchrl_gpu.envs.marine.triton.motion import command_of, sail_unicycle, sail_vessel
from torchrl_gpu.envs.marine.triton.numbers import cos_sin, draw_bits
from torchrl_gpu.envs.marine.triton.sight import (
    inserted,
    length,
    nothing_seen,
    obstacle,
    other_robot,
    picked,
    sensor_errors,
    sort_key,
    starboard_turn,
    value_at,
)
from torchrl_gpu.envs.marine.types import GOAL_RADIUS, MOTION_SIZE, NEAREST, Craft, Derived, MarineState
from torchrl_gpu.system import arguments

# Lanes of a program. Each plays one robot.
LANES = 64
_READ = (
    "motion", "scene", "exists", "active", "arrived", "collided", "energy", "score", "clearance", "step_count",
)  # fmt: skip

# Dtype and shape of a tensor.
Form = tuple[torch.dtype, tuple[int, ...]]

_SEEN = tl.constexpr(NEAREST)
_GOAL_RADIUS = tl.constexpr(GOAL_RADIUS)
_RULE_REWARD = tl.constexpr(rewards.RULE_REWARD)
_NOISE_STREAM = tl.constexpr(NOISE_STREAM)


class Block(NamedTuple):
    """Robots and worlds of a program.

    Attributes:
        robots: R, padded to a power of two.
        worlds: E.
    """

    robots: int
    worlds: int


def block_of(robots: int) -> Block:
    """Return the block of a program.

    It depends on shapes alone, so that a call can be captured in a CUDA graph.
    """
    padded = triton.next_power_of_2(robots)
    return Block(padded, max(1, LANES // padded))


def device_of(tensor: Tensor) -> contextlib.AbstractContextManager:
    """Make the tensor's device the current CUDA device, on which Triton launches."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def as_bytes(flags: Tensor) -> Tensor:
    """Convert flags to bytes, which kernels read."""
    return flags.contiguous().view(torch.uint8)


def pointers(state: MarineState, craft: Craft, sizes: Sizes) -> dict[str, Tensor]:
    """Return the tensors of a state by name, contiguous, flags as bytes.

    Raises:
        ValueError: A tensor has another dtype, shape or device than a kernel reads.
    """
    envs = len(state.step_count)
    robots, cores, obstacles = sizes
    device, number = state.motion.device, state.motion.dtype
    scene_rows = 2 * robots + 3 * cores + 3 * obstacles
    forms: dict[str, Form] = {
        "scene": (number, (scene_rows, envs)),
        "motion": (number, (MOTION_SIZE[craft.version], robots, envs)),
    }
    forms["observation"] = (number, (envs, robots, craft.observation_size))
    forms["object_mask"] = (number, (envs, robots, craft.num_seen))
    forms |= {name: (torch.bool, (robots, envs)) for name in ("exists", "active", "arrived", "collided")}
    forms |= {name: (number, (robots, envs)) for name in ("energy", "score", "clearance")}
    forms |= {name: (torch.int64, (envs,)) for name in ("step_count", "episode", "level", "next_level", "key")}
    found = {}
    for name, (dtype, shape) in forms.items():
        value = arguments.tensor("MarineNavEnv", name, getattr(state, name), dtype, shape, device)
        found[name] = as_bytes(value) if dtype == torch.bool else value.contiguous()
    return found


def empties(number: int, *shape: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Allocate tensors to be written, each with memory of its own."""
    return [torch.empty(shape, dtype=dtype, device=device) for _ in range(number)]


def step(state: MarineState, action: Tensor, rules: Rules) -> tuple[MarineState, Outcome, Derived]:
    """Take a step with actions (N, R) int64 or (N, R, 2).

    The state, its rewards and ends, and the derived outputs equal those of `MarineNavEnv._step` by torch's operators
    up to rounding.
    """
    s = state
    craft = rules.craft
    robots, cores, obstacles = rules.sizes
    envs = len(s.step_count)
    device, dtype = s.motion.device, s.motion.dtype
    given = pointers(s, craft, rules.sizes)
    block = block_of(robots)
    reach, robot_reach = reaches(craft)
    motion = torch.empty_like(s.motion, memory_format=torch.contiguous_format)
    # Each has memory of its own: Triton compiles anew for a tensor that does not lie at a multiple of 16 bytes.
    energy, score, clearance, reward = empties(4, robots, envs, dtype=dtype, device=device)
    active, arrived, collided, terminated, truncated, done = empties(6, robots, envs, dtype=torch.bool, device=device)
    over, cut, decided, success = empties(4, envs, dtype=torch.bool, device=device)
    observation = torch.empty_like(s.observation, memory_format=torch.contiguous_format)
    object_mask = torch.empty_like(s.object_mask, memory_format=torch.contiguous_format)
    seen = torch.empty(envs, robots, craft.num_seen, dtype=torch.bool, device=device)
    num_actions = craft.num_actions if rules.discrete else 0
    action_mask = torch.empty(envs, robots, num_actions, dtype=torch.bool, device=device)
    step_count = torch.empty_like(s.step_count)
    factors = s.clearance if rules.radius_factors is None else rules.radius_factors

    # All arguments are in the order of the kernel's parameters.
    before = [given[name] for name in _READ]
    flag_bytes = (active.view(torch.uint8), arrived.view(torch.uint8), collided.view(torch.uint8))
    next_state = (motion, *flag_bytes, energy, score, clearance, step_count)
    shown_bytes = (seen.view(torch.uint8), action_mask.view(torch.uint8))
    robot_ends = (terminated.view(torch.uint8), truncated.view(torch.uint8), done.view(torch.uint8))
    world_ends = [each.view(torch.uint8) for each in (over, cut, decided, success)]
    counts = (envs, robots, cores, obstacles, rules.max_steps)
    places = (places_mask(robots), places_mask(obstacles), places_mask(robots + obstacles))
    options = {
        "VESSEL": craft.version == "v3",
        "DISCRETE": rules.discrete,
        "NOISE": rules.radius_factors is not None,
        "LAGGED": rules.lagged,
        "LATE": rules.late_limit,
        "CUT_IS_END": rules.terminal_limit,
        "END_ON_COLLISION": rules.end_on_collision,
    }
    constants = {
        "RADIUS": craft.radius,
        "SIGHT": craft.sight,
        "REACH": reach,
        "ROBOT_REACH": robot_reach,
        "STEP_REWARD": craft.step_reward,
        "COLLISION_REWARD": craft.collision_reward,
        "GOAL_REWARD": craft.goal_reward,
        "ROWS": MOTION_SIZE[craft.version],
    }
    tensors = (
        *before, action.contiguous(), given["key"], factors,
        *next_state, observation, object_mask, *shown_bytes, reward, *robot_ends, *world_ends,
    )  # fmt: skip
    grid = (triton.cdiv(envs, block.worlds),)
    num_warps = max(1, block.robots * block.worlds // 32)
    with device_of(motion):
        marine_step_kernel[grid](
            *tensors, *counts, *places, num_actions, craft.idle,
            **options, **constants, R=block.robots, E=block.worlds, enable_fp_fusion=False, num_warps=num_warps,
        )  # fmt: skip
    after = replace(
        s,
        motion=motion,
        active=active,
        arrived=arrived,
        collided=collided,
        energy=energy,
        score=score,
        observation=observation,
        object_mask=object_mask,
        clearance=clearance,
        step_count=step_count,
    )
    outcome = Outcome(reward, arrived, collided, active, terminated, truncated, over, cut, decided)
    return after, outcome, Derived(seen, action_mask if num_actions else None, success, done)


@triton.jit(
    do_not_specialize=[
        "envs",
        "robots",
        "cores",
        "obstacles",
        "max_steps",
        "robot_places",
        "obstacle_places",
        "all_places",
        "num_actions",
        "idle",
    ]
)
def marine_step_kernel(
    motion, scene, exists, active, arrived, collided, energy, score, clearance, step_count, action, key, factors,
    next_motion, next_active, next_arrived, next_collided, next_energy, next_score, next_clearance, next_step_count,
    observation, object_mask, seen, action_mask, reward, terminated, truncated, done, over, cut, decided, success,
    envs, robots, cores, obstacles, max_steps, robot_places, obstacle_places, all_places, num_actions, idle,
    VESSEL: tl.constexpr, DISCRETE: tl.constexpr, NOISE: tl.constexpr, LAGGED: tl.constexpr, LATE: tl.constexpr,
    CUT_IS_END: tl.constexpr, END_ON_COLLISION: tl.constexpr, RADIUS: tl.constexpr, SIGHT: tl.constexpr,
    REACH: tl.constexpr, ROBOT_REACH: tl.constexpr, STEP_REWARD: tl.constexpr, COLLISION_REWARD: tl.constexpr,
    GOAL_REWARD: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Step all robots of E worlds, for `step`."""
    envs = envs.to(tl.int64)
    env = tl.program_id(0).to(tl.int64) * E + tl.arange(0, E)
    world_there = env < envs
    worlds = (env, envs, world_there)
    robot = tl.arange(0, R)
    inside = (robot < robots)[:, None] & world_there[None, :]
    # Places in tensors (R, N), and in tensors (N, R, …).
    at = robot[:, None].to(tl.int64) * envs + env[None, :]
    of_robot = env[None, :] * robots + robot[:, None]
    was_active = tl.load(active + at, mask=inside, other=0) != 0
    steps = tl.load(step_count + env, mask=world_there, other=0)

    # The motion.
    dtype: tl.constexpr = motion.dtype.element_ty
    stride = robots * envs
    if VESSEL:
        before = _read_vessel(motion + at, stride, inside)
        if DISCRETE:
            command = command_of(tl.load(action + of_robot, mask=inside, other=0), dtype)
        else:
            left = tl.load(action + 2 * of_robot, mask=inside, other=0.0)
            right = tl.load(action + 2 * of_robot + 1, mask=inside, other=0.0)
            command = (_command(left), _command(right))
        after, spent = sail_vessel(before, command, scene, worlds, robots, cores, LAGGED)
    else:
        before = _read_unicycle(motion + at, stride, inside)
        given = tl.load(action + of_robot, mask=inside, other=4)
        after, spent = sail_unicycle(before, given, scene, worlds, robots, cores, LAGGED)
    for row in tl.static_range(ROWS):
        # Inactive robots stay where they were.
        tl.store(next_motion + row * stride + at, tl.where(was_active, after[row], before[row]), mask=inside)
    x = tl.where(was_active, after[0], before[0])
    y = tl.where(was_active, after[1], before[1])
    heading = tl.where(was_active, after[2], before[2])
    vx = tl.where(was_active, after[3], before[3])
    vy = tl.where(was_active, after[4], before[4])
    tl.debug_barrier()

    # What they see.
    there = was_active.to(dtype)
    goal_x = tl.load(scene + at, mask=inside, other=0.0)
    goal_y = tl.load(scene + robots * envs + at, mask=inside, other=0.0)
    frame = cos_sin(heading)
    own = _turned(frame, (goal_x - x) * there, (goal_y - y) * there)
    own_velocity = _turned(frame, vx * there, vy * there)
    rows = (next_motion, active, scene, worlds, robots, cores, obstacles)
    self = (x, y, frame, there, own_velocity, robot)
    if VESSEL:
        out = (observation + of_robot * (7 + 5 * _SEEN), object_mask + of_robot * _SEEN, seen + of_robot * _SEEN)
        tl.store(out[0] + 4, after[7] * there, mask=inside)
        tl.store(out[0] + 5, after[11] * there, mask=inside)
        tl.store(out[0] + 6, after[12] * there, mask=inside)
        stream = tl.zeros([R, E], tl.uint32)
        if NOISE:
            of_world = tl.load(key + env, mask=world_there, other=0).to(tl.uint32)
            named = draw_bits(of_world, tl.full([E], _NOISE_STREAM, tl.uint32))
            stream = draw_bits(named[None, :], robot[:, None].to(tl.uint32))
        counter = ((steps + 1) * (3 * (robots + obstacles))).to(tl.uint32)[None, :]
        noise = (stream, counter, factors)
        near, touches, turn = _look_v3(self, rows, noise, all_places, out, inside, REACH, RADIUS, SIGHT, NOISE)
    else:
        slots = of_robot * (2 * _SEEN)
        out = (observation + of_robot * (4 + 7 * _SEEN), object_mask + slots, seen + slots)
        least, of_obstacles = _look_at_obstacles(self, rows, obstacle_places, out, inside, REACH, RADIUS, SIGHT)
        least_robot, of_robots = _look_at_robots(self, rows, robot_places, out, inside, ROBOT_REACH, RADIUS, SIGHT)
        near, touches = tl.minimum(of_obstacles, of_robots), tl.minimum(least, least_robot) <= 0
        turn = there * 0
    tl.store(out[0], own[0], mask=inside)
    tl.store(out[0] + 1, own[1], mask=inside)
    tl.store(out[0] + 2, own_velocity[0], mask=inside)
    tl.store(out[0] + 3, own_velocity[1], mask=inside)
    held = tl.load(clearance + at, mask=inside, other=0.0)
    tl.store(next_clearance + at, tl.where(was_active, near, held), mask=inside)

    # Rewards and ends, as `reward.rewards_and_ends`.
    counted = steps + 1
    if LATE:
        counted = steps
    cut_now = counted >= max_steps
    counts = was_active & ~cut_now[None, :]
    far_before = length(goal_x - before[0], goal_y - before[1])
    far = length(goal_x - x, goal_y - y)
    crash = counts & touches
    home = counts & ~touches & (far <= _GOAL_RADIUS)
    gained = STEP_REWARD + far_before - far
    if VESSEL:
        gained = gained + _RULE_REWARD * turn
    gained = gained + crash.to(dtype) * COLLISION_REWARD + home.to(dtype) * GOAL_REWARD
    gained = gained * there
    is_arrived = (tl.load(arrived + at, mask=inside, other=0) != 0) | home
    is_collided = (tl.load(collided + at, mask=inside, other=0) != 0) | crash
    is_active = was_active & ~crash & ~home
    is_decided = tl.max(is_active.to(tl.int32), 0) == 0
    if END_ON_COLLISION:
        is_decided = is_decided | (tl.max(is_collided.to(tl.int32), 0) > 0)
    is_over = cut_now | is_decided
    is_terminated = is_arrived | is_collided
    if CUT_IS_END:
        is_terminated = is_terminated | (is_active & cut_now[None, :])
        is_decided = is_decided | cut_now
    is_truncated = is_active & is_over[None, :]
    tl.store(next_active + at, is_active.to(tl.uint8), mask=inside)
    tl.store(next_arrived + at, is_arrived.to(tl.uint8), mask=inside)
    tl.store(next_collided + at, is_collided.to(tl.uint8), mask=inside)
    tl.store(terminated + at, is_terminated.to(tl.uint8), mask=inside)
    tl.store(truncated + at, is_truncated.to(tl.uint8), mask=inside)
    tl.store(done + at, (is_terminated | is_truncated).to(tl.uint8), mask=inside)
    tl.store(reward + at, gained, mask=inside)
    tl.store(next_score + at, tl.load(score + at, mask=inside, other=0.0) + gained, mask=inside)
    tl.store(next_energy + at, tl.load(energy + at, mask=inside, other=0.0) + spent * there, mask=inside)
    for number in range(num_actions):
        tl.store(
            action_mask + of_robot * num_actions + number, (is_active | (number == idle)).to(tl.uint8), mask=inside
        )
    tl.store(next_step_count + env, steps + 1, mask=world_there)
    tl.store(over + env, is_over.to(tl.uint8), mask=world_there)
    tl.store(cut + env, cut_now.to(tl.uint8), mask=world_there)
    tl.store(decided + env, is_decided.to(tl.uint8), mask=world_there)
    missed = inside & (tl.load(exists + at, mask=inside, other=0) != 0) & ~is_arrived
    tl.store(success + env, (tl.max(missed.to(tl.int32), 0) == 0).to(tl.uint8), mask=world_there)


@triton.jit
def _row(rows, number, stride, inside):
    """Row of the motion of robots (R, E)."""
    return tl.load(rows + number * stride, mask=inside, other=0.0)


@triton.jit
def _read_unicycle(rows, stride, inside):
    """The 8 rows of the motion of unicycles."""
    x = _row(rows, 0, stride, inside)
    y = _row(rows, 1, stride, inside)
    heading = _row(rows, 2, stride, inside)
    vx, vy = _row(rows, 3, stride, inside), _row(rows, 4, stride, inside)
    drift_x, drift_y = _row(rows, 5, stride, inside), _row(rows, 6, stride, inside)
    return x, y, heading, vx, vy, drift_x, drift_y, _row(rows, 7, stride, inside)


@triton.jit
def _read_vessel(rows, stride, inside):
    """The 13 rows of the motion of vessels."""
    x, y, heading, vx, vy, drift_x, drift_y, seen_yaw = _read_unicycle(rows, stride, inside)
    wx = _row(rows, 8, stride, inside)
    wy = _row(rows, 9, stride, inside)
    yaw = _row(rows, 10, stride, inside)
    left, right = _row(rows, 11, stride, inside), _row(rows, 12, stride, inside)
    return x, y, heading, vx, vy, drift_x, drift_y, seen_yaw, wx, wy, yaw, left, right


@triton.jit
def _command(given):
    """Return a thrust command in [−1, 1], 0 instead of NaN."""
    return tl.minimum(tl.maximum(tl.where(given == given, given, 0.0), -1.0), 1.0)


@triton.jit
def _turned(frame, x, y):
    """Vectors in the robots' frames."""
    return frame[0] * x + frame[1] * y, frame[0] * y - frame[1] * x


@triton.jit
def _show(out, slot, mask, inside):
    """Write whether a slot of the observation holds an object."""
    tl.store(out[1] + slot, mask, mask=inside)
    tl.store(out[2] + slot, (mask > 0).to(tl.uint8), mask=inside)


@triton.jit
def _look_at_obstacles(
    self, rows, places, out, inside, REACH: tl.constexpr, RADIUS: tl.constexpr, SIGHT: tl.constexpr
):  # fmt: skip
    """Write the nearest obstacles of `see_v2`, and return least gap and clearance."""
    x, y, frame, there, _own_velocity, _robot = self
    _moved, _active, scene, worlds, robots, cores, obstacles = rows
    dtype: tl.constexpr = x.dtype
    least = tl.full(x.shape, float("inf"), dtype)
    a = nothing_seen(x)
    b = nothing_seen(x)
    c = nothing_seen(x)
    d = nothing_seen(x)
    e = nothing_seen(x)
    for j in range(obstacles):
        at_x, at_y, wide = obstacle(scene, j, worlds, robots, cores, obstacles)
        gap = length(at_x - x, at_y - y) - wide - RADIUS
        least = tl.minimum(least, gap)
        a, b, c, d, e = inserted(sort_key(gap, j, places), a, b, c, d, e)
    found = (a, b, c, d, e)
    for k in tl.static_range(_SEEN):
        number, reached = picked(found[k], places, obstacles, REACH, dtype)
        mask = tl.where(reached & (k < obstacles), there, 0.0)
        row = 2 * robots + 3 * cores + number
        other_x = value_at(scene, row, worlds, inside)
        other_y = value_at(scene, row + obstacles, worlds, inside)
        radius = value_at(scene, row + 2 * obstacles, worlds, inside)
        seen_x, seen_y = _turned(frame, (other_x - x) * mask, (other_y - y) * mask)
        tl.store(out[0] + 4 + 3 * k, seen_x, mask=inside)
        tl.store(out[0] + 5 + 3 * k, seen_y, mask=inside)
        tl.store(out[0] + 6 + 3 * k, radius * mask, mask=inside)
        _show(out, k, mask, inside)
    return least, tl.where(least <= REACH, least, SIGHT)


@triton.jit
def _look_at_robots(
    self, rows, places, out, inside, REACH: tl.constexpr, RADIUS: tl.constexpr, SIGHT: tl.constexpr
):  # fmt: skip
    """Write the nearest robots of `see_v2`, and return least gap and clearance."""
    x, y, frame, there, _own_velocity, robot = self
    moved, active, _scene, worlds, robots, _cores, _obstacles = rows
    dtype: tl.constexpr = x.dtype
    least = tl.full(x.shape, float("inf"), dtype)
    a = nothing_seen(x)
    b = nothing_seen(x)
    c = nothing_seen(x)
    d = nothing_seen(x)
    e = nothing_seen(x)
    for j in range(robots):
        at_x, at_y, away = other_robot(moved, active, j, robot, worlds, robots)
        gap = length(at_x - x, at_y - y) - 2 * RADIUS + away
        least = tl.minimum(least, gap)
        a, b, c, d, e = inserted(sort_key(gap, j, places), a, b, c, d, e)
    found = (a, b, c, d, e)
    first: tl.constexpr = 4 + 3 * _SEEN
    for k in tl.static_range(_SEEN):
        number, reached = picked(found[k], places, robots, REACH, dtype)
        mask = tl.where(reached & (k < robots), there, 0.0)
        other_x = value_at(moved, number, worlds, inside)
        other_y = value_at(moved, robots + number, worlds, inside)
        other_vx = value_at(moved, 3 * robots + number, worlds, inside)
        other_vy = value_at(moved, 4 * robots + number, worlds, inside)
        seen_x, seen_y = _turned(frame, (other_x - x) * mask, (other_y - y) * mask)
        seen_vx, seen_vy = _turned(frame, other_vx * mask, other_vy * mask)
        tl.store(out[0] + first + 4 * k, seen_x, mask=inside)
        tl.store(out[0] + first + 4 * k + 1, seen_y, mask=inside)
        tl.store(out[0] + first + 4 * k + 2, seen_vx, mask=inside)
        tl.store(out[0] + first + 4 * k + 3, seen_vy, mask=inside)
        _show(out, _SEEN + k, mask, inside)
    return least, tl.where(least <= REACH, least, SIGHT)


@triton.jit
def _look_v3(
    self, rows, noise, places, out, inside,
    REACH: tl.constexpr, RADIUS: tl.constexpr, SIGHT: tl.constexpr, NOISE: tl.constexpr,
):  # fmt: skip
    """Write the objects of `see_v3`.

    Returns clearances, whether robots touch, and the turns of `starboard_turn`.
    """
    x, y, frame, there, own_velocity, robot = self
    moved, active, scene, worlds, robots, cores, obstacles = rows
    stream, counter, factors = noise
    dtype: tl.constexpr = x.dtype
    objects = obstacles + robots
    least = tl.full(x.shape, float("inf"), dtype)
    least_true = tl.full(x.shape, float("inf"), dtype)
    a = nothing_seen(x)
    b = nothing_seen(x)
    c = nothing_seen(x)
    d = nothing_seen(x)
    e = nothing_seen(x)
    for j in range(obstacles):
        at_x, at_y, radius = obstacle(scene, j, worlds, robots, cores, obstacles)
        true_gap = length(at_x - x, at_y - y) - radius - RADIUS
        least_true = tl.minimum(least_true, true_gap)
        gap = true_gap
        if NOISE:
            error_x, error_y, _vx, _vy, factor = sensor_errors(stream, counter + j, objects, factors, dtype)
            gap = length(at_x - x + error_x, at_y - y + error_y) - radius * factor - RADIUS
        least = tl.minimum(least, gap)
        a, b, c, d, e = inserted(sort_key(gap, j, places), a, b, c, d, e)
    for j in range(robots):
        at_x, at_y, away = other_robot(moved, active, j, robot, worlds, robots)
        true_gap = length(at_x - x, at_y - y) - RADIUS - RADIUS + away
        least_true = tl.minimum(least_true, true_gap)
        gap = true_gap
        if NOISE:
            error_x, error_y, _vx, _vy, factor = sensor_errors(stream, counter + obstacles + j, objects, factors, dtype)
            gap = length(at_x - x + error_x, at_y - y + error_y) - RADIUS * factor - RADIUS + away
        least = tl.minimum(least, gap)
        a, b, c, d, e = inserted(sort_key(gap, obstacles + j, places), a, b, c, d, e)
    found = (a, b, c, d, e)
    turn = there * 0
    for k in tl.static_range(_SEEN):
        number, reached = picked(found[k], places, objects, REACH, dtype)
        mask = tl.where(reached & (k < objects), there, 0.0)
        is_robot = number >= obstacles
        still, moving = inside & ~is_robot, inside & is_robot
        row, of_robot = 2 * robots + 3 * cores + number, number - obstacles
        other_x = value_at(scene, row, worlds, still) + value_at(moved, of_robot, worlds, moving)
        other_y = value_at(scene, row + obstacles, worlds, still) + value_at(moved, robots + of_robot, worlds, moving)
        radius = value_at(scene, row + 2 * obstacles, worlds, still) + is_robot.to(dtype) * RADIUS
        other_vx = value_at(moved, 3 * robots + of_robot, worlds, moving)
        other_vy = value_at(moved, 4 * robots + of_robot, worlds, moving)
        to_x = other_x - x
        to_y = other_y - y
        if NOISE:
            error_x, error_y, error_vx, error_vy, factor = sensor_errors(
                stream, counter + number.to(tl.uint32), objects, factors, dtype
            )
            to_x += error_x
            to_y += error_y
            other_vx += error_vx
            other_vy += error_vy
            radius = radius * factor
        seen_x, seen_y = _turned(frame, to_x * mask, to_y * mask)
        seen_vx, seen_vy = _turned(frame, other_vx * mask, other_vy * mask)
        radius = radius * mask
        tl.store(out[0] + 7 + 5 * k, seen_x, mask=inside)
        tl.store(out[0] + 8 + 5 * k, seen_y, mask=inside)
        tl.store(out[0] + 9 + 5 * k, seen_vx, mask=inside)
        tl.store(out[0] + 10 + 5 * k, seen_vy, mask=inside)
        tl.store(out[0] + 11 + 5 * k, radius, mask=inside)
        _show(out, k, mask, inside)
        by_rule = starboard_turn(own_velocity[0], own_velocity[1], seen_x, seen_y, seen_vx, seen_vy, radius, RADIUS)
        # The nearest object with a rule counts.
        turn = tl.where((turn == 0) & (by_rule > 0), by_rule, turn)
    return tl.where(least <= REACH, least, SIGHT), least_true <= 0, turn
