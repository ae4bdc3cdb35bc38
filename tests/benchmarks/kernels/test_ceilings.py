"""Ceilings: what is measured, what is missing, and the floor that they imply."""

from __future__ import annotations

from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.kernels import ceilings as kernel_ceilings
from benchmarks.kernels.ceilings import Ceilings, again, bounding, ceiling_rows, measured, self_timed
from tests.benchmarks.kernels import tiny
from torchrl_gpu.bench.timing import TimedRow, measure

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_ceilings, "machine_ceilings", tiny.ceilings)


def with_compiled(monkeypatch: pytest.MonkeyPatch, module: Any, problem: str = "") -> None:
    monkeypatch.setattr(kernel_ceilings, "available_backends", lambda device: {"compiled": problem})
    monkeypatch.setattr(kernel_ceilings.importlib, "import_module", lambda name: module)


def test_a_row_that_times_itself_leaves_its_warm_up_out() -> None:
    rates = iter([1.0, 2.0, *[10.0] * 1000])
    row = self_timed("a", lambda: next(rates), "2", "add-max/s")
    measure([row], seconds=1e-9, repetitions=3)
    assert set(row.rates) == {10.0}
    assert row.rate == 10.0


def test_loops_in_registers_are_asked_for_every_type_on_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def add_max_rate(dtype: str, threads: int, seconds: float) -> float:
        asked.append((dtype, threads, seconds))
        return {"float32": 1e9, "uint16": 2e9, "uint8": 4e9}[dtype]

    with_compiled(monkeypatch, SimpleNamespace(add_max_rate=add_max_rate))
    rows, missing = ceiling_rows(CPU)
    assert missing == {}
    measure(rows, seconds=1e-9, repetitions=2)
    assert {dtype for dtype, _, _ in asked} == {"float32", "uint16", "uint8"}
    assert {threads for _, threads, _ in asked} == {torch.get_num_threads()}
    found = measured(rows)["cpu"]
    assert {name: found.add_max[name] for name in ("float32", "uint16", "uint8")} == {
        "float32": 1e9,
        "uint16": 2e9,
        "uint8": 4e9,
    }
    assert found.add_max["torch"] > 0


@pytest.mark.parametrize(
    ("problem", "reason"),
    [("no compiler", "backend compiled cannot run: no compiler"), ("", "backend compiled has no such loop")],
)
def test_without_them_the_reason_is_given(problem: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_compiled(monkeypatch, SimpleNamespace(), problem)
    rows, missing = ceiling_rows(CPU)
    assert len(rows) == 2
    assert set(missing.values()) == {reason}
    assert any(name.endswith("uint8") for name in missing)


def test_the_floor_is_the_larger_of_two_times() -> None:
    ceilings = Ceilings(copy=100.0, add_max={"torch": 10.0, "float32": 40.0, "uint8": 50.0})
    assert ceilings.floor(add_max=200, num_bytes=100) == (4.0, "operations")  # 200 / 50 against 100 / 100
    assert ceilings.floor(add_max=10, num_bytes=100) == (1.0, "bytes")
    assert ceilings.floor(add_max=None, num_bytes=300) == (3.0, "bytes")


def test_two_tensor_calls_make_no_floor() -> None:
    assert Ceilings(100.0, {"torch": 10.0}).floor(200, 100) == (None, "")


def test_the_floor_is_measured_anew_from_what_bounds() -> None:
    rates = chain([1.0] * 4, repeat(5.0))
    copy = TimedRow("copy", lambda calls: None, notes="bytes/s", group="cpu", seconds=[1.0])
    slow = TimedRow("slow", lambda calls: None, notes="add-max/s", group="cpu", seconds=[2.0])
    fast = self_timed("ceiling: add and max in registers, uint8", lambda: next(rates), "1", "add-max/s")
    fast.group = "cpu"
    measure([fast], seconds=1e-9, repetitions=2)
    before = fast.seconds
    assert bounding([copy, slow, fast]) == [copy, fast]
    assert again([copy, fast])["cpu"].add_max == {"uint8": 5.0}
    assert fast.rate == 5.0
    assert fast.seconds is not before  # what was reported stays
