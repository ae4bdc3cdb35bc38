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
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import Bin, Catalogue, PackingState, Placement, StoredMaps
from torchrl_gpu.system.arguments import length, shown, tensor

Devices = tuple[str, ...] | None
Given = ParamSpec("Given")
Result = TypeVar("Result")

_FLAG = torch.bool
_COUNT = torch.int64
_REAL = torch.float32
_MAPS = ("N", "K", "O", "Gx", "Gy")
# Dtype and axes of every tensor, by its name in a kernel's signature, a state, a placement or stored maps.
_FORMS: dict[str, tuple[torch.dtype, tuple[str, ...]]] = {}
_FORMS["heightmap"] = _REAL, ("N", "X", "Y")
_FORMS["bears"] = _FLAG, ("N", "X", "Y")
_FORMS["item_id"] = _COUNT, ("N", "K")
_FORMS["z_map"] = _REAL, _MAPS
_FORMS["legal"] = _FLAG, _MAPS
_FORMS["slot"] = _COUNT, ("N", "K")
_FORMS["changed"] = _COUNT, ("N", "corners")
_FORMS["placements"] = torch.int32, ("N", "T", "fields")
_FORMS["placement_z"] = _REAL, ("N", "T")
_FORMS["placement.item_id"] = _COUNT, ("N",)
_FORMS |= dict.fromkeys(("volume", "z"), (_REAL, ("N",)))
_FORMS |= dict.fromkeys(("mask", "stable"), (_FLAG, ("N",)))
_FORMS |= dict.fromkeys(("position", "key", "episode", "num_packed", "step_count"), (_COUNT, ("N",)))
_FORMS |= dict.fromkeys(("action", "following", "orientation", "x", "y"), (_COUNT, ("N",)))
# Fields of a state that are written, and so neither cast nor copied.
_IN_PLACE = ("placements", "placement_z")
_READ = tuple(field.name for field in fields(PackingState) if field.name not in (*_IN_PLACE, "bears"))

# Arguments of every kernel but `any_legal`, in its order.
_NAMES: dict[str, tuple[str, ...]] = {}
_NAMES["drop_map"] = ("heightmap", "item_id", "catalogue", "bin_", "stored")
_NAMES["upheld"] = ("heightmap", "bears", "z_map", "legal", "item_id", "catalogue", "bin_")
_NAMES["bear"] = ("heightmap", "bears", "placement", "catalogue", "bin_")
_NAMES["place"] = ("heightmap", "placement", "catalogue", "bin_")
_NAMES["judge_placements"] = _NAMES["place"]
_NAMES["pile_growth"] = ("heightmap", "item_id", "z_map", "catalogue", "bin_")
_NAMES["advance"] = ("state", "action", "following", "catalogue", "bin_")
_NAMES["restart"] = ("state", "mask", "key", "item_id", "catalogue", "bin_")


def checked(name: str, job: Callable[Given, Result], devices: Devices) -> Callable[Given, Result]:
    """Return a kernel behind its input validation.

    Args:
        name: Of the kernel, in `Kernels`.
        job: The kernel.
        devices: Types of devices that it reads, None for all.
    """
    validate = partial(_mask if name == "any_legal" else _arguments, name, devices)

    @wraps(job)
    def behind_validation(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        validated = validate(*args, **kwargs)
        return job(*validated)  # type: ignore[call-arg]

    return behind_validation


class _Check:
    """Validation of one call.

    The sizes of all axes are those of the first tensors, the catalogue and the bin.
    """

    def __init__(
        self, where: str, devices: Devices, catalogue: Catalogue, bin_: Bin, heightmap: object, item_id: object = None
    ) -> None:
        self.where = where
        self.device = catalogue.extent.device
        if devices is not None and self.device.type not in devices:
            raise ValueError(f"{where}: the catalogue is on {self.device}; this backend reads {' and '.join(devices)}")
        self.sizes = {"N": length(heightmap), "K": max(1, length(item_id, 1)), "O": catalogue.num_orientations}
        self.sizes["X"], self.sizes["Y"] = bin_.cells
        self.sizes["Gx"], self.sizes["Gy"] = bin_.grid
        self.sizes["corners"] = 4
        self.sizes["fields"] = 4

    def __call__(self, name: str, value: object, *, in_place: bool = False) -> Tensor:
        """Return the tensor of a name, with integers cast to int64.

        A name such as `placement.x` has the form of `x`, unless there is one for it.
        """
        dtype, axes = _FORMS[name] if name in _FORMS else _FORMS[name.rpartition(".")[2]]
        shape = tuple(self.sizes[axis] for axis in axes)
        return tensor(self.where, name, value, dtype, shape, self.device, cast=not in_place, contiguous=in_place)

    def state(self, state: PackingState) -> PackingState:
        """Return a validated state, the same object if nothing had to be cast."""
        self.sizes["T"] = max(1, length(state.placements, 1))
        read = {name: self(name, getattr(state, name)) for name in _READ}
        for name in _IN_PLACE:
            self(name, getattr(state, name), in_place=True)
        is_same = all(read[name] is getattr(state, name) for name in _READ)
        return state if is_same else replace(state, **read)


def _arguments(where: str, devices: Devices, *args: object) -> list[object]:
    """Return the validated arguments of a kernel."""
    # Stored maps may be left out.
    given = dict(zip(_NAMES[where], args, strict=False))
    catalogue = given["catalogue"]
    bin_ = given["bin_"]
    assert isinstance(catalogue, Catalogue)
    assert isinstance(bin_, Bin)
    if where == "drop_map" and bin_.rule.tracks_bearing:
        raise ValueError(
            f"drop_map: stability {bin_.stability} reads which cells bear load: give `Bin.dropped`, and call `upheld`"
        )
    if where in ("upheld", "bear") and not catalogue.flat:
        raise ValueError(f"{where}: stability {bin_.stability} is for boxes; these items have maps")
    state = given.get("state")
    if isinstance(state, PackingState):
        check = _Check(where, devices, catalogue, bin_, state.heightmap, state.item_id)
    else:
        check = _Check(where, devices, catalogue, bin_, given["heightmap"], given.get("item_id"))
    for name, value in given.items():
        if isinstance(value, PackingState):
            given[name] = check.state(value)
        elif isinstance(value, (Placement, StoredMaps)):
            fields_ = {each: check(f"{name}.{each}", getattr(value, each)) for each in value._fields}
            given[name] = type(value)(**fields_)
        elif name not in ("catalogue", "bin_", "stored"):
            given[name] = check(name, value)
    return list(given.values())


def _mask(where: str, devices: Devices, legal: object) -> tuple[Tensor]:
    if not isinstance(legal, Tensor) or legal.ndim < 2 or legal.dtype is not _FLAG:
        raise ValueError(f"{where}: legal must be bool of two axes or more, not {shown(legal)}")
    if devices is not None and legal.device.type not in devices:
        raise ValueError(f"{where}: legal is on {legal.device}; this backend reads {' and '.join(devices)}")
    return (legal,)
