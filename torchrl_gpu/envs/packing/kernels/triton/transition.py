"""Placing an item and resetting bins in Triton, one launch each.

The maps of the next step are made by `drop_map`. A program copies the same part of several small bins, or a part of a
large one, with the changes of the action or the reset; the first program of a bin also writes its scalars and visible
items. Every row of every result is written once, and the heights and maps of bins that are reset are not read.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.triton.piles import cut, maps_of, raised
from torchrl_gpu.envs.packing.kernels.triton.placements import num_fitting, present
from torchrl_gpu.envs.packing.stability.rule import standing_height
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Moved, PackingState

_MOVED = ("heightmap", "item_id", "position", "volume", "stable", "num_packed", "step_count")
_RESTARTED = (*_MOVED, "key", "episode", "z_map", "legal")


def advance(state: PackingState, action: Tensor, following: Tensor, catalogue: Catalogue, bin_: Bin) -> Moved:
    """As `transition.advance`."""
    # Both are written in place.
    assert state.placements.is_contiguous()
    assert state.placement_z.is_contiguous()
    after = {name: torch.empty_like(each) for name, each in _contiguous(state, _MOVED).items()}
    legal = torch.empty_like(after["stable"])
    slot = torch.empty_like(after["item_id"])
    changed = slot.new_empty(len(slot), 4)
    share = cut(bin_.cells[0] * bin_.cells[1])
    maps = maps_of(catalogue)
    num_envs, num_slots = slot.shape
    before = _pointers(_contiguous(state, (*_MOVED, "z_map", "legal")))
    items = (catalogue.extent, catalogue.height, catalogue.volume, *maps)
    placed = (state.placements, state.placement_z)
    counts = (num_envs, catalogue.num_items, state.placements.shape[1], num_slots, catalogue.num_orientations)
    constants = {"PADDED": triton.next_power_of_2(num_slots), "FLAT": catalogue.flat, **share._asdict()}
    constants |= {"X": bin_.cells[0], "Y": bin_.cells[1], "STEP": bin_.step}
    launch = advance_kernel[(triton.cdiv(num_envs, share.ENVS) * share.TILES,)]
    given = (action.contiguous(), following.contiguous())
    made = (*_pointers(after), legal.view(torch.uint8), slot, changed)
    tensors = (*before, *given, *items, *placed, *made)
    launch(*tensors, *counts, *maps[1].shape[-2:], **constants, enable_fp_fusion=False, num_warps=4)
    return Moved(replace(state, **after), legal, slot, changed)


def _contiguous(state: PackingState, names: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: getattr(state, name).contiguous() for name in names}


def _pointers(tensors: dict[str, Tensor]) -> list[Tensor]:
    """Return tensors as kernels take them: bool viewed as bytes."""
    return [each.view(torch.uint8) if each.dtype == torch.bool else each for each in tensors.values()]


@triton.jit(do_not_specialize=["num_envs", "num_items", "longest", "num_slots", "orientations", "rows", "columns"])
def advance_kernel(
    heightmap, item_id, position, volume, stable, num_packed, step_count, z_map, legal, action, following,
    extent, item_height, item_volume, top, bottom, placements, placement_z,
    next_heightmap, next_item, next_position, next_volume, next_stable, next_num_packed, next_step_count,
    was_legal, slot, changed,
    num_envs, num_items, longest, num_slots, orientations, rows, columns,
    PADDED: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr, FLAT: tl.constexpr,
    ENVS: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """`advance`: LANES cells of ENVS bins per program."""
    pid = tl.program_id(0).to(tl.int64)
    tile = (pid % TILES).to(tl.int32)
    env = pid // TILES * ENVS + tl.arange(0, ENVS)
    there = env < num_envs
    cell = tile * LANES + tl.arange(0, LANES)
    where = (env * (X * Y))[:, None] + cell[None, :]
    inside = there[:, None] & (cell < X * Y)[None, :]
    # This read is in flight while the action is decoded.
    height = tl.load(heightmap + where, mask=inside, other=0.0)
    fine, gone, placed = chosen(
        env, there, action, (item_id, z_map, legal), extent, num_items, num_slots, orientations, X, Y, STEP
    )
    item, variant, x, y, _z = placed
    maps = (extent, item_height, top, bottom)
    tl.store(next_heightmap + where, raised(height, cell, placed, maps, rows, columns, Y, FLAT), mask=inside)
    if tile == 0:
        one = fine.to(tl.int64)
        more = tl.where(fine, tl.load(item_volume + tl.maximum(item, 0)), 0.0)
        packed = tl.load(num_packed + env, mask=there, other=0)
        tl.store(was_legal + env, fine.to(tl.uint8), mask=there)
        tl.store(next_num_packed + env, packed + one, mask=there)
        tl.store(next_position + env, tl.load(position + env, mask=there, other=0) + one, mask=there)
        tl.store(next_step_count + env, tl.load(step_count + env, mask=there, other=0) + 1, mask=there)
        tl.store(next_volume + env, tl.load(volume + env, mask=there, other=0.0) + more, mask=there)
        stood = tl.load(stable + env, mask=there, other=0) != 0
        tl.store(next_stable + env, (stood | fine).to(tl.uint8), mask=there)
        tl.store(changed + env * 4, x * one, mask=there)
        tl.store(changed + env * 4 + 1, y * one, mask=there)
        tl.store(changed + env * 4 + 2, (x + tl.load(extent + variant * 2)) * one, mask=there)
        tl.store(changed + env * 4 + 3, (y + tl.load(extent + variant * 2 + 1)) * one, mask=there)
        row = tl.minimum(tl.maximum(packed, 0), longest - 1)
        record(env * longest + row, placed, placements, placement_z, orientations)
        close_slots(
            env, there, tl.where(fine, gone, num_slots), (item_id, following), next_item, slot, num_slots, PADDED
        )


@triton.jit
def chosen(
    env, there, action, state, extent, num_items, num_slots, orientations,
    X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Decoded actions of some environments (E,), some of which are not there.

    Returns:
        Whether the action is legal; the slot of its item; and the placement: item, −1 if the action is not legal, its
        row of the catalogue, int64, x and y, int32, and z. (E,) each.
    """
    GX: tl.constexpr = (X + STEP - 1) // STEP
    GY: tl.constexpr = (Y + STEP - 1) // STEP
    num_actions = tl.cast(num_slots, tl.int64) * orientations * (GX * GY)
    item_id, z_map, legal = state
    wanted = tl.load(action + env, mask=there, other=-1)
    inside = (wanted >= 0) & (wanted < num_actions)
    index = tl.where(inside, wanted, 0)
    fine = inside & (tl.load(legal + env * num_actions + index, mask=inside, other=0) != 0)
    z = tl.load(z_map + env * num_actions + index, mask=inside, other=0.0)
    # Number over (K, O): 64-bit division by a constant alone.
    from_start = (index // (GX * GY)).to(tl.int32)
    slot = from_start // orientations
    item = present(tl.load(item_id + env * num_slots + slot, mask=inside, other=-1), num_items)
    variant = tl.maximum(item, 0) * orientations + from_start % orientations
    last_x = X - tl.load(extent + variant * 2)
    last_y = Y - tl.load(extent + variant * 2 + 1)
    fine = fine & (item >= 0) & (last_x >= 0) & (last_y >= 0)
    item = tl.where(fine, item, -1)
    x = tl.maximum(tl.minimum(index // GY % GX * STEP, last_x), 0).to(tl.int32)
    y = tl.maximum(tl.minimum(index % GY * STEP, last_y), 0).to(tl.int32)
    return fine, slot, (item, variant, x, y, z)


@triton.jit
def record(at, placed, placements, placement_z, orientations):
    """Write the placements of some environments into rows `at` of the record.

    Where there is no item, nothing is written.
    """
    item, variant, x, y, z = placed
    write = item >= 0
    tl.store(placements + at * 4, item.to(tl.int32), mask=write)
    tl.store(placements + at * 4 + 1, (variant - tl.maximum(item, 0) * orientations).to(tl.int32), mask=write)
    tl.store(placements + at * 4 + 2, x, mask=write)
    tl.store(placements + at * 4 + 3, y, mask=write)
    tl.store(placement_z + at, z, mask=write)


@triton.jit
def close_slots(env, there, gone, items, next_item, slot, num_slots, PADDED: tl.constexpr):
    """Remove the slots `gone`, `num_slots` for none.

    Later items move up, and the following one is shown last.
    """
    item_id, following = items
    k = tl.arange(0, PADDED)[None, :]
    before = k + (k >= gone[:, None]).to(tl.int64)
    at = (env * num_slots)[:, None]
    write = there[:, None] & (k < num_slots)
    moves = before < num_slots
    moved = tl.load(item_id + (at + before), mask=write & moves, other=-1)
    shown = tl.load(following + env, mask=there, other=-1)[:, None]
    tl.store(next_item + (at + k), tl.where(moves, moved, shown), mask=write)
    tl.store(slot + (at + k), tl.where(moves, before, -1), mask=write)


def restart(
    state: PackingState, mask: Tensor, key: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> PackingState:
    """As `transition.restart`."""
    before = _contiguous(state, _RESTARTED)
    fresh = {name: torch.empty_like(each) for name, each in before.items()}
    num_envs, num_slots = item_id.shape
    share = cut(bin_.cells[0] * bin_.cells[1])
    num_placements = state.legal[0].numel()
    of_maps = cut(num_placements)
    num_piles = triton.cdiv(num_envs, share.ENVS) * share.TILES
    num_maps = triton.cdiv(num_envs, of_maps.ENVS) * of_maps.TILES
    given = (mask.contiguous().view(torch.uint8), key.contiguous(), item_id.contiguous())
    heights = standing_height(catalogue, bin_).contiguous()
    tensors = (*given, *_pointers(before), catalogue.extent, heights, *_pointers(fresh))
    limit = bin_.size[2] + bin_.tolerance
    numbers = (num_envs, catalogue.num_items, num_piles, bin_.size[2], limit, num_slots)
    constants = {"PADDED": triton.next_power_of_2(num_slots), "ORIENTATIONS": catalogue.num_orientations}
    constants |= {"X": bin_.cells[0], "Y": bin_.cells[1], "STEP": bin_.step, "PLACEMENTS": num_placements}
    constants |= share._asdict()
    constants |= {"MAP_ENVS": of_maps.ENVS, "MAP_LANES": of_maps.LANES, "MAP_TILES": of_maps.TILES}
    launch = restart_kernel[(num_piles + num_maps,)]
    launch(*tensors, *numbers, **constants, enable_fp_fusion=False, num_warps=4)
    return replace(state, **fresh)


@triton.jit(do_not_specialize=["num_envs", "num_items", "num_piles", "num_slots"])
def restart_kernel(
    mask, fresh_key, fresh_item,
    heightmap, item_id, position, volume, stable, num_packed, step_count, key, episode, z_map, legal,
    extent, item_height,
    next_heightmap, next_item, next_position, next_volume, next_stable, next_num_packed, next_step_count,
    next_key, next_episode, next_z_map, next_legal,
    num_envs, num_items, num_piles, ceiling, limit, num_slots,
    PADDED: tl.constexpr, ORIENTATIONS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr,
    PLACEMENTS: tl.constexpr, ENVS: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr,
    MAP_ENVS: tl.constexpr, MAP_LANES: tl.constexpr, MAP_TILES: tl.constexpr,
):  # fmt: skip
    """`restart`: LANES cells of ENVS bins per program.

    Further programs write MAP_LANES placements of MAP_ENVS bins.
    """
    pid = tl.program_id(0).to(tl.int64)
    if pid < num_piles:
        env = pid // TILES * ENVS + tl.arange(0, ENVS)
        there = env < num_envs
        again = tl.load(mask + env, mask=there, other=0) != 0
        cell = (pid % TILES).to(tl.int32) * LANES + tl.arange(0, LANES)
        at = (env * (X * Y))[:, None] + cell[None, :]
        inside = there[:, None] & (cell < X * Y)[None, :]
        height = tl.load(heightmap + at, mask=inside & ~again[:, None], other=0.0)
        tl.store(next_heightmap + at, height, mask=inside)
        if pid % TILES == 0:
            items = (fresh_item, item_id, next_item)
            keys = (fresh_key, key, next_key)
            old = (position, volume, stable, num_packed, step_count, episode)
            new = (next_position, next_volume, next_stable, next_num_packed, next_step_count, next_episode)
            _begin(env, there, again, items, keys, old, new, num_slots, PADDED)
    else:
        maps = (z_map, legal, next_z_map, next_legal)
        shapes = (extent, item_height)
        map_pid = pid - num_piles
        _begin_maps(
            map_pid, num_envs, num_items, (mask, fresh_item), maps, shapes, (ceiling, limit),
            num_slots, ORIENTATIONS, X, Y, STEP, PLACEMENTS, MAP_ENVS, MAP_LANES, MAP_TILES,
        )  # fmt: skip


@triton.jit
def _begin(env, there, again, items, keys, old, new, num_slots, PADDED: tl.constexpr):
    """Write the state except heights and maps.

    Items and keys are fresh or as before, the others go from `old` to `new`.
    """
    position, volume, stable, num_packed, step_count, episode = old
    next_position, next_volume, next_stable, next_num_packed, next_step_count, next_episode = new
    goes_on = there & ~again
    tl.store(next_position + env, tl.load(position + env, mask=goes_on, other=num_slots), mask=there)
    tl.store(next_volume + env, tl.load(volume + env, mask=goes_on, other=0.0), mask=there)
    tl.store(next_stable + env, tl.load(stable + env, mask=goes_on, other=0), mask=there)
    tl.store(next_num_packed + env, tl.load(num_packed + env, mask=goes_on, other=0), mask=there)
    tl.store(next_step_count + env, tl.load(step_count + env, mask=goes_on, other=0), mask=there)
    tl.store(next_episode + env, tl.load(episode + env, mask=there, other=0) + again.to(tl.int64), mask=there)
    tl.store(keys[2] + env, tl.load(tl.where(again, keys[0], keys[1]) + env, mask=there, other=0), mask=there)
    k = tl.arange(0, PADDED)[None, :]
    at = (env * num_slots)[:, None] + k
    write = there[:, None] & (k < num_slots)
    shown = tl.load(tl.where(again, items[0], items[1])[:, None] + at, mask=write, other=-1)
    tl.store(items[2] + at, shown, mask=write)


@triton.jit
def _begin_maps(
    pid, num_envs, num_items, fresh, maps, shapes, limits, num_slots,
    ORIENTATIONS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr, PLACEMENTS: tl.constexpr,
    ENVS: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write the maps of LANES placements of ENVS bins.

    They are those of an empty bin where it is reset, else as before.
    """
    mask, fresh_item = fresh
    extent, item_height = shapes
    ceiling, limit = limits
    z_map, legal, next_z_map, next_legal = maps
    env = pid // TILES * ENVS + tl.arange(0, ENVS)
    start = pid % TILES * LANES
    lane = start + tl.arange(0, LANES)
    write = (env < num_envs)[:, None] & (lane < PLACEMENTS)[None, :]
    again = write & (tl.load(mask + env, mask=env < num_envs, other=0) != 0)[:, None]
    fits, high = standing(
        (fresh_item + env * num_slots)[:, None],
        start, again, extent, item_height, num_items, ORIENTATIONS, X, Y, STEP, LANES,
    )  # fmt: skip
    at = (env * PLACEMENTS)[:, None] + lane[None, :]
    z = tl.load(z_map + at, mask=write & ~again, other=ceiling)
    fine = tl.load(legal + at, mask=write & ~again, other=0)
    tl.store(next_z_map + at, tl.where(fits, 0.0, z), mask=write)
    tl.store(next_legal + at, tl.where(fits, (high <= limit).to(tl.uint8), fine), mask=write)


@triton.jit
def standing(
    items, start, wanted, extent, item_height, num_items,
    ORIENTATIONS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, STEP: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Mask of LANES placements that the first items of some empty bins fit.

    They are counted from `start` on over (K, O, Gx, Gy).

    Returns:
        Whether the item fits, resting on the floor, and is `wanted`; and its height. (E, LANES) each.
    """
    GX: tl.constexpr = (X + STEP - 1) // STEP
    GY: tl.constexpr = (Y + STEP - 1) // STEP
    # Division is of 64 bits once per program, and of 32 bits per lane.
    from_variant = start // (GX * GY)
    offset = (start % (GX * GY)).to(tl.int32) + tl.arange(0, LANES)
    offset_variant = (from_variant % ORIENTATIONS).to(tl.int32) + offset // (GX * GY)
    slot = from_variant // ORIENTATIONS + offset_variant // ORIENTATIONS
    item = present(tl.load(items + slot[None, :], mask=wanted, other=-1), num_items)
    variant = tl.maximum(item, 0) * ORIENTATIONS + (offset_variant % ORIENTATIONS)[None, :]
    there = item >= 0
    # An empty slot fits nowhere.
    p = tl.load(extent + variant * 2, mask=there, other=X + 1).to(tl.int32)
    q = tl.load(extent + variant * 2 + 1, mask=there, other=Y + 1).to(tl.int32)
    gx = (offset // GY % GX)[None, :]
    gy = (offset % GY)[None, :]
    fits = (gx < num_fitting(p, X, STEP)) & (gy < num_fitting(q, Y, STEP))
    return fits, tl.load(item_height + variant, mask=there, other=0.0)
