"""The profiler of training steps: its table and its trace, through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.training.tiny import fit, module
from torchrl_gpu.system.profiler import StepProfiler

# kineto tells of a machine without a GPU in words of its own
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.profiler")
RANGES = ("environment", "policy", "replay", "update", "logging", "transfer")


def test_a_table_and_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(module(), tmp_path, 12, profiler=(profiler := StepProfiler(str(tmp_path / "traces"), wait=1, steps=2)))
    said = capsys.readouterr().out
    assert said.endswith(f"trace of 2 steps: {tmp_path / 'traces' / 'steps.trace.json'}\n")
    rows = re.findall(r"^(\w+) +([\d.]+) +([\d.]+)%$", said.partition("StepProfiler: 4 training steps\n")[2], re.M)
    table = {name: (float(ms), float(share)) for name, ms, share in rows}
    assert set(RANGES) <= set(table)
    assert table["all"][1] == 100.0
    parts = [row for name, row in table.items() if name != "all"]
    assert sum(ms for ms, _ in parts) == pytest.approx(table["all"][0], abs=0.01)
    assert sum(share for _, share in parts) == pytest.approx(100.0, abs=1.0)
    assert profiler.trace is not None
    events = json.loads(profiler.trace.read_text(encoding="utf-8"))["traceEvents"]
    ranges = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert set(RANGES) <= set(ranges)
    assert ranges.count("update") == 2 * 2  # of two training steps of two updates
    assert ranges.count("environment") == 2 * 2


def test_a_run_that_is_too_short_for_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(module(), tmp_path, 4, profiler=StepProfiler(str(tmp_path / "traces")))
    assert capsys.readouterr().out.splitlines()[-1] == "no trace: want 6 steps"
    assert not (tmp_path / "traces").exists()


def test_a_run_that_ends_within_the_trace(tmp_path: Path) -> None:
    fit(module(), tmp_path, 4, profiler=(profiler := StepProfiler(str(tmp_path), wait=1, steps=9)))
    assert profiler.trace is not None
    assert json.loads(profiler.trace.read_text(encoding="utf-8"))["traceEvents"]
    assert f"trace of 1 steps: {profiler.trace}" in profiler.summary()


def test_numbers_that_cannot_work() -> None:
    with pytest.raises(ValueError, match="want wait of at least 0 and steps of at least 1; got 2 and 0"):
        StepProfiler(wait=2, steps=0)
