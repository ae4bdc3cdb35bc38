"""Parity of what the compiled kernels have alone.

That is counted heights, stored maps, vectors and threads.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.envs.packing.kernels import parity
from tests.envs.packing.kernels.parity import KINDS, some_placement
from tests.envs.packing.scenes import CELL, LAW, RULES, Scene, as_solids, bin_of, centres, scene, scene_in
from tests.native.compilers import need_compiler, threads
from tests.records import with_values
from torchrl_gpu import native
from torchrl_gpu.envs.packing.kernels import compiled, reference
from torchrl_gpu.envs.packing.types import Catalogue, Placement, StoredMaps

# Bins of `scene` are 4 to 7 cells high, so that the unit decides which type holds their heights; None is float32.
TYPES = {None: None, CELL: torch.uint8, CELL / 64: torch.uint16, CELL / 6000: torch.uint16, CELL / 2**14: None}
seeds = st.integers(0, 2**32 - 1)
kinds = st.sampled_from(KINDS)
rules = st.sampled_from(RULES)
units = st.sampled_from(list(TYPES))
num_threads = st.sampled_from([1, 2])


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    need_compiler()


def type_of(s: Scene) -> torch.dtype | None:
    """Return the type of counted heights, or None where they are not counted."""
    if s.catalogue.unit is None:
        return None
    counted = compiled.count_bottoms(s.catalogue, s.bin_.size[2] / s.catalogue.unit)
    return None if counted is None else counted.cells.dtype


assert_parity = partial(parity.assert_parity, compiled)


# To more cells than a byte numbers, and than float32 holds the products of.
@pytest.mark.parametrize("shape", [(254, 3), (256, 2), (300, 5), (520, 1), (2, 256), (4, 300), (130, 120)])
@pytest.mark.parametrize("unit", [None, CELL, CELL / 64])
def test_long_items_balance_as_in_the_reference(unit: float | None, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(shape[0])
    posts = torch.from_numpy(rng.random((30, *shape)) < 4 / (shape[0] * shape[1]))
    heightmap = CELL * (1 + posts + (torch.rand(posts.shape, generator=torch.Generator().manual_seed(0)) < 0.1) / 4)
    sizes = torch.tensor([[[*shape, CELL]]], dtype=torch.float64).repeat(30, 1, 1)
    catalogue = as_solids(Catalogue.of_boxes(sizes, torch.ones(30)), unit)
    catalogue = replace(catalogue, centre=centres(rng, np.array(shape) * np.ones((30, 1, 2))))
    item_id = torch.arange(30)[:, None]
    _, legal = assert_parity(Scene(heightmap, item_id, catalogue, bin_of(shape, stability="com")))
    assert legal.any()
    assert not legal.all()


# -- what counting heights must not change -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "dtype"), [(253, torch.uint8), (254, torch.uint16), (65533, torch.uint16), (65534, None)]
)
def test_the_smallest_type_that_holds_the_bin_is_used(levels: int, dtype: torch.dtype | None) -> None:
    rng = np.random.default_rng(levels)
    for stability in RULES:
        s = scene_in(bin_of((6, 7), levels=levels, stability=stability), rng, "solids", num_envs=4).counted(CELL)
        heights = torch.from_numpy(rng.integers(max(0, levels - 9), levels + 4, s.heightmap.shape))
        # The floor is far below.
        heights[:, ::3] = 0
        s = with_values(s, heightmap=heights.float() * CELL)
        assert type_of(s) is dtype
        assert_parity(s)


@pytest.mark.parametrize("levels", [20, 253])
def test_items_taller_than_any_count_rest_where_the_reference_says(levels: int) -> None:
    rng = np.random.default_rng(0)
    for lift in (200, 254, 255, 256, 300, 70_000):
        s = scene_in(bin_of((5, 6), levels=levels), rng, "solids", num_envs=3, most_orientations=1).counted(CELL)
        heights = torch.from_numpy(rng.integers(0, 255, s.heightmap.shape)).float() * CELL
        assert_parity(with_values(parity.lifted(s, lift, seed=lift), heightmap=heights))


@LAW
@given(seeds, rules, st.sampled_from([CELL, CELL / 64]), num_threads)
def test_only_bins_of_whole_heights_are_counted(seed: int, stability: str, unit: float, cores: int) -> None:
    # Of five environments two have a height between the counts, and one is higher than a byte counts.
    s = scene(seed, "solids", stability=stability, num_envs=5).counted(unit)
    rng = np.random.default_rng(seed)
    s.heightmap[1] += CELL / 96
    s.heightmap[3].view(-1)[rng.integers(s.heightmap[3].numel())] += CELL * 3 / 256
    s.heightmap[4].view(-1)[rng.integers(s.heightmap[4].numel())] = unit * rng.choice([253, 254, 255, 256, 511, 70_000])
    assert type_of(s) is TYPES[unit]
    with threads(cores):
        assert_parity(s)


def test_rounding_errors_of_a_pile_are_counted_away() -> None:
    for seed in range(20):
        parity.assert_rounding_is_counted_away(
            compiled, scene(seed, "solids", stability=RULES[seed % len(RULES)]).counted(CELL)
        )


def test_a_catalogue_is_counted_once_for_each_type() -> None:
    s = scene(1, "solids").counted(CELL)
    first = compiled.count_bottoms(s.catalogue, 100)
    assert compiled.count_bottoms(s.catalogue, 253) is first
    assert compiled.count_bottoms(s.catalogue, 254) is not first
    assert compiled.count_bottoms(s.counted(CELL / 2).catalogue, 100) is not first
    assert compiled.count_bottoms(scene(1, "boxes").counted(CELL).catalogue, 100) is None


# -- maps that are stored ---------------------------------------------------------------------------------------------


@settings(LAW, max_examples=40)
@given(seeds, kinds, rules, units, num_threads)
def test_maps_kept_over_several_placements_are_those_made_anew(
    seed: int, kind: str, stability: str, unit: float | None, cores: int
) -> None:
    with threads(cores):
        s = scene(seed, kind, stability=stability, num_envs=3).counted(unit)
        parity.assert_kept_maps_follow(compiled, s, seed, steps=4)


@pytest.mark.parametrize("unit", list(TYPES))
# Windows of the larger one may be too many for a table.
@pytest.mark.parametrize("cells", [(17, 50), (60, 130)])
def test_kept_maps_of_wide_bins_are_those_made_anew(cells: tuple[int, int], unit: float | None) -> None:
    for seed, step in enumerate((1, 4, 5)):
        scene_ = wide_scene(cells, step, "solids", seed).counted(unit)
        parity.assert_kept_maps_follow(compiled, scene_, seed, steps=4)


@pytest.mark.parametrize("unit", [None, CELL])
@pytest.mark.parametrize("step", [1, 2])
def test_only_what_changed_is_made_anew(step: int, unit: float | None) -> None:
    parity.assert_only_what_changed_is_made_anew(compiled, step, unit)


# -- widths of bins, items and vectors ---------------------------------------------------------------------------------

WIDTHS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130)


def wide_scene(cells: tuple[int, int], step: int, kind: str, seed: int) -> Scene:
    rng = np.random.default_rng(seed)
    bin_ = bin_of(cells, step=step, stability=RULES[seed % len(RULES)])
    return scene_in(bin_, rng, kind, num_envs=1 + seed % 2, most_items=3, most_orientations=1, most_visible=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_any_width_of_the_bin(width: int, kind: str) -> None:
    shapes = [(depth, width) for depth in (1, 4)] + [(width, depth) for depth in (1, 3)]
    for seed, (cells, step) in enumerate(itertools.product(shapes, range(1, 6))):
        if step <= min(cells):
            unit = list(TYPES)[seed % 3]
            assert_parity(wide_scene(cells, step, kind, width + seed).counted(unit))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 8, 17])
def test_any_step_of_the_grid(step: int, kind: str) -> None:
    for seed, cells in enumerate([(17, 17), (18, 33), (40, 19)]):
        for unit in (None, CELL, CELL / 64):
            assert_parity(wide_scene(cells, step, kind, 10 * step + seed).counted(unit))


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("unit", [None, CELL, CELL / 64])
def test_blocks_of_every_height_and_width(unit: float | None, step: int) -> None:
    # A single cell drops on every cell: 1 to 18 rows, and as many columns as fill one to five of the widest vectors.
    source = Catalogue.of_boxes(torch.tensor([[[1, 1, CELL]]], dtype=torch.float64), torch.ones(1))
    catalogue = as_solids(source, unit)
    item_id = torch.zeros(1, 1, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    for rows, columns in itertools.product(range(step, 19), (7, 20, 40, 60, 70, 130, 200, 260, 330)):
        heights = torch.randint(0, 7, (1, rows, max(columns, step)), generator=generator) * CELL
        bin_ = bin_of(tuple(heights.shape[1:]), step=step)
        z_map, _ = compiled.drop_map(heights, item_id, catalogue, bin_)
        assert torch.equal(z_map[0, 0, 0], heights[0, ::step, ::step])


TABLE_BYTES = 2 << 20
# Float32, bytes and words whose table of windows would be larger than that.
LARGE = {"float32": (None, (100, 96), (90, 60), 1), "float32, coarse": (None, (141, 128), (130, 120), 2)}
LARGE |= {"bytes": (CELL, (141, 128), (131, 120), 1), "words": (CELL / 64, (141, 128), (131, 120), 1)}
LARGE |= {"words, coarse": (CELL / 64, (200, 190), (180, 170), 3)}


@pytest.mark.parametrize("case", LARGE)
def test_bins_too_large_for_a_table_of_windows(case: str) -> None:
    unit, cells, extent, step = LARGE[case]
    sizes = torch.tensor([[[*extent, 2 * CELL]], [[20, 9, CELL]], [[3, 70, CELL]]], dtype=torch.float64)
    catalogue = as_solids(Catalogue.of_boxes(sizes, torch.ones(3)), unit)
    holes = torch.rand(catalogue.bottom.shape, generator=torch.Generator().manual_seed(2)) < 0.3
    catalogue = replace(catalogue, bottom=catalogue.bottom.masked_fill(holes, torch.inf))
    heights = torch.randint(0, 6, (1, *cells), generator=torch.Generator().manual_seed(1)) * CELL
    s = Scene(heights, torch.tensor([[0, 1, 2]]), catalogue, bin_of(cells, step=step))
    item_size = 4 if type_of(s) is None else type_of(s).itemsize
    assert s.bin_.grid[1] * cells[0] * extent[1] * item_size > TABLE_BYTES
    z_map, legal = compiled.drop_map(*s)
    expected = reference.drop_map(*s)
    assert torch.equal(z_map, expected[0])
    assert torch.equal(legal, expected[1])


def test_the_size_of_a_table_is_still_the_one_that_these_tests_cross() -> None:
    source = (native.build.FOLDER / "solids.h").read_text()
    assert re.findall(r"TABLE_BYTES = (\d+ << \d+);", source) == ["2 << 20"]


# -- batches, threads and memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stability", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_batches_change_nothing(kind: str, stability: str) -> None:
    # Enough work for two threads to share out, and each environment alone.
    rng = np.random.default_rng(5)
    s = scene_in(bin_of((10, 11), step=2, stability=stability), rng, kind, num_envs=150).counted(CELL)
    placement = some_placement(s, 0)
    results = []
    for cores in (1, 2, 3):
        with threads(cores):
            z_map, legal = compiled.drop_map(*s)
            growth = compiled.pile_growth(s.heightmap, s.item_id, z_map, s.catalogue, s.bin_)
            placed = compiled.place(s.heightmap, placement, s.catalogue, s.bin_)
            results.append((z_map, legal, growth, placed))
    for first, second in itertools.combinations(results, 2):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for env in (0, 77, 149):
        alone = assert_parity(with_values(s, heightmap=s.heightmap[env : env + 1], item_id=s.item_id[env : env + 1]))
        assert torch.equal(results[0][0][env], alone[0][0])
        assert torch.equal(results[0][1][env], alone[1][0])


def test_few_bins_with_many_variants_are_shared_out_between_threads() -> None:
    rng = np.random.default_rng(6)
    s = scene_in(bin_of((12, 9), stability="support"), rng, "solids", num_envs=2, most_visible=1).counted(CELL)
    item_id = torch.arange(40).expand(2, 40) % s.catalogue.num_items
    for cores in (1, 2):
        with threads(cores):
            assert_parity(with_values(s, item_id=item_id))


@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_strides_do_not_matter(kind: str) -> None:
    for seed in range(8):
        s = scene(seed, kind, num_envs=4, stability=RULES[seed % len(RULES)]).counted(CELL)
        wanted_z, wanted_legal = assert_parity(s)
        one = s.item_id[:1].expand(4, -1)
        assert_parity(with_values(s, item_id=one))
        spread = torch.stack([s.heightmap, torch.full_like(s.heightmap, 9.0)], 1).flatten(0, 1)[::2]
        for heightmap in (s.heightmap.mT.contiguous().mT, spread):
            assert_parity(with_values(s, heightmap=heightmap))
        slots = torch.arange(s.item_id.shape[1]).expand(4, -1)
        nothing_changed = torch.zeros(1, 4, dtype=torch.int64).expand(4, 4)
        strided_legal = wanted_legal.movedim(0, -1).contiguous().movedim(-1, 0)
        stored = StoredMaps(wanted_z.mT.contiguous().mT, strided_legal, slots, nothing_changed)
        assert_parity(s, stored)
        growth = [
            compiled.pile_growth(s.heightmap, s.item_id, z, s.catalogue, s.bin_)
            for z in (wanted_z, wanted_z.mT.contiguous().mT)
        ]
        assert torch.equal(*growth)


def test_maps_of_a_catalogue_may_be_views() -> None:
    for seed in range(8):
        s = scene(seed, "solids", stability=RULES[seed % len(RULES)])
        c = s.catalogue
        turned = replace(c, top=c.top.mT.contiguous().mT, bottom=c.bottom.mT.contiguous().mT)
        placement = some_placement(s, seed)
        placed = compiled.place(s.heightmap, placement, turned, s.bin_)
        assert torch.equal(placed, reference.place(s.heightmap, placement, c, s.bin_))
        for unit in (None, CELL):
            assert_parity(with_values(s, catalogue=turned).counted(unit))


@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_no_environments_give_no_maps(kind: str) -> None:
    s = scene(4, kind).counted(CELL)
    s = with_values(s, heightmap=s.heightmap[:0], item_id=s.item_id[:0])
    z_map, _ = assert_parity(s)
    assert z_map.shape[0] == 0
    nothing = torch.zeros(0, dtype=torch.int64)
    placement = Placement(nothing, nothing, nothing, nothing, nothing.float())
    assert compiled.place(s.heightmap, placement, s.catalogue, s.bin_).shape == s.heightmap.shape


def test_calls_do_not_see_each_others_bins() -> None:
    # Bins, catalogues and types take turns in the same scratch memory.
    made = [scene(seed, KINDS[seed % 3]).counted(list(TYPES)[seed % 5]) for seed in range(30)]
    for s in [*made, *reversed(made)]:
        assert_parity(s)
