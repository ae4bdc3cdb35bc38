"""Launches of the Triton backend.

The host reads nothing, and kernels compile ahead of time for GPUs that are not here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
from torch.torch_version import TorchVersion

from benchmarks.gpu.launches import Launch, as_on, innermost_loops, recorded, stack_of
from tests.envs.packing.scenes import CELL, Scene, bin_of, scene_in
from tests.no_host_reads import NoHostReads
from tests.records import with_values
from torchrl_gpu.envs import PackingEnv, triton_draws
from torchrl_gpu.envs.packing.items import RandomBoxes, triton_cuts
from torchrl_gpu.envs.packing.items.cutting import CutSequences
from torchrl_gpu.envs.packing.kernels.triton import kernels as triton_kernels
from torchrl_gpu.envs.packing.types import Catalogue, Moved, PackingState, Placement, StoredMaps
from torchrl_gpu.policies import PatchTables
from torchrl_gpu.policies.packing.ntuple import triton_rollouts, triton_tables
from torchrl_gpu.policies.packing.ntuple import triton_values as triton_afterstates
from torchrl_gpu.policies.packing.ntuple.triton_tables import some_sweep
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan
from torchrl_gpu.policies.spaces import AgentSpace


@pytest.fixture
def launches() -> Iterator[list[Launch]]:
    with recorded() as made:
        yield made


def some_scene(kind: str, *, cells: tuple[int, int] = (14, 11), step: int = 1, stability: str = "none") -> Scene:
    """Build a scene of any kind.

    "counted" are irregular items with a unit, whose orientations are alike by fours.
    """
    bin_ = bin_of(cells, step=step, stability=stability)
    if kind == "counted":
        extent = torch.tensor([[[6, 5]] * 4 + [[5, 6]] * 4] * 2)
        top = torch.full((2, 8, 6, 6), CELL)
        catalogue = Catalogue.of_maps(top, torch.zeros_like(top), extent, torch.ones(2), CELL)
        return Scene(torch.zeros(3, *cells), torch.zeros(3, 2, dtype=torch.int64), catalogue, bin_)
    return scene_in(bin_, np.random.default_rng(3), kind, num_envs=3)


def stored_for(s: Scene) -> StoredMaps:
    z_map = torch.zeros(*s.item_id.shape, s.catalogue.num_orientations, *s.bin_.grid)
    return StoredMaps(z_map, z_map > 0, s.item_id, torch.zeros(len(s.heightmap), 4, dtype=torch.int64))


def placement_for(s: Scene) -> Placement:
    zero = torch.zeros(len(s.heightmap), dtype=torch.int64)
    return Placement(zero, zero, zero, zero, torch.zeros(len(zero)))


def state_for(s: Scene) -> PackingState:
    state = PackingState.blank(len(s.heightmap), s.item_id.shape[1], 3, s.catalogue, s.bin_)
    return replace(state, heightmap=s.heightmap, item_id=s.item_id)


def step(s: Scene) -> tuple[Moved, PackingState]:
    state = state_for(s)
    moved = triton_kernels.advance(state, state.key, state.key, s.catalogue, s.bin_)
    return moved, triton_kernels.restart(moved.state, moved.legal, state.key, s.item_id, s.catalogue, s.bin_)


@pytest.mark.parametrize("kind", ["boxes", "wide boxes", "solids", "counted"])
def test_an_action_and_a_restart_are_one_launch_each(kind: str, launches: list[Launch]) -> None:
    cells = (40, 11) if kind == "wide boxes" else (14, 11)
    s = some_scene(kind.removeprefix("wide "), cells=cells, step=2)
    with NoHostReads():
        moved, begun = step(s)
    assert [launch.name for launch in launches] == ["advance_kernel", "restart_kernel"]
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
    # The heightmap is its own single phase.
    assert len(launches) == step


# One form of each kernel for one chip; `make soak` asks for all forms, and for other chips.
ALL_FORMS = bool(os.environ.get("TORCHRL_GPU_ALL_FORMS"))


def all_launches(made: list[Launch]) -> Iterator[tuple[str, Launch]]:
    """A launch of every kernel by name, in all its forms or in one."""
    forms = [("counted", "none", (200, 200)), ("boxes", "none", (10, 10)), ("boxes", "corners", (40, 11))]
    more = [("counted", "support", (200, 200)), ("counted", "com", (200, 200)), ("solids", "com", (100, 90))]
    more += [("boxes", "com", (10, 10)), ("solids", "corners", (100, 90)), ("boxes", "support", (10, 10))]
    for kind, stability, cells in [*forms, *(more if ALL_FORMS else [])]:
        s = some_scene(kind, cells=cells, step=1 if kind == "boxes" else 3, stability=stability)
        triton_kernels.drop_map(*s, stored_for(s) if kind == "counted" else None)
        if stability == "none":
            triton_kernels.place(s.heightmap, placement_for(s), s.catalogue, s.bin_)
            triton_kernels.pile_growth(s.heightmap, s.item_id, stored_for(s).z_map, s.catalogue, s.bin_)
            step(s)
        if (kind, stability) == ("boxes", "none"):
            maps = s.heightmap, s.heightmap >= 0, stored_for(s).z_map, stored_for(s).legal, s.item_id
            triton_kernels.upheld(*maps, s.catalogue, replace(s.bin_, stability="load_bearing"))
        yield from ((f"{kind}, {stability}: {launch.name}", launch) for launch in made)
        made.clear()
    plan = PatchPlan(("2x2", "3x3:2"), 10)
    triton_afterstates.value_placements(*triton_afterstates.some_placements(plan, (10, 10), 1, 1), plan, 1, 1)
    yield from ((f"values of afterstates: {launch.name}", launch) for launch in made)
    made.clear()
    played = some_sweep(plan, (10, 10))
    bins, seen = played.levels[:, 0].contiguous(), torch.zeros(plan.entries, 2, dtype=torch.int64)
    triton_tables.value_bins(bins, played.tables.weight, plan)
    triton_tables.learn_bins(bins, seen[: len(bins), 0], played.done[:, 0], played.tables, plan, 0.1, seen)
    triton_tables.sweep_bins(*played, plan, 0.1, 0.8, seen)
    yield from ((f"tables of afterstates: {launch.name}", launch) for launch in made)
    made.clear()
    for layers in (True, False):
        cuts, keys = CutSequences((10, 10, 10), 2, 5, layers, 100), torch.zeros(3, dtype=torch.int64)
        triton_cuts.items(cuts, keys, keys[:, None], cuts.nothing_kept(3, keys.device))
        yield f"boxes cut, {'layers' if layers else 'a stack'}", made.pop()
    env = PackingEnv(3, items=RandomBoxes(1, 3), backend="eager", device="cpu", stability="corners")
    triton_rollouts.play(env, PatchTables(AgentSpace.of(env), ["2x2", "3x3:1"]), env.state, 2)
    yield "a rollout", made.pop()
    for kind in ("bits", "until", "uniform", "episode"):
        triton_draws.draw(kind, keys[:, None], keys)
        yield f"drawn {kind}", made.pop()


# Instructions on pairs: Hopper adds and maximises in one, the Blackwell of 12.0 in two, Ampere has none.
PAIRED = {90: ("VIADDMNMX.S16x2",), 120: ("VIADD.16x2", "VIMNMX.S16x2"), 80: ()}


@pytest.mark.parametrize("capability", [120, 80] if os.environ.get("TORCHRL_GPU_OTHER_CHIPS") else [90])
def test_every_kernel_compiles_and_keeps_its_loops_in_registers(
    capability: int, launches: list[Launch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    # `test_ahead` compiles two of these, and `make kernels` the third, which takes seconds.
    seen = set() if ALL_FORMS else {"place_kernel", "restart_kernel", "rollout_kernel"}
    spilling = []
    with as_on(capability):
        made = list(all_launches(launches))
    for name, launch in made:
        if launch.name in seen and not ALL_FORMS:
            continue
        seen.add(launch.name)
        if stack_of(launch.cubin(capability)) and launch.compiled(capability).spills:
            spilling.append(name)
        assert launch.options.get("PAIRS", False) == bool(PAIRED[capability] and "counted" in name and "solids" in name)
        if launch.options.get("PAIRS"):
            loops = innermost_loops(launch.compiled(capability).instructions)
            counting = [loop for loop in loops if "S16x2" in "\n".join(loop)]
            assert counting, name
            text = "\n".join(counting[0])
            assert all(word in text for word in PAIRED[capability]), name
    # 3.6 spills in one form.
    if TorchVersion(triton.__version__) >= (3, 9):
        assert spilling == []
    assert seen == {
        "add_errors_kernel",
        "advance_kernel",
        "cut_items_kernel",
        "draw_kernel",
        "drop_boxes_kernel",
        "drop_solids_kernel",
        "drop_wide_boxes_kernel",
        "growth_kernel",
        "move_entries_kernel",
        "place_kernel",
        "restart_kernel",
        "rollout_kernel",
        "split_kernel",
        "sweep_kernel",
        "upheld_kernel",
        "value_bins_kernel",
        "value_placements_kernel",
        "windows_kernel",
    }


# What a new catalogue or another number of environments may change without a new compilation, by kernel: all but the
# constants, and numbers of which Triton would otherwise set 1 and multiples of 16 apart.
def test_another_catalogue_or_batch_is_no_other_kernel(launches: list[Launch]) -> None:
    for kind in ("boxes", "solids"):
        forms = []
        for num_envs, num_items, num_visible in ((3, 5, 3), (16, 16, 2), (1, 1, 2)):
            rng = np.random.default_rng(0)
            s = scene_in(bin_of((14, 11), step=2), rng, kind, num_envs=num_envs, most_items=1, most_visible=1)
            c = s.catalogue
            rows = torch.zeros(num_items, dtype=torch.int64)
            maps = {"top": c.top[rows], "bottom": c.bottom[rows]} if c.top is not None and c.bottom is not None else {}
            tensors = {"extent": c.extent[rows], "height": c.height[rows], "volume": c.volume[rows]} | maps
            many = with_values(s, catalogue=replace(c, **tensors), item_id=s.item_id.repeat(1, num_visible))
            triton_kernels.drop_map(*many)
            triton_kernels.place(many.heightmap, placement_for(many), many.catalogue, many.bin_)
            triton_kernels.pile_growth(many.heightmap, many.item_id, stored_for(many).z_map, many.catalogue, many.bin_)
            # Of boxes the number of slots is a constant.
            if kind == "solids":
                forms.append([form_of(launch) for launch in launches])
            launches.clear()
        assert all(form == forms[0] for form in forms)


def form_of(launch: Launch) -> tuple[Any, ...]:
    """Return the key of a launched binary.

    It is made of the kernel, its constants, and Triton's specialisation of its numbers.
    """
    special = launch.kernel.do_not_specialize or []
    names = list(inspect.signature(launch.kernel.fn).parameters)
    numbers = [
        (name, value == 1, value % 16 == 0)
        for name, value in zip(names, launch.arguments, strict=False)
        if isinstance(value, int) and name not in special
    ]
    return launch.name, tuple(launch.options.items()), tuple(numbers)
