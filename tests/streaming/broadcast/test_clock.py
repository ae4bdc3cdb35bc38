"""Clock of pictures: a step of the machine's clock changes nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import torchrl_gpu.streaming
from torchrl_gpu.streaming.broadcast.clock import stream_time


def test_it_is_the_time_of_day_until_somebody_sets_that(monkeypatch: pytest.MonkeyPatch) -> None:
    before = stream_time()
    assert abs(before - time.time()) < 60
    monkeypatch.setattr(time, "time", lambda: before - 3600)
    assert before <= stream_time() < before + 60


@pytest.mark.parametrize(("folder", "asking"), [("broadcast", ["clock.py"]), ("web", [])])
def test_nothing_else_of_the_stream_asks_for_the_time_of_day(folder: str, asking: list[str]) -> None:
    package = Path(torchrl_gpu.streaming.__file__).parent / folder
    assert [path.name for path in package.rglob("*.py") if "time.time" in path.read_text()] == asking
