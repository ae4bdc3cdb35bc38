"""The packing kernels in C++, for a CPU: all cores, the widest vectors, heights counted in bytes where they are whole.

Irregular items: the heightmap is split by the phases of the grid step, so that a vector holds neighbouring placements;
blocks of placements stay in registers while the cells of the footprint pass by. Boxes: maxima over windows of a power
of two. The code is in `torchrl_gpu/native`; see `docs/decisions/008-compiled-kernels.md`.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs.packing.types import STABILITY_RULES, Bin, Catalogue

if TYPE_CHECKING:
    from torchrl_gpu.envs.packing.kernels import Kept, Placement


@cache
def problem(device: torch.device) -> str:
    """It runs on a CPU where there is a C++ compiler."""
    if device.type != "cpu":
        return "runs on a CPU only"
    try:
        native.library()
    except native.CompilerError as error:
        return str(error)
    return ""


class _Problem(Structure):
    """`struct Problem` of problem.h."""

    _fields_ = (
        *((name, c_int64) for name in ("envs", "slots", "orientations", "cells_x", "cells_y", "step")),
        *((name, c_int64) for name in ("grid_x", "grid_y", "rows", "columns")),
        *((name, c_void_p) for name in ("item", "heightmap", "extent", "height", "top", "bottom")),
        *((name, c_void_p) for name in ("counted", "material")),
        ("count_bytes", c_int64),
        *((name, c_float) for name in ("unit", "ceiling", "tolerance")),
        *((name, c_int64) for name in ("rule", "threads")),
    )


class _Maps(Structure):
    """`struct Maps` of packing.cpp."""

    _fields_ = tuple(
        (name, c_void_p) for name in ("z", "legal", "kept_z", "kept_legal", "kept_slot", "changed")
    )


@dataclass(frozen=True)
class _Counted:
    """Bottoms of a catalogue in whole units, a column of the footprint being a line.

    Attributes:
        cells: (M, O, Q, P) uint8 or uint16, the largest value where there is no material.
        material: (M, O, Q, 2) int16, the first cell with material in each column and the one behind the last.
    """

    cells: Tensor
    material: Tensor


_COUNTED: WeakKeyDictionary[Catalogue, dict[torch.dtype, _Counted]] = WeakKeyDictionary()


def _counted(catalogue: Catalogue, levels: float) -> _Counted | None:
    """The catalogue for bins of `levels` units' height; None where heights are no whole units or too many."""
    if catalogue.bottom is None or catalogue.unit is None or levels > 65533:
        return None
    dtype = torch.uint8 if levels <= 253 else torch.uint16
    made = _COUNTED.setdefault(catalogue, {})
    if dtype not in made:
        made[dtype] = _count(catalogue.bottom, catalogue.unit, dtype)
    return made[dtype]


def _count(bottom: Tensor, unit: float, dtype: torch.dtype) -> _Counted:
    most = torch.iinfo(dtype).max  # a bottom that high touches nothing inside the bin
    cells = (bottom.mT / unit).round().clamp_max(most).int()  # (M, O, Q, P)
    there = cells < most
    first = there.byte().argmax(-1)
    end = there.shape[-1] - there.flip(-1).byte().argmax(-1)
    some = there.any(-1)
    material = torch.stack([torch.where(some, first, 0), torch.where(some, end, 0)], -1).short()
    return _Counted(cells.to(dtype).contiguous(), material.contiguous())


def _described(heightmap: Tensor, item_id: Tensor | None, catalogue: Catalogue, bin_: Bin) -> tuple[_Problem, list]:
    """What the C++ side is called with, and the tensors that must outlive the call."""
    counted = _counted(catalogue, bin_.size[2] / catalogue.unit) if catalogue.unit else None
    held = [
        None if each is None else each.contiguous()
        for each in (item_id, heightmap, catalogue.extent, catalogue.height, catalogue.top, catalogue.bottom)
    ]
    described = _Problem(
        len(heightmap),
        1 if item_id is None else item_id.shape[1],
        catalogue.num_orientations,
        *bin_.cells,
        bin_.step,
        *bin_.grid,
        *catalogue.footprint if catalogue.bottom is None else catalogue.bottom.shape[-2:],
        *(None if each is None else each.data_ptr() for each in held),
        *(None, None, 0) if counted is None else _pointers(counted),
        catalogue.unit or 0.0,
        bin_.size[2],
        bin_.tolerance,
        STABILITY_RULES.index(bin_.stability),
        torch.get_num_threads(),
    )
    return described, held


def _pointers(counted: _Counted) -> tuple[int, int, int]:
    return counted.cells.data_ptr(), counted.material.data_ptr(), counted.cells.element_size()


def drop_map(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, kept: Kept | None = None
) -> tuple[Tensor, Tensor]:
    """As `reference.drop_map`."""
    described, held = _described(heightmap, item_id, catalogue, bin_)
    z_map = heightmap.new_empty(*item_id.shape, catalogue.num_orientations, *bin_.grid)
    legal = torch.empty_like(z_map, dtype=torch.bool)
    before = [] if kept is None else [each.contiguous() for each in kept]
    maps = _Maps(z_map.data_ptr(), legal.data_ptr(), *(each.data_ptr() for each in before))
    native.library().drop_map(byref(described), byref(maps))
    return z_map, legal


def place(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """As `reference.place`."""
    described, held = _described(heightmap, None, catalogue, bin_)
    out = torch.empty_like(heightmap, memory_format=torch.contiguous_format)
    fields = [field.contiguous() for field in placement]
    native.library().place(byref(described), *(c_void_p(f.data_ptr()) for f in fields), c_void_p(out.data_ptr()))
    return out


def pile_growth(heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """As `reference.pile_growth`."""
    described, held = _described(heightmap, item_id, catalogue, bin_)
    z_map = z_map.contiguous()
    growth = torch.empty_like(z_map)
    native.library().pile_growth(byref(described), c_void_p(z_map.data_ptr()), c_void_p(growth.data_ptr()))
    return growth
