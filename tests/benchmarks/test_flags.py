"""The benchmark of flags runs, and shows nothing while one of them makes something else than rounding."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
QUICK = ["--agents=SAC", "--rows=8", "--device=cpu", "--minutes=0.001", "--repetitions=2"]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, without what takes long to compile."""
    spec = importlib.util.spec_from_file_location("flags", ROOT / "benchmarks" / "flags.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(module)
    every = module.flags
    monkeypatch.setattr(module, "flags", lambda device: {n: each for n, each in every(device).items() if not each[1]})
    return module


def test_it_runs(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["flags.py", *QUICK, f"--output={tmp_path / 'flags.json'}"])
    assert benchmark.main() == 0
    result = json.loads((tmp_path / "flags.json").read_text())
    rows, table = (section["rows"] for section in result["sections"])
    assert [row["flag"] for row in rows] == ["32-true", "bf16-mixed", "deterministic"]
    rates = {row["flag"]: row["rate"] for row in rows}
    (line,) = table
    assert line["bf16-mixed"] == pytest.approx(rates["bf16-mixed"] / rates["32-true"])
    assert line["products"] > 0
    assert [check["difference"] for check in result["parity"]] == ["", "", ""]


def test_what_is_another_loss_is_not_timed(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "OF_BFLOAT16", 0.0)
    monkeypatch.setattr(sys, "argv", ["flags.py", *QUICK])
    assert benchmark.main() == 1
    out, err = capsys.readouterr()
    assert err.startswith("parity fails in SAC, bf16-mixed: ")
    assert "|" not in out


def test_determinism_is_asked_for_and_given_back(benchmark: Any) -> None:
    with benchmark.deterministic():
        assert benchmark.torch.are_deterministic_algorithms_enabled()
    assert not benchmark.torch.are_deterministic_algorithms_enabled()
