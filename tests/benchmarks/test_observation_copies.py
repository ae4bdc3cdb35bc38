"""The benchmark of copied observations runs, and times nothing that differs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("copies", ROOT / "benchmarks" / "observation_copies.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    names = ("irregular, 4 bins", "marine v2, 64 worlds")
    monkeypatch.setattr(benchmark, "SETTINGS", {name: benchmark.SETTINGS[name] for name in names})
    monkeypatch.setattr(sys, "argv", ["x", f"--output={tmp_path / 'out.json'}", "--seconds=0.1", "--turns=3"])
    benchmark.main()
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert set(rows) == set(names)
    assert all(row["own_us"] > 0 and row["ratio_low"] <= row["ratio"] <= row["ratio_high"] for row in rows.values())
