"""Turns, counts and rates; how long anything takes is never asserted."""

from __future__ import annotations

import pytest

from torchrl_gpu.cli import timing
from torchrl_gpu.cli.timing import TimedRow, measure


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.order = 0.0, list[str]()
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)

    def worker(self, name: str, seconds: float, per_call: int = 1) -> TimedRow:
        def run(calls: int) -> None:
            self.now += calls * seconds
            self.order.append(name)

        return TimedRow(name, run, per_call)


def test_rows_take_turns_after_their_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    rows = [clock.worker("a", 0.1), clock.worker("b", 0.1)]
    measure(rows, seconds=0.6, repetitions=3)
    assert clock.order == ["a", "a", "b", "b", *("a", "b") * 3]
    assert [row.calls for row in rows] == [2, 2]
    assert [len(row.seconds) for row in rows] == [3, 3]


def test_rates_count_results_not_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Clock(monkeypatch).worker("a", 0.5, per_call=64)
    measure([row], seconds=5.0, repetitions=5)
    assert row.calls == 2
    assert row.rates == pytest.approx([128.0] * 5)  # 64 results in half a second
    assert row.rate == pytest.approx(128.0)


def test_what_takes_longer_than_its_time_is_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Clock(monkeypatch).worker("slow", 10.0)
    measure([row], seconds=1.0, repetitions=5)
    assert (row.calls, len(row.seconds)) == (1, 2)


def test_calls_of_a_repetition_can_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Clock(monkeypatch).worker("a", 0.01)
    measure([row], seconds=5.0, repetitions=5, most_calls=10)
    assert (row.calls, len(row.seconds)) == (10, 5)
