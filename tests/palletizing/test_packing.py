"""Whole orders on pallets, and the files of their plans."""

from __future__ import annotations

import csv
import json
import random
import re
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from tests.palletizing.test_packer import bearers
from torchrl_gpu.cli.packing import pack as command
from torchrl_gpu.palletizing import PalletPlans, pack
from torchrl_gpu.palletizing.plan import _short, layers

HEADER = "order,article,length_mm,width_mm,height_mm,qty,weight_kg,upright,fragile\n"


def listed(folder: Path, *rows: str, header: str = HEADER, name: str = "orders.csv") -> Path:
    path = folder / name
    path.write_text(header + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def check_laws(plans: PalletPlans, gap: float = 0.0) -> None:
    """Check that every box is placed once, inside, and apart from all others.

    It is carried by what was placed before, and no pallet is too heavy.
    """
    p = plans.pallet
    placed = plans.placed
    left_out = [i for i, reason in enumerate(plans.reasons) if reason]
    assert sorted([*placed.box.tolist(), *left_out]) == list(range(len(plans.reasons)))
    if not len(placed.box):
        return
    sizes = np.concatenate(plans.found.sizes)[placed.box] * plans.unit_m
    np.testing.assert_allclose(np.take_along_axis(sizes, placed.along, 1), placed.sides, atol=1e-9)
    high = placed.corner + placed.sides
    assert placed.corner[:, :2].min() >= -p.overhang - 1e-9
    assert high[:, 0].max() <= p.length + p.overhang + 1e-9
    assert high[:, 1].max() <= p.width + p.overhang + 1e-9
    assert high[:, 2].max() <= p.height + 1e-4
    weights = np.nan_to_num(np.concatenate(plans.found.weights))
    for each in plans.pallets():
        low = each.placed.corner
        top = low + each.placed.sides
        is_above = low[:, None, 2] >= top[None, :, 2] - 1e-5
        behind = low[:, None, :2] - top[None, :, :2]
        before = low[None, :, :2] - top[:, None, :2]
        across = np.maximum(behind, before).max(2)
        separate = (across >= gap - 1e-9) | is_above | is_above.T
        assert (separate | np.eye(len(low), dtype=bool)).all()
        assert (np.diff(each.placed.step) > 0).all()
        assert ((low[:, 2] < 1e-9) | (each.layer > 1)).all()
        assert weights[each.placed.box].sum() <= p.weight * (1 + 1e-5)


@pytest.mark.parametrize(
    ("options", "gap"),
    [
        ({}, 0.0),
        ({"policy": "dbl", "stability": "none", "open_pallets": 2}, 0.0),
        ({"visible": 4, "turns": "axis", "weight": 150.0}, 0.0),
        ({"gap": 20, "overhang": 50, "cell": 20, "open_pallets": 3, "visible": 2}, 0.02),
        ({"policy": "orders", "cell": 20, "stability": "support"}, 0.0),
        ({"visible": "all", "tries": 8, "turns": "axis", "weight": 150.0, "cell": 20}, 0.0),
    ],
)
def test_plans_keep_their_laws(tmp_path: Path, options: dict[str, object], gap: float) -> None:
    draw = np.random.default_rng(1)
    rows = []
    for i in range(24):
        sides = ",".join(map(str, draw.integers(8, 40, 3) * 10))
        quantity = draw.integers(1, 4)
        weight = draw.integers(1, 20)
        upright = "yn"[i % 2]
        fragile = "yn"[i % 5 > 0]
        rows.append(f"{'AB'[i % 2]},art-{i},{sides},{quantity},{weight},{upright},{fragile}")
    plans = pack(listed(tmp_path, *rows, "A,giant,3000,20,20,1,1,n,n"), "800x600x900mm", device="cpu", **options)
    check_laws(plans, gap)
    assert sum(map(bool, plans.reasons)) == 1
    check_fragile(plans)


def check_fragile(plans: PalletPlans) -> None:
    """Check that nothing is above fragile boxes."""
    is_fragile = np.concatenate(plans.found.fragile)
    for pallet in plans.pallets():
        low = pallet.placed.corner
        high = low + pallet.placed.sides
        for i in np.flatnonzero(is_fragile[pallet.placed.box]):
            overlaps = (low[:, :2] < high[i, :2] - 1e-6) & (high[:, :2] > low[i, :2] + 1e-6)
            is_above = overlaps.all(1) & (low[:, 2] >= high[i, 2] - 1e-6)
            assert not is_above.any()


def check_loads(plans: PalletPlans) -> None:
    """Check that no box bears more than its most load.

    A box of unknown weight must lie on none of limited load.
    """
    weights = np.concatenate(plans.found.weights)
    most = np.where(np.concatenate(plans.found.fragile), 0.0, np.concatenate(plans.found.max_loads))
    for pallet in plans.pallets():
        boxes, load = pallet.placed.box, np.zeros(len(pallet.placed.box))
        lying = list(zip(pallet.placed.corner, pallet.placed.sides, strict=True))
        for i, box in enumerate(boxes):
            under = sorted(bearers(lying[i], lying[:i]))
            if np.isnan(weights[box]):
                assert np.isinf(most[boxes[under]]).all()
            else:
                load[under] += weights[box]
        assert (load <= most[boxes] * (1 + 1e-5)).all()


def mixed_orders(rng: random.Random) -> list[list[str]]:
    """Rows of some orders. In some orders boxes are fragile or of limited load."""
    orders = []
    for name in "ABCDE"[: rng.randrange(2, 6)]:
        limited = rng.choice([0, 0, 0.2, 0.6])
        rows = []
        for _ in range(rng.randrange(1, 7)):
            sides = ",".join(str(20 * rng.randrange(4, 30)) for _ in range(3))
            weight = rng.choice(["", rng.randrange(1, 30)])
            fragile = "yn"[rng.random() >= limited]
            most = rng.randrange(1, 60) if rng.random() < limited else ""
            quantity = rng.randrange(1, 7)
            upright = rng.choice("yn")
            rows.append(f"{name},a,{sides},{quantity},{weight},{upright},{fragile},{most}")
        orders.append(rows)
    return orders


POLICIES = ("orders", "dbl", "hm", "lsah", "first-fit")
PACKED_BY: list[dict[str, object]] = [{"visible": 1, "policy": policy, "open_pallets": 2} for policy in POLICIES]
PACKED_BY += [
    {"visible": 3, "turns": "axis", "weight": 100.0},
    {"visible": 2, "open_pallets": 2, "gap": 10, "overhang": 50, "stability": "com"},
]
PACKED_BY += [
    {"visible": "all", "tries": 4, "turns": "axis", "stability": "support"},
    {"visible": "all", "tries": 12, "gap": 10, "weight": 100.0},
    {"visible": "all", "tries": 8, "turns": "fixed", "overhang": 50, "stability": "corners"},
]


@pytest.mark.parametrize("options", PACKED_BY, ids=str)
def test_order_has_the_same_plan_among_others_as_alone(tmp_path: Path, options: dict[str, object]) -> None:
    """Orders of any length, with and without limits of load, keep every law.

    Each has the same plan as alone.
    """
    header = HEADER.replace("\n", ",max_load_kg\n")

    def packed(rows: list[str]) -> PalletPlans:
        return pack(listed(tmp_path, *rows, header=header), "800x600x900mm", cell=40, device="cpu", **options)

    orders = mixed_orders(random.Random(4))
    whole = packed(list(chain.from_iterable(orders)))
    check_laws(whole, 0.01 if "gap" in options else 0.0)
    check_loads(whole)
    # Boxes of the orders above.
    before = 0
    for number, rows in enumerate(orders):
        alone = packed(rows)
        mine = whole.placed.rows(whole.placed.order == number)
        assert (mine.box - before).tolist() == alone.placed.box.tolist()
        for name in ("step", "pallet", "along", "corner", "sides"):
            assert getattr(mine, name).tolist() == getattr(alone.placed, name).tolist(), (number, name)
        before += len(alone.reasons)


def test_pack_solves_cases_that_other_packers_failed(tmp_path: Path) -> None:
    # enzoruiz/3dbinpacking 1: 8 of 10 cubes of side 2 in a cube of side 4.
    plans = pack(listed(tmp_path, "2,2,2,10", header="l,w,h,qty\n"), "4x4x4cm", unit="cm", device="cpu")
    assert np.bincount(plans.placed.pallet).tolist() == [8, 2]
    # keremdemirer/3dbinpackingjs 6: turned about z alone, 100 of 130 fit, where that says 130.
    path = listed(tmp_path, "225,5,20,130", header="l,w,h,qty\n")
    plans = pack(path, "306x102x112cm", unit="cm", policy="dbl", device="cpu")
    assert np.bincount(plans.placed.pallet).tolist() == [100, 30]


def test_a_new_pallet_is_opened_only_where_nothing_fits(tmp_path: Path) -> None:
    # 600 mm of height: two boxes of 300, then one of 400 and no more, but the last one fits beside what is open.
    rows = ["A,a,800,600,300,2,1,,", "A,b,800,600,400,1,1,,", "A,c,800,600,200,2,1,,"]
    path = listed(tmp_path, *rows)
    one = pack(path, "800x600x600mm", device="cpu", open_pallets=1)
    two = pack(path, "800x600x600mm", device="cpu", open_pallets=2)
    assert one.placed.pallet.tolist() == [0, 0, 1, 1, 2] == two.placed.pallet.tolist()
    assert [each["at least"] for each in one.orders()] == [3]


def test_a_search_uses_fewer_pallets_and_gives_the_same_plan_again(tmp_path: Path) -> None:
    # Four low ones below leave no room for two high ones, so that in the order of the list a third pallet is needed.
    rows = [f"A,{name},400,300,{size},1,," for name, size in (("low", "100,4"), ("high", "500,12"), ("low", "100,16"))]
    options = {"pallet": "800x600x1000mm", "visible": "all", "tries": 16, "device": "cpu"}
    path = listed(tmp_path, *rows)
    found = pack(path, **options)  # type: ignore[arg-type]
    again = pack(path, **options)  # type: ignore[arg-type]
    assert found.orders()[0]["pallets"] == found.orders()[0]["at least"] == 2
    assert all((one == other).all() for one, other in zip(found.placed, again.placed, strict=True))
    assert pack(path, "800x600x1000mm", policy="dbl", device="cpu").orders()[0]["pallets"] == 3


def test_weights_bound_the_number_of_pallets(tmp_path: Path) -> None:
    plans = pack(listed(tmp_path, "A,a,100,100,100,10,30,,"), "800x600mm", weight=90, device="cpu")
    assert plans.orders()[0]["pallets"] == 4 == plans.orders()[0]["at least"]


def test_layers_are_counted_from_the_floor_up() -> None:
    from torchrl_gpu.palletizing.plan import Placements

    corner = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 2.0]])
    sides = np.array([[1, 1, 1], [1, 1, 2], [1, 1, 1], [2, 1, 1.0]])
    none = np.zeros(4, dtype=np.int64)
    placed = Placements(none, none, none, none, np.zeros((4, 3), dtype=np.int64), corner, sides)
    assert layers(placed).tolist() == [1, 1, 2, 3]


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_plans_in_the_unit_of_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        "7,<b>=1+1</b></script>,40,30,20,2,5,,",
        "8,x,60,40,30.5,1,,,",
        "8,no box,0,1,1,1,,,",
        "8,long,900,9,9,1,,,",
    ]
    path = listed(tmp_path, *rows, header=HEADER.replace("_mm", "_cm"))
    out = tmp_path / "out"
    (out / "x").mkdir(parents=True)
    (out / "pallet-0009-old-1.html").write_text("stale")
    with pytest.raises(SystemExit) as stopped:
        command.main([str(path), "--out", str(out), "--device", "cpu"])
    assert stopped.value.code == command.DOUBTFUL
    assert "1 row gives no box" in capsys.readouterr().out
    assert not (out / "plan.csv").exists()
    command.main([str(path), "--out", str(out), "--device", "cpu", "--yes"])
    shown = capsys.readouterr().out
    assert "line 4" in shown
    assert "line 5" in shown
    assert "longer than the pallet" in shown
    with (out / "plan.csv").open(encoding="utf-8-sig") as file:
        plan = list(csv.DictReader(file))
    assert [row["line"] for row in plan] == ["2", "2", "3", "5", "4"]
    assert [row["left out"] != "" for row in plan] == [False] * 3 + [True] * 2
    assert {plan[0][f"{side}_cm"] for side in ("length", "width", "height")} == {"40", "30", "20"}
    # Two boxes of 40 × 30 cm stand side by side in the middle of the pallet.
    assert [plan[0][f"{axis}_cm"] for axis in "xyz"] == ["45", "0", "0"]
    assert [plan[1][f"{axis}_cm"] for axis in "xyz"] == ["45", "40", "0"]
    content = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    assert content["unit"] == "cm"
    assert len(content["boxes"]) == 3
    assert len(content["left_out"]) == 2
    assert content["pallet"]["length"] == 120
    assert content["boxes"][2]["height_cm"] == 30.5
    pages = sorted(page.name for page in out.glob("pallet-*.html"))
    assert len(pages) == 2
    assert "old" not in "".join(pages)
    page = (out / pages[0]).read_text(encoding="utf-8")
    assert page.count("</script>") == 2
    assert not re.search(r"(src|href)=|https?://(?!www.w3.org/2000/svg)", page)
    assert "<b>" not in (out / "index.html").read_text(encoding="utf-8").replace("<body>", "")


