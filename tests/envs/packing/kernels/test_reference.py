"""The definition of the kernels: laws for any scene, and cases worked by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.envs.packing.hulls import balances, centre_in_hull
from tests.envs.packing.scenes import CELL, LAW, SCENES, Scene, bin_of, judge, pile, scene
from tests.records import with_values
from torchrl_gpu.envs.packing.kernels import reference
from torchrl_gpu.envs.packing.types import Catalogue, Placement


def dropped(s: Scene) -> Iterator[tuple[tuple[int, int, int], np.ndarray, np.ndarray, int, int, float, bool]]:
    """Yield every placement that fits.

    It gives (n, k, o), the item's top and bottom, the first cell along x and y, z and legality.
    """
    z_map, legal = reference.drop_map(*s)
    for n, k, o in np.ndindex(z_map.shape[:3]):
        if s.item_id[n, k] < 0:
            continue
        top, bottom = reference.item_maps(s.catalogue, int(s.item_id[n, k]), o)
        columns = reference.placements(top.shape[1], s.bin_.cells[1], s.bin_)
        for gx, x in reference.placements(top.shape[0], s.bin_.cells[0], s.bin_):
            for gy, y in columns:
                at = n, k, o, gx, gy
                yield (n, k, o), top, bottom, x, y, float(z_map[at]), bool(legal[at])


@LAW
@given(SCENES)
def test_an_item_at_z_touches_and_penetrates_nothing(s: Scene) -> None:
    for (n, _, _), top, bottom, x, y, z, _ in dropped(s):
        window = s.heightmap[n, x : x + top.shape[0], y : y + top.shape[1]].numpy()
        material = np.isfinite(bottom)
        gap = (z + bottom - window)[material]
        # It penetrates nothing, and touches the pile or the floor.
        assert gap.min(initial=0) == 0
        assert (gap == 0).any() or not material.any()
        assert z >= 0


@LAW
@given(SCENES, st.integers(0, 2**32 - 1))
def test_raising_the_pile_never_lowers_z(s: Scene, seed: int) -> None:
    raised = s.heightmap + pile(np.random.default_rng(seed), len(s.heightmap), s.bin_)
    before = reference.drop_map(s.heightmap, *s[1:])[0]
    after = reference.drop_map(raised, *s[1:])[0]
    assert (after >= before).all()


@LAW
@given(SCENES, st.integers(1, 4))
def test_legality_is_monotone_in_the_bins_height(s: Scene, more: int) -> None:
    size = s.bin_.size
    _, low = reference.drop_map(*s)
    _, high = reference.drop_map(*s.under(size=(*size[:2], size[2] + more * CELL)))
    assert (high | ~low).all()


@LAW
@given(SCENES)
def test_legal_placements_stay_below_the_lid_and_others_say_why(s: Scene) -> None:
    for _, top, _, _, _, z, legal in dropped(s.under(stability="none")):
        assert legal == (z + top.max() <= s.bin_.size[2])


@LAW
@given(SCENES)
def test_where_nothing_fits_z_is_the_lid_and_nothing_is_legal(s: Scene) -> None:
    z_map, legal = reference.drop_map(*s)
    fits = torch.zeros_like(legal)
    for n, k, o in np.ndindex(legal.shape[:3]):
        if s.item_id[n, k] >= 0:
            extent = s.catalogue.extent[s.item_id[n, k], o].tolist()
            on_grid = [reference.placements(e, c, s.bin_) for e, c in zip(extent, s.bin_.cells, strict=True)]
            for (gx, _), (gy, _) in itertools.product(*on_grid):
                fits[n, k, o, gx, gy] = True
    assert (z_map[~fits] == s.bin_.size[2]).all()
    assert not legal[~fits].any()


@LAW
@given(SCENES)
def test_placing_never_lowers_the_heightmap_and_growth_is_the_difference_of_its_sums(s: Scene) -> None:
    z_map, _ = reference.drop_map(*s)
    growth = reference.pile_growth(s.heightmap, s.item_id, z_map, s.catalogue, s.bin_)
    k = s.item_id.shape[1] - 1
    for o, gx, gy in np.ndindex(z_map.shape[2:]):
        placement, fits = placement_at(s, k, o, gx, gy, z_map)
        after = reference.place(s.heightmap, placement, s.catalogue, s.bin_)
        assert (after >= s.heightmap).all()
        gain = torch.where(fits, (after - s.heightmap).sum((1, 2)), 0.0)
        assert torch.equal(growth[:, k, o, gx, gy], gain)


def placement_at(s: Scene, k: int, o: int, gx: int, gy: int, z_map: torch.Tensor) -> tuple[Placement, torch.Tensor]:
    """Place slot k of every environment at a cell of the grid.

    Also returns where it fits; elsewhere nothing is placed.
    """
    cells = []
    for item in s.item_id[:, k].tolist():
        extent = s.catalogue.extent[item, o].tolist() if item >= 0 else [99, 99]
        on_grid = [dict(reference.placements(e, c, s.bin_)) for e, c in zip(extent, s.bin_.cells, strict=True)]
        cells.append((on_grid[0].get(gx, -1), on_grid[1].get(gy, -1)))
    x, y = torch.tensor(cells).unbind(1)
    fits = (x >= 0) & (y >= 0)
    item = torch.where(fits, s.item_id[:, k], -1)
    return Placement(item, torch.full_like(item, o), x.clamp_min(0), y.clamp_min(0), z_map[:, k, o, gx, gy]), fits


@LAW
@given(SCENES, st.integers(0, 2**32 - 1))
def test_packed_volume_is_at_most_the_volume_under_the_heightmap(s: Scene, seed: int) -> None:
    rng = np.random.default_rng(seed)
    heightmap, volume = torch.zeros_like(s.heightmap), torch.zeros(len(s.heightmap))
    for _ in range(4):
        z_map, legal = reference.drop_map(heightmap, *s[1:])
        for n, mask in enumerate(legal):
            if not mask.any():
                continue
            chosen = rng.permutation(mask.nonzero().numpy())[0]
            k, o, gx, gy = map(int, chosen)
            placement, _ = placement_at(s, k, o, gx, gy, z_map)
            alone = with_values(placement, item_id=torch.where(torch.arange(len(legal)) == n, placement.item_id, -1))
            heightmap = reference.place(heightmap, alone, s.catalogue, s.bin_)
            volume[n] += s.catalogue.volume[s.item_id[n, k]]
    assert (volume <= heightmap.sum((1, 2)) * s.bin_.cell_area + 1e-6).all()


# -- by hand ----------------------------------------------------------------------------------------------------------


def one_item(top: list[list[float]], bottom: list[list[float]]) -> Catalogue:
    maps = torch.tensor(top), torch.tensor(bottom)
    extent = torch.tensor([[list(maps[0].shape)]])
    return Catalogue.of_maps(*(m[None, None] for m in maps), extent, torch.ones(1))


def one_box(p: int, q: int, height: float) -> Catalogue:
    return Catalogue.of_boxes(torch.tensor([[[p, q, height]]], dtype=torch.float64), torch.ones(1))


FIRST = torch.zeros(1, 1, dtype=torch.int64)


def test_z_of_a_box_by_hand() -> None:
    # A box of 2×1 cells over   0 1 0
    #                           2 0 0   : z(0, y) = the higher of two cells, one below the other: 2, 1, 0.
    #                           0 0 3     z(1, y) = 2, 0, 3.
    heightmap = torch.tensor([[[0.0, 1, 0], [2, 0, 0], [0, 0, 3]]])
    # The bin is 5 m high.
    bin_ = bin_of((3, 3), levels=40)
    z_map, legal = reference.drop_map(heightmap, FIRST, one_box(2, 1, 2.5), bin_)
    # Row 2 has no room for two cells: z is the bin's height. 2.5 m fit on 2 m and less, not on 3 m.
    assert z_map[0, 0, 0].tolist() == [[2, 1, 0], [2, 0, 3], [5, 5, 5]]
    assert legal[0, 0, 0].tolist() == [[True] * 3, [True, True, False], [False] * 3]


def test_z_of_an_irregular_item_by_hand() -> None:
    # A bridge: feet at both ends (bottom 0), an arch between them (bottom 1), top 2.  Bottom = 0 1 0.
    # Over the pile 0 1 0 0 2:  y = 0: max(0−0, 1−1, 0−0) = 0, the bump stands under the arch;
    #                           y = 1: max(1−0, 0−1, 0−0) = 1;   y = 2: max(0−0, 0−1, 2−0) = 2.
    item = one_item([[2.0, 2, 2]], [[0.0, 1, 0]])
    z_map, legal = reference.drop_map(torch.tensor([[[0.0, 1, 0, 0, 2]]]), FIRST, item, bin_of((1, 5), levels=24))
    # The bin is 3 m high, so the bridge of 2 m may stand at 0 and 1 but not at 2.
    assert z_map[0, 0, 0].tolist() == [[0, 1, 2, 3, 3]]
    assert legal[0, 0, 0].tolist() == [[True, True, False, False, False]]


def test_cells_without_material_neither_rest_nor_raise() -> None:
    # A ring whose middle is open drops over a post of 5 m; placing it raises the ring's cells to 1 and leaves the post.
    ring = one_item([[1.0, 0, 1]], [[0.0, torch.inf, 0]])
    bin_, post = bin_of((1, 3), levels=80), torch.tensor([[[0.0, 5, 0]]])
    z_map, legal = reference.drop_map(post, FIRST, ring, bin_)
    assert z_map[0, 0, 0, 0, 0] == 0
    assert legal[0, 0, 0, 0, 0]
    zero = torch.zeros(1, dtype=torch.int64)
    after = reference.place(post, Placement(zero, zero, zero, zero, torch.zeros(1)), ring, bin_)
    assert after.tolist() == [[[1, 5, 1]]]
    assert reference.pile_growth(post, FIRST, z_map, ring, bin_)[0, 0, 0, 0, 0] == 2
    # Held up by 3 m at one end, the ring leaves the floor under its middle open.
    high = reference.place(torch.tensor([[[3.0, 0, 0]]]), Placement(zero, zero, zero, zero, zero + 3.0), ring, bin_)
    assert high.tolist() == [[[4, 0, 4]]]


def test_the_last_placement_of_a_coarse_grid_is_flush_with_the_wall() -> None:
    # 10 cells in steps of 4: placements 0, 4 and one more. A box of 3 cells has its last place at 10 − 3 = 7, which is
    # not on the grid, and takes the third placement. The pile is i at cell i, so z = the last cell covered: 2, 6, 9.
    bin_ = bin_of((10, 10), step=4, levels=800)
    heightmap = torch.arange(10.0).expand(1, 10, 10)
    z_map, legal = reference.drop_map(heightmap, FIRST, one_box(3, 3, 1.0), bin_)
    assert z_map[0, 0, 0].tolist() == [[2, 6, 9]] * 3
    assert legal.all()


def test_an_empty_slot_has_no_placement() -> None:
    z_map, legal = reference.drop_map(torch.zeros(1, 2, 2), FIRST - 1, one_box(1, 1, 1.0), bin_of((2, 2)))
    # 8 cells of 1/8 m.
    assert (z_map == 1).all()
    assert not legal.any()


def test_placing_nothing_changes_nothing() -> None:
    heightmap = torch.rand(1, 2, 2)
    none = Placement(FIRST[0] - 1, FIRST[0], FIRST[0], FIRST[0], torch.zeros(1))
    assert torch.equal(reference.place(heightmap, none, one_box(1, 1, 1.0), bin_of((2, 2))), heightmap)


# -- what stands ------------------------------------------------------------------------------------------------------


def picture(rows: str) -> np.ndarray:
    """Return cells drawn as # for contact and a dot for none.

    Rows are separated by blanks.
    """
    return np.array([list(row) for row in rows.split()]) == "#"


def stands(contact: np.ndarray, rule: str, on_floor: bool = False) -> bool:
    return judge(contact, rule, on_floor=on_floor)


def filled(corners: int, others: int) -> np.ndarray:
    """Return the contact of a box of 4×5 cells.

    `corners` of its 4 corners and `others` of its 16 other cells touch.
    """
    contact = np.zeros((4, 5), dtype=bool)
    at_corner = [(0, 0), (0, 4), (3, 0), (3, 4)]
    elsewhere = [cell for cell in np.ndindex(4, 5) if cell not in at_corner]
    for cell in at_corner[:corners] + elsewhere[:others]:
        contact[cell] = True
    return contact


@pytest.mark.parametrize(
    ("corners", "others", "expected"),
    [
        # 20 of 20 = 1.00 > 0.95.
        (4, 16, True),
        # 19 of 20 = 0.95, not above it, but 3 corners and 0.95 > 0.85.
        (3, 16, True),
        # 19 of 20 with 4 corners: 0.95 > 0.50.
        (4, 15, True),
        # 18 of 20 = 0.90 > 0.85 with 3 corners.
        (3, 15, True),
        # 17 of 20 = 0.85, not above it.
        (3, 14, False),
        # 11 of 20 = 0.55 > 0.50 with 4 corners.
        (4, 7, True),
        # 10 of 20 = 0.50, not above it.
        (4, 6, False),
        # 18 of 20 = 0.90, but only 2 corners.
        (2, 16, False),
        # 0.80 without a corner.
        (0, 16, False),
    ],
)
def test_corners_rule_by_hand(corners: int, others: int, expected: bool) -> None:
    assert stands(filled(corners, others), "corners") is expected


def test_corners_rule_counts_the_corners_of_a_thin_box_twice() -> None:
    # A box of 1×20 cells has two ends, each of them two corners. One end open: 19 of 20 cells and 2 corners: 0.95 is
    # not above 0.95. One inner cell open: all 4 corners, 0.95 > 0.50.
    thin = np.ones((1, 20), dtype=bool)
    end, inner = thin.copy(), thin.copy()
    end[0, 0] = inner[0, 5] = False
    assert not stands(end, "corners")
    assert stands(inner, "corners")


@pytest.mark.parametrize(
    ("contact", "expected"),
    [
        # 5 of 9 > 0.50.
        ("##. ##. #..", True),
        # Exactly 0.50 is not enough by area. The centre, between the rows, is off the segment.
        ("## ..", False),
        # Exactly 0.50, of two cells whose segment runs through the centre.
        ("#. .#", True),
        # Two cells, with the centre on their segment.
        ("#.. ... ..#", True),
        # Two cells, with the centre off their segment.
        ("##. ... ...", False),
        # Two cells on one side.
        ("#.. ... #..", False),
        # One cell.
        (".#. ... ...", False),
        # One cell, even at the centre: fewer than two are never enough.
        ("... .#. ...", False),
        # Collinear cells along an edge, with the centre beside their line.
        ("#.#.. ..... .....", False),
        # Collinear cells on the centre's row, which reach the centre.
        ("..... #.#.. .....", True),
        # Collinear cells on the centre's row, which stop before it.
        ("..... ##... .....", False),
        # A triangle whose edge holds the centre.
        ("#.. ... .##", True),
        # A triangle around the centre's row: the edge from (0,0) to (2,4) holds (1,2).
        ("#.... ..... #...#", True),
        # 4×4: the segment from (0,1) to (3,3) passes (1.5, 2), beside (1.5, 1.5).
        (".#.. .... .... ...#", False),
        # 4×4: the segment from (0,1) to (3,2) passes (1.5, 1.5).
        (".#.. .... .... ..#.", True),
    ],
)
def test_support_rule_by_hand(contact: str, expected: bool) -> None:
    assert stands(picture(contact), "support") is expected


@pytest.mark.parametrize("rule", ["corners", "support"])
def test_the_floor_carries_everything(rule: str) -> None:
    nothing = np.zeros((3, 3), dtype=bool)
    assert stands(nothing, rule, on_floor=True)
    assert not stands(nothing, rule)
    assert stands(nothing, "none")


def test_share_is_of_the_material_not_of_the_footprint() -> None:
    # 2 contacts of 3 cells with material, in one corner of a 3×3 footprint: 0.67 > 0.50; of 9 cells it would be 0.22.
    contact, material = picture("##. ... ..."), picture("##. #.. ...")
    assert judge(contact, "support", material=material)


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (2, 3), (3, 3), (2, 5), (3, 4)])
def test_support_is_the_area_or_the_hull_for_every_pattern_of_contact(shape: tuple[int, int]) -> None:
    cells = shape[0] * shape[1]
    seen = set()
    for bits in itertools.product([False, True], repeat=cells):
        contact = np.array(bits).reshape(shape)
        held = sum(bits) >= 2 and centre_in_hull(contact)
        expected = sum(bits) / cells > 0.5 or held
        assert stands(contact, "support") is expected, contact
        seen.add((sum(bits) / cells > 0.5, held))
    assert seen >= {(False, False), (False, True), (True, True)}


# -- what balances ----------------------------------------------------------------------------------------------------

SIDES = st.integers(1, 6)
BITS = st.integers(0, 2**36 - 1)
CONTACTS = st.tuples(SIDES, SIDES, BITS, BITS).map(lambda drawn: picture_of(*drawn))
CENTRES = st.tuples(st.integers(0, 96), st.integers(0, 96))


def picture_of(p: int, q: int, bits: int, others: int) -> np.ndarray:
    """A (p, q) pattern of contact, a quarter of the cells touching."""
    return np.array([bits >> i & others >> i & 1 for i in range(p * q)], dtype=bool).reshape(p, q)


@LAW
@given(CONTACTS, CENTRES)
def test_com_is_the_hull_or_the_square(contact: np.ndarray, centre: tuple[int, int]) -> None:
    assert judge(contact, "com", centre=np.array(centre)) is balances(contact, centre)


@pytest.mark.parametrize(
    ("contact", "centre", "expected"),
    [
        # Nothing.
        ("... ... ...", (24, 24), False),
        # One cell, with the centre in its middle.
        ("... .#. ...", (24, 24), True),
        # One cell, with the centre at its corner.
        ("... .#. ...", (16, 32), True),
        # One cell, with the centre just beside it.
        ("... .#. ...", (15, 24), False),
        # Two cells, with the centre on the line between them.
        ("#.. ... ..#", (24, 24), True),
        # Two cells, with the centre at the corner of the second one's square.
        ("#.. ... ..#", (40, 48), True),
        # Two cells, with the centre on the line between them.
        ("#.# ... ...", (8, 24), True),
        # The same a sixteenth beside the line, where the centre is in the square of neither.
        ("#.# ... ...", (9, 24), False),
        # The centre is on the edge of a triangle.
        ("#.. ... #.#", (24, 24), True),
    ],
)
def test_com_rule_by_hand(contact: str, centre: tuple[int, int], expected: bool) -> None:
    assert judge(picture(contact), "com", centre=np.array(centre)) is expected


def on_com(heights: list[list[float]], item: Catalogue, levels: int = 40) -> list[list[bool]]:
    """Return the legality of one item on one pile by the rule `com`.

    Cells are 1/8 m.
    """
    heightmap = torch.tensor([heights])
    bin_ = bin_of(tuple(heightmap.shape[1:]), stability="com", levels=levels)
    return reference.drop_map(heightmap, FIRST, item, bin_)[1][0, 0, 0].tolist()


def test_a_box_stands_on_a_pillar_where_its_centre_is_over_it() -> None:
    # A box of 3×3 cells; a pillar of 2×2 at (3, 3), which reaches from 3 to 5. The box at (x, y) has its centre at
    # x + 1.5: over the pillar from x = 1.5 to 3.5. Where it does not meet the pillar, at x = 0, it is on the floor.
    heights = np.zeros((8, 8))
    heights[3:5, 3:5] = 2
    came = np.array(on_com(heights.tolist(), one_box(3, 3, CELL)))[:6, :6]
    over = np.isin(np.arange(6), [2, 3])
    meets = np.isin(np.arange(6), [1, 2, 3, 4])
    assert (came == (over[:, None] & over | ~(meets[:, None] & meets))).all()


def test_a_can_on_its_edge_does_not_stand_on_the_floor() -> None:
    # A wedge of 1×4 cells whose underside rises by an eighth, a cell, from each to the next: it touches with the first.
    wedge = one_item([[1.0, 1, 1, 1]], [[0.0, CELL, 2 * CELL, 3 * CELL]])
    floor = [[0.0] * 4]
    assert on_com(floor, wedge) == [[False] * 4]
    assert on_com(floor, replace(wedge, centre=torch.tensor([[[CELL / 2, CELL]]]))) == [[True, False, False, False]]
    for rule in ("none", "corners", "support"):
        bin_ = bin_of((1, 4), stability=rule)
        assert reference.drop_map(torch.tensor([floor]), FIRST, wedge, bin_)[1][0, 0, 0, 0, 0]


@pytest.mark.parametrize(("gap", "expected"), [(0.0, True), (0.5, True), (0.51, False), (1.0, False)])
def test_a_gap_of_half_a_cell_carries(gap: float, expected: bool) -> None:
    # Three cells in a row, the centre above the middle; of the posts under the ends the second is lower by the gap.
    solid = one_item([[1.0, 1, 1]], [[0.0, 0, 0]])
    for item in (one_box(1, 3, CELL), solid, replace(solid, centre=torch.tensor([[[CELL / 2, 2.5 * CELL]]]))):
        assert on_com([[1.0, 0, 1 - gap * CELL]], item)[0][0] is expected


# -- the scenes that other tests rely on ------------------------------------------------------------------------------


def test_scenes_hold_what_they_promise() -> None:
    scenes = [scene(seed, kind) for seed, kind in itertools.product(range(40), ("boxes", "solids"))]
    assert any(s.bin_.cells[0] % s.bin_.step for s in scenes)
    assert any((s.item_id < 0).any() for s in scenes)
    assert any((s.catalogue.extent > torch.tensor(s.bin_.cells)).any() for s in scenes)
    assert any(s.item_id.shape[1] > 1 for s in scenes)
    maps = [s.catalogue.bottom for s in scenes if s.catalogue.bottom is not None]
    assert all((~m[-1, -1].isfinite()).all() for m in maps)
