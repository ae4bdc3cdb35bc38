"""Rates of things that take turns: whatever else the machine does, it does to all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

_MOST_REPETITIONS = 15


@dataclass
class TimedRow:
    """One row of a table.

    Attributes:
        name: What it is.
        run: Does `n` units of work and returns when they are done.
        per_call: Results of one unit, for example environments stepped.
        threads: How many threads it may use, in words.
        group: Rows of a group are compared with each other.
        notes: What else must be known.
    """

    name: str
    run: Callable[[int], None]
    per_call: int = 1
    threads: str = "1"
    group: str = ""
    notes: str = ""
    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def rates(self) -> list[float]:
        """Results per second of each repetition."""
        return [self.calls * self.per_call / s for s in self.seconds]

    @property
    def rate(self) -> float:
        """Their median."""
        return statistics.median(self.rates)


def measure(
    rows: Sequence[TimedRow],
    seconds: float,
    repetitions: int = 5,
    most_calls: int | None = None,
    on_row: Callable[[str], None] = lambda name: None,
) -> None:
    """Times rows in turn, after a warm-up that is not counted.

    Args:
        rows: Rows; their `calls` and `seconds` are filled.
        seconds: For each row over all its repetitions; a call that takes longer is made twice all the same.
        repetitions: Turns.
        most_calls: Units of one repetition at most.
        on_row: Told whose turn it is.
    """
    repetitions = min(repetitions, _MOST_REPETITIONS)
    turns = {}
    for each in rows:
        on_row(each.name)
        _timed(each.run, 1)  # compiles, allocates, faults memory in
        once = _timed(each.run, 1)
        each.calls = max(1, min(round(seconds / repetitions / once), most_calls or 10**9))
        turns[id(each)] = max(2, min(repetitions, round(seconds / (once * each.calls))))
    for turn in range(repetitions):
        for each in rows:
            if turn < turns[id(each)]:
                on_row(each.name)
                each.seconds.append(_timed(each.run, each.calls))


def _timed(run: Callable[[int], None], calls: int) -> float:
    _synchronise()
    start = time.perf_counter()
    run(calls)
    _synchronise()
    return max(time.perf_counter() - start, 1e-9)


def _synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
