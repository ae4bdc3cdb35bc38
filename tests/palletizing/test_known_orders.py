"""Whole orders planned at once: layers, what is left, the middle of the pallet."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from tests.palletizing.test_packing import check_laws
from torchrl_gpu.cli.packing import pack as command
from torchrl_gpu.palletizing import PalletPlans, blocks, known_orders, pack
from torchrl_gpu.palletizing.cells import boxes_lost
from torchrl_gpu.palletizing.packer import Packer, Pallet
from torchrl_gpu.palletizing.packing import boxes_of
from torchrl_gpu.palletizing.prepared_boxes import Boxes
from torchrl_gpu.palletizing.scores import presses_on_lighter

HEADER = "order,article,length_mm,width_mm,height_mm,qty,weight_kg,max load on top kg\n"


def planned(folder: Path, *rows: str, pallet: str = "eur", gap: float = 0.0, **options: object) -> PalletPlans:
    path = folder / "orders.csv"
    path.write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")
    plans = pack(path, pallet, gap=gap, device="cpu", **options)  # type: ignore[arg-type]
    check_laws(plans, gap=gap / 1000)
    return plans


def num_pallets(plans: PalletPlans) -> int:
    return sum(row["pallets"] for row in plans.orders())


def test_cartons_of_one_article_stand_in_full_layers(tmp_path: Path) -> None:
    plans = planned(tmp_path, "A,a,400,300,240,240,5,")
    assert num_pallets(plans) == 5
    for pallet in plans.pallets():
        assert np.bincount(pallet.layer)[1:].tolist() == [8] * 6


@pytest.mark.parametrize("number", [1, 12])
def test_five_full_layers_of_an_order_are_one_pallet(number: int, tmp_path: Path) -> None:
    rows = [f"{order},a,400,300,300,40,5," for order in range(number)]
    assert num_pallets(planned(tmp_path, *rows)) == number


def test_last_boxes_of_an_article_go_in_the_middle_of_its_top_layer(tmp_path: Path) -> None:
    plans = planned(tmp_path, "A,a,400,300,240,26,5,")
    (pallet,) = plans.pallets()
    assert np.bincount(pallet.layer)[1:].tolist() == [8, 8, 8, 2]
    middle = pallet.placed.corner + pallet.placed.sides / 2
    centre = middle[pallet.layer == 4, :2].mean(0)
    assert np.abs(centre - [0.6, 0.4]).max() < 0.21


def test_heavy_layers_are_below_light_ones(tmp_path: Path) -> None:
    plans = planned(tmp_path, "A,light,400,300,200,16,2,", "A,heavy,400,300,200,16,20,")
    (pallet,) = plans.pallets()
    weights = np.concatenate(plans.found.weights)[pallet.placed.box]
    assert weights[pallet.layer <= 2].tolist() == [20.0] * 16
    assert weights[pallet.layer > 2].tolist() == [2.0] * 16


def test_boxes_of_limited_load_bear_so_many_layers(tmp_path: Path) -> None:
    # One carton bears 12 kg: two more layers of 5 kg a carton.
    plans = planned(tmp_path, "A,a,400,300,240,48,5,12")
    assert max(pallet.layer.max() for pallet in plans.pallets()) == 3
    assert num_pallets(plans) == 2
    fragile = planned(tmp_path, "A,a,400,300,240,16,5,0")
    assert [pallet.layer.max() for pallet in fragile.pallets()] == [1, 1]


def test_layer_that_is_heavier_than_a_pallet_may_be_is_not_laid(tmp_path: Path) -> None:
    # A layer of eight has 104 kg, and seven boxes have 91.
    plans = planned(tmp_path, "A,a,400,300,240,24,13,", weight=100)
    weights = [13 * len(pallet.placed.box) for pallet in plans.pallets()]
    assert max(weights) <= 100
    assert num_pallets(plans) == 4


def test_most_weight_of_a_pallet_holds_for_layers(tmp_path: Path) -> None:
    plans = planned(tmp_path, "A,a,400,300,240,48,5,", weight=130)
    assert num_pallets(plans) == 2
    assert [len(pallet.placed.box) for pallet in plans.pallets()] == [24, 24]


def test_rest_of_an_order_goes_on_top_of_its_layers(tmp_path: Path) -> None:
    plans = planned(tmp_path, "A,a,400,300,240,16,5,", "A,b,350,250,180,3,4,", "A,c,300,180,150,2,3,")
    assert num_pallets(plans) == 1
    (pallet,) = plans.pallets()
    assert (pallet.placed.corner[16:, 2] >= 0.48 - 1e-6).all()


def test_layers_keep_the_gap(tmp_path: Path) -> None:
    plans = planned(tmp_path, "A,a,390,290,240,24,5,", gap=10)
    assert num_pallets(plans) == 1
    assert np.bincount(plans.pallets()[0].layer)[1:].tolist() == [8, 8, 8]


def test_a_few_boxes_make_no_tower(tmp_path: Path) -> None:
    (pallet,) = planned(tmp_path, "A,a,410,290,150,7,5,", "A,b,380,270,160,3,5,").pallets()
    top = (pallet.placed.corner + pallet.placed.sides)[:, 2].max()
    assert top < 0.65


def test_loads_stand_in_the_middle(tmp_path: Path) -> None:
    for rows in (["A,a,400,300,200,2,5,"], ["A,a,250,170,200,10,5,", "A,b,310,220,150,6,9,"]):
        (pallet,) = planned(tmp_path, *rows, visible=1).pallets()
        low = pallet.placed.corner.min(0)
        high = (pallet.placed.corner + pallet.placed.sides).max(0)
        # The centre of gravity is in the middle, or the load has come to an edge on the way there.
        middle = pallet.placed.corner + pallet.placed.sides / 2
        volume = pallet.placed.sides.prod(1)
        centre = (volume[:, None] * middle).sum(0) / volume.sum()
        for axis, length in ((0, 1.2), (1, 0.8)):
            at_edge = low[axis] < 1e-9 or high[axis] > length - 1e-9
            assert at_edge or abs(centre[axis] - length / 2) < 0.03


def test_plan_of_an_order_does_not_depend_on_the_others(tmp_path: Path) -> None:
    mine = ["A,a,400,300,240,26,5,", "A,b,350,250,180,9,4,"]
    alone = planned(tmp_path, *mine, cell=10)
    beside = planned(tmp_path, *mine, "B,c,310,260,200,30,6,", cell=10)
    wanted = alone.pallets()
    found = [pallet for pallet in beside.pallets() if pallet.order == "A"]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.placed.corner, other.placed.corner)


def test_layers_stand_in_the_simulation(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    rows = ["A,a,400,300,240,30,5,", "A,b,300,200,200,40,3,", "A,c,350,250,180,7,4,"]
    plans = planned(tmp_path, *rows, physics=True)
    assert [pallet.verdict.fallen for pallet in plans.pallets() if pallet.verdict] == [[]] * num_pallets(plans)


def test_command_tells_what_goes_first_on_the_road(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    path = tmp_path / "orders.csv"
    path.write_text(HEADER + "A,wide,400,300,200,8,5,\n", encoding="utf-8")
    options = ["--transport", "eumos", "--device", "cpu", "--out", str(tmp_path / "plan")]
    command.main([str(path), *options, "--friction", "0.9"])
    assert "holds 0.5 g in every direction unwrapped" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        command.main([str(path), *options, "--friction", "0.1"])
    assert stopped.value.code == command.UNSAFE
    assert "goes first" in capsys.readouterr().out
    with (tmp_path / "plan" / "plan.csv").open(encoding="utf-8-sig") as file:
        assert all(float(row["moved_mm"]) > 20 for row in csv.DictReader(file))


def test_plan_is_a_workbook_without_formulas(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    plans = planned(tmp_path, 'A,=HYPERLINK("x"),400,300,240,2,5,', "A,bell\x07,300,200,100,1,1,")
    plans.write(tmp_path / "plan")
    sheet = openpyxl.load_workbook(tmp_path / "plan" / "plan.xlsx")["plan"]
    rows = list(sheet.iter_rows(values_only=True))
    assert rows[0][:6] == ("order", "pallet", "sequence", "layer", "article", "line")
    assert sorted(row[4] for row in rows[1:]) == ['=HYPERLINK("x")'] * 2 + ["bell"]
    assert {cell.data_type for cell in sheet["E"][1:]} == {"s"}
    assert {row[rows[0].index("height_mm")] for row in rows[1:]} == {240, 100}
    # In CSV a spreadsheet would compute it.
    text = (tmp_path / "plan" / "plan.csv").read_text(encoding="utf-8-sig")
    assert text.count("'=HYPERLINK") == 2


def test_cells_never_cost_a_box_that_fits() -> None:
    inch = 0.0254
    sizes = Boxes.of([[47.2 * inch, 31.4 * inch, 0.2]]).sizes
    assert boxes_lost(sizes, Pallet(1.2, 0.8, 1.5, cell=0.0127)) == 1
    assert boxes_lost(sizes, Pallet(1.2, 0.8, 1.5, cell=0.01)) == 0


def test_fixed_box_as_wide_as_the_pallet_is_planned(tmp_path: Path) -> None:
    # Cells of 25 mm would cost little of the floor, and the box fits them only turned.
    plans = planned(tmp_path, "A,a,500,2330,500,1,5,", pallet="5870x2330x2200mm", turns="fixed")
    assert plans.reasons == [""]
    assert len(plans.placed.box) == 1


def test_free_column_that_tips_on_the_road_is_told(tmp_path: Path) -> None:
    tower = planned(tmp_path, "A,a,300,200,250,5,5,", pallet="400x300mm")
    assert "wrap 1 of 1 pallets" in tower.told
    assert "750 mm high above what is beside it and 300 mm wide" in tower.told
    flat = planned(tmp_path, "A,a,400,300,240,16,5,")
    assert flat.told == ""


def test_limits_that_keep_boxes_apart_are_told(tmp_path: Path) -> None:
    plans = planned(tmp_path, "A,a,400,300,240,32,5,0")
    assert num_pallets(plans) == 4
    assert "order A takes 4 pallets, and volume and weight allow 1: 32 of its boxes bear nothing" in plans.told


def test_table_has_the_weight_of_the_pallets(tmp_path: Path) -> None:
    from rich.console import Console

    plans = planned(tmp_path, "A,a,400,300,240,16,5,")
    file = io.StringIO()
    Console(width=120, file=file).print(plans.table())
    shown = file.getvalue()
    assert "80.0" in shown
    assert "105.0" in shown


BOTTOM = "order,article,length_mm,width_mm,height_mm,qty,weight_kg,nur unten\n"


@pytest.mark.parametrize("options", [{}, {"visible": 1}, {"stability": "corners", "tries": 4}, {"overhang": 20}])
def test_boxes_for_the_bottom_stand_on_the_pallet(options: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    rows = ["A,drum,400,400,500,9,30,ja", "A,crate,400,300,240,20,5,nein", "A,bag,310,230,150,11,3,nein"]
    path.write_text(BOTTOM + "\n".join(rows) + "\n", encoding="utf-8")
    plans = pack(path, "eur", device="cpu", **options)  # type: ignore[arg-type]
    check_laws(plans)
    stays_down = np.concatenate(plans.found.bottom_only)[plans.placed.box]
    assert stays_down.sum() == 9
    assert np.abs(plans.placed.corner[stays_down, 2]).max() < 1e-9
    # Others stand on them.
    assert plans.placed.corner[~stays_down, 2].max() >= 0.5 - 1e-6


def test_top_only_is_a_box_on_which_nothing_lies(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(
        HEADER.replace("max load on top kg", "Top only") + "A,a,400,300,240,8,5,yes\nA,b,400,300,200,8,9,no\n"
    )
    plans = pack(path, "eur", device="cpu")
    is_on_top = np.concatenate(plans.found.fragile)[plans.placed.box]
    assert num_pallets(plans) == 1
    assert plans.placed.corner[is_on_top, 2].min() >= 0.2 - 1e-6


def test_interlocked_layers_stand_on_several_boxes(tmp_path: Path) -> None:
    row = "A,a,300,200,240,64,5,"
    columns = planned(tmp_path, row)
    interlocked = planned(tmp_path, row, layers="interlocked")
    assert num_pallets(interlocked) == num_pallets(columns) == 1
    for plans, most in ((columns, 1), (interlocked, 4)):
        (pallet,) = plans.pallets()
        low = pallet.placed.corner
        high = low + pallet.placed.sides
        overlap = np.minimum(high[:, None, :2], high[None, :, :2]) - np.maximum(low[:, None, :2], low[None, :, :2])
        stands_on = (overlap > 1e-6).all(2) & np.isclose(low[:, None, 2], high[None, :, 2])
        assert 1 <= stands_on.sum(1).max() <= most
        assert (stands_on.sum(1).max() > 1) == (plans is interlocked)


def test_interlocked_layers_hold_together_in_the_simulation(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    plans = planned(tmp_path, "A,a,300,200,200,70,3,", "A,b,310,240,150,9,2,", layers="interlocked", physics=True)
    assert [pallet.verdict.fallen for pallet in plans.pallets() if pallet.verdict] == [[]] * num_pallets(plans)


def test_boxes_of_limited_load_stay_columns(tmp_path: Path) -> None:
    row = "A,a,500,300,240,40,5,40"
    columns = planned(tmp_path, row, pallet="1200x1000")
    interlocked = planned(tmp_path, row, pallet="1200x1000", layers="interlocked")
    np.testing.assert_array_equal(columns.placed.corner, interlocked.placed.corner)


def test_layers_need_a_whole_order(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"layers.*interlocked"):
        planned(tmp_path, "A,a,300,200,240,6,5,", layers="interlocked", visible=1)


def mixed_rows(seed: int, kinds: int, boxes: int) -> list[str]:
    """Boxes of drawn sides whose weights differ thirtyfold."""
    draw = np.random.default_rng(seed)
    sides = draw.integers(120, 420, (kinds, 3))
    weights = 10 ** draw.uniform(0, 1.5, kinds)
    number = draw.integers(1, 2 * boxes // kinds, kinds)
    rows = []
    for kind, (length, width, height) in enumerate(sides.tolist()):
        rows.append(f"A,k{kind},{length},{width},{height},{number[kind]},{weights[kind]:.2f},")
    return rows


def count_pressing(plans: PalletPlans) -> int:
    weights = np.concatenate(plans.found.weights)
    loads = [pallet.placed for pallet in plans.pallets()]
    return sum(int(presses_on_lighter(load.corner, load.sides, weights[load.box]).sum()) for load in loads)


def test_heavy_boxes_stand_on_no_light_ones_where_that_takes_no_more_pallets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mixed_rows(seed=1, kinds=12, boxes=60)
    careful = planned(tmp_path, *rows)
    monkeypatch.setattr(known_orders, "_MOST_BOXES_TWICE", 0)
    careless = planned(tmp_path, *rows)
    assert count_pressing(careful) == 0 < count_pressing(careless)
    assert num_pallets(careful) == num_pallets(careless)
    assert "less than half as heavy; first box" in careless.told
    assert "half as heavy" not in careful.told


@pytest.mark.parametrize(
    ("drawn", "switch", "off"),
    [
        # The last pallets are packed anew.
        ({"seed": 0, "kinds": 20, "boxes": 50}, "_MOST_AGAIN", 1),
        # Tries look ahead, up to some number of kinds.
        ({"seed": 3, "kinds": 12, "boxes": 60}, "_KINDS_OF_LOOK_AHEAD", 0),
    ],
)
def test_orders_take_a_pallet_less(
    drawn: dict[str, int], switch: str, off: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mixed_rows(**drawn)
    plans = planned(tmp_path, *rows, tries=8)
    monkeypatch.setattr(blocks, switch, off)
    without = planned(tmp_path, *rows, tries=8)
    assert num_pallets(plans) == 1 < num_pallets(without)
    assert len(plans.placed.box) == len(without.placed.box)


@pytest.mark.parametrize("seed", range(3))
def test_any_side_up_takes_no_more_pallets_than_the_listed_one(seed: int, tmp_path: Path) -> None:
    rows = mixed_rows(seed, kinds=8, boxes=80)
    axis = planned(tmp_path, *rows, turns="axis", tries=2)
    yaw = planned(tmp_path, *rows, tries=2)
    assert len(axis.placed.box) == len(yaw.placed.box)
    assert num_pallets(axis) <= num_pallets(yaw)


def test_better_plan_of_each_order_is_taken(tmp_path: Path) -> None:
    rows = [f"{order},a,400,300,240,{count},5," for order, count in (("A", 40), ("B", 60))]
    few = planned(tmp_path, *rows)
    many = planned(tmp_path, *rows, height=800)
    prepared = Packer(few.pallet, device="cpu").prepare(boxes_of(few.found))
    for one, other in ((few, many), (many, few)):
        better = known_orders.better_of_each_order(one.placed, other.placed, prepared, few.pallet)
        assert better.box.tolist() == few.placed.box.tolist()
    lacks = few.placed.rows(few.placed.order == 0)
    assert len(known_orders.better_of_each_order(lacks, few.placed, prepared, few.pallet).box) == 100
