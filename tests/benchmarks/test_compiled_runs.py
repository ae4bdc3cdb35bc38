"""The benchmark of compiled runs: its rows, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compiled_runs


def fake_runs(monkeypatch: pytest.MonkeyPatch, compiles: bool) -> None:
    """Training steps of 2 s, compiled of 1 s behind 30 s of compilation."""

    def begin(config: str, updates: int, compiled: bool, folder: Path) -> subprocess.Popen[bytes]:
        folder.mkdir()
        times = [30.0 * compiled + step * (1.0 if compiled else 2.0) for step in range(10)]
        (folder / "times.json").write_text(json.dumps({"times": times, "compiled": compiled and compiles}))
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(compiled_runs, "begin", begin)


def test_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_runs(monkeypatch, compiles=True)
    row: dict[str, Any] = compiled_runs.row_of("packing_dqn", 8, tmp_path)
    assert row == {
        "config": "packing_dqn",
        "plain_ms": 2000,
        "compiled_ms": 1000,
        "ratio": 2.0,
        "compilation_s": 30,
    }


def test_what_does_not_compile_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_runs(monkeypatch, compiles=False)
    with pytest.raises(ValueError, match=r"compiled_runs: packing_dqn .*log"):
        compiled_runs.row_of("packing_dqn", 8, tmp_path)
