"""Ratios and shares of measured rows."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.kernels.ceilings import Ceilings
from benchmarks.kernels.report import Section, as_data, duration
from torchrl_gpu.bench.timing import TimedRow

CEILINGS = {"cpu": Ceilings(copy=1000.0, add_max={"torch": 100.0, "float32": 200.0, "uint8": 400.0})}


def row(name: str, seconds: float, backend: str, operations: float | None = 10.0) -> TimedRow:
    facts: dict[str, object] = {"backend": backend, "device": "cpu", "num_envs": 4, "bytes_per_z_map": 5.0}
    return TimedRow(name, lambda calls: None, seconds=[seconds], extra=facts | {"add_max_per_z_map": operations})


def data(*rows: TimedRow) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in as_data(Section("a", "z-maps/s", list(rows)), CEILINGS)["rows"]}


def test_ratios_are_to_both_peers_and_to_eager_at_the_same_batch() -> None:
    found = data(
        row("NumPy, windows", 1.0, "numpy"),
        row("torch unfold, 1", 2.0, "unfold"),
        row("torch unfold, 8", 4.0, "unfold"),
        row("ours eager, 4", 0.5, "eager"),
        row("ours compiled, 4", 0.05, "compiled"),
    )
    assert found["ours eager, 4"]["ratios"] == {"numpy_windows": 2.0, "torch_unfold": 4.0}
    assert found["ours compiled, 4"]["ratios"] == {
        "numpy_windows": pytest.approx(20.0),
        "torch_unfold": pytest.approx(40.0),
        "ours_eager": pytest.approx(10.0),
    }
    assert found["torch unfold, 8"]["ratios"] == {"numpy_windows": 0.25}


def test_shares_are_of_every_ceiling_and_of_the_floor() -> None:
    found = data(row("ours compiled, 4", 0.05, "compiled"))["ours compiled, 4"]  # 20 z-maps of 10 operations a second
    assert found["add_max_per_s"] == pytest.approx(200.0)
    assert found["shares_of_add_max"] == {
        k: pytest.approx(v) for k, v in (("torch", 2), ("float32", 1), ("uint8", 0.5))
    }
    assert found["share_of_copy"] == pytest.approx(0.1)
    assert (found["floor_s"], found["bound_by"]) == (10 / 400, "operations")
    assert found["share_of_floor"] == pytest.approx(0.5)


def test_boxes_are_bound_by_bytes() -> None:
    found = data(row("ours eager, 4", 0.05, "eager", operations=None))["ours eager, 4"]
    assert found["bound_by"] == "bytes"
    assert found["share_of_floor"] == found["share_of_copy"] == pytest.approx(0.1)
    assert "shares_of_add_max" not in found


@pytest.mark.parametrize(
    ("seconds", "shown"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.5e-5, "45 µs"), (3.21e-8, "32.1 ns")]
)
def test_durations_have_three_digits(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