@pytest.mark.parametrize(
    ("sides", "turns", "up", "front"),
    [
        ("400,300,200", "fixed", "height", "long side"),
        ("300,400,200", "fixed", "height", "short side"),
        ("300,300,200", "fixed", "height", "equal sides"),
        # Only on end there is room for all three on one pallet.
        ("1000,400,800", "axis", "length", "short side"),
    ],
)
def test_plan_says_which_side_is_at_the_front(tmp_path: Path, sides: str, turns: str, up: str, front: str) -> None:
    path = listed(tmp_path, f"A,a,{sides},3,1,n,n")
    plans = pack(path, "1200x800x1000mm", turns=turns, device="cpu")
    plans.write(tmp_path / "out")
    with (tmp_path / "out" / "plan.csv").open(encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [(row["up"], row["front"]) for row in rows] == [(up, front)] * 3
    assert list(rows[0]).index("front") == list(rows[0]).index("up") + 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["absent.csv"], "absent.csv"),
        (["--pallet", "wood"], "pallet must be one of eur"),
        (["--pallet", "12x8"], r"pallet: 12x8 .*mm|pallet must be of sides"),
        (["--pallet", "120x80"], "pallet: 120x80.*120x80cm"),
        (["--pallet", "12000x8000"], "pallet: 12000x8000.* 12 × 8 m"),
        (["--height", "15"], "height: 15 .*15cm"),
        (["--pallet", "0x800mm"], "pallet must be|above"),
        (["--pallet", "1200x800furlong"], "pallet must be"),
        (["--pallet", "1e9x1e9"], "pallet must be"),
        (["--height", "tall"], "height must be a length"),
        (["--height", "0"], "height"),
        (["--gap", "-5"], "gap must be a length"),
        (["--cell", "0.01mm"], "cells"),
        (["--cell", "5m"], "cells"),
        (["--weight", "nan"], "--weight must be"),
        (["--open", "0"], "--open must be"),
        (["--visible", "some"], "--visible must be a whole number or all"),
        (["--in-order", "--tries", "9"], "tries does nothing without visible all"),
        (["--in-order", "--visible", "all"], "--visible all.*--in-order"),
        (["--policy", "dbl", "--visible", "all"], "policy does nothing without visible of a number"),
        (["--stability", "hope"], "stability must be one of"),
        (["--policy", "wish"], "PackingPolicy: .*wish"),
        (["--unit", "cubits"], "unit must be one of"),
        (["--unit", "cm"], "unit.* mm, not cm"),
        (["--column", "length"], "--column must be NAME=HEADER"),
        (["--column", "length=gone"], "columns.length.*gone"),
        (["--out", "orders.csv"], "--out must be a folder"),
        (["--turn", "yaw"], "known options"),
    ],
)
def test_command_refuses_wrong_words_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    listed(tmp_path, "A,a,100,100,100,1,1,,")
    monkeypatch.chdir(tmp_path)
    given = words if words[0].endswith(".csv") else ["orders.csv", *words]
    with pytest.raises((ValueError, OSError), match=told) as error:
        command.main([*given, "--device", "cpu"])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "pallets").exists()


