"""The benchmark of demonstration video runs, and times nothing that differs."""

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
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("demonstrations", ROOT / "benchmarks" / "demonstrations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = ["--frames=12", "--batch=3", "--turns=3"]
    monkeypatch.setattr(sys, "argv", ["x", f"--output={tmp_path / 'out.json'}", *small])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    return module


def test_it_runs(benchmark: ModuleType, tmp_path: Path) -> None:
    benchmark.main()
    row = json.loads((tmp_path / "out.json").read_text())["row"]
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    assert all(value > 0 for value in row.values())


def test_clips_that_differ_are_not_timed(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark.ClipStore, "clips", lambda self, index, length: self.frames[index][:, None])
    with pytest.raises(AssertionError, match="parity fails"):
        benchmark.main()
    assert not (tmp_path / "out.json").exists()
