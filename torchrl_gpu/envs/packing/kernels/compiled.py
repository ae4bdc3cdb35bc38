"""The packing kernels in C++, for CPUs: all cores, the widest vectors, whole heights counted in bytes.

Irregular items: the heightmap is split by the phases of the grid step, so that a vector holds neighbouring placements;
blocks of placements stay in registers while the cells of the footprint pass by. Boxes: maxima over windows of a power
of two. The code is in `torchrl_gpu/native`; see `docs/decisions/008-compiled-kernels.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_char_p, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any, TypeVar, cast
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
from torchrl_gpu.system.threads import kernel_threads
from torchrl_gpu.system.tracing import is_traced

DEVICES = ("cpu",)
# Stability rules that the C++ kernels have; all others are judged by `eager`, after the drop.
DROP_RULES = ("none", "corners", "support", "com")
BEARING_RULES = ("load_bearing",)
Job = TypeVar("Job", bound=Callable[..., Any])


def _traced_as(form: Callable[..., Any]) -> Callable[[Job], Job]:
    """Decorator that shows torch.compile the torch form of a kernel, since it cannot trace into the C++ one."""

    def choose(job: Job) -> Job:
        @wraps(job)
        def either(*args: Any) -> Any:
            return form(*args) if is_traced() else job(*args)

        return cast(Job, either)

    return choose


def problem(device: torch.device) -> str:
    """The reason why this backend cannot run on `device`.

    "" on a CPU with a C++ compiler.
    """
    return native.problem() if device.type == "cpu" else "runs on a CPU only"


_MOVED = ("heightmap", "item_id", "position", "num_packed", "step_count", "volume", "stable")
_BEGUN = ("heightmap", "item_id", "z_map", "legal", "position", "key", "episode", *_MOVED[3:])


class _Problem(native.Arguments):
    """`struct Problem` of problem.h."""

    _fields_ = (
        *native.of_type(c_int64, "envs slots orientations items"),
        ("cells", c_int64 * 2),
        ("step", c_int64),
        ("grid", c_int64 * 2),
        ("footprint", c_int64 * 2),  # rows and columns
        *native.of_type(c_void_p, "item heightmap extent height top bottom"),
        *native.of_type(c_void_p, "centre_16ths stable_on_floor counted material"),
        ("count_bytes", c_int64),
        ("unit", c_float),
        ("counted_gap", c_int64),
        *native.of_type(c_float, "ceiling tolerance gap drop_x drop_y"),
        *native.of_type(c_int64, "rule threads"),
    )


class _Maps(native.Arguments):
    """`struct Maps` of packing.cpp."""

    _fields_ = native.of_type(c_void_p, "z legal kept_z kept_legal kept_slot changed")


class _Step(native.Arguments):
    """`struct Step` of transition.h."""

    _fields_ = (
        *native.of_type(c_void_p, "action z_map legal position num_packed step_count volume stable"),
        *native.of_type(c_void_p, "following item_volume placements placement_z"),
        ("longest", c_int64),
        *((f"next_{name}", c_void_p) for name in _MOVED),
        *native.of_type(c_void_p, "was_legal slot changed"),
    )


class _Restart(native.Arguments):
    """`struct Restart` of transition.h."""

    _fields_ = (
        *native.of_type(c_void_p, "mask fresh_item fresh_key z_map legal position key episode num_packed step_count"),
        *native.of_type(c_void_p, "volume stable"),
        *((f"next_{name}", c_void_p) for name in _BEGUN),
    )


@dataclass(frozen=True)
class _Counted:
    """Bottoms of a catalogue in whole units, transposed: each column of the footprint is contiguous."""

    cells: Tensor  # (M, O, Q, P) uint8 or uint16, the largest value where there is no material
    material: Tensor  # (M, O, Q, 2) int16, the first cell with material in each column and the one behind the last


_COUNTED: WeakKeyDictionary[Catalogue, dict[torch.dtype, _Counted]] = WeakKeyDictionary()


def _counted(catalogue: Catalogue, levels: float) -> _Counted | None:
    """Counted bottoms for bins of `levels` units' height.

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


