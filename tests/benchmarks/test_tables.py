"""The tables of the documentation are those of the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import config_table, tables
from torchrl_gpu import configs

RESULTS = Path(tables.__file__).parent / "results"


def test_the_pages_show_the_committed_results() -> None:
    assert tables.main(["--check"]) == 0


def test_another_figure_is_noticed_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    whole = (Path(tables.__file__).parents[1] / "docs" / "performance.md").read_text()
    page.write_text(re.sub(r"(\| NumPy, windows \|) [\d,]+ \|", r"\1 7 |", whole, count=1))
    assert page.read_text() != whole
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main(["--check"]) == 1
    assert "not up to date: page.md" in capsys.readouterr().err
    assert tables.main([]) == 0
    assert page.read_text() == whole


def test_what_is_not_measured_yet_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table: nothing / targets -->\n<!-- end -->\n<!-- table: kernels / other -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main([]) == 0
    assert page.read_text().count("*Not measured yet.*") == 2


def test_the_released_weights_in_the_same_worlds() -> None:
    comparisons = json.loads((RESULTS / "navigation_released.json").read_text())["comparisons"]
    # Ours are those of the committed evaluations.
    for each in comparisons:
        name = {"v2": "navigation_iqn", "v3": "navigation_ac_iqn"}[each["version"]]
        result = json.loads((RESULTS / f"{name}.json").read_text())
        name = each["policy"].replace("AC-", "AC")
        of_name = [policy for policy in result["policies"] if policy["policy"] == name]
        (policy,) = of_name
        of_all = each["worlds_are"] == "all"
        assert each["success"] == (policy["scores"] if of_all else policy["rows"]["4"])["success"]
        assert each["worlds"] == tables.count_worlds(result, of_all)[0]


def test_every_shipped_config_has_a_row() -> None:
    lines = config_table.table().splitlines()[2:]
    assert [line.partition("`")[2].partition("`")[0] for line in lines] == configs.names()
    assert set(config_table.REACHED) < set(configs.names())
    for name, line in zip(configs.names(), lines, strict=True):
        assert ("not measured as shipped" in line) == (name not in config_table.REACHED)
