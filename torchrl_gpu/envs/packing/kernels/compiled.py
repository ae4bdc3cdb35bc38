"""The packing kernels in C++, for CPUs: all cores, the widest vectors, whole heights counted in bytes.

Irregular items: the heightmap is split by the phases of the grid step, so that a vector holds neighbouring placements;
blocks of placements stay in registers while the cells of the footprint pass by. Boxes: maxima over windows of a power
of two. The code is in `torchrl_gpu/native`; see `docs/decisions/008-compiled-kernels.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, byref, c_char_p, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs.packing.kernels import eager
from torchrl_gpu.envs.packing.kernels.balance import plumb, standing_height
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Moved, PackingState, Placement, StoredMaps

DEVICES = ("cpu",)
Job = TypeVar("Job", bound=Callable[..., Any])


def _traced_as(form: Callable[..., Any]) -> Callable[[Job], Job]:
    """Decorator that shows torch.compile the torch form of a kernel, since it cannot trace into the C++ one."""

    def choose(job: Job) -> Job:
        @wraps(job)
        def either(*args: Any) -> Any:
            return form(*args) if torch.compiler.is_compiling() else job(*args)

        return cast(Job, either)

    return choose


def problem(device: torch.device) -> str:
    """The reason why this backend cannot run on `device`; "" on a CPU with a C++ compiler."""
    return native.problem() if device.type == "cpu" else "runs on a CPU only"


_COUNTS = ("position", "num_packed", "step_count")


class _Problem(Structure):
    """ctypes mirror of `struct Problem` of problem.h."""

    _fields_ = (
        *((name, c_int64) for name in ("envs", "slots", "orientations", "items", "cells_x", "cells_y", "step")),
        *((name, c_int64) for name in ("grid_x", "grid_y", "rows", "columns")),
        *((name, c_void_p) for name in ("item", "heightmap", "extent", "height", "top", "bottom")),
        *((name, c_void_p) for name in ("plumb", "steady", "counted", "material")),
        ("count_bytes", c_int64),
        ("unit", c_float),
        ("counted_gap", c_int64),
        *((name, c_float) for name in ("ceiling", "tolerance", "gap")),
        *((name, c_int64) for name in ("rule", "threads")),
    )


class _Maps(Structure):
    """ctypes mirror of `struct Maps` of packing.cpp."""

    _fields_ = tuple((name, c_void_p) for name in ("z", "legal", "kept_z", "kept_legal", "kept_slot", "changed"))


class _Step(Structure):
    """ctypes mirror of `struct Step` of transition.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("action", "z_map", "legal", "position", "num_packed", "step_count", "volume")),
        *((name, c_void_p) for name in ("stable", "following", "item_volume", "placements", "placement_z")),
        ("longest", c_int64),
        *((f"next_{name}", c_void_p) for name in ("heightmap", "item", *_COUNTS, "volume", "stable")),
        *((name, c_void_p) for name in ("was_legal", "slot", "changed")),
    )


class _Restart(Structure):
    """ctypes mirror of `struct Restart` of transition.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("mask", "fresh_item", "fresh_key", "z_map", "legal", "position", "key")),
        *((name, c_void_p) for name in ("episode", "num_packed", "step_count", "volume", "stable")),
        *((f"next_{name}", c_void_p) for name in ("heightmap", "item", "z_map", "legal", "position", "key", "episode")),
        *((f"next_{name}", c_void_p) for name in ("num_packed", "step_count", "volume", "stable")),
    )


@dataclass(frozen=True)
class _Counted:
    """Bottoms of a catalogue in whole units, transposed: each column of the footprint is contiguous.

    Attributes:
        cells: (M, O, Q, P) uint8 or uint16, the largest value where there is no material.
        material: (M, O, Q, 2) int16, the first cell with material in each column and the one behind the last.
    """

    cells: Tensor
    material: Tensor


_COUNTED: WeakKeyDictionary[Catalogue, dict[torch.dtype, _Counted]] = WeakKeyDictionary()


def _counted(catalogue: Catalogue, levels: float) -> _Counted | None:
    """Counted bottoms for bins of `levels` units' height; None where heights are not whole units, or too many."""
    if catalogue.bottom is None or catalogue.unit is None or levels > 65533:
        return None
    dtype = torch.uint8 if levels <= 253 else torch.uint16
    made = _COUNTED.setdefault(catalogue, {})
    if dtype not in made:
        made[dtype] = _count(catalogue.bottom, catalogue.extent, catalogue.unit, dtype)
    return made[dtype]


