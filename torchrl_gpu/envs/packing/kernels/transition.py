"""Place an item and reset finished bins, without the maps of the next step (torch implementation, every device)."""

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
    """The state after an action of each environment, (N,) int64, an index into (K, O, Gx, Gy).

    One that is not legal, outside, or over an empty slot or an item larger than the bin, regardless of the mask, places
    nothing. `following` (N,) int64 is the item shown next, −1 for none. Of the state before, `placements` and
    `placement_z` are written in place.
    """
    placement, slot, legal = _decode(state, action, catalogue, bin_)
    _record(state, placement)
    slots = torch.arange(state.item_id.shape[1], device=action.device, dtype=torch.int64)
    before = slots + (legal[:, None] & (slots >= slot[:, None]))  # K is the index of the item newly shown
    extent = catalogue.extent[placement.item_id.clamp_min(0), placement.orientation]
    corner = torch.stack([placement.x, placement.y], 1)
    volume = catalogue.volume[placement.item_id.clamp_min(0)]
    after = replace(
        state,
        heightmap=place(state.heightmap, placement, catalogue, bin_),
        item_id=torch.cat([state.item_id, following[:, None]], 1).gather(1, before),
        position=state.position + legal,
        volume=state.volume + torch.where(legal, volume, 0.0),
        stable=state.stable | legal,
        num_packed=state.num_packed + legal,
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
    """Placement of an action, item −1 where it is not legal.

    Slot of the item, (N,) int64; legality, (N,) bool.
    """
    num_orientations, grid_x, grid_y = state.legal.shape[2:]
    inside = (action >= 0) & (action < state.legal[0].numel())
    action = torch.where(inside, action, 0)
    legal = state.legal.flatten(1).gather(1, action[:, None]).squeeze(1) & inside
    z = state.z_map.flatten(1).gather(1, action[:, None]).squeeze(1)
    gy, rest = action % grid_y, action // grid_y
    gx, rest = rest % grid_x, rest // grid_x
    orientation, slot = rest % num_orientations, rest // num_orientations
    item = state.item_id.gather(1, slot[:, None]).squeeze(1)
    row = catalogue_rows(item, catalogue)
    extent = catalogue.extent[row, orientation]
    last_x, last_y = bin_.cells[0] - extent[:, 0], bin_.cells[1] - extent[:, 1]
    legal = legal & (item == row) & (last_x >= 0) & (last_y >= 0)
    item = torch.where(legal, row, -1)
    x = torch.minimum(gx * bin_.step, last_x).clamp_min(0)
    y = torch.minimum(gy * bin_.step, last_y).clamp_min(0)
    return Placement(item, orientation, x, y, z), slot, legal


def _record(state: PackingState, placement: Placement) -> None:
    """Appends the placement to `placements` and `placement_z`, in place, where it is legal."""
    legal = placement.item_id >= 0
    rows = torch.arange(len(legal), device=legal.device, dtype=torch.int64)
    at = rows, state.num_packed.clamp(0, state.placements.shape[1] - 1)
    row = torch.stack([field.int() for field in placement[:4]], -1)  # (N, 4)
    state.placements[at] = torch.where(legal[:, None], row, state.placements[at])
    state.placement_z[at] = torch.where(legal, placement.z, state.placement_z[at])


def restart(
    state: PackingState, mask: Tensor, key: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> PackingState:
    """The state with the environments of `mask` (N,) reset: to other keys (N,), and to their first items (N, K)."""
    z_map, legal = _empty_bin_maps(item_id, catalogue, bin_)
    return replace(
        state,
        heightmap=where_rows(mask, torch.zeros_like(state.heightmap), state.heightmap),
        item_id=where_rows(mask, item_id, state.item_id),
        position=torch.where(mask, item_id.shape[1], state.position),
        key=torch.where(mask, key, state.key),
        episode=state.episode + mask,
        volume=torch.where(mask, 0.0, state.volume),
        stable=state.stable & ~mask,
        num_packed=torch.where(mask, 0, state.num_packed),
        step_count=torch.where(mask, 0, state.step_count),
        z_map=where_rows(mask, z_map, state.z_map),
        legal=where_rows(mask, legal, state.legal),
    )


def _empty_bin_maps(item_id: Tensor, catalogue: Catalogue, bin_: Bin) -> tuple[Tensor, Tensor]:
    """`drop_map` of an empty bin without a kernel: every item rests on the floor."""
    z = walls(item_id, catalogue, bin_)  # (N, K, O, Gx, Gy)
    height = standing_height(catalogue, bin_)[catalogue_rows(item_id, catalogue)][..., None, None]
    return z.nan_to_num(posinf=bin_.size[2]), z + height <= bin_.size[2] + bin_.tolerance


def any_legal(legal: Tensor) -> Tensor:
    """True where an environment has a legal placement: (N,) bool, from (N, K, O, Gx, Gy) bool."""
    flat = legal.flatten(1)
    return flat.sum(1) > 0 if flat.device.type == "cpu" else flat.any(1)  # any(1) takes ten times as long on a CPU
