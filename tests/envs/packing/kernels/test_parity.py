"""Parity of the torch and the compiled kernels with the reference, to the bit.

It holds for any shape of bin, item and pile.

Maxima and their differences are exact where lengths are multiples of 1/8 m; only the growth of a pile is a sum.
"""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.envs.packing.kernels.parity import (
    KINDS,
    assert_every_pattern,
    assert_held_by_three_posts,
    assert_parity,
    assert_placed,
    one_item,
    some_placement,
)
from tests.envs.packing.scenes import CELL, LAW, RULES, Scene, bin_of, scene
from tests.native.compilers import threads
from torchrl_gpu import native
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.kernels import compiled, eager, reference
from torchrl_gpu.envs.packing.types import Bin, Catalogue

seeds = st.integers(0, 2**32 - 1)
kinds = st.sampled_from(KINDS)
rules = st.sampled_from(RULES)
units = st.sampled_from([None, CELL, CELL / 64, CELL / 6000, CELL / 2**14])
num_threads = st.sampled_from([1, 2])


KERNELS: list[ModuleType] = [eager] if native.problem() else [eager, compiled]


@settings(LAW, max_examples=60)
@given(seed=seeds, kind=kinds, stability=rules, unit=units, cores=num_threads)
def test_drop_map_and_growth_agree(seed: int, kind: str, stability: str, unit: float | None, cores: int) -> None:
    with threads(cores):
        assert_parity(KERNELS, scene(seed, kind, stability=stability, num_envs=1 + seed % 5).counted(unit))


@LAW
@given(seed=seeds, kind=kinds, unit=units)
def test_place_agrees(seed: int, kind: str, unit: float | None) -> None:
    s = scene(seed, kind, num_envs=5).counted(unit)
    assert_placed(KERNELS, s, some_placement(s, seed))


@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_torch_kernels_agree_on_every_device(kind: str, device: torch.device) -> None:
    for seed, stability in enumerate(RULES):
        s = scene(seed, kind, stability=stability, num_envs=3)
        assert_parity(eager, s, device=device)
        assert_placed(eager, s, some_placement(s, seed), device)


@pytest.mark.parametrize("stability", RULES[1:])
@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_stability_agrees_where_it_matters(kind: str, stability: str) -> None:
    stable = falls = 0
    for seed in range(20):
        s = scene(seed, kind, stability=stability).counted(CELL)
        z_map, legal = assert_parity(KERNELS, s, growth=False)
        _, low_enough = reference.drop_map(*s.under(stability="none"))
        above_floor = low_enough & (z_map > 0)
        stable += int((above_floor & legal).sum())
        falls += int((above_floor & ~legal).sum())
    # Both answers occur, off the floor.
    assert min(stable, falls) > 12


@pytest.mark.parametrize("kind", ["boxes", "solids"])
@pytest.mark.parametrize("stability", RULES[1:])
def test_every_pattern_of_contact_is_judged_alike(stability: str, kind: str) -> None:
    for shape in ((3, 3), (2, 5), (3, 4), (1, 6)):
        assert_every_pattern(KERNELS, shape, stability, kind)


@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_wide_items_are_judged_by_their_hull(kind: str) -> None:
    assert_held_by_three_posts(KERNELS, kind, 16)


@pytest.mark.parametrize("stability", ["support", "com"])
@pytest.mark.parametrize("shape", [(2, 200), (200, 2), (3, 140)])
def test_items_of_more_cells_than_a_byte_counts_are_judged_alike(shape: tuple[int, int], stability: str) -> None:
    posts = torch.rand(30, *shape, generator=torch.Generator().manual_seed(0)) < 0.012
    item_id = torch.zeros(30, 1, dtype=torch.int64)
    s = Scene(CELL * (1 + posts), item_id, one_item(shape, "boxes"), bin_of(shape, stability=stability))
    _, legal = assert_parity(KERNELS, s)
    assert 5 < legal.sum() < 25


@pytest.mark.parametrize("chunk", [1, 100, 3000])
def test_irregular_items_rest_alike_however_the_work_is_cut(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_CHUNK", chunk)
    for seed in range(4):
        assert_parity(eager, scene(seed, "solids", num_envs=3))


def test_an_item_larger_than_the_bin_in_one_orientation_fits_in_the_other() -> None:
    # 8×2 cells in a bin of 4×10: only turned, 3 × 9 places at the wall included.
    sizes = torch.tensor([[[8, 2, CELL], [2, 8, CELL]]], dtype=torch.float64)
    catalogue = Catalogue.of_boxes(sizes, torch.ones(1))
    s = Scene(torch.zeros(2, 4, 10), torch.zeros(2, 1, dtype=torch.int64), catalogue, bin_of((4, 10)))
    _, legal = assert_parity(KERNELS, s)
    assert legal.sum((1, 3, 4)).tolist() == [[0, 3 * 3]] * 2


@pytest.mark.parametrize("stability", RULES)
def test_procedural_solids_agree(stability: str) -> None:
    # Blocks as high as a few cells of 1/16 m: irregular contacts with true and false answers.
    bin_ = Bin((1.0, 0.75, 0.75), (16, 12), 3, stability)
    catalogue, stream = ProceduralSolids(num_objects=6, min_size=0.2, max_size=0.5).build(bin_, "axis", 10, 2)
    key = stream.begin(0, torch.arange(2), torch.zeros(2, dtype=torch.int64))
    item_id = stream.items(key, torch.arange(3).expand(2, -1))
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 3, (2, 4, 3), generator=generator).repeat_interleave(4, 1).repeat_interleave(4, 2)
    z_map, legal = assert_parity(KERNELS, Scene(blocks / 16.0, item_id, catalogue, bin_))
    assert legal.any()
    assert (z_map[legal] > 0).any()
