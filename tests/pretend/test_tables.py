"""N-tuple tables on the pretended device, where torch does the work of Triton."""

from __future__ import annotations

import logging

import pytest
import torch

from tests.pretend_cuda import waits
from torchrl_gpu.policies.packing.ntuple import values
from torchrl_gpu.policies.packing.ntuple.sweep import sweep_bins
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan, Tables
from torchrl_gpu.system.triton_kernels import load_kernels

PLAN = PatchPlan(("2x2", "1x3:1"), 4)


def played(device: str) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 6, (3, 4, 5, 4), generator=g).to(torch.uint8)
    reward, done = torch.rand(3, 4, generator=g), torch.rand(3, 4, generator=g) < 0.4
    return levels.to(device), reward.to(device), done.to(device)


def sweep_on(device: str) -> Tables:
    tables = Tables(*(torch.zeros(PLAN.entries, device=device) for _ in range(3)))
    scratch = torch.zeros(PLAN.entries, 2, dtype=torch.int64, device=device)
    given = played(device)
    # They are made once.
    values.first_images_on(PLAN, scratch.device)
    with waits() as counted:
        sweep_bins(*given, tables, PLAN, rate=0.5, lam=0.8, scratch=scratch)
    assert counted.total == 0, counted.report()
    return tables


def test_a_sweep_where_triton_is_not_learns_what_a_cpu_does_and_says_why_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    load_kernels.cache_clear()
    with caplog.at_level(logging.WARNING):
        made = [sweep_on("cuda") for _ in range(2)]
    assert len([line for line in caplog.messages if "Triton cannot run" in line]) == 1
    for tables in made:
        for ours, theirs in zip(tables, sweep_on("cpu"), strict=True):
            assert torch.equal(ours.cpu(), theirs)