def test_pack_refuses_lists_without_boxes(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    for content, told in ((HEADER, "no box"), ("l,w,h\n10,10,10\n", "--unit"), ("\0\0\xff", "no text")):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=told):
            pack(path, device="cpu")
    path.write_text(HEADER + "A,a,-1,1,1,1,1,,\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2: length must be"):
        pack(path, device="cpu")


def test_pack_gives_reasons_where_no_box_fits(tmp_path: Path) -> None:
    plans = pack(listed(tmp_path, "A,a,5000,5000,100,3,1,,"), device="cpu")
    assert [bool(reason) for reason in plans.reasons] == [True] * 3
    assert plans.pallets() == [] == plans.orders()
    plans.write(tmp_path / "out")


def test_towers_fall_in_the_simulation_and_flat_piles_stand(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    flat = pack(listed(tmp_path, "A,a,400,300,200,8,5,,"), "800x600mm", physics=True, device="cpu")
    assert [each.verdict.fallen for each in flat.pallets() if each.verdict] == [[]]
    rows = ["A,foot,100,100,200,1,1,,", "A,plate,700,500,50,1,20,,"]
    # By the rule the plate may not stand on the foot: it opens a pallet of its own.
    apart = pack(listed(tmp_path, *rows), "700x500mm", visible=1, device="cpu")
    assert apart.placed.pallet.tolist() == [0, 1]
    tipped = pack(listed(tmp_path, *rows), "700x500mm", visible=1, physics=True, stability="none", device="cpu")
    assert [each.verdict.fallen for each in tipped.pallets() if each.verdict] == [[2]]
    assert tipped.orders()[0]["stand"] == 0


def test_pack_needs_mujoco_before_it_reads_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ModuleNotFoundError, match="physics"):
        pack(tmp_path / "absent.csv", physics=True)


@pytest.mark.parametrize(
    ("metres", "unit_m", "shown"),
    [
        (0.80999994, 1e-3, 810),
        (0.0015875, 0.0254, 0.0625),
        (0.0123456, 1e-3, 12.3456),
        (1.2345, 1.0, 1.2345),
        (0, 1, 0),
    ],
)
def test_lengths_are_written_without_the_noise_of_heights(metres: float, unit_m: float, shown: float) -> None:
    assert _short(metres, unit_m) == shown
