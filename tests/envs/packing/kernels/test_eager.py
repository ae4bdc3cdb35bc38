"""Parity of the torch kernels with the reference, for any shape of bin, item and pile."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.envs.packing.scenes import CELL, LAW, RULES, Scene, as_solids, bin_of, scene
from tests.tolerances import assert_near
from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.kernels import eager, reference
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Placement

seeds = st.integers(0, 2**32 - 1)


def assert_same(s: Scene, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Both backends rest, judge and grow alike; z and legality are the same to the bit."""
    z_map, legal = reference.drop_map(*s)
    there = s.to(device)
    eager_z, eager_legal = eager.drop_map(*there)
    assert torch.equal(eager_z.cpu(), z_map)
    assert torch.equal(eager_legal.cpu(), legal)
    growth = reference.pile_growth(s.heightmap, s.item_id, z_map, s.catalogue, s.bin_)
    eager_growth = eager.pile_growth(there.heightmap, there.item_id, eager_z, there.catalogue, s.bin_)
    assert_near(eager_growth.cpu(), growth)
    return z_map, legal


@LAW
@given(seeds, st.sampled_from(["boxes", "solids", "boxes as solids"]), st.sampled_from(RULES))
def test_drop_map_and_growth_agree(seed: int, kind: str, stability: str) -> None:
    assert_same(scene(seed, kind, stability=stability))


@pytest.mark.parametrize("stability", RULES)
@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_drop_map_agrees_on_every_device(kind: str, stability: str, device: torch.device) -> None:
    for seed in range(5):
        assert_same(scene(seed, kind, stability=stability), device)


@pytest.mark.parametrize("stability", RULES[1:])
@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_stability_agrees_where_it_matters(kind: str, stability: str) -> None:
    stands = falls = 0
    for seed in range(40):
        s = scene(seed, kind, stability=stability)
        z_map, legal = assert_same(s)
        _, low_enough = reference.drop_map(*s.under(stability="none"))
        above_floor = low_enough & (z_map > 0)
        stands += int((above_floor & legal).sum())
        falls += int((above_floor & ~legal).sum())
    assert min(stands, falls) > 25  # both answers occur, off the floor


@LAW
@given(seeds, st.sampled_from(RULES))
def test_boxes_are_the_irregular_items_that_they_are(seed: int, stability: str) -> None:
    s = scene(seed, "boxes", stability=stability)
    solid = s._replace(catalogue=as_solids(s.catalogue))
    flat, general = eager.drop_map(*s), eager.drop_map(*solid)
    assert torch.equal(flat[0], general[0])
    assert torch.equal(flat[1], general[1])
    growth = [eager.pile_growth(t.heightmap, t.item_id, flat[0], t.catalogue, t.bin_) for t in (s, solid)]
    assert_near(*growth)


@LAW
@given(seeds, st.sampled_from(["boxes", "solids", "boxes as solids"]))
def test_place_agrees(seed: int, kind: str) -> None:
    s = scene(seed, kind, num_envs=5)
    placement = some_placement(s, torch.Generator().manual_seed(seed))
    expected = reference.place(s.heightmap, placement, s.catalogue, s.bin_)
    assert torch.equal(eager.place(s.heightmap, placement, s.catalogue, s.bin_), expected)


def some_placement(s: Scene, generator: torch.Generator) -> Placement:
    """The first item of each environment somewhere it fits, at rest or not; none where it fits nowhere."""
    item = s.item_id[:, 0]
    orientation = torch.randint(s.catalogue.num_orientations, item.shape, generator=generator)
    extent = s.catalogue.extent[item.clamp_min(0), orientation]
    room = torch.tensor(s.bin_.cells) - extent
    corner = (torch.rand(room.shape, generator=generator) * (room + 1)).long().clamp_min(0)
    fits = (room >= 0).all(1)
    z = torch.randint(8, item.shape, generator=generator) * CELL
    return Placement(torch.where(fits, item, -1), orientation, *corner.unbind(1), z)


@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_place_agrees_on_every_device(kind: str, device: torch.device) -> None:
    s = scene(3, kind, num_envs=6)
    placement = some_placement(s, torch.Generator().manual_seed(0))
    there = s.to(device)
    placed = eager.place(there.heightmap, Placement(*(f.to(device) for f in placement)), there.catalogue, s.bin_)
    assert torch.equal(placed.cpu(), reference.place(s.heightmap, placement, s.catalogue, s.bin_))


