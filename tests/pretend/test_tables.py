"""N-tuple tables on the pretended device, where Triton is not: the plain way, which waits for nothing."""

from __future__ import annotations

import logging

import pytest
import torch

from tests.pretend_cuda import waits
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.policies import PatchTables
from torchrl_gpu.policies.packing.ntuple import values
from torchrl_gpu.policies.packing.ntuple.sweeps import sweep
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system.triton_kernels import load_kernels


def sweep_on(device: str) -> PatchTables:
    env = PackingEnv(2, bin_size=(4.0, 4.0, 4.0), resolution=4, items=RandomBoxes(1, 3), device="cpu")
    tables = PatchTables(AgentSpace.of(env), ["2x2", "1x3:1"]).to(device)
    g = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 6, (3, 4, 4, 4), generator=g).to(device, torch.uint8)
    reward, done = torch.rand(3, 4, generator=g).to(device), (torch.rand(3, 4, generator=g) < 0.4).to(device)
    values._first_images(tables.plan, levels.device)  # is made once
    with waits() as counted:
        sweep(tables, levels, reward, done, 0.5, 0.8)
    assert counted.total == 0, counted.report()
    return tables


def test_a_sweep_where_triton_is_not_learns_what_a_cpu_does_and_says_why_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    load_kernels.cache_clear()
    with caplog.at_level(logging.WARNING):
        made = [sweep_on("cuda") for _ in range(2)]
    assert len([line for line in caplog.messages if "tables of afterstates: Triton cannot run" in line]) == 1
    for tables in made:
        for ours, theirs in zip(tables.buffers(), sweep_on("cpu").buffers(), strict=True):
            assert torch.equal(ours.cpu(), theirs)
