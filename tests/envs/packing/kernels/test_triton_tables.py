"""Look-ups and updates of tables in Triton: the bits of C++, and checked accesses.

They run in the process that `test_triton.py` starts.
"""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch
from torch import Tensor

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("checks interpreted kernels, in the process of test_triton.py", allow_module_level=True)

from tests.envs.packing.kernels.access_checker import AccessChecker
from tests.records import with_values
from torchrl_gpu import native
from torchrl_gpu.policies.packing.ntuple import triton_tables
from torchrl_gpu.policies.packing.ntuple.sweep import sweep_bins
from torchrl_gpu.policies.packing.ntuple.triton_tables import Sweep, some_sweep
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan, Tables, learn_bins, value_bins

PLANS = [
    PatchPlan(("2x2",), 3),
    PatchPlan(("1x3", "2x3"), 3),
    PatchPlan(("3x3:1", "1x1"), 4),
    PatchPlan(("2x4:2", "1x4", "2x2:1"), 3),
]
CELLS = [(7, 6), (5, 4), (4, 3), (3, 4)]
every_plan = pytest.mark.parametrize(("plan", "cells"), list(zip(PLANS, CELLS, strict=True)))


def copied(tables: Tables) -> Tables:
    return Tables(*(each.clone() for each in tables))


def scratch_of(plan: PatchPlan) -> Tensor:
    return torch.zeros(plan.entries, 2, dtype=torch.int64)


def assert_same_bits(made: Tables, wanted: Tables) -> None:
    for ours, theirs in zip(made, wanted, strict=True):
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))


def swept(given: Sweep, plan: PatchPlan, rate: float, lam: float) -> tuple[Tables, Tensor]:
    """Tables after a sweep in Triton, and the mean square of the errors."""
    made, scratch = copied(given.tables), scratch_of(plan)
    share = rate / plan.patches(given.levels.shape[2:])
    square = triton_tables.sweep_bins(*given[:3], made, plan, share, lam, scratch)
    assert not scratch.any()
    return made, square


@every_plan
def test_bins_are_worth_the_same_bits_as_in_cpp(plan: PatchPlan, cells: tuple[int, int]) -> None:
    given = some_sweep(plan, cells, rows=20, steps=1, seed=3)
    bins = given.levels[:, 0].contiguous()
    wanted = value_bins(bins, given.tables.weight, plan)
    assert torch.equal(triton_tables.value_bins(bins, given.tables.weight, plan), wanted)
    assert len(wanted.unique()) > 5


def test_a_value_is_summed_in_the_order_of_cpp() -> None:
    """Weights whose sum no float64 holds: another order rounds to another value."""
    plan, cells = PatchPlan(("1x2", "2x2", "3x3:2"), 4), (5, 4)
    bins = some_sweep(plan, cells, rows=40, steps=1, seed=1).levels[:, 0].contiguous()
    g = torch.Generator().manual_seed(0)
    large = torch.randn(plan.entries, generator=g) * torch.exp2(60 * torch.rand(plan.entries, generator=g))
    weight = large[plan.first_images]
    # Sums that cancel to the last bit of the largest weight.
    weight = torch.where(torch.rand(plan.entries, generator=g) < 0.5, weight, -weight)
    with mock.patch.object(native, "runs_on", return_value=False):
        in_torch = value_bins(bins, weight, plan)
    wanted = value_bins(bins, weight, plan)
    assert torch.equal(triton_tables.value_bins(bins, weight, plan), wanted)
    torch.testing.assert_close(in_torch, wanted, rtol=1e-5, atol=0)


@every_plan
@pytest.mark.parametrize("lam", [0.0, 0.3, 0.8, 1.0])
def test_a_sweep_leaves_the_tables_of_a_cpu(plan: PatchPlan, cells: tuple[int, int], lam: float) -> None:
    given, wanted = some_sweep(plan, cells, seed=int(10 * lam)), scratch_of(plan)
    tables = copied(given.tables)
    square = sweep_bins(*given[:3], tables, plan, rate=0.3, lam=lam, scratch=wanted)
    made, squares = swept(given, plan, 0.3, lam)
    assert_same_bits(made, tables)
    torch.testing.assert_close(squares, square)


