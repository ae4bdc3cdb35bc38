"""The benchmark of table training.

The tests are about its rows, and ways that learn other tables.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import table_training
from benchmarks.table_training import Rate, Timing


def fake_training(monkeypatch: pytest.MonkeyPatch, same: bool) -> None:
    """Training of 100 steps a second in C++, and of 50 step by step."""

    def train(by_steps: bool) -> tuple[Any, Rate]:
        weight = torch.ones(8) if same or by_steps else torch.zeros(8)
        tables = SimpleNamespace(weight=weight, plan=SimpleNamespace(entries=8))
        return SimpleNamespace(tables=tables), Rate(50.0 if by_steps else 100.0, 0.01)

    monkeypatch.setattr(table_training, "train", train)
    monkeypatch.setattr(table_training, "reads_per_s", lambda entries: 2000.0)
    monkeypatch.setattr(table_training, "look_ups_per_step", lambda module: 40.0)


def test_rows_of_both_ways_and_of_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_training(monkeypatch, same=True)
    sections = table_training.measure(turns=2)["sections"]
    steps = sections[0]["rows"]
    look_ups = sections[1]["rows"]
    assert len(sections) == 2
    assert [(row["steps_per_s"], row["ratio"], row["processor_us"]) for row in steps] == [(100, 2, 1e4), (50, 1, 1e4)]
    assert [row["per_s"] for row in look_ups] == [4000, 2000, 2.0, 40]


def test_ways_that_learn_other_tables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_training(monkeypatch, same=False)
    with pytest.raises(ValueError, match=r"by step .*Python .*different"):
        table_training.measure(turns=1)


def test_the_warm_up_does_not_count() -> None:
    timing = Timing(by_steps=False)
    timing.times = [0.0, 50.0, 60.0, 70.0, 100.0, 101.0, 102.0]
    timing.processor = [0.0, 0.0, 0.0, 0.0, 10.0, 11.0, 14.0]
    assert timing.rate(30) == Rate(30.0, 4.0 / 60)
