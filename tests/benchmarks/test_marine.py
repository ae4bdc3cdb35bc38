"""The benchmark of marine navigation, in small.

It times nothing that moves otherwise than the reference.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import marine
from torchrl_gpu.envs.marine import compiled, dynamics

SMALL = ["--device=cpu", "--seconds=0.02", "--repetitions=2", "--num_envs=2", "--settings=1", "--no-compiled"]
SMALL += ["--no-peers"]


def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert marine.main([*SMALL, f"--output={tmp_path / 'result.json'}"]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert [section["title"] for section in result["sections"]] == ["v2, 5 robots, 6 cores, 6 obstacles"]
    reference, ours = result["sections"][0]["rows"]
    assert (reference["name"], ours["name"]) == ("reference", "ours, 2")
    assert ours["ratios"]["reference"] == pytest.approx(ours["rate"] / reference["rate"])
    assert "| ours, 2 |" in capsys.readouterr().out


def test_another_motion_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dynamics, "DRAG", 0.19)
    monkeypatch.setitem(compiled.SERIES, "kept", tuple((1 - 0.19 * 0.05) ** k for k in range(11)))
    assert marine.main([*SMALL, f"--output={tmp_path / 'result.json'}"]) == 1
    assert "Nothing was timed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
