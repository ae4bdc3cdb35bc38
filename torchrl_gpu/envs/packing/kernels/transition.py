"""Placing an item and resetting bins, in torch.

The maps of the next step are made by `drop_map`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from torchrl_gpu.envs.base import where_rows
from torchrl_gpu.envs.packing.geometry import catalogue_rows, walls
from torchrl_gpu.envs.packing.stability.rule import standing_height
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Moved, PackingState, Placement


def advance(
    state: PackingState,
    action: Tensor,
    following: Tensor,
    catalogue: Catalogue,
    bin_: Bin,
    place: Callable[[Tensor, Placement, Catalogue, Bin], Tensor],
) -> Moved:
    """Return the state after an action of each environment.

    An action that is not legal, outside, or over an empty slot or an item larger than the bin, whatever the mask says,
    places nothing.

    Args:
        state: Before; its `placements` and `placement_z` are written in place.
        action: Index into (K, O, Gx, Gy), (N,) int64.
        following: Item shown next, −1 for none, (N,) int64.
        catalogue: The items.
        bin_: The bin.
        place: Kernel that places an item.
    """
    placement, slot, legal = _decode(state, action, catalogue, bin_)
    _record(state, placement)
    slots = torch.arange(state.item_id.shape[1], device=action.device, dtype=torch.int64)
    # The slot in which each shown item was before; K stands for the item newly shown.
    before = slots + (legal[:, None] & (slots >= slot[:, None]))
    extent = catalogue.extent[placement.item_id.clamp_min(0), placement.orientation]
    corner = torch.stack([placement.x, placement.y], 1)
    volume = catalogue.volume[placement.item_id.clamp_min(0)]
    heightmap = place(state.heightmap, placement, catalogue, bin_)
    item_id = torch.cat([state.item_id, following[:, None]], 1).gather(1, before)
    packed = state.volume + torch.where(legal, volume, 0.0)
    position = state.position + legal
    stable = state.stable | legal
    num_packed = state.num_packed + legal
    after = replace(
        state,
        heightmap=heightmap,
        item_id=item_id,
        position=position,
        volume=packed,
        stable=stable,
        num_packed=num_packed,
        step_count=state.step_count + 1,
    )
    changed = torch.cat([corner, corner + extent], 1) * legal[:, None]
    return Moved(after, legal, torch.where(before < len(slots), before, -1), changed)


def skip_first_item(moved: Moved, skips: Tensor, following: Tensor) -> Moved:
    """Return a move after which some environments no longer show their first item.

    Args:
        moved: The move.
        skips: Environments in which the item is skipped, where nothing was placed, (N,) bool.
        following: Item shown next, −1 for none, (N,) int64.
    """
    state = moved.state
    item_id = torch.cat([state.item_id[:, 1:], following[:, None]], 1)
    no_slot = torch.full_like(moved.slot[:, :1], -1)
    slot = torch.cat([moved.slot[:, 1:], no_slot], 1)
    after = replace(state, item_id=where_rows(skips, item_id, state.item_id), position=state.position + skips)
    return moved._replace(state=after, slot=where_rows(skips, slot, moved.slot))


def _decode(state: PackingState, action: Tensor, catalogue: Catalogue, bin_: Bin) -> tuple[Placement, Tensor, Tensor]:
    """Return the placement of each action, with item −1 where it is not legal.

    Returns:
        The placement, the item's slot, (N,) int64, and whether the action is legal, (N,) bool.
    """
    num_orientations, grid_x, grid_y = state.legal.shape[2:]
    inside = (action >= 0) & (action < state.legal[0].numel())
    action = torch.where(inside, action, 0)
    legal = state.legal.flatten(1).gather(1, action[:, None]).squeeze(1) & inside
    z = state.z_map.flatten(1).gather(1, action[:, None]).squeeze(1)
    gy = action % grid_y
    rest = action // grid_y
    gx = rest % grid_x
    rest = rest // grid_x
    orientation = rest % num_orientations
    slot = rest // num_orientations
    item = state.item_id.gather(1, slot[:, None]).squeeze(1)
    row = catalogue_rows(item, catalogue)
    extent = catalogue.extent[row, orientation]
    last_x = bin_.cells[0] - extent[:, 0]
    last_y = bin_.cells[1] - extent[:, 1]
    legal = legal & (item == row) & (last_x >= 0) & (last_y >= 0)
    item = torch.where(legal, row, -1)
    x = torch.minimum(gx * bin_.step, last_x).clamp_min(0)
    y = torch.minimum(gy * bin_.step, last_y).clamp_min(0)
    return Placement(item, orientation, x, y, z), slot, legal


def _record(state: PackingState, placement: Placement) -> None:
    """Append legal placements to `placements` and `placement_z`, in place."""
    legal = placement.item_id >= 0
    rows = torch.arange(len(legal), device=legal.device, dtype=torch.int64)
    at = rows, state.num_packed.clamp(0, state.placements.shape[1] - 1)
    row = torch.stack([field.int() for field in placement[:4]], -1)  # (N, 4)
    state.placements[at] = torch.where(legal[:, None], row, state.placements[at])
    state.placement_z[at] = torch.where(legal, placement.z, state.placement_z[at])


def restart(
    state: PackingState, mask: Tensor, key: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> PackingState:
    """Return the state with some environments reset.

    Args:
        state: Before.
        mask: Environments that are reset, (N,) bool.
        key: Names their next episodes' sequences, (N,) int64.
        item_id: Their first items, (N, K) int64.
        catalogue: The items.
        bin_: The bin.
    """
    z_map, legal = _empty_bin_maps(item_id, catalogue, bin_)
    heightmap = where_rows(mask, torch.zeros_like(state.heightmap), state.heightmap)
    shown = where_rows(mask, item_id, state.item_id)
    position = torch.where(mask, item_id.shape[1], state.position)
    next_key = torch.where(mask, key, state.key)
    volume = torch.where(mask, 0.0, state.volume)
    stable = state.stable & ~mask
    num_packed = torch.where(mask, 0, state.num_packed)
    step_count = torch.where(mask, 0, state.step_count)
    z_map = where_rows(mask, z_map, state.z_map)
    legal = where_rows(mask, legal, state.legal)
    return replace(
        state,
        heightmap=heightmap,
        item_id=shown,
        position=position,
        key=next_key,
        episode=state.episode + mask,
        volume=volume,
        stable=stable,
        num_packed=num_packed,
        step_count=step_count,
        z_map=z_map,
        legal=legal,
    )


def _empty_bin_maps(item_id: Tensor, catalogue: Catalogue, bin_: Bin) -> tuple[Tensor, Tensor]:
    """Return the `drop_map` of an empty bin: every item rests on the floor."""
    # (N, K, O, Gx, Gy)
    z = walls(item_id, catalogue, bin_)
    height = standing_height(catalogue, bin_)[catalogue_rows(item_id, catalogue)][..., None, None]
    legal = z + height <= bin_.size[2] + bin_.tolerance
    return z.nan_to_num(posinf=bin_.size[2]), legal


def any_legal(legal: Tensor) -> Tensor:
    """Return which environments have a legal placement.

    Args:
        legal: (N, K, O, Gx, Gy) bool.

    Returns:
        (N,) bool.
    """
    flat = legal.flatten(1)
    # On a CPU `any` over an axis takes ten times as long as a sum.
    return flat.sum(1) > 0 if flat.device.type == "cpu" else flat.any(1)
