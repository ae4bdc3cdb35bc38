"""The benchmark of encoders runs, and times nothing that differs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("encoders", ROOT / "benchmarks" / "encoders.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs(benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("Simple3DCNN", "TimeSformer, base")
    monkeypatch.setattr(benchmark, "SHAPES", {(4, 3, 32, 32): 2})
    monkeypatch.setattr(benchmark, "ENCODERS", {name: benchmark.ENCODERS[name] for name in names})
    monkeypatch.setattr(benchmark, "BATCH", 2)
    monkeypatch.setattr(sys, "argv", ["x", f"--output={tmp_path / 'out.json'}", "--turns=1", "--longest=0.1"])
    benchmark.main()
    layouts, costs = json.loads((tmp_path / "out.json").read_text())["sections"]
    assert layouts["rows"][0]["ratio"] == 1
    assert all(row["batch_ms"] > 0 and row.keys() >= layouts["columns"].keys() for row in layouts["rows"])
    timed, untimed = costs["rows"]
    assert timed["both_ms"] > 0
    assert untimed["both_ms"] == ""
    assert all(row.keys() == costs["columns"].keys() for row in costs["rows"])


def test_layers_that_differ_are_not_timed(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark.Convolutions, "maps", lambda self, x: torch.zeros(len(x), 32, 4, 4))
    with pytest.raises(AssertionError, match="parity fails"):
        benchmark.layouts()
