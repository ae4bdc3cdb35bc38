"""The example learns, says on which device, writes what it learnt, and packs with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.running import help_of, printed

pytest.importorskip("sb3_contrib")


def test_it_learns_writes_and_packs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "packer.zip"
    words = ["--device", "cpu", "--num_envs", "8", "--rollout", "16", "--steps", "256", "--output", str(path)]
    said = printed("train_maskable_ppo.py", *words, capsys=capsys)
    assert said.startswith("Device: cpu\n")
    assert re.search(r"total_timesteps +\| 256 ", said)
    full = re.search(r"^(\d+) unseen bins: ([\d.]+)% full$", said, re.MULTILINE)
    assert full
    assert int(full[1]) >= 8
    assert 10 < float(full[2]) < 100
    assert path.stat().st_size > 10_000


def test_the_device_stands_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    said = help_of("train_maskable_ppo.py", capsys)
    assert re.search(r"--device DEVICE\s+auto, cpu, cuda or cuda:N \(default: auto\)", said)