@pytest.mark.parametrize("chunk", [1, 100, 3000])
def test_irregular_items_rest_alike_however_the_work_is_cut(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_CHUNK", chunk)
    for seed in range(4):
        assert_same(scene(seed, "solids", num_envs=3))


def test_an_item_larger_than_the_bin_in_one_orientation_fits_in_the_other() -> None:
    # 8×2 cells in a bin of 4×10: only turned, 3 × 9 places at the wall included.
    sizes = torch.tensor([[[8, 2, CELL], [2, 8, CELL]]], dtype=torch.float64)
    bin_ = bin_of((4, 10))
    s = Scene(
        torch.zeros(2, 4, 10), torch.zeros(2, 1, dtype=torch.int64), Catalogue.of_boxes(sizes, torch.ones(1)), bin_
    )
    _, legal = assert_same(s)
    assert legal.sum((1, 3, 4)).tolist() == [[0, 3 * 3]] * 2


@pytest.mark.parametrize("stability", RULES)
def test_procedural_solids_agree(stability: str) -> None:
    # Blocks as high as a few cells of 1/16 m: irregular contacts with true and false answers.
    bin_ = Bin((1.0, 0.75, 0.75), (16, 12), 3, stability)
    source = ProceduralSolids(num_objects=6, min_size=0.2, max_size=0.5)
    catalogue, stream = source.build(bin_, "axis", 10, 2)
    key = stream.begin(0, torch.arange(2), torch.zeros(2, dtype=torch.int64))
    item_id = stream.items(key, torch.arange(3).expand(2, -1))
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 3, (2, 4, 3), generator=generator).repeat_interleave(4, 1).repeat_interleave(4, 2)
    z_map, legal = assert_same(Scene(blocks / 16.0, item_id, catalogue, bin_))
    assert legal.any()
    assert (z_map[legal] > 0).any()


SHAPES = [(3, 3), (2, 5), (3, 4), (1, 6)]


@pytest.mark.parametrize("kind", ["boxes", "solids"])
@pytest.mark.parametrize("stability", RULES[1:])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_pattern_of_contact_is_judged_alike(shape: tuple[int, int], stability: str, kind: str) -> None:
    cells = shape[0] * shape[1]
    pattern = (torch.arange(1, 2**cells)[:, None] >> torch.arange(cells) & 1).view(-1, *shape)
    box = Catalogue.of_boxes(torch.tensor([[[*shape, CELL]]], dtype=torch.float64), torch.ones(1))
    catalogue = as_solids(box) if kind == "solids" else box
    bin_ = bin_of(shape, stability=stability)
    heightmap = (1 + pattern) * CELL
    _, legal = eager.drop_map(heightmap, torch.zeros(len(pattern), 1, dtype=torch.int64), catalogue, bin_)
    contact = pattern.bool().numpy()
    material = contact[0] | True
    expected = [reference.stands(c, material, False, stability) for c in contact]
    assert legal[:, 0, 0, 0, 0].tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_wide_items_are_judged_by_their_hull() -> None:
    # 31×32 cells on three posts whose triangle holds the centre, or, one post moved by a cell, just misses it.
    for far, expected in ((16, True), (15, False)):
        heightmap = torch.full((1, 31, 32), CELL)
        for cell in ((0, 0), (30, 0), (15, far)):
            heightmap[0, *cell] = 2 * CELL
        box = Catalogue.of_boxes(torch.tensor([[[31, 32, CELL]]], dtype=torch.float64), torch.ones(1))
        s = Scene(heightmap, torch.zeros(1, 1, dtype=torch.int64), box, bin_of((31, 32), stability="support"))
        _, legal = assert_same(s)
        assert bool(legal[0, 0, 0, 0, 0]) is expected


@pytest.mark.parametrize("stability", ["support", "com"])
@pytest.mark.parametrize("shape", [(2, 200), (200, 2), (3, 140)])
def test_items_of_more_cells_than_a_byte_counts_are_judged_alike(shape: tuple[int, int], stability: str) -> None:
    generator = torch.Generator().manual_seed(0)
    heightmap = CELL * (1 + (torch.rand(30, *shape, generator=generator) < 0.012))
    box = Catalogue.of_boxes(torch.tensor([[[*shape, CELL]]], dtype=torch.float64), torch.ones(1))
    item_id = torch.zeros(30, 1, dtype=torch.int64)
    _, legal = assert_same(Scene(heightmap, item_id, box, bin_of(shape, stability=stability)))
    assert 5 < legal.sum() < 25


def test_a_coarse_grid_uses_the_wall() -> None:
    generator = torch.Generator().manual_seed(0)
    for cells, step in (((10, 7), 4), ((9, 9), 2), ((25, 24), 4)):
        heights = torch.rand(1, *cells, generator=generator)
        box = Catalogue.of_boxes(torch.tensor([[[5, 4, CELL]]], dtype=torch.float64), torch.ones(1))
        z_map, _ = eager.drop_map(
            heights, torch.zeros(1, 1, dtype=torch.int64), box, bin_of(cells, step=step, levels=99)
        )
        for axis, extent in enumerate((5, 4)):
            position, fits = grid_positions(torch.tensor(extent), cells[axis], step)
            last = int(fits.nonzero()[-1])
            assert position[last] == cells[axis] - extent
            edge = z_map[0, 0, 0].select(axis, last)[0]
            window = heights[0].movedim(axis, 0)[-extent:, : (4, 5)[axis]]
            assert edge == window.max()
