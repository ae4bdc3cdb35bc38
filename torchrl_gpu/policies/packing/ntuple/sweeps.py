"""TD(λ) of n-tuple tables over whole rollouts: step by step, which defines it, and in Triton on a CUDA device."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from torchrl_gpu.policies.packing.ntuple.tables import PatchTables


class Learner(Protocol):
    """Tables that value bins and learn from errors: `PatchTables`, or those that several processes share."""

    def values(self, levels: Tensor) -> Tensor:
        """Values (N,) float32 of bins (N, X, Y) uint8."""

    def learn(self, levels: Tensor, error: Tensor, counts: Tensor, rate: float) -> None:
        """Moves the values of bins (N, X, Y), where `counts` (N,), by about `rate` times their errors (N,)."""


def sweep(
    tables: Learner, levels: Tensor, reward: Tensor, done: Tensor, rate: float, lam: float
) -> tuple[Tensor, Tensor]:
    """As `sweep_by_steps`, to the same bits: for plain tables on a CUDA device with Triton in two launches a step."""
    if isinstance(tables, PatchTables):
        learned = tables.sweep_on_gpu(levels, reward, done, rate, lam)
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
