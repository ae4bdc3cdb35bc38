"""A backward sweep of TD(λ), by which n-tuple tables learn from played steps.

Sutton and Barto 2018, 12.1 (λ-returns), over afterstates. `sweep_by_steps` is the definition: it goes from the last
steps of all environments to their first, looks up what the bins are worth, and learns them towards their λ-returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.policies.packing.ntuple.values import (
    TRITON_TABLES,
    PatchPlan,
    Tables,
    check_tables,
    in_triton,
    learn_bins,
    sweep_in_cpp,
    value_bins,
)
from torchrl_gpu.system.arguments import tensor
from torchrl_gpu.system.self_tests import SelfTest

_LOG = logging.getLogger(__name__)

# Give the values (N,) float32 of bins (N, X, Y) uint8, in levels.
Values = Callable[[Tensor], Tensor]
# Move the values of bins (N, X, Y) by their errors (N,) float32, if they count, (N,) bool.
Learn = Callable[[Tensor, Tensor, Tensor], None]


@torch.no_grad()
def sweep_bins(
    levels: Tensor,
    reward: Tensor,
    done: Tensor,
    tables: Tables,
    plan: PatchPlan,
    *,
    rate: float,
    lam: float,
    scratch: Tensor,
) -> Tensor:
    """Learn tables in place from T steps of N environments.

    The result is the mean square of the errors, () float32.

    Args:
        levels: (N, T, X, Y) uint8, the bins after each step.
        reward: (N, T) float32, of the step.
        done: (N, T) bool, whether the episode ended with the step.
        tables: Written to.
        plan: Their patches.
        rate: Share of an error that is taken away, as in `learn_bins`.
        lam: λ of the returns, from 0 to 1.
        scratch: (E, 2) int64, zeros before and after.
    """
    device = levels.device
    shape = tuple(levels.shape[:2])
    reward = tensor("sweep_bins", "reward", reward, torch.float32, shape, device).contiguous()
    done = tensor("sweep_bins", "done", done, torch.bool, shape, device).contiguous()
    check_tables("sweep_bins", levels.flatten(0, 1), tables, plan, scratch)
    kernels = in_triton(TRITON_TABLES, device)
    if kernels is not None:
        share = rate / plan.patches(levels.shape[2:])
        return kernels.sweep_bins(levels.contiguous(), reward, done, tables, plan, share, lam, scratch)
    if native.runs_on(levels) and not _cpp_problem():
        square = _sweep_in_cpp(levels, reward, done, tables, plan, rate, lam)
        if square is not None:
            return square
    values = partial(value_bins, weight=tables.weight, plan=plan)

    def learn(bins: Tensor, error: Tensor, counts: Tensor) -> None:
        learn_bins(bins, error, counts, tables, plan, rate, scratch)

    return sweep_by_steps(levels, reward, done, lam=lam, values=values, learn=learn)


@torch.no_grad()
def sweep_by_steps(levels: Tensor, reward: Tensor, done: Tensor, *, lam: float, values: Values, learn: Learn) -> Tensor:
    """Definition of `sweep_bins`, of tables given by two functions.

    The last bin of a trajectory that was not finished is not learned from: what came after it is not known yet.
    """
    # Unbound once: indexing step by step would cost as much as a small sweep.
    bins = levels.unbind(1)
    rewards = reward.unbind(1)
    ends = done.unbind(1)
    last = len(bins) - 1
    rows = len(bins[0])
    goal = torch.zeros_like(rewards[0])
    counts = ends[last]
    squares = []
    before = values(bins[last])
    for t in range(last, -1, -1):
        error = goal - before
        learn(bins[t], error, counts)
        squares.append(torch.where(counts, error.square(), 0.0).mean())
        if t == 0:
            break
        # One look-up for both bins, of which the earlier one is learned next, and the later one has just moved.
        both = torch.cat([bins[t], bins[t - 1]])
        value, before = values(both).split(rows)
        known = goal
        # What follows the last step is known only of episodes that ended: of others the value stands in for it.
        if t == last:
            known = torch.where(ends[t], goal, value)
        mixed = torch.lerp(value, known, lam)
        ends_before = ends[t - 1]
        goal = torch.where(ends_before, 0.0, rewards[t] + mixed)
        counts = torch.ones_like(counts)
    return torch.stack(squares).mean()


# -- in one C++ call --


def _sweep_in_cpp(
    levels: Tensor,
    reward: Tensor,
    done: Tensor,
    tables: Tables,
    plan: PatchPlan,
    rate: float,
    lam: float,
) -> Tensor | None:
    learned = sweep_in_cpp(levels, reward, done, tables, plan, rate, lam)
    if learned is None:
        return None
    error, counts = learned
    return torch.where(counts, error.square(), 0.0).mean(1).mean()


@cache
def _cpp_problem() -> str:
    """Reason not to sweep in one C++ call, or "".

    The sweep must give the bits of single steps. That depends on torch as well: on how its `lerp` rounds.
    """
    library = Path(native.library()._name).name
    depends_on = {"library": library, "torch": str(torch.__version__)}
    function = f"{__name__}:wrong_sweep"
    problem = SelfTest("sweeps of n-tuple tables", function, (), depends_on, forks=True).failure()
    if problem:
        _LOG.warning("sweeps of n-tuple tables go step by step: %s", problem)
    return problem


def wrong_sweep() -> str:
    """Fault of sweeps in one C++ call compared with single steps, or ""."""
    cases = [(16, 5, 0.8), (21, 4, 0.3), (3, 1, 1.0)]
    for seed, (rows, steps, lam) in enumerate(cases):
        fault = _fault_of(seed, rows, steps, lam)
        if fault:
            return f"{fault} of {rows} bins, {steps} steps and lam {lam}"
    return ""


def _fault_of(seed: int, rows: int, steps: int, lam: float) -> str:
    """Fault of a sweep over random bins, or ""."""
    plan = PatchPlan(("2x2", "1x3", "3x3:1"), 4)
    draw = torch.Generator().manual_seed(seed)
    # Few cells and levels, so that bins share entries and many are walls.
    levels = torch.randint(0, 5, (rows, steps, 5, 6), generator=draw, dtype=torch.uint8, device="cpu")
    reward = torch.rand(rows, steps, generator=draw, dtype=torch.float32, device="cpu")
    chance = torch.rand(rows, steps, generator=draw, dtype=torch.float32, device="cpu")
    done = chance < 0.3
    drawn = torch.rand(plan.entries, generator=draw, dtype=torch.float32, device="cpu")
    weight = drawn[plan.first_images]
    whole = Tables(weight, torch.zeros_like(weight), torch.zeros_like(weight))
    single = Tables(*(each.clone() for each in whole))
    scratch = torch.zeros(plan.entries, 2, dtype=torch.int64, device="cpu")

    def learn(bins: Tensor, error: Tensor, counts: Tensor) -> None:
        learn_bins(bins, error, counts, single, plan, 0.5, scratch)

    values = partial(value_bins, weight=single.weight, plan=plan)
    wanted = sweep_by_steps(levels, reward, done, lam=lam, values=values, learn=learn)
    found = _sweep_in_cpp(levels, reward, done, whole, plan, 0.5, lam)
    if found is None:
        return "no sweep"
    pairs = zip((wanted, *single), (found, *whole), strict=True)
    are_equal = [torch.equal(one, other) for one, other in pairs]
    return "" if all(are_equal) and not scratch.any() else "another sweep"
