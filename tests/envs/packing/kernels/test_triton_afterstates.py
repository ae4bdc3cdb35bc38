"""The values of placements in Triton.

They agree with torch where Triton interprets, and every access is inside its tensor.

They run in the process that `test_triton.py` starts.
"""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("checks interpreted kernels, in the process of test_triton.py", allow_module_level=True)

from tests.envs.packing.kernels.access_checker import AccessChecker
from torchrl_gpu.policies.packing.ntuple import triton_values as triton_afterstates
from torchrl_gpu.policies.packing.ntuple import values as afterstates
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan

PLANS = [
    PatchPlan(("2x2",), 3),
    PatchPlan(("1x3", "2x3"), 3),
    PatchPlan(("3x3:1", "1x1"), 4),
    PatchPlan(("2x4:2", "1x4", "2x2:1"), 3),
]


@pytest.mark.parametrize(
    ("plan", "cells", "step", "pool"),
    [(PLANS[0], (9, 8), 1, 1), (PLANS[1], (5, 4), 2, 1), (PLANS[2], (4, 3), 1, 2), (PLANS[3], (3, 4), 2, 3)],
    ids=["two programs for a bin", "a coarse grid", "pools", "pools beside the grid"],
)
def test_placements_are_worth_what_torch_says(plan: PatchPlan, cells: tuple[int, int], step: int, pool: int) -> None:
    given = triton_afterstates.some_placements(plan, cells, step, pool, rows=2, seed=step + pool)
    made = triton_afterstates.value_placements(*given, plan, step, pool)
    torch.testing.assert_close(made, afterstates.by_torch(*given, plan, step, pool), rtol=1e-4, atol=1e-4)
    assert 0 < made.isfinite().sum() < made.numel()


@pytest.mark.parametrize("pool", [1, 2])
def test_no_access_is_outside_its_tensor_and_none_races(pool: int) -> None:
    given = triton_afterstates.some_placements(PLANS[1], (3, 4), 1, pool, rows=1)
    with AccessChecker() as checker:
        triton_afterstates.value_placements(*given, PLANS[1], 1, pool)
    assert not checker.faults, checker.describe()
    assert {launch.kernel for launch in checker.launches} == {"value_bins_kernel", "value_placements_kernel"}


def test_it_is_tried_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton_afterstates.self_test("cpu") == ""
    wrong = triton_afterstates.value_placements
    monkeypatch.setattr(triton_afterstates, "value_placements", lambda *given: wrong(*given) * 1.01)
    assert "values of (5, 4) cells" in triton_afterstates.self_test("cpu")


def test_no_bins_hold_a_box_of_no_or_endless_size() -> None:
    heights, extent, top, legal, weight = triton_afterstates.some_placements(PLANS[0], (3, 3), 1, 1, rows=1)
    for sides in ([2**32 + 1, 1], [1, 2**62], [0, 1], [1, -(2**40)]):
        extent[:] = torch.tensor(sides)
        made = triton_afterstates.value_placements(
            heights, extent, top, legal.fill_(True), weight, PLANS[0], step=1, pool=1
        )
        assert bool((made == -torch.inf).all()), sides


def test_no_bins_are_no_launch() -> None:
    empty = [each[:0] for each in triton_afterstates.some_placements(PLANS[0], (5, 4), 1, 1)[:4]]
    weight = torch.zeros(PLANS[0].entries)
    assert triton_afterstates.value_placements(*empty, weight, PLANS[0], 1, 1).shape == (0, 2, 5, 4)
