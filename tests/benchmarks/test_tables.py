"""The tables of the documentation are those of the committed results."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_show_the_committed_results(tables) -> None:  # type: ignore[no-untyped-def]
    assert tables.main(["--check"]) == 0


def test_another_figure_is_noticed_and_mended(tables, tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "page.md"
    whole = tables.PAGES[0].read_text()
    page.write_text(re.sub(r"(\| NumPy, windows \|) [\d,]+ \|", r"\1 7 |", whole, count=1))
    assert page.read_text() != whole
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main(["--check"]) == 1
    assert "not up to date: page.md" in capsys.readouterr().err
    assert tables.main([]) == 0
    assert page.read_text() == whole


def test_figures_beside_what_they_must_reach(tables, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    rows = [
        {"what": "rate", "value": 29.97, "unit": "1/s", "target": 29.5, "least": True, "notes": "of two", "met": True},
        {"what": "hook", "value": 7.125, "unit": "µs", "target": 5.0, "least": False, "notes": "", "met": False},
    ]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "streaming.json").write_text(json.dumps({"rows": rows}))
    page = tmp_path / "page.md"
    page.write_text("<!-- table: streaming / targets -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(tables, "HERE", tmp_path)
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main([]) == 0
    assert page.read_text().splitlines()[3:5] == [
        "| rate | 30 1/s | ≥ 29.5 1/s | of two |",
        "| hook | **7.12 µs**, missed | ≤ 5 µs |  |",
    ]


def test_what_is_not_measured_yet_says_so(tables, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "page.md"
    page.write_text("<!-- table: nothing / targets -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main([]) == 0
    assert "*Not measured yet.*" in page.read_text()


def test_methods_beside_their_reference(tables, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def column(mean: float) -> dict[str, float]:
        return {"mean": mean, "error": 0.5}

    rule = {"method": "rule", "columns": {"C": column(0.5), "objects": column(40)}, "difference": {}}
    better = {
        "C": {"mean": 0.0104, "error": 0.005, "beyond_two_errors": True},
        "objects": {"mean": -0.25, "error": 0.2, "beyond_two_errors": False},
    }
    learned = {"method": "learned", "columns": {"C": column(0.5104), "objects": column(39.75)}, "difference": better}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "packer.json").write_text(json.dumps({"tables": [{"methods": [rule, learned]}]}))
    page = tmp_path / "page.md"
    page.write_text("<!-- table: packer / comparison -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "HERE", tmp_path)
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main([]) == 0
    assert page.read_text().splitlines()[1:5] == [
        "| method | C | objects |",
        "|---|---|---|",
        "| rule | 0.500 | 40.00 |",
        "| learned | 0.510 (+0.010 ± 0.005 *) | 39.75 (-0.25 ± 0.20) |",
    ]


def test_columns_that_a_section_names(tables, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    rows = [{"file": "a.obj", "cells": 111112, "past": 0.06437, "scale": 1.0}, {"file": "b.obj"}]
    section = {
        "title": "heightmaps",
        "columns": {"file": "file", "cells": "cells checked", "past": "past"},
        "rows": rows,
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "meshes.json").write_text(json.dumps({"sections": [section]}))
    page = tmp_path / "page.md"
    page.write_text("<!-- table: meshes / heightmaps -->\n<!-- end -->\n<!-- table: meshes / other -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "HERE", tmp_path)
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main([]) == 0
    header, _, row, part = page.read_text().splitlines()[1:5]
    assert (header, row) == ("| file | cells checked | past |", "| a.obj | 111,112 | 0.0644 |")
    assert part.split() == ["|", "b.obj", "|", "|", "|"]
    assert page.read_text().splitlines()[-2] == "*Not measured yet.*"


def test_the_readme_compares_what_the_results_hold(tables) -> None:  # type: ignore[no-untyped-def]
    sections = json.loads((ROOT / "benchmarks" / "results" / "packing.json").read_text())["sections"]
    section = next(each for each in sections if each["title"].startswith("bpp10"))
    (row,) = [each for each in section["rows"] if each["name"] == "ours, 1024"]
    line = (ROOT / "README.md").read_text().split("<!-- table: packing / how fast -->")[1].splitlines()[3]
    assert f"| {row['rate']:,.0f} | {row['ratios']['numpy_loop']:.0f}× a NumPy loop" in line


def test_verdicts_of_rule_and_physics(tables, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    counts = {"placements": 65, "both_hold": 16, "only_com_holds": 6, "only_physics_holds": 9, "none_holds": 34}
    method = {"method": "random", "share": 50 / 65, **counts}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "com.json").write_text(json.dumps({"tables": [{"agreement": [method]}]}))
    page = tmp_path / "page.md"
    page.write_text("<!-- table: com / agreement -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "HERE", tmp_path)
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main([]) == 0
    assert page.read_text().splitlines()[3] == "| random | 77% | 65 | 16 | 6 | 9 | 34 |"


def test_crossings_beside_those_of_released_weights(tables, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    ours = {"success": 0.95, "arrived": 0.981, "time": 27.04, "energy": 1234.5}
    told = {"success": 0.7, "arrived": None, "time": 28.0, "energy": None}
    result = {
        "worlds": {"rows": {"0": {"robots": 3, "cores": 4, "obstacles": 5}}, "num_worlds": 100},
        "policies": [{"policy": "IQN", "rows": {"0": ours}, "scores": {"success": 0.5}}],
        "published": {"rows": {"IQN": [told], "APF": []}, "overall": {"IQN": told}, "worlds": 10, "levels": [0] * 6},
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "sea.json").write_text(json.dumps(result))
    page = tmp_path / "page.md"
    page.write_text("<!-- table: sea / crossings -->\n<!-- end -->\n<!-- table: sea / success -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "HERE", tmp_path)
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main([]) == 0
    # √(0.95 · 0.05 / 100) = 2.2%, √(0.7 · 0.3 / 10) = 14.5% and √(0.7 · 0.3 / 60) = 5.9%
    assert page.read_text().splitlines()[3:7] == [
        "| 3/4/5 | **IQN** | 100 | 95.0% ± 2.2% | 98.1% ± 1.4% | 27.0 | 1,234.5 |",
        "|  | IQN, released | 10 | 70% ± 14% |  | 28.0 |  |",
        "| all | **IQN** | 100 | 50% ± 5% |  |  |  |",
        "|  | IQN, released | 60 | 70% ± 6% |  | 28.0 |  |",
    ]
    assert page.read_text().splitlines()[9:14] == [
        "| robots/cores/obstacles | 3/4/5 |",
        "|---|---|",
        "| **IQN** | 95.0% ± 2.2% |",
        "| IQN, released | 70% ± 14% |",
        "| APF, released |  |",
    ]


def test_the_released_weights_in_the_same_worlds(tables) -> None:  # type: ignore[no-untyped-def]
    results = ROOT / "benchmarks" / "results"
    comparisons = json.loads((results / "navigation_released.json").read_text())["comparisons"]
    _, _, iqn, adaptive, ac_iqn, row = tables._same_worlds(comparisons).splitlines()
    assert iqn == "| v2 | all | 500 | IQN | 84.0% ± 1.6% | 73.2% ± 2.0% | +10.8 ± 2.6 |"
    assert adaptive.endswith("| 89.8% ± 1.4% | 84.0% ± 1.6% | +5.8 ± 2.1 |")
    assert ac_iqn.endswith("| 89.5% ± 1.3% | 81.5% ± 1.6% | +8.0 ± 2.0 |")
    assert row.startswith("| v3 | 5/0/3 | 100 | AC-IQN | 77% ± 4% | 76% ± 4% | +1 ± 6")
    for each in comparisons:  # ours are those of the committed evaluations
        name = {"v2": "navigation_iqn", "v3": "navigation_ac_iqn"}[each["version"]]
        result = json.loads((results / f"{name}.json").read_text())
        (policy,) = [p for p in result["policies"] if p["policy"] == each["policy"].replace("AC-", "AC")]
        of_all = each["worlds_are"] == "all"
        assert each["success"] == (policy["scores"] if of_all else policy["rows"]["4"])["success"]
        assert each["worlds"] == tables._worlds(result, of_all)[0]
