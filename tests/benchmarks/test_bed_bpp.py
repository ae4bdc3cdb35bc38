"""BED-BPP's score: by hand, and a short run of the benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bed_bpp
from benchmarks.bed_bpp import METHODS, largest_movement, pack_one_pallet, packing_plan, read_each_order, score
from benchmarks.tables import listed
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.plan import PackingPlan, Pose

pytest.importorskip("mujoco")
BOX = {"article": "crate", "length/mm": 400, "width/mm": 300, "height/mm": 500, "weight/kg": 6.3}
BY_PLACE, *_, BY_ORDER = METHODS


def write_orders(path: Path, boxes: dict[str, int]) -> Path:
    """Write a file of orders of so many equal boxes, by target."""
    orders = {}
    for number, (target, count) in enumerate(boxes.items()):
        places = {str(i): BOX | {"id": str(i), "sequence": i} for i in range(1, count + 1)}
        orders[f"0010000{number}"] = {"item_sequence": places, "properties": {"target": target}}
    path.write_text(json.dumps(orders), encoding="utf-8")
    return path


def row(boxes: int, below: int, fallen_mm: float) -> dict[str, float]:
    return {"boxes": boxes, "below": below, "fallen_mm": fallen_mm}


def test_score_counts_boxes_of_stable_pallets_among_all_boxes() -> None:
    found = score([row(10, 8, 9.9), row(30, 30, 10.1), row(10, 10, 0.0)])
    assert found == {"below": 48, "stable": "2 of 3", "score": pytest.approx(18 / 50)}
    # The evaluator compares with a threshold that is still stable.
    assert score([row(4, 3, 10.0)])["score"] == 0.75


def stacked(shift: float) -> PackingPlan:
    """Two cubes of 20 cm on a pallet.

    The middle of the upper one lies beyond the edge of the lower one by `shift` metres.
    """
    cube = Solid.of_box("cube", np.full(3, 0.2))
    poses = [Pose(0, np.eye(3), np.array([x, 0.3, z])) for x, z in ((0.3, 0.0), (0.4 + shift, 0.2))]
    return PackingPlan((cube, cube), tuple(poses), (1.2, 0.8, 2.0), False, (5.0, 5.0))


def test_box_that_tips_over_falls_by_its_height() -> None:
    assert largest_movement(stacked(-0.02), 2.0) < 1e-3
    assert largest_movement(stacked(0.03), 2.0) == pytest.approx(0.2, abs=0.05)


def test_one_pallet_holds_the_boxes_below_2_m(tmp_path: Path) -> None:
    path = write_orders(tmp_path / "orders.json", {"euro-pallet": 40, "rollcontainer": 40})
    # Four layers: of eight boxes on 1200 × 800 mm, and of four on 800 × 700 mm.
    for target, boxes in read_each_order(path).values():
        most = {"euro-pallet": 32, "rollcontainer": 16}[target]
        loaded = pack_one_pallet(boxes, target, BY_ORDER)
        assert len(loaded.placed.box) == most
        alone = pack_one_pallet(boxes, target, BY_PLACE)
        # Those that come first, without a gap.
        assert sorted(alone.placed.box.tolist()) == list(range(len(alone.placed.box)))
        assert len(alone.placed.box) <= most
        for each in (loaded, alone):
            assert (each.placed.corner + each.placed.sides)[:, 2].max() <= 2 + 1e-6
        plan = packing_plan(boxes, loaded, target)
        assert plan.masses == (6.3,) * most
        assert not plan.walls


def test_unknown_target_is_named(tmp_path: Path) -> None:
    path = write_orders(tmp_path / "orders.json", {"crate": 1})
    with pytest.raises(ValueError, match=r"00100000.*'crate'"):
        read_each_order(path)


def test_short_run_writes_scores_and_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed_bpp, "METHODS", (BY_PLACE, BY_ORDER))
    path = write_orders(tmp_path / "orders.json", {"euro-pallet": 3, "rollcontainer": 2})
    bed_bpp.main(["--sequences", str(path), "--output", str(tmp_path / "result.json")])
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    scores, orders = result["sections"]
    ours = [(each["below"], each["stable"], each["score"]) for each in scores["rows"][:2]]
    assert ours == [(5, "2 of 2", 1)] * 2
    assert len(orders["rows"]) == 4
    assert "sequences orders.json" in result["command"]
    for section in (scores, orders):
        assert listed(section).count("\n") == 2 + len(section["rows"])
