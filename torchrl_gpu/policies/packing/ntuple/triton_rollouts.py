"""Whole rollouts of greedy tables in bins of boxes, in one Triton launch.

One program plays a bin through all steps. Bins do not depend on each other, so that there is no barrier between
programs. A step is made of the device functions that single steps launch, on the rows of one bin alone: the bits are
theirs. What a step leaves for the next one lies in memory, behind barriers of the program. With `TRITON_INTERPRET=1`
the kernel runs on a CPU.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import torch
import triton
import triton.language as tl
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.counter_rng import seed_bits
from torchrl_gpu.envs.packing.items import CutBoxes, ItemSource, RandomBoxes
from torchrl_gpu.envs.packing.items.cutting import CutSequences
from torchrl_gpu.envs.packing.items.source import EndlessSequences, ItemSequences, PooledSequences
from torchrl_gpu.envs.packing.items.triton_cuts import lanes_of, numbers_of, sequence_of
from torchrl_gpu.envs.packing.kernels.triton.boxes import MOST_CELLS_X, drop_lines, heights_of
from torchrl_gpu.envs.packing.kernels.triton.piles import raised
from torchrl_gpu.envs.packing.kernels.triton.placements import present
from torchrl_gpu.envs.packing.kernels.triton.stability import DROP_RULES
from torchrl_gpu.envs.packing.kernels.triton.transition import chosen, close_slots, record, standing
from torchrl_gpu.envs.packing.stability.rule import standing_height
from torchrl_gpu.envs.packing.types import PackingState
from torchrl_gpu.envs.triton_draws import drawn, mixed
from torchrl_gpu.policies.packing.ntuple.tables import NEVER, PatchTables
from torchrl_gpu.policies.packing.ntuple.triton_tables import entries_of, geometry, sums_of_shapes, value_of
from torchrl_gpu.policies.packing.ntuple.triton_values import (
    add_gains,
    describe_shapes,
    most_cells,
    placement_lanes,
    values_of,
)
from torchrl_gpu.policies.spaces import AgentSpace, greedy_module

# Lanes of a program, for what has no shape of its own.
_LANES = 256
_WARPS = 8
# Registers of a thread: left to itself, ptxas would rather spill.
_MOST_REGISTERS = 255
# Numbers of a source that cuts nothing, which no program reads.
_NO_CUTS = (1,) * 8
# Cells a side of a bin that is cut, from which its numbers do not fit.
_TOO_MANY_CELLS = 1 << 12
_STATE = ("heightmap", "item_id", "position", "key", "episode", "num_packed", "step_count", "volume", "stable")
_MAPS = ("placements", "placement_z", "z_map", "legal")
_NEVER = tl.constexpr(NEVER)
_LEAST = tl.constexpr(float(np.finfo(np.float32).min))
# A float32 of this size counts in ones: adding it and taking it away rounds to a whole number, halves to even ones.
_ORIGIN = tl.constexpr(12582912.0)


@triton.jit
def _level(metres, scale, levels):
    """`values.level_heights` of metres."""
    whole = metres * scale + _ORIGIN - _ORIGIN
    return tl.minimum(tl.maximum(whole, 0.0), levels).to(tl.uint8)


@triton.jit
def _key_of(env_number, episode, seed, number, stride, KIND: tl.constexpr):
    """`ItemSequences.begin` of one episode, and of `number` sequences in a pool."""
    if KIND == "in order":
        key = (env_number + stride * episode) % number
    else:
        key = drawn(mixed(drawn(mixed(seed.to(tl.int64)), env_number)), episode)
        if KIND == "pool":
            key = drawn(mixed(key), episode * 0) * number >> 32
    return key


@triton.jit
def _item_at(place, key, begin, sequences, length, number, KIND: tl.constexpr):
    """`ItemSequences.items` of one place, with a cut sequence at `begin`."""
    inside = place < length
    if KIND == "endless":
        item = drawn(mixed(key), place) * number >> 32
    else:
        if KIND != "cut":
            begin = tl.minimum(tl.maximum(key, 0), number - 1) * length
        item = tl.load(sequences + begin + tl.minimum(tl.maximum(place, 0), length - 1))
    return tl.where(inside, item, -1)


@triton.jit
def _see(
    heightmap, item_id, z_map, bins, sides, top, extent, item_height, num_items, scale, levels,
    SLOTS: tl.constexpr, ORIENTATIONS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr,
    POOL: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write what the tables see of a bin.

    That is its heights in levels, the sides of the boxes, and the level that each placement reaches.
    """
    PLANE: tl.constexpr = ((X + STEP - 1) // STEP) * ((Y + STEP - 1) // STEP)
    VARIANTS: tl.constexpr = SLOTS * ORIENTATIONS
    for start in range(0, (X // POOL) * (Y // POOL), LANES):
        cell = start + tl.arange(0, LANES)
        there = cell < (X // POOL) * (Y // POOL)
        corner = cell // (Y // POOL) * (POOL * Y) + cell % (Y // POOL) * POOL
        highest = tl.load(heightmap + corner, mask=there, other=0.0)
        for i in tl.static_range(1, POOL * POOL):
            height = tl.load(heightmap + (corner + i // POOL * Y + i % POOL), mask=there, other=0.0)
            highest = tl.maximum(highest, height)
        tl.store(bins + cell, _level(highest, scale, levels), mask=there)
    for start in range(0, VARIANTS * PLANE, LANES):
        place = start + tl.arange(0, LANES)
        there = place < VARIANTS * PLANE
        variant = tl.where(there, place // PLANE, 0)
        item = present(tl.load(item_id + variant // ORIENTATIONS, mask=there, other=-1), num_items)
        row = tl.maximum(item, 0) * ORIENTATIONS + variant % ORIENTATIONS
        height = tl.where(item >= 0, tl.load(item_height + row), 0.0)
        z = tl.load(z_map + place, mask=there, other=0.0)
        tl.store(top + place, _level(z + height, scale, levels), mask=there)
        first = there & (place % PLANE == 0)
        tl.store(sides + variant * 2, tl.where(item >= 0, tl.load(extent + row * 2), 0), mask=first)
        tl.store(sides + variant * 2 + 1, tl.where(item >= 0, tl.load(extent + row * 2 + 1), 0), mask=first)


@triton.jit
def _best(
    whole, item_id, sides, top, legal, gains, gain, value, num_items, num_shapes, levels,
    SLOTS: tl.constexpr, ORIENTATIONS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr,
    POOL: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """First action of the largest value, and that value.

    Values of all actions are written, and the least float for illegal ones.
    """
    GX: tl.constexpr = (X + STEP - 1) // STEP
    GY: tl.constexpr = (Y + STEP - 1) // STEP
    ACTIONS: tl.constexpr = SLOTS * ORIENTATIONS * GX * GY
    best = tl.full([], float("-inf"), tl.float32)
    action = tl.full([], 0, tl.int32)
    for start in range(0, ACTIONS, T):
        place = start + tl.arange(0, T)
        after, there = values_of(
            start, ACTIONS, whole, sides, top, legal, gains, (X // POOL, Y // POOL), (GX, GY), num_shapes, levels,
            STEP, POOL, T,
        )  # fmt: skip
        variant = tl.where(there, place // (GX * GY), 0)
        item = present(tl.load(item_id + variant // ORIENTATIONS, mask=there, other=-1), num_items)
        row = tl.maximum(item, 0) * ORIENTATIONS + variant % ORIENTATIONS
        sum_ = after + tl.where(item >= 0, tl.load(gain + row), 0.0)
        sum_ = tl.where(sum_ < _NEVER, _NEVER, sum_)
        sum_ = tl.where(tl.load(legal + place, mask=there, other=0) != 0, sum_, _LEAST)
        tl.store(value + place, sum_, mask=there)
        # As argmax of torch, to which NaN is the largest.
        compared = tl.where(there, tl.where(sum_ == sum_, sum_, float("inf")), float("-inf"))
        largest = tl.max(compared, 0)
        first = tl.min(tl.where(compared == largest, place, ACTIONS), 0)
        action = tl.where(largest > best, first, action)
        best = tl.maximum(best, largest)
    return action, best


@triton.jit
def _drop(
    heightmap, item_id, z_map, legal, extent, item_height, num_items, ceiling, limit, tolerance,
    SLOTS: tl.constexpr, ORIENTATIONS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr,
    LEVELS: tl.constexpr, RULE: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Write the maps of one bin, as `drop_boxes_kernel`."""
    GY: tl.constexpr = (Y + STEP - 1) // STEP
    for start in range(0, SLOTS * ORIENTATIONS * GY, LINES):
        line = start + tl.arange(0, LINES)
        there = line < SLOTS * ORIENTATIONS * GY
        variant = tl.where(there, line // GY, 0)
        item = present(tl.load(item_id + variant // ORIENTATIONS, mask=there, other=-1), num_items)
        row = tl.maximum(item, 0) * ORIENTATIONS + variant % ORIENTATIONS
        p = tl.where(item >= 0, tl.load(extent + row * 2), 0).to(tl.int32)
        q = tl.where(item >= 0, tl.load(extent + row * 2 + 1), 0).to(tl.int32)
        high = tl.load(item_height + row)
        drop_lines(
            heightmap, line % GY, p, q, high, variant, there, z_map, legal, ceiling, limit, tolerance, X, Y, STEP,
            LEVELS, RULE, LINES,
        )  # fmt: skip


@triton.jit
def _empty(
    heightmap, item_id, z_map, legal, extent, standing_height, num_items, ceiling, limit,
    ORIENTATIONS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr, ACTIONS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Write heights and maps of an empty bin, as `restart_kernel`."""
    for start in range(0, X * Y, LANES):
        cell = start + tl.arange(0, LANES)
        tl.store(heightmap + cell, tl.zeros([LANES], tl.float32), mask=cell < X * Y)
    one = tl.zeros([1], tl.int64)[:, None]
    for start in range(0, ACTIONS, LANES):
        place = start + tl.arange(0, LANES)[None, :]
        there = place < ACTIONS
        fits, high = standing(
            item_id + one, tl.cast(start, tl.int64), there, extent, standing_height, num_items, ORIENTATIONS, X, Y,
            STEP, LANES,
        )  # fmt: skip
        tl.store(z_map + place, tl.where(fits, 0.0, ceiling), mask=there)
        tl.store(legal + place, tl.where(fits, (high <= limit).to(tl.uint8), 0), mask=there)


@triton.jit
def _any(flags, NUMBER: tl.constexpr, LANES: tl.constexpr):
    """1 if any of some flags is set, otherwise 0."""
    some = tl.full([], 0, tl.int32)
    for start in range(0, NUMBER, LANES):
        place = start + tl.arange(0, LANES)
        some = tl.maximum(some, tl.max(tl.load(flags + place, mask=place < NUMBER, other=0).to(tl.int32), 0))
    return some


@triton.jit
def _copy(source, to, NUMBER: tl.constexpr, LANES: tl.constexpr):
    for start in range(0, NUMBER, LANES):
        place = start + tl.arange(0, LANES)
        tl.store(to + place, tl.load(source + place, mask=place < NUMBER, other=0), mask=place < NUMBER)


_NUMBERS = ["steps", "longest", "num_items", "seed", "length", "number", "stride", "bin_x", "bin_y", "bin_z"]
_NUMBERS += ["min_side", "max_side", "most", "turns", "stack", "patches", "num_shapes", "levels"]


@triton.jit(do_not_specialize=_NUMBERS)
def rollout_kernel(
    heightmap, item_id, position, key, episode, num_packed, step_count, volume, stable,
    placements, placement_z, z_map, legal,
    extent, item_height, item_volume, standing_height, gain, env_number,
    kept_key, last, sequences,
    weight, cell, factor, clip, offset, first_patch, shapes,
    bins, sides, top, found, gains, following, next_item, slot,
    before, action, after, was_legal, filled_before, filled_after, done, value, best_value,
    steps, longest, num_items, seed, length, number, stride,
    bin_x, bin_y, bin_z, min_side, max_side, most, turns, stack, patches, num_shapes, levels,
    ceiling, limit, tolerance, scale,
    KIND: tl.constexpr, LAYERS: tl.constexpr, P: tl.constexpr, SLOTS: tl.constexpr, PADDED: tl.constexpr,
    ORIENTATIONS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr, POOL: tl.constexpr,
    LEVELS: tl.constexpr, RULE: tl.constexpr, CELLS: tl.constexpr, LYING: tl.constexpr, T: tl.constexpr,
    LINES: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """`steps` steps of one bin per program.

    State and catalogue are as in `advance_kernel` and `restart_kernel`, in place; `sequences` are those that were cut,
    or a pool. `bins` to `slot` are scratch; the tensors behind them are written: (N, T, …) of each step, values of the
    last one.
    """
    GX: tl.constexpr = (X + STEP - 1) // STEP
    GY: tl.constexpr = (Y + STEP - 1) // STEP
    AREA: tl.constexpr = X * Y
    VARIANTS: tl.constexpr = SLOTS * ORIENTATIONS
    ACTIONS: tl.constexpr = VARIANTS * GX * GY
    n = tl.program_id(0).to(tl.int64)
    heights = heightmap + n * AREA
    shown = item_id + n * SLOTS
    rests = z_map + n * ACTIONS
    fine = legal + n * ACTIONS
    bins = bins + n * ((X // POOL) * (Y // POOL))
    sides = sides + n * (VARIANTS * 2)
    top = top + n * ACTIONS
    found = found + n * patches
    gains = gains + n * num_shapes * ACTIONS
    following = following + n
    next_item = next_item + n * SLOTS
    slot = slot + n * SLOTS
    values = value + n * ACTIONS
    of_env = tl.load(env_number + n)
    place = tl.load(position + n)
    name = tl.load(key + n)
    turn = tl.load(episode + n)
    packed = tl.load(num_packed + n)
    counted = tl.load(step_count + n)
    filled = tl.load(volume + n)
    stood = tl.load(stable + n).to(tl.int32)
    begin = n * 0
    if KIND == "cut":
        begin = sequence_of(
            n, name, kept_key, last, sequences, bin_x, bin_y, bin_z, min_side, max_side, most, turns, stack, LAYERS, P
        )  # fmt: skip
    one = tl.zeros([1], tl.int64)
    for t in range(steps):
        row = n * steps + t
        _copy(heights, before + row * AREA, AREA, LANES)

        # What the bin is worth after each placement, and the best of them.
        _see(
            heights, shown, rests, bins, sides, top, extent, item_height, num_items, scale, levels, SLOTS,
            ORIENTATIONS, X, Y, STEP, POOL, LANES,
        )  # fmt: skip
        tl.debug_barrier()
        for start in range(0, patches, LANES):
            patch = start + tl.arange(0, LANES)
            there = patch < patches
            entry = entries_of(bins, n * 0, patch, there, cell, factor, clip, offset, patches, levels, CELLS)
            tl.store(found + patch, tl.load(weight + entry, mask=there, other=0.0), mask=there)
        tl.debug_barrier()
        whole = value_of(sums_of_shapes(found, first_patch, num_shapes, patches, 1, LYING), 0, num_shapes, LYING)
        for start in range(0, ACTIONS, T):
            add_gains(
                start, ACTIONS, bins, found, weight, shapes, sides, top, fine, gains, (X // POOL, Y // POOL),
                (GX, GY), num_shapes, levels, STEP, POOL, CELLS, LYING, T,
            )  # fmt: skip
        tl.debug_barrier()
        wanted, best = _best(
            whole, shown, sides, top, fine, gains, gain, values, num_items, num_shapes, levels, SLOTS, ORIENTATIONS,
            X, Y, STEP, POOL, T,
        )  # fmt: skip
        tl.store(action + row, wanted.to(tl.int64))
        tl.store(following, _item_at(place, name, begin, sequences, length, number, KIND))
        tl.debug_barrier()

        # The placement, as `advance_kernel`.
        is_fine, gone, placed = chosen(
            one, one == 0, action + row, (shown, rests, fine), extent, num_items, SLOTS, ORIENTATIONS, X, Y, STEP
        )
        for start in range(0, AREA, LANES):
            at = start + tl.arange(0, LANES)
            inside = (at < AREA)[None, :]
            height = tl.load(heights + at[None, :], mask=inside, other=0.0)
            risen = raised(height, at, placed, (extent, item_height, extent, extent), 1, 1, Y, True)
            tl.store(heights + at[None, :], risen, mask=inside)
        taken = tl.minimum(tl.maximum(packed, 0), longest - 1)
        record(one + (n * longest + taken), placed, placements, placement_z, ORIENTATIONS)
        close_slots(one, one == 0, tl.where(is_fine, gone, SLOTS), (shown, following), next_item, slot, SLOTS, PADDED)
        tl.debug_barrier()
        _copy(next_item, shown, SLOTS, PADDED)
        was_fine = tl.sum(is_fine.to(tl.int64), 0)
        item = tl.maximum(tl.sum(placed[0], 0), 0)
        tl.store(filled_before + row, filled)
        filled = filled + tl.where(was_fine > 0, tl.load(item_volume + item), 0.0)
        place = place + was_fine
        packed = packed + was_fine
        counted = counted + 1
        stood = tl.where(was_fine > 0, 1, stood)
        tl.debug_barrier()
        _drop(
            heights, shown, rests, fine, extent, item_height, num_items, ceiling, limit, tolerance, SLOTS,
            ORIENTATIONS, X, Y, STEP, LEVELS, RULE, LINES,
        )  # fmt: skip
        _copy(heights, after + row * AREA, AREA, LANES)
        tl.debug_barrier()
        # An episode ends after an illegal placement, or when nothing is legal any more.
        over = (was_fine == 0) | (_any(fine, ACTIONS, LANES) == 0)
        tl.store(was_legal + row, was_fine.to(tl.uint8))
        tl.store(filled_after + row, filled)
        tl.store(done + row, over.to(tl.uint8))
        tl.store(best_value + n, best)

        # The next episode, as `restart_kernel`.
        if over:
            name = _key_of(of_env, turn, seed, number, stride, KIND)
            if KIND == "cut":
                begin = sequence_of(
                    n, name, kept_key, last, sequences, bin_x, bin_y, bin_z, min_side, max_side, most, turns, stack,
                    LAYERS, P,
                )  # fmt: skip
            for k in range(SLOTS):
                tl.store(shown + k, _item_at(turn * 0 + k, name, begin, sequences, length, number, KIND))
            place = place * 0 + SLOTS
            turn = turn + 1
            packed = packed * 0
            counted = counted * 0
            filled = tl.full([], 0.0, tl.float32)
            stood = stood * 0
            tl.debug_barrier()
            _empty(
                heights, shown, rests, fine, extent, standing_height, num_items, ceiling, limit, ORIENTATIONS, X, Y,
                STEP, ACTIONS, LANES,
            )  # fmt: skip
        tl.debug_barrier()
    tl.store(position + n, place)
    tl.store(key + n, name)
    tl.store(episode + n, turn)
    tl.store(num_packed + n, packed)
    tl.store(step_count + n, counted)
    tl.store(volume + n, filled)
    tl.store(stable + n, stood.to(tl.uint8))


def problem(env: PackingEnv) -> str:
    """Reason why the kernel does not play in an environment, or "".

    Options that no whole rollout covers are for the caller to see.
    """
    if env.bin.cells[0] > MOST_CELLS_X:
        return f"a whole rollout in Triton has at most {MOST_CELLS_X} cells along x, not {env.bin.cells[0]}"
    if env.bin.stability not in DROP_RULES:
        return f"a whole rollout in Triton does not cover stability {env.bin.stability!r}"
    sequences = env.item_sequences
    if isinstance(sequences, CutSequences) and max(sequences.whole) >= _TOO_MANY_CELLS:
        return f"a whole rollout in Triton cuts bins of fewer than 4,096 cells a side, not {sequences.whole}"
    return ""


def play(env: PackingEnv, tables: PatchTables, state: PackingState, steps: int) -> dict[str, Tensor]:
    """Play steps from a state, which is written in place.

    Returns:
        Of each step (N, T, …) `before` and `after`, heightmaps, `action`, `reward`, `utilization` and `done`; and of
        the last step the `value` of all actions (N, A), and that of the one `chosen`, (N, 1).
    """
    outputs = _outputs(env, steps)
    pointers, numbers, constants = _arguments(env, tables, state, outputs, steps)
    if env.num_envs and steps:
        # A fused multiplication and addition would round otherwise than single steps do.
        options = {"enable_fp_fusion": False, "num_warps": _WARPS, "maxnreg": _MOST_REGISTERS}
        with torch.cuda.device(env.device) if env.device.type == "cuda" else contextlib.nullcontext():
            rollout_kernel[(env.num_envs,)](*pointers, *numbers, **constants, **options)
    filled = outputs["filled_after"]
    gained = (filled - outputs["filled_before"]) / env.bin.volume
    found = {name: outputs[name] for name in ("before", "after", "action", "value")}
    found["reward"] = torch.where(outputs["was_legal"], gained, 0.0)[..., None]
    found["utilization"] = (filled / env.bin.volume)[..., None]
    found["done"] = outputs["done"][..., None]
    found["chosen"] = outputs["best_value"][:, None]
    return found


def _outputs(env: PackingEnv, steps: int) -> dict[str, Tensor]:
    """Uninitialised outputs of `rollout_kernel`, in the order of its arguments."""
    rows = env.num_envs
    heights = (rows, steps, *env.bin.cells)
    each_step = (rows, steps)
    shapes: dict[str, tuple[int, ...]] = {
        "before": heights,
        "action": each_step,
        "after": heights,
        "was_legal": each_step,
        "filled_before": each_step,
        "filled_after": each_step,
        "done": each_step,
        "value": (rows, env.num_actions),
        "best_value": (rows,),
    }
    dtypes = {"action": torch.int64, "was_legal": torch.bool, "done": torch.bool}
    outputs = {}
    for name, shape in shapes.items():
        outputs[name] = torch.empty(shape, dtype=dtypes.get(name, torch.float32), device=env.device)
    return outputs


def _arguments(
    env: PackingEnv, tables: PatchTables, state: PackingState, outputs: dict[str, Tensor], steps: int
) -> tuple[list[Tensor], tuple[int | float, ...], dict[str, object]]:
    """Pointers, numbers and constants of `rollout_kernel`."""
    catalogue = env.catalogue
    bin_ = env.bin.dropped
    plan = tables.plan
    device = env.device
    g = geometry(plan, tables.seen, device)
    source = _source(env.item_sequences, device, env.num_envs)
    lying, placements = placement_lanes(plan)
    slots = env.visible_items
    orientations = catalogue.num_orientations
    pointers = [getattr(state, name) for name in (*_STATE, *_MAPS)]
    # They are written in place.
    assert all(each.is_contiguous() for each in pointers)
    pointers += [catalogue.extent, catalogue.height, catalogue.volume, standing_height(catalogue, bin_).contiguous()]
    pointers += [(env.item_sizes[..., 3] / tables.bin.volume).contiguous(), env.env_numbers]
    pointers += [*source.pointers, tables.weight.contiguous()]
    pointers += [g.cell, g.factor, g.clip, g.offset, g.start, describe_shapes(plan, tables.seen, device)]
    pointers += [*_scratch(env, tables, g.cell.shape[1]), *outputs.values()]
    numbers = (steps, state.placements.shape[1], catalogue.num_items, _signed(seed_bits(env.seed)), *source.numbers)
    numbers += (g.cell.shape[1], len(plan.oriented), plan.levels)
    scale = float(np.float32(plan.levels / tables.bin.size[2]))
    # Triton's tensors have powers of two as sizes.
    lines = triton.next_power_of_2(slots * orientations * bin_.grid[1])
    of_items = {
        "KIND": source.kind,
        "LAYERS": source.by_layers,
        "P": source.lanes,
        "SLOTS": slots,
        "PADDED": triton.next_power_of_2(slots),
        "ORIENTATIONS": orientations,
    }
    of_bin = {
        "X": bin_.cells[0],
        "Y": bin_.cells[1],
        "STEP": bin_.step,
        "POOL": tables.pool,
        "LEVELS": min(catalogue.footprint[0], bin_.cells[0]).bit_length() - 1,
        "RULE": bin_.stability,
    }
    of_lanes = {
        "CELLS": most_cells(plan),
        "LYING": lying,
        "T": placements,
        "LINES": min(lines, _LANES),
        "LANES": _LANES,
    }
    flat = [each.view(torch.uint8) if each.dtype == torch.bool else each for each in pointers]
    return flat, (*numbers, *heights_of(bin_), scale), {**of_items, **of_bin, **of_lanes}


def _scratch(env: PackingEnv, tables: PatchTables, patches: int) -> list[Tensor]:
    """Scratch of `rollout_kernel`, in the order of its arguments."""
    rows = env.num_envs
    slots = env.visible_items
    actions = env.num_actions
    variants = slots * env.catalogue.num_orientations

    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=env.device)

    bins = empty(torch.uint8, rows, *tables.seen)
    sides = empty(torch.int64, rows, variants, 2)
    top = empty(torch.uint8, rows, actions)
    found = empty(torch.float32, rows, patches)
    gains = empty(torch.float32, rows, len(tables.plan.oriented), actions)
    following = empty(torch.int64, rows)
    next_item = empty(torch.int64, rows, slots)
    slot = empty(torch.int64, rows, slots)
    return [bins, sides, top, found, gains, following, next_item, slot]


class _Source:
    """Item sequences as `rollout_kernel` takes them."""

    def __init__(self, kind: str, pointers: list[Tensor], numbers: tuple[int, ...]) -> None:
        self.kind = kind
        self.pointers = pointers
        self.numbers = numbers
        self.by_layers = False
        self.lanes = 1


def _source(sequences: ItemSequences, device: torch.device, rows: int) -> _Source:
    if isinstance(sequences, CutSequences):
        numbers = (sequences.length, 1, 1, *numbers_of(sequences))
        source = _Source("cut", list(sequences.kept_on(device, rows)), numbers)
        source.by_layers = sequences.by_layers
        source.lanes = lanes_of(sequences)
        return source
    if isinstance(sequences, EndlessSequences):
        none = torch.empty(1, dtype=torch.int64, device=device)
        return _Source("endless", [none] * 3, (sequences.length, sequences.num_types, 1, *_NO_CUTS))
    assert isinstance(sequences, PooledSequences)
    pool = sequences.sequences.contiguous()
    kind = "in order" if sequences.in_order else "pool"
    return _Source(kind, [pool] * 3, (sequences.length, len(pool), sequences.stride, *_NO_CUTS))


def _signed(bits: int) -> int:
    """32 bits as an int32, so that a kernel takes every seed in one form."""
    return bits - 2**32 if bits >= 2**31 else bits


# -- the self-test --


def self_test(device: str) -> str:
    """Difference of whole rollouts from single steps on a device, or ""."""
    sources: list[tuple[ItemSource, str, int]] = [
        (RandomBoxes(1, 3), "none", 2),
        (CutBoxes(1, 3, order="stack", pool=None), "corners", 1),
        (CutBoxes(2, 3, order="layers", pool=None), "support", 1),
    ]
    for items, stability, visible in sources:
        # By name: its own self-tests have passed when a rollout asks for this one, and would take minutes again.
        env = PackingEnv(
            3,
            bin_size=(4.0, 4.0, 4.0),
            resolution=4,
            items=items,
            stability=stability,
            visible_items=visible,
            seed=1,
            device=device,
            backend="triton",
        )
        space = AgentSpace.of(env)
        tables = PatchTables(space, ["2x2", "1x2:1"]).to(env.device)
        other = difference(env, tables, 8)
        if other:
            return f"{other} after a rollout of {type(items).__name__}, {stability} differs from that of single steps"
    return ""


def difference(env: PackingEnv, tables: PatchTables, steps: int) -> str:
    """First tensor in which a whole rollout differs from single steps, or "".

    Both begin at a reset; afterwards the environment is where the single steps have led.
    """
    policy = greedy_module(AgentSpace.of(env))
    current: TensorDictBase = env.reset()
    state = copy_state(env.state)
    played: list[TensorDictBase] = []
    for _ in range(steps):
        observations = [current[key] for key in tables.in_keys]
        current.set("action_value", tables(*observations))
        stepped, current = env.step_and_maybe_reset(policy(current))
        played.append(stepped)
    kept: dict[str, NestedKey] = {"before": "box_heightmap", "action": "action", "after": ("next", "box_heightmap")}
    kept |= {name: ("next", name) for name in ("reward", "utilization", "done")}
    wanted: dict[str, Tensor] = {}
    for name, key in kept.items():
        wanted[name] = torch.stack([each.get(key) for each in played], 1)
    wanted["value"] = played[-1].get("action_value")
    wanted["chosen"] = played[-1].get("chosen_action_value")
    rollout = play(env, tables, state, steps)
    for name in (*_STATE, *_MAPS):
        wanted[name] = getattr(env.state, name)
        rollout[name] = getattr(state, name)
    for name, value in wanted.items():
        if not torch.equal(value, rollout[name]):
            return name
    return ""


def copy_state(state: PackingState) -> PackingState:
    """Copy a state to write into."""
    return replace(state, **{name: getattr(state, name).clone() for name in (*_STATE, *_MAPS)})
