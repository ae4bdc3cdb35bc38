"""The example learns, says on which device, and loads what it wrote."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch

from tests.demonstrations import row_files

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_bc.py"


def test_it_learns_writes_and_loads(tmp_path: Path) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5")

    def run(*words: str) -> str:
        made = subprocess.run(
            [sys.executable, str(EXAMPLE), *words],
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert made.returncode == 0, made.stderr[-2000:]
        return made.stdout

    output = tmp_path / "bc.pt"
    said = run(
        str(path), "--observations", "state", "hand", "--updates", "20", "--device", "cpu", "--output", str(output)
    )
    assert said.startswith("device: cpu\n")
    losses = [float(loss) for loss in re.findall(r"^update \d+: loss (\S+),", said, re.MULTILINE)]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    content = torch.load(output, weights_only=True)
    assert (content["obs_dim"], content["action_dim"]) == (6, 3)
    assert content["model_state_dict"]["action_mean"].abs().sum() > 0
    assert "bc.pt: 6 numbers in, 3 out" in run("--check", str(output), "--device", "cpu")


def test_the_device_stands_in_the_help() -> None:
    words = [sys.executable, str(EXAMPLE), "--help"]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True).stdout
    assert re.search(r"--device DEVICE\s+auto, cpu, cuda or cuda:N \(default: auto\)", shown)
