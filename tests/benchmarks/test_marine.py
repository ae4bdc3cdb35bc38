"""The benchmark of marine navigation runs, and times nothing that moves otherwise than the reference."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from torchrl_gpu.envs.marine import dynamics

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("marine", ROOT / "benchmarks" / "marine.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(module)
    words = ["--device=cpu", "--seconds=0.02", "--repetitions=2", "--num_envs", "2", "--settings=1", "--no-compiled"]
    monkeypatch.setattr(sys, "argv", ["marine.py", *words, "--no-peers", f"--output={tmp_path / 'result.json'}"])
    return module


def test_it_runs(benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    assert benchmark.main() == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert [section["title"] for section in result["sections"]] == ["v2, 5 robots, 6 cores, 6 obstacles"]
    reference, ours = result["sections"][0]["rows"]
    assert (reference["name"], ours["name"]) == ("reference", "ours, 2")
    assert ours["ratios"]["reference"] == pytest.approx(ours["rate"] / reference["rate"])
    assert not any(check["difference"] for check in result["parity"])
    assert "| ours, 2 |" in capsys.readouterr().out


def test_another_motion_is_not_timed(  # type: ignore[no-untyped-def]
    benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dynamics, "DRAG", 0.19)
    assert benchmark.main() == 1
    assert "Nothing was timed" in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()