def described_problem(
    heightmap: Tensor, item_id: Tensor | None, catalogue: Catalogue, bin_: Bin, height: Tensor | None = None
) -> _Problem:
    """Arguments of a C++ kernel as `struct Problem`.

    `height` replaces the catalogue's where given.
    """
    unit, bottom, by_com = catalogue.unit, catalogue.bottom, bin_.stability == "com"
    counted = _counted(catalogue, bin_.size[2] / unit) if unit else None
    footprint = tuple(map(min, catalogue.footprint, bin_.cells)) if bottom is None else bottom.shape[-2:]
    tensors = {
        "item": item_id,
        "heightmap": heightmap,
        "extent": catalogue.extent,
        "height": catalogue.height if height is None else height,
        "top": catalogue.top,
        "bottom": bottom,
        "centre_16ths": centre_16ths(catalogue, bin_) if by_com else None,
        "stable_on_floor": catalogue.stable_on_floor if by_com else None,
        "counted": None if counted is None else counted.cells,
        "material": None if counted is None else counted.material,
    }
    return _Problem.of(
        tensors,
        envs=len(heightmap),
        slots=1 if item_id is None else item_id.shape[1],
        orientations=catalogue.num_orientations,
        items=catalogue.num_items,
        cells=bin_.cells,
        step=bin_.step,
        grid=bin_.grid,
        footprint=footprint,
        count_bytes=0 if counted is None else counted.cells.element_size(),
        unit=unit or 0.0,
        counted_gap=int(bin_.contact_tolerance / unit) if unit else 0,
        ceiling=bin_.size[2],
        tolerance=bin_.tolerance,
        gap=bin_.contact_tolerance,
        drop_x=bin_.drops[0],
        drop_y=bin_.drops[1],
        rule=_rule(bin_.stability if bin_.stability in DROP_RULES else "none"),
        threads=kernel_threads(),
    )


def _run(kernel: str, described: _Problem, *given: Tensor, out: Tensor) -> Tensor:
    """Calls a C++ kernel that reads a problem and tensors and writes `out`, which is returned."""
    held = [each.contiguous() for each in given]
    getattr(native.library(), kernel)(byref(described), *(c_void_p(each.data_ptr()) for each in (*held, out)))
    return out


@cache
def _rule(name: str) -> int:
    """Number of a stability rule in C++."""
    number_of = native.library().stability_rule
    number_of.restype, number_of.argtypes = c_int64, (c_char_p,)
    number: int = number_of(name.encode())
    assert number >= 0, f"the C++ kernels have no stability rule {name}"
    return number


@_traced_as(eager.drop_map)
def drop_map(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, stored: StoredMaps | None = None
) -> tuple[Tensor, Tensor]:
    if bin_.stability not in DROP_RULES:
        z_map, legal = drop_map(heightmap, item_id, catalogue, replace(bin_, stability="none"))
        return z_map, eager.judge_dropped(heightmap, z_map, legal, item_id, catalogue, bin_)
    described = described_problem(heightmap, item_id, catalogue, bin_)
    shape = (*item_id.shape, catalogue.num_orientations, *bin_.grid)
    z_map, legal = native.output(*shape, dtype=torch.float32), native.output(*shape, dtype=torch.bool)
    tensors = {"z": z_map, "legal": legal}
    if stored is not None:
        tensors |= zip(("kept_z", "kept_legal", "kept_slot", "changed"), stored, strict=True)
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
    z_map, legal, margin = z_map.contiguous(), legal.contiguous(), (c_int64 * 2)(*margins(bin_))
    out = native.output(*legal.shape, dtype=torch.bool)
    native.library().upheld(byref(described), margin, *(c_void_p(each.data_ptr()) for each in (z_map, legal, out)))
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
    assert state.placements.is_contiguous()  # both are written in place
    assert state.placement_z.is_contiguous()
    names = ("z_map", "legal", *_MOVED[2:], "placements", "placement_z")
    given = {name: getattr(state, name) for name in names}
    given |= {"action": action, "following": following, "item_volume": catalogue.volume}
    after = _like(state, _MOVED)
    rows = len(state.item_id)
    legal, slot = native.output(rows, dtype=torch.bool), native.output(*state.item_id.shape, dtype=torch.int64)
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
    given = {name: getattr(state, name) for name in _BEGUN[2:]}
    given |= {"mask": mask, "fresh_item": item_id, "fresh_key": key}
    fresh = _like(state, _BEGUN)
    rows = _Restart.of(given | {f"next_{name}": each for name, each in fresh.items()})
    native.library().restart(byref(described), byref(rows))
    return replace(state, **fresh)


def _like(state: PackingState, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Uninitialised tensors with the shapes and dtypes of some fields of a state."""
    fields = {name: getattr(state, name) for name in names}
    return {name: native.output(*each.shape, dtype=each.dtype) for name, each in fields.items()}


@_traced_as(eager.any_legal)
def any_legal(legal: Tensor) -> Tensor:
    return native.any_true(legal)


def add_max_rate(dtype: str, threads: int, seconds: float) -> float:
    """Upper bound of the add-max steps per second of this processor: all operands stay in registers.

    Of "float32", "uint16" or "uint8", by so many threads, measured for so many seconds.
    """
    sizes = {"uint8": 1, "uint16": 2, "float32": 4}
    if dtype not in sizes or threads < 1:
        wanted = f"one of {', '.join(sizes)} and at least one thread"
        raise ValueError(f"add_max_rate: want {wanted}; got {dtype!r} and {threads}")
    rate = native.library().add_max_rate
    rate.restype, rate.argtypes = c_double, (c_int64, c_int64, c_double)
    made: float = rate(sizes[dtype], threads, seconds)
    return made
