"""TD(λ) of n-tuple tables over whole rollouts: step by step, which defines it, and in one C++ call on a CPU."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan, Tables, learn_bins, sweep_bins, value_bins
from torchrl_gpu.system.self_tests import SelfTest

_LOG = logging.getLogger(__name__)
_SHAPES = ("2x2", "1x3", "3x3:1")
_LEVELS = 4


class Learner(Protocol):
    """Tables that value bins and learn from errors: `PatchTables`, or those that several processes share."""

    def values(self, levels: Tensor) -> Tensor:
        """Values (N,) float32 of bins (N, X, Y) uint8."""

    def learn(self, levels: Tensor, error: Tensor, counts: Tensor, rate: float) -> None:
        """Moves the values of bins (N, X, Y), where `counts` (N,), by about `rate` times their errors (N,)."""


def sweep(
    tables: Learner, levels: Tensor, reward: Tensor, done: Tensor, rate: float, lam: float
) -> tuple[Tensor, Tensor]:
    """As `sweep_by_steps`, to the same bits: in one C++ call for plain tables on a CPU."""
    if isinstance(tables, PatchTables) and native.runs_on(tables.weight) and not _problem():
        learned = tables.sweep(levels, reward, done, rate, lam)
        if learned is not None:
            return learned
    return sweep_by_steps(tables, levels, reward, done, rate, lam)


@torch.no_grad()
def sweep_by_steps(
    tables: Learner, levels: Tensor, reward: Tensor, done: Tensor, rate: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Learns from N trajectories of T steps, from their last steps to their first.

    The last bin of a trajectory that goes on is not learned from: what came after it is not known yet.

    Args:
        tables: Learns.
        levels: (N, T, X, Y) uint8, the bins after each step.
        reward: (N, T) float32.
        done: (N, T) bool, whether the episode ended with the step.
        rate: Of the steps, as in `learn_bins`.
        lam: λ of the returns.

    Returns:
        Errors (T, N) float32, of the last step first, and whether each was learned from, bool.
    """
    bins, rewards, ends = (each.unbind(1) for each in (levels, reward, done))
    last, rows = len(bins) - 1, len(bins[0])
    goal, counts = torch.zeros_like(rewards[0]), ends[last]
    errors, counted = [], []
    before = tables.values(bins[last])
    for t in range(last, -1, -1):
        error = goal - before
        tables.learn(bins[t], error, counts, rate)
        errors.append(error)
        counted.append(counts)
        if t == 0:
            break
        value, before = tables.values(torch.cat([bins[t], bins[t - 1]])).split(rows)
        known = goal if t < last else torch.where(ends[t], goal, value)
        goal = torch.where(ends[t - 1], 0.0, rewards[t] + torch.lerp(value, known, lam))
        counts = torch.ones_like(counts)
    return torch.stack(errors), torch.stack(counted)


@cache
def _problem() -> str:
    """Reason not to sweep in one C++ call; "" where it gives the bits of single steps.

    It depends on torch as well: how its `lerp` rounds.
    """
    library = Path(native.library()._name).name
    depends_on = {"library": library, "torch": str(torch.__version__)}
    function = f"{__name__}:wrong_sweep"
    problem = SelfTest("sweeps of n-tuple tables", function, (), depends_on, forks=True).failure()
    if problem:
        _LOG.warning("sweeps of n-tuple tables go step by step: %s", problem)
    return problem


def wrong_sweep() -> str:
    """Fault of sweeps in one C++ call, found beside those step by step; "" for none."""
    for seed, (rows, steps, lam) in enumerate(((16, 5, 0.8), (21, 4, 0.3), (3, 1, 1.0))):
        if fault := _wrong_of(seed, rows, steps, lam):
            return f"{fault} of {rows} bins, {steps} steps and lam {lam}"
    return ""


class _Plain:
    """Tables of the plan of the self-test, without an environment's space."""

    def __init__(self, plan: PatchPlan, tables: Tables) -> None:
        self.plan, self.tables = plan, tables
        self._scratch = torch.zeros(plan.entries, 2, dtype=torch.int64, device="cpu")

    def values(self, levels: Tensor) -> Tensor:
        return value_bins(levels, self.tables.weight, self.plan)

    def learn(self, levels: Tensor, error: Tensor, counts: Tensor, rate: float) -> None:
        learn_bins(levels, error, counts, self.tables, self.plan, rate, self._scratch)


def _wrong_of(seed: int, rows: int, steps: int, lam: float) -> str:
    plan = PatchPlan(_SHAPES, _LEVELS)
    draw = torch.Generator().manual_seed(seed)
    levels = torch.randint(0, _LEVELS + 1, (rows, steps, 5, 6), generator=draw, dtype=torch.uint8, device="cpu")
    reward = torch.rand(rows, steps, generator=draw, dtype=torch.float32, device="cpu")
    done = torch.rand(rows, steps, generator=draw, dtype=torch.float32, device="cpu") < 0.3
    weight = torch.rand(plan.entries, generator=draw, dtype=torch.float32, device="cpu")[plan.first_images]
    whole = Tables(weight, torch.zeros_like(weight), torch.zeros_like(weight))
    single = Tables(*(each.clone() for each in whole))
    wanted = sweep_by_steps(_Plain(plan, single), levels, reward, done, 0.5, lam)
    found = sweep_bins(levels, reward, done, whole, plan, 0.5, lam)
    if found is None:
        return "no sweep"
    pairs = zip((*wanted, *single), (*found, *whole), strict=True)
    return "" if all(torch.equal(ours, theirs) for ours, theirs in pairs) else "another sweep"
