"""Input validation shared by all kernel backends.

Types, shapes and devices are checked, which needs no read of the device. Integers of another width are cast to int64;
any other mismatch is a ValueError. Values are handled where the kernels read them, alike in every backend: an item that
is no row of the catalogue is an empty slot, an action that is out of range or over an empty slot is not legal, and a
placement that is not inside the bin places nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import Bin, Catalogue, PackingState, Placement, StoredMaps
from torchrl_gpu.system.arguments import length, shown, tensor

_FLAG, _COUNT, _REAL = torch.bool, torch.int64, torch.float32
argument = partial(tensor, cast=True)


def checked(name: str, job: Callable[..., Any], devices: tuple[str, ...] | None) -> Callable[..., Any]:
    """A kernel with its input validation in front.

    Args:
        name: Its name in `Kernels`.
        job: The backend's kernel.
        devices: Device types that the backend reads; None for all.
    """
    check = _CHECKS[name]

    @wraps(job)
    def behind_border(*args: Any, **named: Any) -> Any:
        return job(*check(devices, *args, **named))

    return behind_border


def drop_map(
    devices: tuple[str, ...] | None,
    heightmap: Tensor,
    item_id: Tensor,
    catalogue: Catalogue,
    bin_: Bin,
    stored: StoredMaps | None = None,
) -> tuple[Any, ...]:
    """Validated arguments of `drop_map`."""
    where, device = "drop_map", _device("drop_map", devices, catalogue)
    heightmap, item_id = _bins(where, heightmap, item_id, bin_, device)
    if stored is None:
        return heightmap, item_id, catalogue, bin_
    maps = *item_id.shape, catalogue.num_orientations, *bin_.grid
    stored = stored._replace(
        z_map=argument(where, "stored.z_map", stored.z_map, _REAL, maps, device),
        legal=argument(where, "stored.legal", stored.legal, _FLAG, maps, device),
        slot=argument(where, "stored.slot", stored.slot, _COUNT, tuple(item_id.shape), device),
        changed=argument(where, "stored.changed", stored.changed, _COUNT, (item_id.shape[0], 4), device),
    )
    return heightmap, item_id, catalogue, bin_, stored


def place(
    devices: tuple[str, ...] | None,
    heightmap: Tensor,
    placement: Placement,
    catalogue: Catalogue,
    bin_: Bin,
    *,
    where: str = "place",
) -> tuple[Any, ...]:
    """Validated arguments of `place` and `judge_placements`."""
    device = _device(where, devices, catalogue)
    heightmap = argument(where, "heightmap", heightmap, _REAL, (length(heightmap), *bin_.cells), device)
    rows = (heightmap.shape[0],)
    placement = placement._replace(
        item_id=argument(where, "placement.item_id", placement.item_id, _COUNT, rows, device),
        orientation=argument(where, "placement.orientation", placement.orientation, _COUNT, rows, device),
        x=argument(where, "placement.x", placement.x, _COUNT, rows, device),
        y=argument(where, "placement.y", placement.y, _COUNT, rows, device),
        z=argument(where, "placement.z", placement.z, _REAL, rows, device),
    )
    return heightmap, placement, catalogue, bin_


def pile_growth(
    devices: tuple[str, ...] | None,
    heightmap: Tensor,
    item_id: Tensor,
    z_map: Tensor,
    catalogue: Catalogue,
    bin_: Bin,
) -> tuple[Any, ...]:
    """Validated arguments of `pile_growth`."""
    where, device = "pile_growth", _device("pile_growth", devices, catalogue)
    heightmap, item_id = _bins(where, heightmap, item_id, bin_, device)
    maps = *item_id.shape, catalogue.num_orientations, *bin_.grid
    return heightmap, item_id, argument(where, "z_map", z_map, _REAL, maps, device), catalogue, bin_


def advance(
    devices: tuple[str, ...] | None,
    state: PackingState,
    action: Tensor,
    following: Tensor,
    catalogue: Catalogue,
    bin_: Bin,
) -> tuple[Any, ...]:
    """Validated arguments of `advance`."""
    where, device = "advance", _device("advance", devices, catalogue)
    state = _state(where, state, catalogue, bin_, device)
    rows = (state.heightmap.shape[0],)
    action = argument(where, "action", action, _COUNT, rows, device)
    following = argument(where, "following", following, _COUNT, rows, device)
    return state, action, following, catalogue, bin_


def restart(
    devices: tuple[str, ...] | None,
    state: PackingState,
    mask: Tensor,
    key: Tensor,
    item_id: Tensor,
    catalogue: Catalogue,
    bin_: Bin,
) -> tuple[Any, ...]:
    """Validated arguments of `restart`."""
    where, device = "restart", _device("restart", devices, catalogue)
    state = _state(where, state, catalogue, bin_, device)
    rows = (state.heightmap.shape[0],)
    mask = argument(where, "mask", mask, _FLAG, rows, device)
    key = argument(where, "key", key, _COUNT, rows, device)
    item_id = argument(where, "item_id", item_id, _COUNT, tuple(state.item_id.shape), device)
    return state, mask, key, item_id, catalogue, bin_


def any_legal(devices: tuple[str, ...] | None, legal: Tensor) -> tuple[Any, ...]:
    """Validated argument of `any_legal`."""
    if not isinstance(legal, Tensor) or legal.ndim < 2 or legal.dtype is not _FLAG:
        raise ValueError(f"any_legal: legal must be bool of two axes or more; got {shown(legal)}")
    if devices is not None and legal.device.type not in devices:
        raise ValueError(f"any_legal: want tensors on {' or '.join(devices)}; got one on {legal.device}")
    return (legal,)


def _device(where: str, devices: tuple[str, ...] | None, catalogue: Catalogue) -> torch.device:
    """Device of the catalogue, which every other tensor must share."""
    device = catalogue.extent.device
    if devices is not None and device.type not in devices:
        raise ValueError(f"{where}: want tensors on {' or '.join(devices)}; got a catalogue on {device}")
    return device


def _bins(where: str, heightmap: Tensor, item_id: Tensor, bin_: Bin, device: torch.device) -> tuple[Tensor, Tensor]:
    """Validated heightmaps (N, X, Y) and visible items (N, K), K at least 1."""
    heightmap = argument(where, "heightmap", heightmap, _REAL, (length(heightmap), *bin_.cells), device)
    shown = heightmap.shape[0], max(1, length(item_id, 1))
    return heightmap, argument(where, "item_id", item_id, _COUNT, shown, device)


def _state(where: str, state: PackingState, catalogue: Catalogue, bin_: Bin, device: torch.device) -> PackingState:
    """A validated state; the same object where nothing had to be cast."""
    heightmap, item_id = _bins(where, state.heightmap, state.item_id, bin_, device)
    rows, maps = heightmap.shape[:1], (*item_id.shape, catalogue.num_orientations, *bin_.grid)
    longest = max(1, length(state.placements, 1))
    tensor(where, "placements", state.placements, torch.int32, (*rows, longest, 4), device, contiguous=True)
    tensor(where, "placement_z", state.placement_z, _REAL, (*rows, longest), device, contiguous=True)
    argument(where, "volume", state.volume, _REAL, rows, device)
    argument(where, "stable", state.stable, _FLAG, rows, device)
    argument(where, "z_map", state.z_map, _REAL, maps, device)
    argument(where, "legal", state.legal, _FLAG, maps, device)
    position = argument(where, "position", state.position, _COUNT, rows, device)
    key = argument(where, "key", state.key, _COUNT, rows, device)
    episode = argument(where, "episode", state.episode, _COUNT, rows, device)
    num_packed = argument(where, "num_packed", state.num_packed, _COUNT, rows, device)
    step_count = argument(where, "step_count", state.step_count, _COUNT, rows, device)
    if (
        item_id is state.item_id
        and position is state.position
        and key is state.key
        and episode is state.episode
        and num_packed is state.num_packed
        and step_count is state.step_count
    ):
        return state
    counts = {"position": position, "key": key, "episode": episode, "num_packed": num_packed}
    return replace(state, item_id=item_id, step_count=step_count, **counts)


_CHECKS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "drop_map": drop_map,
    "place": place,
    "pile_growth": pile_growth,
    "advance": advance,
    "restart": restart,
    "any_legal": any_legal,
    "judge_placements": partial(place, where="judge_placements"),
}
