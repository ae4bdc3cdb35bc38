"""The benchmark of flags runs, and shows nothing while one of them makes something else than rounding."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import flags

QUICK = ["--agents=SAC", "--rows=8", "--device=cpu", "--minutes=0.001", "--repetitions=2"]


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that takes long."""
    plain = {name: flag for name, flag in flags.FLAGS.items() if not flag.compiled}
    monkeypatch.setattr(flags, "FLAGS", plain)


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["flags.py", *QUICK, f"--output={tmp_path / 'flags.json'}"])
    assert flags.main() == 0
    result = json.loads((tmp_path / "flags.json").read_text())
    rows, table = (section["rows"] for section in result["sections"])
    assert [row["flag"] for row in rows] == ["32-true", "bf16-mixed", "deterministic"]
    rates = {row["flag"]: row["rate"] for row in rows}
    (line,) = table
    assert line["bf16-mixed"] == pytest.approx(rates["bf16-mixed"] / rates["32-true"])
    assert line["products"] > 0
    assert [check["difference"] for check in result["parity"]] == ["", "", ""]


def test_what_is_another_loss_is_not_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(flags.FLAGS, "bf16-mixed", flags.Flag(mixed=True))
    monkeypatch.setattr(sys, "argv", ["flags.py", *QUICK])
    assert flags.main() == 1
    out, err = capsys.readouterr()
    assert err.startswith("parity fails in SAC, bf16-mixed: ")
    assert "|" not in out


def test_determinism_is_asked_for_and_given_back() -> None:
    with flags.determinism(True):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
