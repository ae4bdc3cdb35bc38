"""Costs by hand, and a bound that holds whatever is spent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrl_gpu.callbacks.time_budget import HookTimer, TimeBudget


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 1.0)), max_size=60), st.floats(0.01, 1.0))
def test_what_is_spent_stays_within_the_share(steps: list[tuple[float, float]], share: float) -> None:
    budget, now, spent, largest = TimeBudget(share, burst_s=0.25, silence_s=math.inf), 100.0, 0.0, 0.0
    for pause, cost in steps:
        now += pause
        if budget.allows(now):
            budget.spend(cost)
            spent, largest, now = spent + cost, max(largest, cost), now + cost
        # Never more than the burst, the share of the time, and the one that overdrew.
        assert spent <= 0.25 + share * (now - 100.0) + largest + 1e-6


@given(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=20), st.floats(0.01, 1.0))
def test_however_much_is_spent_the_silence_behind_it_is_bounded(costs: list[float], share: float) -> None:
    budget, now = TimeBudget(share, silence_s=5.0), 100.0
    budget.allows(now)
    for cost in costs:
        budget.spend(cost)
        now += 5.001
        assert budget.allows(now)


def test_a_first_picture_of_a_second_by_hand() -> None:
    budget = TimeBudget(0.02)
    assert budget.allows(10.0)
    budget.spend(1.1)  # 42 s of a fiftieth, had it to be paid back
    assert not budget.allows(14.9)
    assert budget.allows(15.1)


def test_an_allowance_by_hand() -> None:
    budget = TimeBudget(0.125, burst_s=0.5, silence_s=math.inf)
    assert budget.allows(10.0)
    budget.spend(1.5)  # 1 s more than there was: 8 s until it is back
    assert not budget.allows(18.0)
    assert budget.allows(20.0)  # 0.25 s are there
    budget.spend(0.25)
    assert not budget.allows(20.0)
    assert budget.allows(1000.0)
    budget.spend(0.5)  # all that can be saved up
    assert not budget.allows(1000.0)


def test_costs_by_hand() -> None:
    timer = HookTimer(now=5.0)
    timer.add(0.001)
    timer.add(0.003)
    assert timer.metrics(now=7.0) == pytest.approx({"hook_us": 2000.0, "share": 0.002})
    assert timer.metrics(now=8.0) == pytest.approx({"hook_us": 0.0, "share": 0.0})
    timer.add(0.008)
    assert timer.totals(now=11.0) == pytest.approx({"hook_us": 4000.0, "share": 0.002})  # 12 ms of 3 hooks in 6 s
