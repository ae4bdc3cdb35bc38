"""What the Triton backend launches: without a host read, and compiled ahead of time for GPUs that are not here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from tests.envs.packing.scenes import CELL, Scene, bin_of, scene_in
from tests.no_host_reads import NoHostReads
from torchrl_gpu.envs.packing.kernels import triton_kernels, triton_solids
from torchrl_gpu.envs.packing.types import Catalogue, Moved, PackingState, Placement, StoredMaps

_TYPES = {
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


class Launch(NamedTuple):
    """A kernel and what it was launched with."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def compiled(self, capability: int) -> Any:
        """The kernel, compiled for a compute capability such as 90, with the types and constants of the launch."""
        names = list(inspect.signature(self.kernel.fn).parameters)
        positional, constants = names[: len(self.arguments)], names[len(self.arguments) :]
        signature = {name: _type_of(value) for name, value in zip(positional, self.arguments, strict=True)}
        signature |= dict.fromkeys(constants, "constexpr")
        aligned = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(self.arguments) if isinstance(a, Tensor)}
        source = ASTSource(self.kernel, signature, {name: self.options[name] for name in constants}, aligned)
        options = {name: value for name, value in self.options.items() if name not in names}
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def _type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return _TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Every launch from here on, in place of the launch itself."""
    made: list[Launch] = []

    def launcher(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(0 < size < 2**31 for size in grid)
        return lambda *arguments, **options: made.append(Launch(kernel, arguments, options))

    monkeypatch.setattr(JITFunction, "__getitem__", launcher)
    return made


def some_scene(kind: str, *, cells: tuple[int, int] = (14, 11), step: int = 1, stability: str = "none") -> Scene:
    """A scene of any kind; "counted" are irregular items with a unit, their orientations alike by fours."""
    bin_ = bin_of(cells, step=step, stability=stability)
    if kind == "counted":
        extent = torch.tensor([[[6, 5]] * 4 + [[5, 6]] * 4] * 2)
        top = torch.full((2, 8, 6, 6), CELL)
        catalogue = Catalogue.of_maps(top, torch.zeros_like(top), extent, torch.ones(2), CELL)
        return Scene(torch.zeros(3, *cells), torch.zeros(3, 2, dtype=torch.int64), catalogue, bin_)
    return scene_in(bin_, np.random.default_rng(3), kind, num_envs=3)


def stored_for(s: Scene) -> StoredMaps:
    """Maps to keep."""
    z_map = torch.zeros(*s.item_id.shape, s.catalogue.num_orientations, *s.bin_.grid)
    return StoredMaps(z_map, z_map > 0, s.item_id, torch.zeros(len(s.heightmap), 4, dtype=torch.int64))


def placement_for(s: Scene) -> Placement:
    """Item 0 at the origin of each bin."""
    zero = torch.zeros(len(s.heightmap), dtype=torch.int64)
    return Placement(zero, zero, zero, zero, torch.zeros(len(zero)))


def state_for(s: Scene) -> PackingState:
    """The packings of a scene, three items long at most."""
    n, stored, count = len(s.heightmap), stored_for(s), torch.zeros(len(s.heightmap), dtype=torch.int64)
    counts = dict.fromkeys(("position", "key", "episode", "num_packed", "step_count"), count)
    rows = {"placements": torch.zeros(n, 3, 4, dtype=torch.int32), "placement_z": torch.zeros(n, 3)}
    one = {"volume": torch.zeros(n), "stable": count > 0}
    return PackingState(s.heightmap, s.item_id, **counts, **one, **rows, z_map=stored.z_map, legal=stored.legal)


def step(s: Scene) -> tuple[Moved, PackingState]:
    """The first action of each environment, then a restart of all."""
    state = state_for(s)
    moved = triton_kernels.advance(state, state.key, state.key, s.catalogue, s.bin_)
    return moved, triton_kernels.restart(moved.state, moved.legal, state.key, s.item_id, s.catalogue, s.bin_)


@pytest.mark.parametrize("kind", ["boxes", "wide boxes", "solids", "counted"])
def test_an_action_and_a_restart_are_one_launch_each(kind: str, launches: list[Launch]) -> None:
    cells = (40, 11) if kind == "wide boxes" else (14, 11)
    s = some_scene(kind.removeprefix("wide "), cells=cells, step=2)
    with NoHostReads():
        moved, begun = step(s)
    assert [launch.kernel.__name__ for launch in launches] == ["advance_kernel", "restart_kernel"]
    for state in (moved.state, begun):
        for field in fields(PackingState):
            came, given = getattr(state, field.name), getattr(state_for(s), field.name)
            assert (came.shape, came.dtype) == (given.shape, given.dtype), field.name


@pytest.mark.parametrize("stability", ["support", "com"])
@pytest.mark.parametrize("kind", ["boxes", "wide boxes", "solids", "counted"])
def test_nothing_is_read_by_the_host(kind: str, stability: str, launches: list[Launch]) -> None:
    cells = (40, 11) if kind == "wide boxes" else (14, 11)
    s = some_scene(kind.removeprefix("wide "), cells=cells, step=2, stability=stability)
    stored, placement = stored_for(s), placement_for(s)
    with NoHostReads():
        z_map, legal = triton_kernels.drop_map(*s, stored)
        triton_kernels.drop_map(*s)
        placed = triton_kernels.place(s.heightmap, placement, s.catalogue, s.bin_)
        growth = triton_kernels.pile_growth(s.heightmap, s.item_id, z_map, s.catalogue, s.bin_)
    assert z_map.shape == legal.shape == growth.shape == stored.z_map.shape
    assert legal.dtype == torch.bool
    assert placed.shape == s.heightmap.shape
    assert len(launches) == {"boxes": 4, "wide boxes": 6, "solids": 6, "counted": 6}[kind]


@pytest.mark.parametrize("step", [1, 2])
def test_maps_without_a_unit_need_no_copy_where_the_grid_is_fine(step: int, launches: list[Launch]) -> None:
    triton_kernels.drop_map(*some_scene("solids", step=step))
    assert len(launches) == step  # the heightmap is its own single phase


def all_launches(made: list[Launch]) -> Iterator[tuple[str, Launch]]:
    """A launch of every kernel in its various forms, by name."""
    for kind, stability, cells in (
        ("counted", "none", (200, 200)),
        ("counted", "support", (200, 200)),
        ("counted", "com", (200, 200)),
        ("solids", "com", (100, 90)),
        ("boxes", "com", (10, 10)),
        ("solids", "corners", (100, 90)),
        ("boxes", "none", (10, 10)),
        ("boxes", "support", (10, 10)),
        ("boxes", "corners", (40, 11)),
    ):
        s = some_scene(kind, cells=cells, step=1 if kind == "boxes" else 3, stability=stability)
        triton_kernels.drop_map(*s, stored_for(s) if kind == "counted" else None)
        if stability == "none":
            triton_kernels.place(s.heightmap, placement_for(s), s.catalogue, s.bin_)
            triton_kernels.pile_growth(s.heightmap, s.item_id, stored_for(s).z_map, s.catalogue, s.bin_)
            step(s)
        yield from ((f"{kind}, {stability}: {launch.kernel.__name__}", launch) for launch in made)
        made.clear()


def innermost_loops(sass: str) -> list[list[str]]:
    """The instructions of the loops of a disassembly in which there is no other."""
    lines = re.sub(r"[\t,]", " ", sass).splitlines()
    labels = {line.rstrip(": "): i for i, line in enumerate(lines) if line.startswith("L") and line.endswith(":")}
    ends = [(labels.get(line.split()[-1].rstrip(";"), i), i) for i, line in enumerate(lines) if " BRA " in line]
    loops = [(start, end) for start, end in ends if start < end]
    return [lines[start:end] for start, end in loops if not any(start <= other and stop < end for other, stop in loops)]


@pytest.mark.parametrize("capability", [90, 80])
def test_every_kernel_compiles_and_keeps_its_loops_in_registers(
    capability: int, launches: list[Launch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    fused = capability >= 90
    monkeypatch.setattr(triton_solids, "_fused", lambda device: fused or None)
    seen, spilling = set(), []
    for name, launch in all_launches(launches):
        if not fused and launch.kernel.__name__ in seen:
            continue  # one form of each will do
        kernel = launch.compiled(capability)
        sass = kernel.asm["sass"]
        seen.add(launch.kernel.__name__)
        loops = innermost_loops(sass)
        if any(" LDL" in line or " STL" in line for loop in loops for line in loop):
            spilling.append(name)
        if launch.options.get("PAIRS"):  # added and maximised in one instruction
            assert any("VIADDMNMX.S16x2" in line for loop in loops for line in loop), name
    assert spilling == []
    assert seen == {
        "advance_kernel",
        "drop_boxes_kernel",
        "drop_solids_kernel",
        "drop_wide_boxes_kernel",
        "growth_kernel",
        "place_kernel",
        "restart_kernel",
        "split_kernel",
        "windows_kernel",
    }
