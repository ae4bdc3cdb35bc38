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

from torchrl_gpu.envs.packing.types import Bin, Catalogue, PackingState
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

# Arguments of every kernel but `any_legal`, in its order.
_NAMES = {
    "drop_map": ("heightmap", "item_id", "catalogue", "bin_", "stored"),
    "upheld": ("heightmap", "bears", "z_map", "legal", "item_id", "catalogue", "bin_"),
    "bear": ("heightmap", "bears", "placement", "catalogue", "bin_"),
    "place": ("heightmap", "placement", "catalogue", "bin_"),
    "judge_placements": ("heightmap", "placement", "catalogue", "bin_"),
    "pile_growth": ("heightmap", "item_id", "z_map", "catalogue", "bin_"),
    "advance": ("state", "action", "following", "catalogue", "bin_"),
    "restart": ("state", "mask", "key", "item_id", "catalogue", "bin_"),
}


def checked(name: str, job: Callable[..., Any], devices: Devices) -> Callable[..., Any]:
    """A kernel, by its name in `Kernels`, behind its input validation.

    It reads these device types, None for all.
    """
    validated = partial(_mask if name == "any_legal" else _arguments, name, devices)

    @wraps(job)
    def behind_validation(*args: Any) -> Any:
        return job(*validated(*args))

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
        """The tensor of this name, cast to int64 where that is wanted.

        `in.name` has the form of `name`.
        """
        dtype, axes = _FORMS[name] if name in _FORMS else _FORMS[name.rpartition(".")[2]]
        shape = tuple(self.sizes[axis] for axis in axes)
        return tensor(self.where, name, value, dtype, shape, self.device, cast=not in_place, contiguous=in_place)

    def state(self, state: PackingState) -> PackingState:
        """A validated state.

        The same object where nothing had to be cast.
        """
        self.sizes["T"] = max(1, length(state.placements, 1))
        read = {name: self(name, getattr(state, name)) for name in _READ}
        for name in _IN_PLACE:
            self(name, getattr(state, name), in_place=True)
        return state if all(read[name] is getattr(state, name) for name in _READ) else replace(state, **read)


def _arguments(where: str, devices: Devices, *args: Any) -> list[Any]:
    """Validated arguments of a kernel."""
    given = dict(zip(_NAMES[where], args, strict=False))  # stored maps may be left out
    catalogue, bin_, state = given["catalogue"], given["bin_"], given.get("state")
    if where == "drop_map" and bin_.rule.tracks_bearing:
        raise ValueError(
            f"drop_map: stability {bin_.stability} reads which cells bear load: give `Bin.dropped`, and call `upheld`"
        )
    if where in ("upheld", "bear") and not catalogue.flat:
        raise ValueError(f"{where}: stability {bin_.stability} is for boxes; these items have maps")
    heightmap, item_id = (
        (given["heightmap"], given.get("item_id")) if state is None else (state.heightmap, state.item_id)
    )
    check = _Check(where, devices, catalogue, bin_, heightmap, item_id)
    for name, value in given.items():
        if name == "state":
            given[name] = check.state(value)
        elif name == "placement" or (name == "stored" and value is not None):
            kind = type(value)
            given[name] = kind(*(check(f"{name}.{each}", getattr(value, each)) for each in kind._fields))
        elif name not in ("catalogue", "bin_", "stored"):
            given[name] = check(name, value)
    return list(given.values())


def _mask(where: str, devices: Devices, legal: Tensor) -> tuple[Tensor]:
    if not isinstance(legal, Tensor) or legal.ndim < 2 or legal.dtype is not _FLAG:
        raise ValueError(f"{where}: legal must be bool of two axes or more; got {shown(legal)}")
    if devices is not None and legal.device.type not in devices:
        raise ValueError(f"{where}: want tensors on {' or '.join(devices)}; got one on {legal.device}")
    return (legal,)
