"""The example learns by rsl_rl's own runner, says on which device, writes, and goes on from what it wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.examples.running import help_of, printed

pytest.importorskip("rsl_rl")


def test_it_learns_writes_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "cpu", "--num_envs", "8", "--iterations"]
    said = printed("train_rsl_rl.py", *words, "2", "--log_dir", str(tmp_path), capsys=capsys)
    assert said.startswith("Device: cpu\n")
    assert "/profit" in said
    files = sorted(tmp_path.glob("model_*.pt"))
    assert files
    content = torch.load(files[-1], weights_only=True)
    assert content["iter"] == 1
    again = printed(
        "train_rsl_rl.py", *words, "1", "--checkpoint", str(files[-1]), "--log_dir", str(tmp_path), capsys=capsys
    )
    assert re.search(r"teration 1/2", again)


def test_the_device_stands_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    said = help_of("train_rsl_rl.py", capsys)
    assert re.search(r"--device DEVICE\s+auto, cpu, cuda or cuda:N \(default: auto\)", said)
