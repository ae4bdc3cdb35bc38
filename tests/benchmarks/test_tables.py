"""The tables of the documentation are those of the committed results."""

from __future__ import annotations

import importlib.util
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
