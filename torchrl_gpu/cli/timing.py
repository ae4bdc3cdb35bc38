"""Rates of functions that are timed in turns, so that other load slows all alike; two ceilings of this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

_MOST_REPETITIONS = 15
COPY, ADD_MAX = "ceiling: memory copy", "ceiling: add and max"


@dataclass
class TimedRow:
    """One row of a table: `run(n)` does `n` units of work and returns when they are done."""

    name: str
    run: Callable[[int], None]
    per_call: int = 1  # results of one unit, for example environments stepped
    threads: str = "1"  # that it may use, in words
    group: str = ""  # rows of a group are compared with each other
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
        """Median of `rates`."""
        return statistics.median(self.rates)


def measure(
    rows: Sequence[TimedRow],
    seconds: float,
    repetitions: int = 5,
    most_calls: int | None = None,
    on_row: Callable[[str], None] = lambda name: None,
) -> None:
    """Times rows in turn and fills their `calls` and `seconds`, after a warm-up that is not counted.

    Args:
        rows: To time.
        seconds: For each row over all its repetitions; a call that takes longer is made twice all the same.
        repetitions: Turns.
        most_calls: Units of one repetition at most.
        on_row: Called with the name of each row before its turn.
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


def ceilings(device: torch.device) -> list[TimedRow]:
    """Bytes copied a second between tensors too large for any cache (read and written), and add-max operations.

    The add-max stays in the caches: a subtraction and a maximum of float32, in two calls, as the eager kernel has them.
    """
    size = (1 << 28) if device.type == "cuda" else (1 << 25)
    source = torch.ones(size, device=device, dtype=torch.float32)
    target = torch.empty(size, device=device, dtype=torch.float32)
    small = (1 << 20) if device.type == "cuda" else (1 << 16) * torch.get_num_threads()
    best, cells, scratch = (torch.zeros(small, device=device, dtype=torch.float32) for _ in range(3))
    rounds = 1000

    def copy(calls: int) -> None:
        for _ in range(calls):
            target.copy_(source)

    def add_max(calls: int) -> None:
        for _ in range(calls * rounds):
            torch.sub(cells, 0.5, out=scratch)
            torch.maximum(best, scratch, out=best)

    threads = str(torch.get_num_threads())
    return [
        TimedRow(COPY, copy, 8 * size, threads, notes="bytes/s"),
        TimedRow(ADD_MAX, add_max, small * rounds, threads, notes="add-max/s"),
    ]
