"""Parity of the Triton kernels with the reference.

It is tested on CUDA devices, and on a CPU where Triton interprets them.

Triton decides at import whether it interprets, so the CPU takes part only in a process that was started with
TRITON_INTERPRET=1; `test_triton.py` starts one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs.packing.kernels import hostile, parity
from tests.envs.packing.kernels.hostile import hostile_items
from tests.envs.packing.kernels.parity import KINDS, some_placement
from tests.envs.packing.scenes import CELL, RULES, Scene, bin_of, scene, scene_in
from tests.records import with_values
from torchrl_gpu.envs.packing.kernels import get_kernels, reference
from torchrl_gpu.envs.packing.kernels.triton import kernels as triton_kernels
from torchrl_gpu.envs.packing.types import Catalogue, Placement, StoredMaps

# The interpreter wraps integers.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SEEDS = range(2) if INTERPRETED else range(40)


@pytest.fixture(params=["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def assert_parity(s: Scene, device: torch.device, stored: StoredMaps | None = None, growth: bool = False) -> Any:
    return parity.assert_parity(triton_kernels, s, stored, device, growth)


def turned_solids(rng: np.random.Generator, cells: tuple[int, int], unit: float | None) -> Catalogue:
    """Three items in four quarter turns, which share their extents by twos."""
    p, q = cells
    top, bottom = torch.zeros(3, 4, max(cells), max(cells)), torch.full((3, 4, max(cells), max(cells)), torch.inf)
    extent = torch.zeros(3, 4, 2, dtype=torch.int64)
    # The second has its sides the other way round.
    for item, shape in enumerate(((p, q), (q, p), (max(1, p - 1), q))):
        low = rng.integers(0, 3, shape) * CELL
        low[0, 0] = 0
        for turn in range(4):
            view = torch.from_numpy(np.rot90(low, turn).copy()).float()
            rows, columns = view.shape
            bottom[item, turn, :rows, :columns] = view
            top[item, turn, :rows, :columns] = view + CELL
            extent[item, turn] = torch.tensor(view.shape)
    return Catalogue.of_maps(top, bottom, extent, torch.ones(3), unit)


@pytest.mark.parametrize("stability", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_drop_map_and_growth_agree(kind: str, stability: str, device: torch.device) -> None:
    for seed in SEEDS:
        s = scene(seed, kind, stability=stability)
        assert_parity(s, device, growth=True)


@pytest.mark.parametrize("stability", RULES)
def test_counted_heights_agree(stability: str, device: torch.device) -> None:
    # Of three environments one has a height between the counts.
    for seed in SEEDS:
        s = scene(seed, "solids", stability=stability, num_envs=3).counted(CELL)
        s.heightmap[1].view(-1)[seed % s.heightmap[1].numel()] += CELL / 96
        assert_parity(s, device)


@pytest.mark.parametrize("unit", [None, CELL])
@pytest.mark.parametrize(("cells", "step"), [((11, 7), 4), ((7, 10), 3), ((9, 8), 1)])
def test_placements_flush_with_the_wall_agree(
    cells: tuple[int, int], step: int, unit: float | None, device: torch.device
) -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        s = scene_in(bin_of(cells, step=step), rng, "solids", num_envs=1, most_items=3, most_visible=2).counted(unit)
        assert_parity(s, device)


@pytest.mark.parametrize("unit", [None, CELL])
@pytest.mark.parametrize("stability", ["none", "support", "com"])
def test_orientations_that_share_an_extent_agree(stability: str, unit: float | None, device: torch.device) -> None:
    for step in (1, 3):
        rng = np.random.default_rng(step)
        bin_ = bin_of((8, 7), step=step, stability=stability, levels=6)
        blocks = torch.from_numpy(rng.integers(0, 3, (2, 8, 7))).float() * CELL
        s = Scene(blocks, torch.tensor([[0, 2], [1, -1]]), turned_solids(rng, (4, 2), unit), bin_)
        assert_parity(s, device, growth=True)


@pytest.mark.parametrize("stability", RULES)
def test_boxes_in_wide_bins_agree(stability: str, device: torch.device) -> None:
    # With 3 a single cell has no placement flush with the wall: the grid ends before.
    for step in (1, 3):
        rng = np.random.default_rng(step)
        bin_ = bin_of((18, 6), step=step, stability=stability)
        s = scene_in(bin_, rng, "boxes", num_envs=1, most_items=4, most_orientations=2, most_visible=2)
        assert_parity(with_values(s, item_id=torch.tensor([[1, 0, s.catalogue.num_items - 1]])), device)


def test_boxes_of_every_length_agree(device: torch.device) -> None:
    for cells in ((16, 3), (21, 4)):
        rng = np.random.default_rng(0)
        sizes = torch.tensor([[[1 + n, 1 + n % (cells[1] + 1), CELL]] for n in range(cells[0] + 1)]).double()
        catalogue = Catalogue.of_boxes(sizes, torch.ones(len(sizes)))
        heights = torch.from_numpy(rng.integers(0, 9, (1, *cells))).float() * CELL
        assert_parity(Scene(heights, torch.arange(len(sizes))[None], catalogue, bin_of(cells, levels=12)), device)


@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_wide_items_are_judged_by_their_hull(kind: str, device: torch.device) -> None:
    parity.assert_held_by_three_posts(triton_kernels, kind, 6, device)


@pytest.mark.parametrize("kind", ["boxes", "solids"])
@pytest.mark.parametrize("stability", RULES[1:])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4)])
def test_every_pattern_of_contact_is_judged_alike(
    shape: tuple[int, int], stability: str, kind: str, device: torch.device
) -> None:
    parity.assert_every_pattern(triton_kernels, shape, stability, kind, device, every=47 if INTERPRETED else 1)


@pytest.mark.parametrize("stability", ["none", "support"])
def test_blocks_that_can_raise_nothing_are_left_out_and_change_nothing(stability: str, device: torch.device) -> None:
    # Piles that are flat in parts: most blocks of an item cannot raise a placement any more, some can.
    rng = np.random.default_rng(5)
    bin_ = bin_of((29, 26), step=4, stability=stability, levels=40)
    s = scene_in(bin_, rng, "solids", num_envs=2, most_items=3, most_orientations=2, most_visible=3).counted(CELL)
    coarse = torch.from_numpy(rng.integers(0, 4, (2, 5, 5))).float()
    s.heightmap[:] = coarse.repeat_interleave(6, 1).repeat_interleave(6, 2)[:, :29, :26] * (3 * CELL)
    s.heightmap[:, 11:13, 7:9] += 2 * CELL
    parity.assert_kept_maps_follow(triton_kernels, s, seed=3, steps=3, device=device)


def test_heights_at_the_border_of_bytes_agree(device: torch.device) -> None:
    s = scene(4, "solids", num_envs=3).under(size=(1.0, 1.0, 255 * CELL)).counted(CELL)
    for env, count in enumerate((254, 255, 256)):
        s.heightmap[env].view(-1)[1] = count * CELL
    assert_parity(s, device)


def test_heights_that_a_count_cannot_hold_agree(device: torch.device) -> None:
    s = scene(3, "solids", num_envs=3).under(size=(1.0, 1.0, 9000.0)).counted(CELL)
    for env, count in enumerate((16383, 16384, 70_000)):
        s.heightmap[env].view(-1)[0] = count * CELL
    assert_parity(s, device)


def test_undersides_that_a_count_cannot_hold_agree(device: torch.device) -> None:
    assert_parity(parity.lifted(scene(2, "solids").counted(CELL), 70_000), device)


def test_rounding_errors_of_a_pile_are_counted_away(device: torch.device) -> None:
    parity.assert_rounding_is_counted_away(triton_kernels, scene(1, "solids").counted(CELL), device)


@pytest.mark.parametrize("unit", [None, CELL])
@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_maps_kept_over_several_placements_are_those_made_anew(
    kind: str, unit: float | None, device: torch.device
) -> None:
    for seed in [6 + (unit is None)] if INTERPRETED else range(40):
        s = scene(seed, kind, stability=RULES[seed % len(RULES)], num_envs=2).counted(unit)
        parity.assert_kept_maps_follow(triton_kernels, s, seed, 2, device)


@pytest.mark.parametrize("unit", [None, CELL])
@pytest.mark.parametrize("step", [1, 2])
def test_only_what_changed_is_made_anew(step: int, unit: float | None, device: torch.device) -> None:
    parity.assert_only_what_changed_is_made_anew(triton_kernels, step, unit, device)


@pytest.mark.parametrize("kind", KINDS)
def test_place_agrees(kind: str, device: torch.device) -> None:
    for seed in range(4 if INTERPRETED else 40):
        s = scene(seed, kind, num_envs=5)
        parity.assert_placed(triton_kernels, s, some_placement(s, seed), device)


def test_bins_of_more_cells_than_a_program_handles_are_placed_in(device: torch.device) -> None:
    rng = np.random.default_rng(0)
    for kind in ("boxes", "solids"):
        s = scene_in(bin_of((40, 33)), rng, kind, num_envs=2, most_items=2, most_orientations=1)
        parity.assert_placed(triton_kernels, s, some_placement(s, 1), device)


def test_memory_that_is_not_contiguous_is_read_right(device: torch.device) -> None:
    for kind in ("boxes", "solids"):
        s = scene(1, kind)
        z_map, legal = reference.drop_map(*s)
        there = s.to(device)
        heightmap = there.heightmap.mT.contiguous().mT
        came = triton_kernels.drop_map(heightmap, there.item_id.mT.contiguous().mT, there.catalogue, s.bin_)
        assert torch.equal(came[0].cpu(), z_map)
        assert torch.equal(came[1].cpu(), legal)


def test_the_backend_runs_there(device: torch.device) -> None:
    assert get_kernels("triton", device).drop_map.__wrapped__ is triton_kernels.drop_map


# -- on a CUDA device alone --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels run on no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_follows_its_inputs(kind: str) -> None:
    # Captured on one pile, replayed on others: nothing was read by the host and nothing stands still.
    s = scene(5, kind, stability="support", num_envs=4).counted(CELL).to("cuda")
    placement = Placement(*(field.cuda() for field in some_placement(scene(5, kind, num_envs=4), 0)))
    heightmap = s.heightmap.clone()

    def step() -> tuple[Tensor, Tensor, Tensor]:
        placed = triton_kernels.place(heightmap, placement, s.catalogue, s.bin_)
        return placed, *triton_kernels.drop_map(placed, s.item_id, s.catalogue, s.bin_)

    graph, outputs = parity.captured(step)
    for seed in range(3):
        blocks = torch.randint(0, 4, heightmap.shape, generator=_generator(seed)) * CELL
        heightmap.copy_(blocks)
        graph.replay()
        on_cpu = s.to("cpu")
        placed = reference.place(blocks, Placement(*(f.cpu() for f in placement)), on_cpu.catalogue, s.bin_)
        expected = placed, *reference.drop_map(placed, on_cpu.item_id, on_cpu.catalogue, s.bin_)
        for came, wanted in zip(outputs, expected, strict=True):
            assert torch.equal(came.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels run on no CUDA device")
def test_every_cut_of_the_work_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchrl_gpu.envs.packing.kernels.triton import solids as triton_solids

    s = scene(7, "solids", num_envs=3).counted(CELL)
    bounds = replace(s.catalogue, unit=CELL)
    for lanes in (32, 64, 512):
        for num_warps in (1, 2, 4):
            cut = triton_solids.Blocks(1, lanes, num_warps)
            monkeypatch.setattr(triton_solids, "blocks", lambda *_, cut=cut: cut)
            assert_parity(with_values(s, catalogue=bounds), torch.device("cuda"))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- numbers out of every range --------------------------------------------------------------------------------------


# Small boxes and wide ones.
@pytest.mark.parametrize("cells", [(5, 6), (17, 4)])
@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_what_is_no_row_of_the_catalogue_is_an_empty_slot(
    kind: str, cells: tuple[int, int], device: torch.device
) -> None:
    for seed in SEEDS[:3]:
        rng = np.random.default_rng(seed)
        bin_ = bin_of(cells, step=1 + seed % 2, stability=RULES[seed % len(RULES)])
        s = hostile_items(scene_in(bin_, rng, kind, num_envs=4).counted(CELL), rng)
        assert_parity(s, device, growth=True)


@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_what_is_not_inside_the_bin_is_not_placed(kind: str, device: torch.device) -> None:
    hostile.assert_nothing_outside_is_placed(triton_kernels, kind, range(12), device)


def test_kept_maps_of_no_slot_are_not_kept(device: torch.device) -> None:
    for seed in SEEDS[:3]:
        rng = np.random.default_rng(seed)
        s = scene_in(bin_of((5, 4), step=1 + seed % 2), rng, "solids", num_envs=3).counted(CELL)
        hostile.assert_no_slot_is_kept(triton_kernels, s, rng, device)
