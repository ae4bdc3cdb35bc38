"""Random piles of boxes that differ by millimetres, judged by statics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco")
pytest.importorskip("scipy")

from benchmarks import leaning, packing_tables
from benchmarks.equilibrium import EXACT_GAP, pile_of, stands


def test_statics_hold_all_piles_of_equal_heights_that_the_rule_allows() -> None:
    made = leaning.random_piles(20, "equal", 0.0, 0.5)
    assert all(stands(pile_of(plan)) for plan in made.plans)
    assert made.boxes > 15


def test_statics_see_boxes_that_stand_on_the_highest_alone() -> None:
    piles = [pile_of(plan) for plan in leaning.random_piles(20, "±1 mm", 0.0, 0.5).plans]
    assert not all(stands(pile, gap=EXACT_GAP) for pile in piles)
    assert all(stands(pile, gap=0.0015) for pile in piles)


def test_refused_places_are_tried_on_piles_on_which_some_would_fall() -> None:
    made = leaning.random_piles(20, "equal", 0.0, 0.5)
    row = leaning.by_statics(made)
    assert 15 < row["refused places"] <= 20
    assert row["refused on what stands"] == row["refused places"]
    assert 0 < row["refused and would stand"] < row["refused places"]
    first, end = leaning._BELOW_TRIED
    assert all(first < len(plan.poses) <= end for plan in made.refused)


def test_rows_of_older_runs_get_the_columns_of_statics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaning, "_CASES", [("equal", 0.0, 0.5)])
    output = tmp_path / "leaning.json"
    run = ["--piles", "3", "--engines", "mujoco", "--output", str(output)]
    leaning.main(run)
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 1
    columns = [name for name in rows[0] if name.startswith(("refused", "statics"))]
    assert len(columns) == 7
    older = {name: value for name, value in rows[0].items() if name not in columns}
    # Engines are not asked again.
    older["fall in mujoco"] = "as it was"
    output.write_text(json.dumps({"rows": [older]}), encoding="utf-8")
    leaning.main(run)
    again = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert again == [rows[0] | {"fall in mujoco": "as it was"}]


def test_rows_that_lack_an_engine_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaning, "_CASES", [("equal", 0.0, 0.5)])
    monkeypatch.setitem(leaning.ENGINES, "other", lambda plans: [True] * len(plans))
    output = tmp_path / "leaning.json"
    output.write_text('{"rows": []}', encoding="utf-8")
    for engines in (["mujoco"], ["mujoco", "other"]):
        leaning.main(["--piles", "2", "--engines", *engines, "--output", str(output)])
    (row,) = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert row["fall in other"] == row["fall in any"] == row["fall in any though statics hold"] == 2


def test_bullet_at_short_steps_sees_what_falls_and_what_stands() -> None:
    pytest.importorskip("pybullet")
    plan = leaning.random_piles(1, "equal", 0.0, 0.5).plans[0]
    first = plan._replace(solids=plan.solids[:1], poses=plan.poses[:1])
    pose = first.poses[0]
    raised = pose._replace(position=pose.position + np.array([0, 0, 0.1]))
    in_the_air = first._replace(poses=(raised,))
    assert leaning.falls_in_bullet([first, in_the_air], 960) == [False, True]


def test_row_whose_piles_have_changed_is_not_mixed_with_new_ones() -> None:
    row = {"heights": "equal", "max_tilt": 0.0, "bearing_tilt": 0.5, "piles": 2, "boxes a pile": 1.0}
    with pytest.raises(ValueError, match="boxes a pile"):
        leaning.add_statics(row)


def test_table_of_rows_leaves_out_what_was_not_measured() -> None:
    row = {"heights": "any", "max_tilt": 2.0, "bearing_tilt": 0.5, "boxes a pile": 20.25, "refused places": 50}
    row |= {"fall in mujoco": 1, "fall in bullet": 3, "statics infeasible": 4}
    row |= {"refused and would stand within 1.5 mm": 20}
    newer = row | {"fall in bullet at short steps, too": 2}
    header, first, second = packing_tables.uneven({"rows": [row, newer]})
    assert first == ["any", "2°", "0.5°", "20.2", "1", "3", "–", "4", "50", "20 (40%)"]
    assert second == ["any", "2°", "0.5°", "20.2", "1", "3", "2", "4", "50", "20 (40%)"]
    assert len(header) == len(first)
