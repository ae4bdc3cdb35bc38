"""Every point of a sweep is measured, or says why not."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.kernels import sweep as kernel_sweep
from benchmarks.kernels.ceilings import Ceilings
from benchmarks.kernels.rows import Backends
from tests.benchmarks.kernels import tiny
from torchrl_gpu.bench.timing import TimedRow

CPU = torch.device("cpu")
USED = Backends({"eager": CPU}, {"triton": "no CUDA device: none"})
CEILINGS = {"cpu": Ceilings(1e9, {"torch": 1e9, "uint8": 2e9})}
SMALL = {"num_envs": (1, 4), "resolution": (13, 26), "footprint": (3, 6), "visible": (1, 2)}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_sweep, "AXES", SMALL)


def arguments(**changes: Any) -> Namespace:
    fixed = {"footprint": tiny.SIDE, "resolution": tiny.RESOLUTION, "grid_step": tiny.STEP, "sweep_envs": 2}
    return Namespace(**fixed | {"point_seconds": 1.0, "memory_gib": 1.0, "axes": list(SMALL)} | changes)


def swept(args: Namespace) -> dict[str, Any]:
    return kernel_sweep.run(kernel_sweep.lines(args), USED, CPU, lambda: CEILINGS, args)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timing of each row."""

    def measure(rows: list[TimedRow], *args: Any, **kwargs: Any) -> None:
        for row in rows:
            row.seconds = [0.5]

    monkeypatch.setattr(kernel_sweep, "measure", measure)


@pytest.mark.usefixtures("quick")
def test_every_axis_has_every_value() -> None:
    points = swept(arguments())["points"]
    assert {(p["axis"], p["value"]) for p in points} == {(axis, v) for axis, values in SMALL.items() for v in values}
    assert {p["row"] for p in points if p["kind"] == "boxes"} == {"NumPy, windows", "ours eager"}
    assert {p["row"] for p in points if p["kind"] != "boxes"} == {"NumPy, windows", "torch unfold", "ours eager"}
    assert [p["value"] for p in points if p["axis"] == "num_envs" and p["row"] == "NumPy, windows"] == [1, 1]
    assert all(p["seconds_per_env"] > 0 for p in points)


@pytest.mark.usefixtures("quick")
def test_costs_are_of_one_environment() -> None:
    points = swept(arguments(axes=["visible"]))["points"]
    (eager,) = (p for p in points if p["row"] == "ours eager" and p["value"] == 2)
    assert eager["num_envs"] == 2
    assert eager["seconds_per_env"] == pytest.approx(0.25)  # half a second for two
    assert eager["seconds_per_z_map"] == pytest.approx(0.25 / 48)
    assert eager["floor_per_env"] == pytest.approx(48 * eager["add_max_per_z_map"] / 2e9)
    assert eager["bound_by"] == "operations"


@pytest.mark.usefixtures("quick")
def test_what_takes_too_long_is_written_down_and_then_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def slow(name: str, device: torch.device, workload: Any) -> TimedRow:
        calls.append(workload.num_envs)
        return TimedRow(name, lambda calls: None)

    clock = iter(range(10_000))
    monkeypatch.setattr(kernel_sweep, "our_row", slow)
    monkeypatch.setattr(kernel_sweep.time, "perf_counter", lambda: 3.0 * next(clock))
    points = [p for p in swept(arguments(axes=["num_envs"]))["points"] if p["row"] == "ours eager"]
    assert [(p["kind"], p["value"], p["shown"]) for p in points] == [
        ("boxes", 1, "> 1 s"),
        ("boxes", 4, "> 1 s"),
        ("irregular", 1, "> 1 s"),
        ("irregular", 4, "> 1 s"),
    ]
    assert points[0]["skipped"] == "takes 15 s, of 1 s"  # five calls of three seconds
    assert points[1]["skipped"].startswith("takes about ")
    assert calls == [1, 1]


def test_what_needs_too_much_memory_is_written_down() -> None:
    points = swept(arguments(axes=["resolution"], memory_gib=1e-9))["points"]
    assert {p["shown"] for p in points} == {"memory"}
    assert all(p["skipped"].startswith("needs about ") for p in points)


@pytest.mark.usefixtures("quick")
def test_running_out_of_memory_is_a_point_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(calls: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(kernel_sweep, "our_row", lambda name, device, workload: TimedRow(name, exhausted))
    points = [p for p in swept(arguments(axes=["footprint"]))["points"] if p["row"] == "ours eager"]
    assert [p["skipped"] for p in points] == ["ran out of memory"] * 2


def test_another_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(calls: int) -> None:
        raise RuntimeError("wrong shape")

    monkeypatch.setattr(kernel_sweep, "our_row", lambda name, device, workload: TimedRow(name, broken))
    with pytest.raises(RuntimeError, match="wrong shape"):
        swept(arguments(axes=["footprint"]))


def test_parity_is_looked_for_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def checks(workload: Any, running: Any) -> Iterator[dict[str, Any]]:
        seen.append((workload.bin_.cells[0], workload.maps_per_env))
        yield {"row": "ours eager", "num_envs": 1, "difference": "z_map differs"}

    monkeypatch.setattr(kernel_sweep.kernel_parity, "checks", checks)
    found = list(kernel_sweep.parity(kernel_sweep.lines(arguments()), USED))
    assert seen == [(10, 2), (26, 2), (13, 2), (26, 2), (26, 2), (26, 2), (26, 2)]
    assert found[2]["setting"] == "sweep of resolution, irregular, 13, ours eager"
    assert all(check["difference"] for check in found)