def test_a_sweep_of_one_step_learns_ended_episodes_alone() -> None:
    given = some_sweep(PLANS[1], CELLS[1], steps=1)
    for done in (torch.zeros_like(given.done), torch.ones_like(given.done)):
        tables, scratch = copied(given.tables), scratch_of(PLANS[1])
        played = with_values(given, done=done)
        sweep_bins(*played[:3], tables, PLANS[1], rate=0.3, lam=0.8, scratch=scratch)
        made, _ = swept(played, PLANS[1], 0.3, 0.8)
        assert_same_bits(made, tables)
        assert torch.equal(made.weight, given.tables.weight) == (not done.any())


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), 1e15, 3000.0])
def test_errors_that_are_no_numbers_or_too_large_move_what_a_cpu_moves(odd: float) -> None:
    given = some_sweep(PLANS[3], CELLS[3])
    given.reward[1, 2], given.reward[0, 3] = odd, -odd
    tables = copied(given.tables)
    sweep_bins(*given[:3], tables, PLANS[3], rate=0.3, lam=0.5, scratch=scratch_of(PLANS[3]))
    made, _ = swept(given, PLANS[3], 0.3, 0.5)
    assert_same_bits(made, tables)


@every_plan
def test_learning_moves_the_entries_that_cpp_moves(plan: PatchPlan, cells: tuple[int, int]) -> None:
    given = some_sweep(plan, cells, rows=9, steps=1, seed=2)
    bins, error = given.levels[:, 0].contiguous(), given.reward[:, 0] - 0.5
    counts = given.done[:, 0]
    tables = copied(given.tables)
    made = copied(given.tables)
    scratch = scratch_of(plan)
    learn_bins(bins, error, counts, tables, plan, 0.7, scratch)
    units = (error.double() * 2**32).round().long()
    triton_tables.learn_bins(bins, units, counts, made, plan, 0.7 / plan.patches(cells), scratch)
    assert_same_bits(made, tables)
    assert not scratch.any()
    assert 0 < int((made.weight != given.tables.weight).sum()) < plan.entries


def test_no_access_is_outside_its_tensor_and_none_races() -> None:
    given = some_sweep(PLANS[1], (3, 2), rows=2, steps=2)
    with AccessChecker() as checker:
        made, _ = swept(given, PLANS[1], 0.3, 0.8)
        bins = given.levels[:, 0].contiguous()
        triton_tables.value_bins(bins, made.weight, PLANS[1])
        units, counts = torch.tensor([5, 7]), torch.tensor([True, True])
        triton_tables.learn_bins(bins, units, counts, made, PLANS[1], 0.1, scratch_of(PLANS[1]))
    assert not checker.faults, checker.describe()
    names = {launch.kernel for launch in checker.launches}
    assert names == {"sweep_kernel", "move_entries_kernel", "value_bins_kernel", "add_errors_kernel"}


def test_a_sweep_is_two_launches_a_step() -> None:
    given = some_sweep(PLANS[0], (3, 2), rows=2, steps=3)
    with AccessChecker() as checker:
        swept(given, PLANS[0], 0.3, 0.8)
    assert [launch.kernel for launch in checker.launches] == ["sweep_kernel", "move_entries_kernel"] * 3


def test_tables_are_tried_before_they_are_learnt_in_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton_tables.self_test("cpu") == ""
    right = triton_tables.move
    monkeypatch.setattr(triton_tables, "move", lambda *given: right(*given[:5], given[5] * 1.001, *given[6:]))
    assert "the weight after a sweep in (5, 4) cells" in triton_tables.self_test("cpu")
    monkeypatch.setattr(triton_tables, "value_bins", lambda bins, weight, plan: weight[: len(bins)])
    assert "the values of (5, 4) cells" in triton_tables.self_test("cpu")


def test_tables_learn_nothing_from_no_bins() -> None:
    plan = PLANS[0]
    empty = torch.zeros(0, 4, 4, dtype=torch.uint8)
    tables = some_sweep(plan, (4, 4)).tables
    assert triton_tables.value_bins(empty, tables.weight, plan).shape == (0,)
    before = copied(tables)
    none = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool)
    triton_tables.learn_bins(empty, *none, tables, plan, 0.1, scratch_of(plan))
    assert_same_bits(tables, before)
