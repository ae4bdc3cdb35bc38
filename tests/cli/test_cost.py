"""`torchrl-gpu cost`: hours and money of a run, and where the rate is from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.test_end_to_end import small
from torchrl_gpu import cli
from torchrl_gpu.cli.cost import Rate, estimate

SMALL = small("packing.yaml", 50)


def test_by_hand() -> None:
    found = estimate(7200, Rate(2.0, "by hand"), 0.44, "USD")
    assert found["hours"] == 1.0  # 7,200 updates at two a second
    assert found["cost"] == pytest.approx(0.44)
    assert estimate(7200, Rate(4.0, "by hand"), None, "USD")["cost"] is None


def test_a_given_rate(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", "packing.yaml", "--price", "3", "--currency", "EUR", "--throughput", "0.25"]
    assert cli.main(["cost", *words], "torchrl-gpu") is None
    said = capsys.readouterr().out.splitlines()
    assert said == [  # 500 updates at a quarter a second are 2,000 s
        "packing.yaml: 500 updates at 0.25 updates/s: 33.3 minutes",
        "at 3 EUR an hour: 1.67 EUR",
        "rate: given by --throughput",
    ]
    assert cli.main(["cost", *words, "--trainer.max_steps", "1000000"], "torchrl-gpu") is None
    assert "1,000,000 updates at 0.25 updates/s: 1111.1 hours" in capsys.readouterr().out


def test_a_trial_here(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "--price", "0.44", "--seconds", "0.01", "--json"]
    assert cli.main(["cost", *words], "torchrl-gpu") is None
    found = json.loads(capsys.readouterr().out)
    assert found["updates"] == 50
    updates, _ = re.match(r"measured just now, (\d+) updates in ([\d.]+) s on ", found["source"]).groups()  # type: ignore[union-attr]
    assert 0 < int(updates) < 50  # the trial is shorter than the run
    assert found["updates_per_s"] > 0
    assert found["cost"] == pytest.approx(0.44 * 50 / found["updates_per_s"] / 3600)
    assert list(tmp_path.iterdir()) == []  # a trial leaves nothing


def test_a_recorded_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "run" / "tensorboard" / "version_0"))
    for step, rate in enumerate([1.0, 5.0, 2.0, float("nan")]):
        writer.add_scalar("throughput/updates_per_s", rate, step)
    writer.close()
    assert cli.main(["cost", "--config", "packing.yaml", "--run", str(tmp_path / "run")], "torchrl-gpu") is None
    said = capsys.readouterr().out
    assert "500 updates at 2 updates/s: 4.2 minutes" in said
    assert "rate: the median of 3 readings" in said
