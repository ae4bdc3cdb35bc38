"""Input validation shared by all kernel backends.

Types, shapes and devices are checked, which needs no read of the device. Integers of another width are cast to int64;
any other mismatch is a ValueError. Values are handled where the kernels read them, alike in every backend: an item that
is no row of the catalogue is an empty slot, an action that is out of range or over an empty slot is not legal, and a
placement that is not inside the bin places nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import Bin, Catalogue, PackingState, Placement, StoredMaps
from torchrl_gpu.system.arguments import length, shown, tensor

Devices = tuple[str, ...] | None
_FLAG, _COUNT, _REAL = torch.bool, torch.int64, torch.float32
_MAPS = ("N", "K", "O", "Gx", "Gy")
# Dtype and axes of every tensor, by its name in a kernel's signature, a state, a placement or stored maps.
_FORMS: dict[str, tuple[torch.dtype, tuple[str, ...]]] = {
    "heightmap": (_REAL, ("N", "X", "Y")),
    "bears": (_FLAG, ("N", "X", "Y")),
    "item_id": (_COUNT, ("N", "K")),
    "z_map": (_REAL, _MAPS),
    "legal": (_FLAG, _MAPS),
    "slot": (_COUNT, ("N", "K")),
    "changed": (_COUNT, ("N", "corners")),
    "placements": (torch.int32, ("N", "T", "fields")),
    "placement_z": (_REAL, ("N", "T")),
    "placement.item_id": (_COUNT, ("N",)),
    **dict.fromkeys(("volume", "z"), (_REAL, ("N",))),
    **dict.fromkeys(("mask", "stable"), (_FLAG, ("N",))),
    **dict.fromkeys(("position", "key", "episode", "num_packed", "step_count"), (_COUNT, ("N",))),
    **dict.fromkeys(("action", "following", "orientation", "x", "y"), (_COUNT, ("N",))),
}
_IN_PLACE = ("placements", "placement_z")  # of a state: written, and so neither cast nor copied
_READ = tuple(field.name for field in fields(PackingState) if field.name not in (*_IN_PLACE, "bears"))


def checked(name: str, job: Callable[..., Any], devices: Devices) -> Callable[..., Any]:
    """A kernel, by its name in `Kernels`, behind its input validation; it reads these device types, None for all."""
    check = _CHECKS[name]

    @wraps(job)
    def behind_validation(*args: Any, **named: Any) -> Any:
        return job(*check(devices, *args, **named))

    return behind_validation


class _Check:
    """Validation of one call: the sizes of all axes are those of the first tensors, the catalogue and the bin."""

    def __init__(
        self, where: str, devices: Devices, catalogue: Catalogue, bin_: Bin, heightmap: Tensor, item_id: Any = None
    ) -> None:
        self.where, self.device = where, catalogue.extent.device
        if devices is not None and self.device.type not in devices:
            raise ValueError(f"{where}: want tensors on {' or '.join(devices)}; got a catalogue on {self.device}")
        self.sizes = {"N": length(heightmap), "K": max(1, length(item_id, 1)), "O": catalogue.num_orientations}
        self.sizes |= {"X": bin_.cells[0], "Y": bin_.cells[1], "Gx": bin_.grid[0], "Gy": bin_.grid[1]}
        self.sizes |= {"corners": 4, "fields": 4}

    def __call__(self, name: str, value: Any, *, in_place: bool = False) -> Tensor:
        """The tensor of this name, cast to int64 where that is wanted; `in.name` has the form of `name`."""
        dtype, axes = _FORMS[name] if name in _FORMS else _FORMS[name.rpartition(".")[2]]
        shape = tuple(self.sizes[axis] for axis in axes)
        return tensor(self.where, name, value, dtype, shape, self.device, cast=not in_place, contiguous=in_place)

    def state(self, state: PackingState) -> PackingState:
        """A validated state; the same object where nothing had to be cast."""
        self.sizes["T"] = max(1, length(state.placements, 1))
        read = {name: self(name, getattr(state, name)) for name in _READ}
        for name in _IN_PLACE:
            self(name, getattr(state, name), in_place=True)
        return state if all(read[name] is getattr(state, name) for name in _READ) else replace(state, **read)


def drop_map(
    devices: Devices,
    heightmap: Tensor,
    item_id: Tensor,
    catalogue: Catalogue,
    bin_: Bin,
    stored: StoredMaps | None = None,
) -> tuple[Any, ...]:
    """Validated arguments of `drop_map`, as the others are of the kernels of their names."""
    if bin_.stability == "load_bearing":
        raise ValueError(
            "drop_map: want a rule that it judges itself; got load_bearing, see `Bin.dropped` and `upheld`"
        )
    check = _Check("drop_map", devices, catalogue, bin_, heightmap, item_id)
    given = check("heightmap", heightmap), check("item_id", item_id), catalogue, bin_
    if stored is None:
        return given
    return *given, StoredMaps(*(check(f"stored.{name}", getattr(stored, name)) for name in StoredMaps._fields))


def upheld(
    devices: Devices,
    heightmap: Tensor,
    bears: Tensor,
    z_map: Tensor,
    legal: Tensor,
    item_id: Tensor,
    catalogue: Catalogue,
    bin_: Bin,
) -> tuple[Any, ...]:
    check = _boxes("upheld", devices, catalogue, bin_, heightmap, item_id)
    maps = check("heightmap", heightmap), check("bears", bears), check("z_map", z_map), check("legal", legal)
    return *maps, check("item_id", item_id), catalogue, bin_


def bear(
    devices: Devices, heightmap: Tensor, bears: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin
) -> tuple[Any, ...]:
    bears = _boxes("bear", devices, catalogue, bin_, heightmap)("bears", bears)
    heightmap, placement, *rest = place(devices, heightmap, placement, catalogue, bin_, where="bear")
    return heightmap, bears, placement, *rest


def _boxes(where: str, devices: Devices, catalogue: Catalogue, *rest: Any) -> _Check:
    if not catalogue.flat:
        raise ValueError(f"{where}: the rule load_bearing wants boxes; got items with maps")
    return _Check(where, devices, catalogue, *rest)


def place(
    devices: Devices, heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin, *, where: str = "place"
) -> tuple[Any, ...]:
    check = _Check(where, devices, catalogue, bin_, heightmap)
    heightmap = check("heightmap", heightmap)
    placement = Placement(*(check(f"placement.{name}", getattr(placement, name)) for name in Placement._fields))
    return heightmap, placement, catalogue, bin_


def pile_growth(
    devices: Devices, heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin
) -> tuple[Any, ...]:
    check = _Check("pile_growth", devices, catalogue, bin_, heightmap, item_id)
    heightmap, item_id = check("heightmap", heightmap), check("item_id", item_id)
    return heightmap, item_id, check("z_map", z_map), catalogue, bin_


def advance(
    devices: Devices, state: PackingState, action: Tensor, following: Tensor, catalogue: Catalogue, bin_: Bin
) -> tuple[Any, ...]:
    check = _Check("advance", devices, catalogue, bin_, state.heightmap, state.item_id)
    return check.state(state), check("action", action), check("following", following), catalogue, bin_


def restart(
    devices: Devices, state: PackingState, mask: Tensor, key: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> tuple[Any, ...]:
    check = _Check("restart", devices, catalogue, bin_, state.heightmap, state.item_id)
    fresh = check.state(state), check("mask", mask), check("key", key), check("item_id", item_id)
    return *fresh, catalogue, bin_


def any_legal(devices: Devices, legal: Tensor) -> tuple[Any, ...]:
    if not isinstance(legal, Tensor) or legal.ndim < 2 or legal.dtype is not _FLAG:
        raise ValueError(f"any_legal: legal must be bool of two axes or more; got {shown(legal)}")
    if devices is not None and legal.device.type not in devices:
        raise ValueError(f"any_legal: want tensors on {' or '.join(devices)}; got one on {legal.device}")
    return (legal,)


_CHECKS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "drop_map": drop_map,
    "upheld": upheld,
    "bear": bear,
    "place": place,
    "pile_growth": pile_growth,
    "advance": advance,
    "restart": restart,
    "any_legal": any_legal,
    "judge_placements": partial(place, where="judge_placements"),
}