def _count(bottom: Tensor, extent: Tensor, unit: float, dtype: torch.dtype) -> _Counted:
    most = torch.iinfo(dtype).max  # a bottom that high touches nothing inside the bin
    cells = (bottom.mT / unit).round().clamp_max(most).int()  # (M, O, Q, P)
    there = (cells < most) & (torch.arange(bottom.shape[-2], dtype=torch.int64, device="cpu") < extent[..., :1])[
        ..., None, :
    ]
    first = there.byte().argmax(-1)
    end = there.shape[-1] - there.flip(-1).byte().argmax(-1)
    some = there.any(-1)
    material = torch.stack([torch.where(some, first, 0), torch.where(some, end, 0)], -1).short()
    return _Counted(cells.to(dtype).contiguous(), material.contiguous())


def _described(
    heightmap: Tensor, item_id: Tensor | None, catalogue: Catalogue, bin_: Bin, height: Tensor | None = None
) -> _Problem:
    """Arguments of a C++ kernel as `struct Problem`; `height` replaces the catalogue's where given."""
    counted = _counted(catalogue, bin_.size[2] / catalogue.unit) if catalogue.unit else None
    maps = catalogue.extent, catalogue.height if height is None else height, catalogue.top, catalogue.bottom
    balance = (plumb(catalogue, bin_), catalogue.steady) if bin_.stability == "com" else (None, None)
    held = [None if each is None else each.contiguous() for each in (item_id, heightmap, *maps, *balance)]
    described = _Problem(
        len(heightmap),
        1 if item_id is None else item_id.shape[1],
        catalogue.num_orientations,
        catalogue.num_items,
        *bin_.cells,
        bin_.step,
        *bin_.grid,
        *map(min, catalogue.footprint, bin_.cells) if catalogue.bottom is None else catalogue.bottom.shape[-2:],
        *(None if each is None else each.data_ptr() for each in held),
        *(None, None, 0) if counted is None else _pointers(counted),
        catalogue.unit or 0.0,
        int(bin_.contact_tolerance / catalogue.unit) if catalogue.unit else 0,
        bin_.size[2],
        bin_.tolerance,
        bin_.contact_tolerance,
        _rule(bin_.stability),
        torch.get_num_threads(),
    )
    described.tensors = held  # must outlive the call
    return described


@cache
def _rule(name: str) -> int:
    """Number of a stability rule in C++."""
    number_of = native.library().stability_rule
    number_of.restype, number_of.argtypes = c_int64, (c_char_p,)
    number: int = number_of(name.encode())
    if number < 0:
        raise ValueError(f"compiled: stability must be a rule that the C++ kernels have; got {name!r}")
    return number


def _pointers(counted: _Counted) -> tuple[int, int, int]:
    return counted.cells.data_ptr(), counted.material.data_ptr(), counted.cells.element_size()


@_traced_as(eager.drop_map)
def drop_map(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, stored: StoredMaps | None = None
) -> tuple[Tensor, Tensor]:
    """As `reference.drop_map`."""
    described = _described(heightmap, item_id, catalogue, bin_)
    shape = (*item_id.shape, catalogue.num_orientations, *bin_.grid)
    z_map, legal = native.output(*shape, dtype=torch.float32), native.output(*shape, dtype=torch.bool)
    before = [] if stored is None else [each.contiguous() for each in stored]
    maps = _Maps(z_map.data_ptr(), legal.data_ptr(), *(each.data_ptr() for each in before))
    native.library().drop_map(byref(described), byref(maps))
    return z_map, legal


