"""Rows: which there are, where they run, and how many z-maps a call of each makes."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kernels import rows as kernel_rows
from benchmarks.kernels.counts import count
from benchmarks.kernels.rows import backends, numpy_row, our_row, row_name, step_rows, unfold_row
from benchmarks.packing.drops import unfolded
from tests.benchmarks.kernels import tiny

CPU = torch.device("cpu")


def test_a_backend_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = {"eager": "", "compiled": "no compiler", "triton": ""}
    monkeypatch.setattr(kernel_rows, "available_backends", lambda device: problems)
    monkeypatch.setattr(kernel_rows, "cuda_problem", lambda: "no driver")
    used = backends(["eager", "compiled", "triton"], CPU)
    assert used.running == {"eager": CPU}
    assert used.missing == {"compiled": "no compiler", "triton": "no CUDA device: no driver"}


def test_beside_a_gpu_the_compiled_backend_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda:0")
    monkeypatch.setattr(
        kernel_rows, "available_backends", lambda device: dict.fromkeys(("eager", "compiled", "triton"), "")
    )
    monkeypatch.setattr(kernel_rows, "cuda_problem", lambda: "")
    assert backends(["eager", "compiled", "triton"], cuda).running == {"eager": cuda, "compiled": CPU, "triton": cuda}
    assert backends(["triton"], CPU).missing == {"triton": "runs on CUDA; this run is on cpu"}


def test_rows_count_z_maps_and_know_what_they_take() -> None:
    workload = tiny.workload(3, 2)
    rows = [numpy_row(workload), unfold_row(workload, CPU), our_row("eager", CPU, workload)]
    assert [row.name for row in rows] == ["NumPy, windows", "torch unfold, 3", "ours eager, 3"]
    assert [row.per_call for row in rows] == [2 * 24, 3 * 2 * 24, 3 * 2 * 24]
    for row in rows:
        row.run(2)
        assert row.extra["add_max_per_z_map"] == pytest.approx(count(workload).as_data()["add_max_per_z_map"], rel=0.01)
        assert row.extra["device"] == "cpu"
    assert rows[0].extra["num_envs"] == 1


def test_unfold_over_a_batch_is_unfold_of_each() -> None:
    workload = tiny.workload(3)
    bottoms = kernel_rows._bottoms(workload)
    assert len(bottoms) == 24
    batch = unfolded(workload.heightmap, bottoms[5], tiny.STEP)
    assert workload.catalogue.bottom is not None
    for n, item in enumerate(workload.item_id[:, 0]):
        alone = unfolded(workload.heightmap[n : n + 1], workload.catalogue.bottom[item, 5], tiny.STEP)
        assert torch.equal(batch[n : n + 1], alone)


def test_steps_are_counted_by_environment() -> None:
    (row,) = step_rows({}, [4], {"eager": CPU})
    assert (row.name, row.per_call) == (row_name("eager", 4), 4)
    row.run(3)
