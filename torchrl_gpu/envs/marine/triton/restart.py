"""New episodes in Triton, in one launch.

Worlds whose episode is over get new ones from the pool, and the others stay as they were. A program copies a tile of
numbers of a few worlds, first those of the state, then those of the observations. Every number of every result is
written once; of worlds that begin again nothing old is read.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.marine.fused import Draws
from torchrl_gpu.envs.marine.generator import Pool
from torchrl_gpu.envs.marine.levels import Sizes
from torchrl_gpu.envs.marine.triton.numbers import draw_bits
from torchrl_gpu.envs.marine.triton.step import as_bytes, device_of, empties, pointers
from torchrl_gpu.envs.marine.types import Craft, Derived, MarineState

# Worlds of a program, and numbers that it copies for each of them.
WORLDS = 16
NUMBERS = 32
_READ = (
    "scene", "motion", "clearance", "exists", "active", "arrived", "collided", "energy", "score", "observation",
    "object_mask", "step_count", "episode", "level", "next_level", "key",
)  # fmt: skip


def restart(
    state: MarineState, mask: Tensor, pool: Pool, draws: Draws, craft: Craft, sizes: Sizes, discrete: bool
) -> tuple[MarineState, Derived]:
    """Start a new episode in the worlds of `mask` (N,).

    The state and the derived outputs are those of `MarineNavEnv._observe_reset` by torch's operators.
    """
    s = state
    envs, robots = len(s.step_count), sizes.robots
    device = s.motion.device
    given = pointers(s, craft, sizes)
    numbers, exists, observation, object_mask = pool.tensors
    scene, motion = torch.empty_like(s.scene), torch.empty_like(s.motion)
    clearance, energy, score = empties(3, robots, envs, dtype=s.motion.dtype, device=device)
    flags = empties(4, robots, envs, dtype=torch.bool, device=device)
    success = torch.empty(envs, dtype=torch.bool, device=device)
    fresh_observation, fresh_mask = torch.empty_like(s.observation), torch.empty_like(s.object_mask)
    seen = torch.empty(envs, robots, craft.num_seen, dtype=torch.bool, device=device)
    num_actions = craft.num_actions if discrete else 0
    action_mask = torch.empty(envs, robots, num_actions, dtype=torch.bool, device=device)
    step_count, episode, level, key = empties(4, envs, dtype=torch.int64, device=device)
    per_world = len(s.scene) + s.motion.shape[0] * robots + robots
    shown_per_world = robots * (craft.observation_size + craft.num_seen)
    tiles = triton.cdiv(per_world, NUMBERS)
    grid = triton.cdiv(envs, WORLDS), tiles + triton.cdiv(shown_per_world, NUMBERS)
    signed_seed = draws.seed_bits - (draws.seed_bits >> 31 << 32)

    # All arguments are in the order of the kernel's parameters.
    drawn = (as_bytes(mask), draws.env_index, numbers, as_bytes(exists), observation, object_mask)
    before = [given[name] for name in _READ]
    flag_bytes = [each.view(torch.uint8) for each in flags]
    next_state = (
        scene, motion, clearance, *flag_bytes, energy, score,
        fresh_observation, fresh_mask, step_count, episode, level, key,
    )  # fmt: skip
    shown_bytes = (seen.view(torch.uint8), action_mask.view(torch.uint8), success.view(torch.uint8))
    tensors = (*drawn, *before, *next_state, *shown_bytes)
    rows = (len(s.scene), s.motion.shape[0] * robots)
    observed = (robots * craft.observation_size, robots * craft.num_seen)
    choices = (signed_seed, draws.worlds_per_level, num_actions, craft.idle)
    with device_of(s.motion):
        marine_restart_kernel[grid](
            *tensors, envs, robots, *rows, *observed, *choices, tiles,
            IN_ORDER=draws.in_order, R=triton.next_power_of_2(robots), E=WORLDS, T=NUMBERS,
            enable_fp_fusion=False, num_warps=4,
        )  # fmt: skip
    after = replace(
        s,
        scene=scene,
        motion=motion,
        clearance=clearance,
        **dict(zip(("exists", "active", "arrived", "collided"), flags, strict=True)),
        energy=energy,
        score=score,
        observation=fresh_observation,
        object_mask=fresh_mask,
        step_count=step_count,
        episode=episode,
        level=level,
        key=key,
    )
    return after, Derived(seen, action_mask if num_actions else None, success, None)


@triton.jit(
    do_not_specialize=[
        "envs",
        "robots",
        "scene_rows",
        "motion_rows",
        "observed",
        "masked",
        "seed",
        "per_level",
        "num_actions",
        "idle",
        "tiles",
    ]
)
def marine_restart_kernel(
    mask, env_index, pool_numbers, pool_exists, pool_observation, pool_mask,
    scene, motion, clearance, exists, active, arrived, collided, energy, score, observation, object_mask,
    step_count, episode, level, next_level, key,
    next_scene, next_motion, next_clearance, next_exists, next_active, next_arrived, next_collided, next_energy,
    next_score, next_observation, next_mask, next_step_count, next_episode, next_level_played, next_key,
    seen, action_mask, success,
    envs, robots, scene_rows, motion_rows, observed, masked, seed, per_level, num_actions, idle, tiles,
    IN_ORDER: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Copy T numbers of each of E worlds for `restart`.

    The first program of E worlds also writes flags and counts.
    """
    row = tl.program_id(0).to(tl.int64) * E + tl.arange(0, E)
    tile = tl.program_id(1)
    there = row < envs
    again = tl.load(mask + row, mask=there, other=0) != 0
    begun = tl.load(episode + row, mask=there, other=0)
    old_level = tl.load(level + row, mask=there, other=0)
    played = tl.where(again, tl.load(next_level + row, mask=there, other=0), old_level)
    env = tl.load(env_index + row, mask=there, other=0)
    named = draw_bits(seed.to(tl.uint32), env.to(tl.uint32))
    drawn_key = draw_bits(named, begun.to(tl.uint32))
    if IN_ORDER:
        number = (env + envs.to(tl.int64) * begun) % per_level
    else:
        first = draw_bits(drawn_key, tl.zeros([E], tl.uint32)).to(tl.int64)
        number = (first * per_level) >> 32
    world = tl.where(again, played * per_level + number, 0)

    if tile < tiles:
        # Numbers of the state, whose worlds lie side by side: a pool's world is read as a line and written as a column.
        per_world = scene_rows + motion_rows + robots
        line = tile * T + tl.arange(0, T)
        inside = (line < per_world)[:, None] & there[None, :]
        fresh = tl.load(
            pool_numbers + world[None, :] * per_world + line[:, None], mask=inside & again[None, :], other=0.0
        )
        _copy_rows(scene, next_scene, line, 0, scene_rows, row, envs, fresh, again, there)
        _copy_rows(motion, next_motion, line, scene_rows, motion_rows, row, envs, fresh, again, there)
        _copy_rows(clearance, next_clearance, line, scene_rows + motion_rows, robots, row, envs, fresh, again, there)
    else:
        place = (tile - tiles) * T + tl.arange(0, T)
        of_observation = there[:, None] & (place < observed)[None, :]
        value = _either(pool_observation, observation, world, row, again, observed, place, of_observation)
        tl.store(next_observation + row[:, None] * observed + place[None, :], value, mask=of_observation)
        slot = place - observed
        of_mask = there[:, None] & ((slot >= 0) & (slot < masked))[None, :]
        value = _either(pool_mask, object_mask, world, row, again, masked, slot, of_mask)
        tl.store(next_mask + row[:, None] * masked + slot[None, :], value, mask=of_mask)
        tl.store(seen + row[:, None] * masked + slot[None, :], (value > 0).to(tl.uint8), mask=of_mask)

    if tile == 0:
        robot = tl.arange(0, R)
        inside = (robot < robots)[:, None] & there[None, :]
        at = robot[:, None].to(tl.int64) * envs + row[None, :]
        goes_on = inside & ~again[None, :]
        in_pool = world[None, :] * robots + robot[:, None]
        fresh_exists = tl.load(pool_exists + in_pool, mask=inside & again[None, :], other=0)
        is_there = fresh_exists | tl.load(exists + at, mask=goes_on, other=0)
        is_active = fresh_exists | tl.load(active + at, mask=goes_on, other=0)
        has_arrived = tl.load(arrived + at, mask=goes_on, other=0)
        tl.store(next_exists + at, is_there, mask=inside)
        tl.store(next_active + at, is_active, mask=inside)
        tl.store(next_arrived + at, has_arrived, mask=inside)
        tl.store(next_collided + at, tl.load(collided + at, mask=goes_on, other=0), mask=inside)
        tl.store(next_energy + at, tl.load(energy + at, mask=goes_on, other=0.0), mask=inside)
        tl.store(next_score + at, tl.load(score + at, mask=goes_on, other=0.0), mask=inside)
        of_robot = row[None, :] * robots + robot[:, None]
        for choice in range(num_actions):
            may = (is_active != 0) | (choice == idle)
            tl.store(action_mask + of_robot * num_actions + choice, may.to(tl.uint8), mask=inside)
        missed = inside & (is_there != 0) & (has_arrived == 0)
        tl.store(success + row, (tl.max(missed.to(tl.int32), 0) == 0).to(tl.uint8), mask=there)
        tl.store(next_step_count + row, tl.load(step_count + row, mask=there & ~again, other=0), mask=there)
        tl.store(next_episode + row, begun + again.to(tl.int64), mask=there)
        tl.store(next_level_played + row, played, mask=there)
        old_key = tl.load(key + row, mask=there, other=0)
        tl.store(next_key + row, tl.where(again, drawn_key.to(tl.int64), old_key), mask=there)


@triton.jit
def _copy_rows(source, target, line, first, rows, row, envs, fresh, again, there):
    """Write the lines of a tile, from `first` on, that belong to a tensor (rows, N)."""
    number = line - first
    inside = ((number >= 0) & (number < rows))[:, None] & there[None, :]
    at = number[:, None].to(tl.int64) * envs + row[None, :]
    old = tl.load(source + at, mask=inside & ~again[None, :], other=0.0)
    tl.store(target + at, tl.where(again[None, :], fresh, old), mask=inside)


@triton.jit
def _either(pool, before, world, row, again, size, place, inside):
    """Load numbers (E, T), from the pool for worlds that begin again, else the old."""
    fresh = tl.load(pool + world[:, None] * size + place[None, :], mask=inside & again[:, None], other=0.0)
    old = tl.load(before + row[:, None] * size + place[None, :], mask=inside & ~again[:, None], other=0.0)
    return tl.where(again[:, None], fresh, old)
