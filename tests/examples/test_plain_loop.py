"""The example plays, learns and is evaluated before and after; how well is not asked of so few updates."""

from __future__ import annotations

import math
import re

import pytest

from tests.examples.running import EXAMPLES, printed


def test_it_runs_from_the_first_reset_to_the_last_figure(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed("plain_loop.py", "--updates", "10", "--worlds", "1", "--device", "cpu", capsys=capsys)
    rates = dict(re.findall(r"^(untrained|trained|careful): (\d+)%", said, re.MULTILINE))
    assert set(rates) == {"untrained", "trained", "careful"}
    assert all(0 <= int(rate) <= 100 for rate in rates.values())
    told = re.findall(r"^update (\d+): loss (\S+)$", said, re.MULTILINE)
    assert [int(update) for update, _ in told] == list(range(1, 11))
    losses = [float(loss) for _, loss in told]
    assert all(math.isfinite(loss) for loss in losses)
    assert len(set(losses)) > 1


def test_it_fits_on_a_screen() -> None:
    lines = (EXAMPLES / "plain_loop.py").read_text(encoding="utf-8").split("def main")[1].splitlines()
    assert len([line for line in lines if line.strip()]) <= 50
