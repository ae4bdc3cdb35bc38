"""The packing kernels in C++, for CPUs.

They run on all cores with the widest vectors, and count whole heights in bytes. Irregular items: the heightmap is split
by the phases of the grid step, so that a vector holds neighbouring placements; blocks of placements stay in registers
while the cells of the footprint pass by. Boxes: maxima over windows of a power of two. The code is in
`torchrl_gpu/native`; see `docs/decisions/008-compiled-kernels.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_char_p, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from typing import ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs.packing.kernels import eager
from torchrl_gpu.envs.packing.stability.centres import centre_16ths
from torchrl_gpu.envs.packing.stability.load_bearing import bearing_heights
from torchrl_gpu.envs.packing.stability.margins import margins
from torchrl_gpu.envs.packing.stability.rule import standing_height
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Moved, PackingState, Placement, StoredMaps
from torchrl_gpu.system import arguments
from torchrl_gpu.system.threads import kernel_threads
from torchrl_gpu.system.tracing import is_traced

DEVICES = ("cpu",)
# Stability rules that the C++ kernels have; all others are judged by `eager`, after the drop.
DROP_RULES = ("none", "corners", "support", "com")
BEARING_RULES = ("load_bearing",)
Given = ParamSpec("Given")
Result = TypeVar("Result")
Kernel: TypeAlias = Callable[Given, Result]


def _traced_as(form: Kernel[Given, Result]) -> Callable[[Kernel[Given, Result]], Kernel[Given, Result]]:
    """Return a decorator that shows torch.compile the torch form of a kernel.

    It cannot trace into the C++ one.
    """

    def choose(job: Kernel[Given, Result]) -> Kernel[Given, Result]:
        @wraps(job)
        def either(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            if is_traced():
                return form(*args, **kwargs)
            return job(*args, **kwargs)

        return either

    return choose


def problem(device: torch.device) -> str:
    """Return the reason why this backend cannot run on a device, "" if it can.

    It needs a CPU and a C++ compiler.
    """
    return native.problem() if device.type == "cpu" else "runs on a CPU only"


# Fields of a state that an action and a restart change.
_MOVED = ("heightmap", "item_id", "position", "num_packed", "step_count", "volume", "stable")
_RESTARTED = ("heightmap", "item_id", "z_map", "legal", "position", "key", "episode", *_MOVED[3:])


_INT = partial(native.of_type, c_int64)
_REAL = partial(native.of_type, c_float)
_POINTER = partial(native.of_type, c_void_p)


# Fields of `struct Problem` of problem.h, in its order.
_SIZES = (
    *_INT("envs slots orientations items"),
    ("cells", c_int64 * 2),
    ("step", c_int64),
    ("grid", c_int64 * 2),
    ("footprint", c_int64 * 2),
)
_HEIGHTS = (
    ("count_bytes", c_int64),
    ("unit", c_float),
    ("counted_gap", c_int64),
    *_REAL("ceiling tolerance gap drop_x drop_y"),
    *_REAL("bearing_gap bearing_slack bearing_drop_x bearing_drop_y"),
)


class _Problem(native.Arguments):
    """`struct Problem` of problem.h."""

    _fields_ = (
        *_SIZES,
        *_POINTER("item heightmap extent height top bottom centre_16ths stable_on_floor counted material"),
        *_HEIGHTS,
        *_INT("rule threads"),
    )


class _Maps(native.Arguments):
    """`struct Maps` of packing.cpp."""

    _fields_ = _POINTER("z legal kept_z kept_legal kept_slot changed")


class _Step(native.Arguments):
    """`struct Step` of transition.h."""

    _fields_ = (
        *_POINTER("action z_map legal position num_packed step_count volume stable"),
        *_POINTER("following item_volume placements placement_z"),
        ("longest", c_int64),
        *((f"next_{name}", c_void_p) for name in _MOVED),
        *_POINTER("was_legal slot changed"),
    )


class _Restart(native.Arguments):
    """`struct Restart` of transition.h."""

    _fields_ = (
        *_POINTER("mask fresh_item fresh_key z_map legal position key episode num_packed step_count"),
        *_POINTER("volume stable"),
        *((f"next_{name}", c_void_p) for name in _RESTARTED),
    )


@dataclass(frozen=True)
class _Counted:
    """Bottoms of a catalogue in whole units, transposed.

    Each column of the footprint lies together in memory.

    Attributes:
        cells: (M, O, Q, P) uint8 or uint16, the largest value where there is no material.
        material: First cell with material in each column and the one behind the last, (M, O, Q, 2) int16.
    """

    cells: Tensor
    material: Tensor


# Counted bottoms of each catalogue by their dtype, as long as the catalogue lives.
_COUNTED: WeakKeyDictionary[Catalogue, dict[torch.dtype, _Counted]] = WeakKeyDictionary()


def count_bottoms(catalogue: Catalogue, levels: float) -> _Counted | None:
    """Return counted bottoms for bins of some height.

    Args:
        catalogue: The items.
        levels: Height of the bin, units.

    Returns:
        None where heights are not whole units, or too many.
    """
    if catalogue.bottom is None or catalogue.unit is None or levels > 65533:
        return None
    dtype = torch.uint8 if levels <= 253 else torch.uint16
    made = _COUNTED.setdefault(catalogue, {})
    if dtype not in made:
        made[dtype] = _count(catalogue.bottom, catalogue.extent, catalogue.unit, dtype)
    return made[dtype]


def _count(bottom: Tensor, extent: Tensor, unit: float, dtype: torch.dtype) -> _Counted:
    # A bottom as high as the largest number touches nothing inside the bin.
    most = torch.iinfo(dtype).max
    cells = (bottom.mT / unit).round().clamp_max(most).int()  # (M, O, Q, P)
    row = torch.arange(bottom.shape[-2], dtype=torch.int64, device="cpu")
    within = (row < extent[..., :1])[..., None, :]
    there = (cells < most) & within
    first = there.byte().argmax(-1)
    end = there.shape[-1] - there.flip(-1).byte().argmax(-1)
    some = there.any(-1)
    first = torch.where(some, first, 0)
    end = torch.where(some, end, 0)
    material = torch.stack([first, end], -1).short()
    return _Counted(cells.to(dtype).contiguous(), material.contiguous())


def described_problem(
    heightmap: Tensor, item_id: Tensor | None, catalogue: Catalogue, bin_: Bin, height: Tensor | None = None
) -> _Problem:
    """Return the arguments of a C++ kernel as `struct Problem`.

    Args:
        heightmap: Metres, (N, X, Y) float32.
        item_id: (N, K) int64, if the kernel reads them.
        catalogue: The items.
        bin_: The bin.
        height: Replaces the catalogue's heights, metres, (M, O) float32.
    """
    unit = catalogue.unit
    bottom = catalogue.bottom
    counted = count_bottoms(catalogue, bin_.size[2] / unit) if unit else None
    if bottom is None:
        largest_p, largest_q = catalogue.footprint
        footprint = min(largest_p, bin_.cells[0]), min(largest_q, bin_.cells[1])
    else:
        footprint = bottom.shape[-2], bottom.shape[-1]

    tensors: dict[str, Tensor | None] = {"item": item_id, "heightmap": heightmap, "extent": catalogue.extent}
    tensors["height"] = catalogue.height if height is None else height
    tensors["top"] = catalogue.top
    tensors["bottom"] = bottom
    if bin_.stability == "com":
        tensors["centre_16ths"] = centre_16ths(catalogue, bin_)
        tensors["stable_on_floor"] = catalogue.stable_on_floor
    if counted is not None:
        tensors["counted"] = counted.cells
        tensors["material"] = counted.material

    rule = bin_.stability if bin_.stability in DROP_RULES else "none"
    drop_x, drop_y = bin_.drops
    numbers: dict[str, float | tuple[float, ...]] = {
        "envs": len(heightmap),
        "slots": 1 if item_id is None else item_id.shape[1],
        "orientations": catalogue.num_orientations,
        "items": catalogue.num_items,
    }
    numbers |= {"cells": bin_.cells, "step": bin_.step, "grid": bin_.grid, "footprint": footprint}
    numbers["count_bytes"] = 0 if counted is None else counted.cells.element_size()
    numbers["unit"] = unit or 0.0
    numbers["counted_gap"] = int(bin_.contact_tolerance / unit) if unit else 0
    numbers |= {"ceiling": bin_.size[2], "tolerance": bin_.tolerance, "gap": bin_.contact_tolerance}
    numbers |= {"drop_x": drop_x, "drop_y": drop_y}
    bearing_drop_x, bearing_drop_y = bin_.bearing_drops
    numbers |= {"bearing_gap": bin_.bearing_tolerance, "bearing_slack": bin_.bearing_slack}
    numbers |= {"bearing_drop_x": bearing_drop_x, "bearing_drop_y": bearing_drop_y}
    numbers |= {"rule": _rule(rule), "threads": kernel_threads()}
    return _Problem.of(tensors, **numbers)


def _run(kernel: str, described: _Problem, *given: Tensor, out: Tensor) -> Tensor:
    """Call a C++ kernel that reads a problem and tensors and writes `out`.

    `out` is returned.
    """
    # They stay alive during the call.
    held = [each.contiguous() for each in given]
    addresses = [c_void_p(each.data_ptr()) for each in (*held, out)]
    getattr(native.library(), kernel)(byref(described), *addresses)
    return out


@cache
def _rule(name: str) -> int:
    """Return the number of a stability rule in C++."""
    number_of = native.library().stability_rule
    number_of.restype = c_int64
    number_of.argtypes = (c_char_p,)
    number: int = number_of(name.encode())
    assert number >= 0, f"the C++ kernels have no stability rule {name}"
    return number


@_traced_as(eager.drop_map)
def drop_map(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, stored: StoredMaps | None = None
) -> tuple[Tensor, Tensor]:
    if bin_.stability not in DROP_RULES:
        z_map, legal = drop_map(heightmap, item_id, catalogue, bin_.without_rule)
        return z_map, eager.judge_dropped(heightmap, z_map, legal, item_id, catalogue, bin_)
    described = described_problem(heightmap, item_id, catalogue, bin_)
    shape = (*item_id.shape, catalogue.num_orientations, *bin_.grid)
    z_map = native.output(*shape, dtype=torch.float32)
    legal = native.output(*shape, dtype=torch.bool)
    tensors = {"z": z_map, "legal": legal}
    if stored is not None:
        tensors["kept_z"] = stored.z_map
        tensors["kept_legal"] = stored.legal
        tensors["kept_slot"] = stored.slot
        tensors["changed"] = stored.changed
    maps = _Maps.of(tensors)
    native.library().drop_map(byref(described), byref(maps))
    return z_map, legal


@_traced_as(eager.place)
def place(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    described = described_problem(heightmap, None, catalogue, bin_)
    return _run("place", described, *placement, out=native.output(*heightmap.shape, dtype=torch.float32))


@_traced_as(eager.upheld)
def upheld(
    heightmap: Tensor, bears: Tensor, z_map: Tensor, legal: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    if bin_.stability not in BEARING_RULES:
        return eager.upheld(heightmap, bears, z_map, legal, item_id, catalogue, bin_)
    described = described_problem(bearing_heights(heightmap, bears), item_id, catalogue, bin_)
    margin = (c_int64 * 2)(*margins(bin_))
    z_map = z_map.contiguous()
    legal = legal.contiguous()
    out = native.output(*legal.shape, dtype=torch.bool)
    addresses = [c_void_p(each.data_ptr()) for each in (z_map, legal, out)]
    native.library().upheld(byref(described), margin, *addresses)
    return out


@_traced_as(eager.bear)
def bear(heightmap: Tensor, bears: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    if bin_.stability not in BEARING_RULES:
        return eager.bear(heightmap, bears, placement, catalogue, bin_)
    described = described_problem(bearing_heights(heightmap, bears), None, catalogue, bin_)
    return _run("bear", described, bears, *placement, out=native.output(*bears.shape, dtype=torch.bool))


@_traced_as(eager.pile_growth)
def pile_growth(heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    described = described_problem(heightmap, item_id, catalogue, bin_)
    return _run("pile_growth", described, z_map, out=native.output(*z_map.shape, dtype=torch.float32))


@_traced_as(eager.advance)
def advance(state: PackingState, action: Tensor, following: Tensor, catalogue: Catalogue, bin_: Bin) -> Moved:
    described = described_problem(state.heightmap, state.item_id, catalogue, bin_)
    # Both are written in place.
    assert state.placements.is_contiguous()
    assert state.placement_z.is_contiguous()
    names = ("z_map", "legal", *_MOVED[2:], "placements", "placement_z")
    given = {name: getattr(state, name) for name in names}
    given |= {"action": action, "following": following, "item_volume": catalogue.volume}
    after = _empty_fields(state, _MOVED)
    rows = len(state.item_id)
    legal = native.output(rows, dtype=torch.bool)
    slot = native.output(*state.item_id.shape, dtype=torch.int64)
    changed = native.output(rows, 4, dtype=torch.int64)
    made = {"was_legal": legal, "slot": slot, "changed": changed}
    made |= {f"next_{name}": each for name, each in after.items()}
    step = _Step.of(given | made, longest=state.placements.shape[1])
    native.library().advance(byref(described), byref(step))
    return Moved(replace(state, **after), legal, slot, changed)


@_traced_as(eager.restart)
def restart(
    state: PackingState, mask: Tensor, key: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> PackingState:
    described = described_problem(state.heightmap, state.item_id, catalogue, bin_, standing_height(catalogue, bin_))
    given = {name: getattr(state, name) for name in _RESTARTED[2:]}
    given |= {"mask": mask, "fresh_item": item_id, "fresh_key": key}
    fresh = _empty_fields(state, _RESTARTED)
    rows = _Restart.of(given | {f"next_{name}": each for name, each in fresh.items()})
    native.library().restart(byref(described), byref(rows))
    return replace(state, **fresh)


def _empty_fields(state: PackingState, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return uninitialised tensors of the forms of some fields of a state."""
    made = {}
    for name in names:
        field = getattr(state, name)
        made[name] = native.output(*field.shape, dtype=field.dtype)
    return made


@_traced_as(eager.any_legal)
def any_legal(legal: Tensor) -> Tensor:
    return native.any_true(legal)


def add_max_rate(dtype: str, threads: int, seconds: float) -> float:
    """Return an upper bound of this processor's add-max steps per second.

    All operands stay in registers.

    Args:
        dtype: "float32", "uint16" or "uint8".
        threads: Number of them.
        seconds: How long it is measured.
    """
    sizes = {"uint8": 1, "uint16": 2, "float32": 4}
    arguments.choice("add_max_rate", "dtype", dtype, sizes)
    arguments.whole("add_max_rate", "threads", threads, 1)
    rate = native.library().add_max_rate
    rate.restype = c_double
    rate.argtypes = (c_int64, c_int64, c_double)
    made: float = rate(sizes[dtype], threads, seconds)
    return made
