"""Mixed orders on pallets of blocks: laws, the rule, limits, the same plan again."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.palletizing.test_known_orders import num_pallets, planned
from tests.palletizing.test_packing import check_loads
from torchrl_gpu.envs.packing.stability.footprints import Footprint
from torchrl_gpu.envs.packing.stability.load_bearing import LoadBearing
from torchrl_gpu.envs.packing.stability.margins import half_sides
from torchrl_gpu.palletizing import PalletPlans
from torchrl_gpu.palletizing.block_choice import _largest_sums
from torchrl_gpu.palletizing.column_loads import ColumnLoads
from torchrl_gpu.palletizing.flat_tops import Rectangle

CELL = 0.01


def mixed_rows(kinds: int, seed: int, load: str = "", most: int = 8) -> list[str]:
    draw = np.random.default_rng(seed)
    rows = []
    for kind in range(kinds):
        sides = ",".join(map(str, (draw.integers(12, 41, 3) * 10).tolist()))
        quantity = draw.integers(1, most + 1)
        weight = draw.integers(1, 20)
        rows.append(f"A,art-{kind},{sides},{quantity},{weight},{load}")
    return rows


def check_rule(plans: PalletPlans) -> None:
    """Check every placement by the NumPy definition of `load_bearing`.

    Boxes fill whole cells.
    """
    rule = LoadBearing()
    bin_ = plans.pallet.bin("load_bearing")
    for pallet in plans.pallets():
        heights = np.zeros(bin_.cells)
        bears = np.ones(bin_.cells, dtype=bool)
        # As it was planned: in the middle, the load may lie between cells.
        shift = np.round(pallet.placed.corner[:, :2].min(0) / CELL) * CELL - pallet.placed.corner[:, :2].min(0)
        for corner, sides in zip(pallet.placed.corner, pallet.placed.sides, strict=True):
            first = np.round((corner[:2] + shift) / CELL).astype(int)
            cells = np.round(sides[:2] / CELL).astype(int)
            under = np.s_[first[0] : first[0] + cells[0], first[1] : first[1] + cells[1]]
            assert corner[2] == pytest.approx(heights[under].max(), abs=1e-6)
            contact = bears[under] & (heights[under] > corner[2] - 1e-6)
            half = half_sides(torch.from_numpy(cells), bin_).numpy()
            footprint = Footprint(contact, np.ones_like(contact), bool(corner[2] < 1e-6), cells * 8, half)
            assert rule.judge(footprint)
            heights[under] = corner[2] + sides[2]
            bears[under] = rule.judge_top(footprint)


@pytest.mark.parametrize("seed", range(3))
def test_every_placement_satisfies_the_rule(seed: int, tmp_path: Path) -> None:
    plans = planned(tmp_path, *mixed_rows(12, seed), tries=32)
    assert (plans.placed.corner[:, 2] > 0).any()
    check_rule(plans)


@pytest.mark.parametrize(
    ("options", "gap"),
    [
        ({"turns": "axis"}, 0.0),
        ({"turns": "fixed"}, 0.0),
        ({"overhang": 20}, 10.0),
        ({"weight": 120.0}, 0.0),
        ({"stability": "none"}, 0.0),
        ({"stability": "com"}, 0.0),
        ({"stability": "corners", "tries": 4}, 0.0),
    ],
)
def test_plans_of_mixed_orders_keep_their_laws(options: dict[str, object], gap: float, tmp_path: Path) -> None:
    planned(tmp_path, *mixed_rows(10, 3), gap=gap, **options)


def test_mixed_order_takes_few_pallets(tmp_path: Path) -> None:
    plans = planned(tmp_path, *mixed_rows(20, 5, most=40), tries=8)
    (row,) = plans.orders()
    assert row["at least"] == 4
    assert row["pallets"] <= row["at least"] + 1


def test_same_seed_gives_the_same_plan(tmp_path: Path) -> None:
    first = planned(tmp_path, *mixed_rows(8, 7))
    again = planned(tmp_path, *mixed_rows(8, 7))
    np.testing.assert_array_equal(first.placed.corner, again.placed.corner)
    np.testing.assert_array_equal(first.placed.box, again.placed.box)


def test_heaviest_boxes_of_a_kind_are_the_lowest(tmp_path: Path) -> None:
    rows = [f"A,{weight} kg,300,200,200,4,{weight}," for weight in range(1, 12)]
    plans = planned(tmp_path, *rows, "A,b,310,240,150,5,2,")
    weights = np.concatenate(plans.found.weights)
    for pallet in plans.pallets():
        mine = np.isclose(pallet.placed.sides[:, 2], 0.2)
        heights = pallet.placed.corner[mine, 2]
        in_turn = weights[pallet.placed.box[mine]][np.argsort(heights, kind="stable")]
        assert (np.diff(in_turn) <= 0).all()


def test_limited_loads_hold_in_mixed_orders(tmp_path: Path) -> None:
    plans = planned(tmp_path, *mixed_rows(14, 11, load="30"), tries=16)
    check_loads(plans)
    assert max(pallet.layer.max() for pallet in plans.pallets()) > 2


def test_load_that_is_no_limit_costs_no_pallet(tmp_path: Path) -> None:
    free = planned(tmp_path, *mixed_rows(14, 13, most=20), tries=8)
    limited = planned(tmp_path, *mixed_rows(14, 13, load="100000", most=20), tries=8)
    check_loads(limited)
    assert num_pallets(limited) == num_pallets(free)


def test_mixed_orders_stand_in_the_simulation(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    plans = planned(tmp_path, *mixed_rows(16, 17), physics=True)
    verdicts = [pallet.verdict for pallet in plans.pallets()]
    assert [each.fallen for each in verdicts if each] == [[]] * num_pallets(plans)


def test_sums_of_sides_are_those_of_trying_all() -> None:
    sums = {7 * sevens + 12 * twelves for sevens, twelves in itertools.product(range(9), range(6))}
    largest = _largest_sums([7, 12], 60)
    for length in range(61):
        assert largest[length] == max(filter(length.__ge__, sums))


SQUARE: Rectangle = (0, 0, 10, 10)
LEFT: Rectangle = (0, 0, 5, 10)


def test_weight_counts_on_all_columns_below() -> None:
    loads = ColumnLoads()
    loads.place([SQUARE], 0, 10, weight=4.0, room=9.0)
    loads.place([LEFT], 10, 20, weight=3.0, room=100.0)
    assert loads.takes([LEFT], 20, 6.0)
    assert not loads.takes([LEFT], 20, 6.1)
    # Two columns on one count twice.
    assert not loads.takes([(0, 0, 5, 5), (0, 5, 5, 10)], 20, 3.1)
    assert loads.most_room(np.array([0, 10, 20])).tolist() == [np.inf, 6.0, 6.0]


def test_box_of_unknown_weight_stands_only_on_what_bears_anything() -> None:
    loads = ColumnLoads()
    loads.place([LEFT], 0, 10, weight=np.inf, room=np.inf)
    loads.place([(5, 0, 10, 10)], 0, 10, weight=1.0, room=50.0)
    assert loads.takes([LEFT], 10, np.inf)
    assert not loads.takes([SQUARE], 10, np.inf)
    loads.place([LEFT], 10, 20, weight=np.inf, room=np.inf)
    assert loads.takes([LEFT], 20, np.inf)


def test_rest_that_fits_on_no_layers_begins_a_pallet(tmp_path: Path) -> None:
    # Layers leave 60 mm, and the other boxes are higher in every turn.
    plans = planned(tmp_path, "A,a,400,300,240,48,5,", "A,b,300,250,200,3,4,", "A,c,310,200,170,2,4,")
    assert [len(pallet.placed.box) for pallet in plans.pallets()] == [48, 5]


def test_box_that_sticks_out_further_than_blocks_do_is_placed(tmp_path: Path) -> None:
    # Beside a box of 100 mm no block sticks out by 50 mm, and the long one fits in no other way.
    plans = planned(tmp_path, "A,plank,1280,300,100,1,5,", "A,cube,100,100,100,9,1,", overhang=50)
    assert len(plans.placed.box) == 10


@pytest.mark.parametrize("tries", [1, 2])
def test_box_that_fits_only_lying_is_placed_by_few_tries(tries: int, tmp_path: Path) -> None:
    rows = [f"A,pole {i},{200 + 10 * i},{150 + 10 * i},1700,1,5," for i in range(7)]
    plans = planned(tmp_path, *rows, pallet="1800x800x1500mm", turns="axis", tries=tries)
    assert len(plans.placed.box) == 7
