"""Sweeps of tables over rollouts: one C++ call has the bits of steps one by one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.policies.packing.ntuple.test_greedy_rollouts import threads
from tests.policies.packing.ntuple.test_values import PLANS
from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.policies import PatchTables
from torchrl_gpu.policies.packing.ntuple import sweep
from torchrl_gpu.policies.packing.ntuple.sweep import sweep_by_steps
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan, Tables, sweep_in_cpp
from torchrl_gpu.policies.spaces import AgentSpace

pytestmark = pytest.mark.skipif(bool(native.problem()), reason="no C++ compiler")


def made_tables(plan: PatchPlan, cells: int = 5) -> PatchTables:
    """Tables that have learned.

    Random weights, the same for patches that are turned or mirrored.
    """
    size = (cells, cells, plan.levels)
    env = PackingEnv(1, items=RandomBoxes(1, 2), bin_size=size, resolution=cells, device="cpu", seed=0)
    tables = PatchTables(AgentSpace.of(env), plan.shapes, plan.levels)
    draw = torch.Generator().manual_seed(7)
    tables.weight.copy_(torch.randn(plan.entries, generator=draw)[plan.first_images])
    tables.path.copy_(torch.rand(plan.entries, generator=draw) * (torch.rand(plan.entries, generator=draw) < 0.5))
    tables.drift.copy_(tables.path * torch.rand(plan.entries, generator=draw))
    return tables


def trajectories(rows: int, steps: int, levels: int, cells: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Bins that grow by boxes, as in play, and some that begin again."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.zeros(rows, steps, cells, cells, dtype=torch.uint8)
    done = torch.rand(rows, steps, generator=draw) < 0.2
    for n in range(rows):
        for t in range(1, steps):
            found[n, t] = 0 if done[n, t - 1] else found[n, t - 1]
            x, y = torch.randint(0, cells, (2,), generator=draw).tolist()
            # Some are above the highest level.
            found[n, t, x : x + 2, y : y + 3] += 1 if seed % 2 == 0 else 2
    return found, torch.rand(rows, steps, generator=draw) / 4, done


def by_steps(tables: PatchTables, levels: Tensor, reward: Tensor, done: Tensor, lam: float) -> Tensor:
    """The mean square of the errors of a sweep that goes step by step."""
    learn = partial(tables.learn, rate=0.5)
    return sweep_by_steps(levels, reward, done, lam=lam, values=tables.values, learn=learn)


def assert_same_bits(found: Tensor, wanted: Tensor) -> None:
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))


@pytest.fixture
def in_cpp(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each sweep was one C++ call."""
    found: list[bool] = []

    def noted(*given: object) -> object:
        learned = sweep_in_cpp(*given)  # type: ignore[arg-type]
        found.append(learned is not None)
        return learned

    monkeypatch.setattr(sweep, "sweep_in_cpp", noted)
    return found


def assert_same_tables(one: PatchTables, other: PatchTables) -> None:
    for name in Tables._fields:
        ours, theirs = getattr(one, name), getattr(other, name)
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32)), name


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "+".join(plan.shapes))
@pytest.mark.parametrize(("rows", "steps", "lam"), [(1, 6, 0.8), (8, 1, 0.0), (16, 5, 0.3), (37, 4, 0.5), (70, 3, 1.0)])
def test_a_sweep_has_the_bits_of_steps(plan: PatchPlan, rows: int, steps: int, lam: float, in_cpp: list[bool]) -> None:
    whole, single = made_tables(plan), made_tables(plan)
    for seed in range(3):
        played = trajectories(rows, steps, plan.levels, seed=seed)
        found = whole.sweep(*played, 0.5, lam)
        assert_same_bits(found, by_steps(single, *played, lam))
        assert_same_tables(whole, single)
    assert in_cpp == [True] * 3


@pytest.mark.parametrize("number", [2, 5])
def test_the_number_of_threads_changes_nothing(number: int) -> None:
    played = trajectories(40, 6, 3)
    made = [made_tables(PLANS[3]), made_tables(PLANS[3])]
    with threads(1):
        wanted = made[0].sweep(*played, 0.5, 0.8)
    with threads(number):
        assert_same_bits(made[1].sweep(*played, 0.5, 0.8), wanted)
    assert_same_tables(*made)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, 5000.0])
def test_errors_that_are_no_numbers_teach_nothing(value: float) -> None:
    levels, reward, done = trajectories(9, 5, 3)
    reward[2, 3], reward[4, 1] = value, -value
    whole, single = made_tables(PLANS[1]), made_tables(PLANS[1])
    found, wanted = whole.sweep(levels, reward, done, 0.5, 0.8), by_steps(single, levels, reward, done, 0.8)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert_same_tables(whole, single)


def test_tables_without_the_symmetry_of_their_patches_learn_step_by_step(in_cpp: list[bool]) -> None:
    played = trajectories(12, 4, 3)
    made = [made_tables(PLANS[0]), made_tables(PLANS[0])]
    for tables in made:
        tables.weight.add_(torch.arange(len(tables.weight)) * 1e-3)
    assert_same_bits(made[0].sweep(*played, 0.5, 0.8), by_steps(made[1], *played, 0.8))
    assert in_cpp == [False]
    assert_same_tables(*made)


def test_the_self_test_finds_a_wrong_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep.wrong_sweep() == ""

    def of_another_lam(*given: object) -> object:
        return sweep_in_cpp(*given[:-1], 0.1)

    monkeypatch.setattr(sweep, "sweep_in_cpp", of_another_lam)
    assert "lam" in sweep.wrong_sweep()


@pytest.mark.parametrize("name", ["levels", "reward", "done"])
def test_a_sweep_refuses_trajectories_of_other_forms(name: str) -> None:
    levels, reward, done = trajectories(4, 3, 3)
    given = {"levels": levels, "reward": reward, "done": done}
    given[name] = given[name].double()
    plan, tables = PLANS[0], made_tables(PLANS[0])
    held = Tables(tables.weight, tables.drift, tables.path)
    with pytest.raises(ValueError, match="heights" if name == "levels" else name):
        sweep_in_cpp(given["levels"], given["reward"], given["done"], held, plan, 0.5, 0.8)
    with pytest.raises(ValueError, match=r"levels .*\b4 × 3 bins"):
        sweep_in_cpp(levels[:3], reward, done, held, plan, 0.5, 0.8)