@_traced_as(eager.place)
def place(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """As `reference.place`."""
    described = _described(heightmap, None, catalogue, bin_)
    out = native.output(*heightmap.shape, dtype=torch.float32)
    fields = [field.contiguous() for field in placement]
    native.library().place(byref(described), *(c_void_p(f.data_ptr()) for f in fields), c_void_p(out.data_ptr()))
    return out


@_traced_as(eager.pile_growth)
def pile_growth(heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """As `reference.pile_growth`."""
    described = _described(heightmap, item_id, catalogue, bin_)
    z_map = z_map.contiguous()
    growth = native.output(*z_map.shape, dtype=torch.float32)
    native.library().pile_growth(byref(described), c_void_p(z_map.data_ptr()), c_void_p(growth.data_ptr()))
    return growth


@_traced_as(eager.advance)
def advance(state: PackingState, action: Tensor, following: Tensor, catalogue: Catalogue, bin_: Bin) -> Moved:
    """As `transition.advance`."""
    described = _described(state.heightmap, state.item_id, catalogue, bin_)
    assert state.placements.is_contiguous()  # both are written in place
    assert state.placement_z.is_contiguous()
    given = [action, state.z_map, state.legal, state.position, state.num_packed, state.step_count, state.volume]
    given += [state.stable, following, catalogue.volume, state.placements, state.placement_z]
    given = [each.contiguous() for each in given]
    after = replace(state, **_like(state, ("heightmap", "item_id", *_COUNTS, "volume", "stable")))
    rows = len(state.item_id)
    legal, slot = native.output(rows, dtype=torch.bool), native.output(*state.item_id.shape, dtype=torch.int64)
    changed = native.output(rows, 4, dtype=torch.int64)
    made = [after.heightmap, after.item_id, after.position, after.num_packed, after.step_count, after.volume]
    made += [after.stable, legal, slot, changed]
    longest = state.placements.shape[1]
    step = _Step(*(each.data_ptr() for each in given), longest, *(each.data_ptr() for each in made))
    native.library().advance(byref(described), byref(step))
    return Moved(after, legal, slot, changed)


@_traced_as(eager.restart)
def restart(
    state: PackingState, mask: Tensor, key: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> PackingState:
    """As `transition.restart`."""
    described = _described(state.heightmap, state.item_id, catalogue, bin_, standing_height(catalogue, bin_))
    same = (state.z_map, state.legal, state.position, state.key, state.episode, state.num_packed, state.step_count)
    given = [each.contiguous() for each in (mask, item_id, key, *same, state.volume, state.stable)]
    names = ("heightmap", "item_id", "z_map", "legal", "position", "key", "episode", "num_packed", "step_count")
    fresh = _like(state, (*names, "volume", "stable"))
    rows = _Restart(*(each.data_ptr() for each in given), *(each.data_ptr() for each in fresh.values()))
    native.library().restart(byref(described), byref(rows))
    return replace(state, **fresh)


def _like(state: PackingState, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Uninitialised tensors with the shapes and dtypes of some fields of a state."""
    fields = {name: getattr(state, name) for name in names}
    return {name: native.output(*each.shape, dtype=each.dtype) for name, each in fields.items()}


@_traced_as(eager.any_legal)
def any_legal(legal: Tensor) -> Tensor:
    """As `transition.any_legal`."""
    return native.any_true(legal)


def add_max_rate(dtype: str, threads: int, seconds: float) -> float:
    """Upper bound of the add-max steps per second of this processor: all operands stay in registers.

    Args:
        dtype: "float32", "uint16" or "uint8".
        threads: Number of threads.
        seconds: Duration of the measurement.
    """
    sizes = {"uint8": 1, "uint16": 2, "float32": 4}
    if dtype not in sizes or threads < 1:
        wanted = f"one of {', '.join(sizes)} and at least one thread"
        raise ValueError(f"add_max_rate: want {wanted}; got {dtype!r} and {threads}")
    rate = native.library().add_max_rate
    rate.restype, rate.argtypes = c_double, (c_int64, c_int64, c_double)
    made: float = rate(sizes[dtype], threads, seconds)
    return made
