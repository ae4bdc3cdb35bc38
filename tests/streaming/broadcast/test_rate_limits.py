"""The clock of pictures, and rates: what a grid with half a slot of grace lets through."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchrl_gpu.streaming
from torchrl_gpu.streaming.broadcast.rate_limits import FrameSchedule, TokenBucket, stream_time


def taken(schedule: FrameSchedule, moments: list[float]) -> list[float]:
    """Of these moments, those at which a slot was free; each takes it."""
    found = []
    for moment in moments:
        if moment >= schedule.next_at:
            schedule.advance(moment)
            found.append(moment)
    return found


def test_a_producer_of_the_same_period_loses_nothing_by_jitter() -> None:
    draw = random.Random(0)
    moments = [100 + i / 30 + draw.uniform(-0.008, 0.008) for i in range(300)]
    assert taken(FrameSchedule(1 / 30), moments) == moments


@pytest.mark.parametrize("producer_fps", [60, 90, 1000])
def test_a_faster_producer_is_held_to_the_rate(producer_fps: int) -> None:
    moments = [5 + i / producer_fps for i in range(10 * producer_fps)]
    assert len(taken(FrameSchedule(1 / 30), moments)) == pytest.approx(300, abs=2)


@settings(deadline=None)
@given(st.lists(st.floats(0, 2), min_size=1, max_size=200), st.floats(0.01, 1))
def test_no_window_holds_more_than_the_rate_and_one(gaps: list[float], interval: float) -> None:
    moments = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    found = taken(FrameSchedule(interval), moments)
    for i, begin in enumerate(found):
        for number, end in enumerate(found[i:], start=1):
            assert number <= (end - begin) / interval + 2


def test_the_first_is_never_too_early_and_a_late_one_begins_anew() -> None:
    schedule = FrameSchedule(1.0)
    assert taken(schedule, [-7.0, 100.0, 100.4, 100.5]) == [-7.0, 100.0, 100.5]


def test_a_fast_viewer_does_not_wait_for_the_slots_of_a_slow_one() -> None:
    schedule = FrameSchedule(10.0)
    assert taken(schedule, [100.0, 105.0]) == [100.0, 105.0]  # half a slot early, so that the grid is at 110
    schedule.interval = 0.1
    moments = [105.05, 105.1, 105.2, 105.3, 105.4]
    assert taken(schedule, moments) == moments[1:]


def test_a_token_bucket_by_hand() -> None:
    bucket = TokenBucket(rate=2.0, burst=3.0)
    assert [bucket.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(10.6), bucket.take(10.7)] == [True, False]  # 1.2 have come, and one is spent
    assert [bucket.take(99.0) for _ in range(4)] == [True, True, True, False]


def test_it_is_the_time_of_day_until_somebody_sets_that(monkeypatch: pytest.MonkeyPatch) -> None:
    before = stream_time()
    assert abs(before - time.time()) < 60
    monkeypatch.setattr(time, "time", lambda: before - 3600)
    assert before <= stream_time() < before + 60


@pytest.mark.parametrize(("folder", "asking"), [("broadcast", ["rate_limits.py"]), ("web", [])])
def test_nothing_else_of_the_stream_asks_for_the_time_of_day(folder: str, asking: list[str]) -> None:
    package = Path(torchrl_gpu.streaming.__file__).parent / folder
    assert [path.name for path in package.rglob("*.py") if "time.time" in path.read_text()] == asking
