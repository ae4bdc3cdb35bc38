"""Sweeps of tables on a GPU: what is refused, and the tables of a CPU to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.policies import PatchTables
from torchrl_gpu.policies.packing.ntuple.sweeps import sweep, sweep_by_steps
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan, Tables, check_sweep
from torchrl_gpu.policies.spaces import AgentSpace

PLAN = PatchPlan(("2x2",), 3)


def played(rows: int, steps: int, cells: int, levels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    bins = torch.randint(0, levels + 1, (rows, steps, cells, cells), generator=g).to(torch.uint8)
    return bins, torch.rand(rows, steps, generator=g), torch.rand(rows, steps, generator=g) < 0.3


@pytest.mark.parametrize("name", ["heights", "reward", "done", "weight", "scratch"])
def test_a_sweep_names_what_it_refuses(name: str) -> None:
    bins, reward, done = played(2, 3, 4, 3)
    given: dict[str, Any] = {"heights": bins, "reward": reward, "done": done, "weight": torch.zeros(PLAN.entries)}
    given |= {"scratch": torch.zeros(PLAN.entries, 2, dtype=torch.int64)}
    given[name] = given[name].float() if name == "heights" else given[name][:1]
    tables = Tables(given["weight"], torch.zeros(PLAN.entries), torch.zeros(PLAN.entries))
    with pytest.raises(ValueError, match=name):
        check_sweep(given["heights"], given["reward"], given["done"], tables, PLAN, given["scratch"])


@pytest.mark.gpu
@pytest.mark.parametrize("shapes", [["2x2", "1x4"], ["3x3:2", "2x4:2", "1x1"]])
def test_a_gpu_learns_the_tables_of_a_cpu_to_the_bit(shapes: list[str]) -> None:
    env = PackingEnv(2, items=RandomBoxes(1, 3), device="cpu")
    on_cpu, on_gpu = (PatchTables(AgentSpace.of(env), shapes) for _ in range(2))
    on_gpu.cuda()
    steps = played(300, 12, 10, on_cpu.plan.levels)
    for _ in range(2):
        wanted = sweep_by_steps(on_cpu, *steps, 0.5, 0.8)
        made = sweep(on_gpu, *(each.cuda() for each in steps), 0.5, 0.8)
    for ours, theirs in zip((*made, *on_gpu.buffers()), (*wanted, *on_cpu.buffers()), strict=True):
        assert torch.equal(ours.cpu(), theirs)
