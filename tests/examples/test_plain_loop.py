"""The example plays, learns and is judged, before and after; how well is not asked of so few updates."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_loop.py"


def test_it_runs_from_the_first_reset_to_the_last_figure() -> None:
    words = [sys.executable, str(EXAMPLE), "--updates", "20", "--worlds", "4", "--device", "cpu"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=170, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    rates = dict(re.findall(r"^(untrained|trained|careful): (\d+)%", run.stdout, re.MULTILINE))
    assert set(rates) == {"untrained", "trained", "careful"}
    assert all(0 <= int(rate) <= 100 for rate in rates.values())
    told = re.findall(r"^update (\d+): loss (\S+)$", run.stdout, re.MULTILINE)
    assert [int(update) for update, _ in told] == list(range(2, 21, 2))
    losses = [float(loss) for _, loss in told]
    assert all(math.isfinite(loss) for loss in losses)
    assert len(set(losses)) > 1


def test_it_fits_on_a_screen() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").split("def main")[1].splitlines()
    assert len([line for line in lines if line.strip()]) <= 50
