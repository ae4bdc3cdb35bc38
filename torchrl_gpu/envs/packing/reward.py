"""Rewards of packing: gains in utilization or in the objective J of compactness, pyramidality and stability."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import Bin, PackingState

Weights = tuple[float, float, float]
WEIGHTS = ALPHA, BETA, GAMMA = 0.75, 0.25, 0.25
REWARDS = ("utilization", "objective")


def compactness(heightmap: Tensor, volume: Tensor, bin_: Bin) -> Tensor:
    """Compactness C (N,): packed volume (N,) over that of the bin filled up to its highest cell; 0 for an empty bin.

    Heightmaps are (N, X, Y), metres. Huang et al., RA-L 2023, eq. 2.
    """
    return _ratio(volume, heightmap.amax((1, 2)) * (bin_.size[0] * bin_.size[1]))


def pyramidality(heightmap: Tensor, volume: Tensor, bin_: Bin) -> Tensor:
    """Pyramidality P (N,): packed volume over the volume under the heightmap. Huang et al., RA-L 2023, eq. 3."""
    return _ratio(volume, heightmap.sum((1, 2)) * bin_.cell_area)


def objective(heightmap: Tensor, volume: Tensor, stable: Tensor, bin_: Bin, weights: Weights = WEIGHTS) -> Tensor:
    """Objective J = αC + βP + γS, (N,), with S = 1 where the last placement is `stable` (N,).

    Huang et al., RA-L 2023, eqs. 1–4; the weights α, β and γ are theirs by default.
    """
    alpha, beta, gamma = weights
    filled = alpha * compactness(heightmap, volume, bin_) + beta * pyramidality(heightmap, volume, bin_)
    return filled + gamma * stable.float()


def _ratio(volume: Tensor, room: Tensor) -> Tensor:
    return torch.where(room > 0, volume / room.clamp_min(1e-12), 0.0)


def reward_so_far(kind: str, state: PackingState, bin_: Bin, weights: Weights) -> Tensor:
    """Sum of an episode's rewards so far, of a kind of `REWARDS`; (N,) float32."""
    if kind == "utilization":
        return state.volume / bin_.volume
    return objective(state.heightmap, state.volume, state.stable, bin_, weights)


def reward_of_step(kind: str, after: PackingState, before: PackingState, bin_: Bin, weights: Weights) -> Tensor:
    """Reward of a legal step, of a kind of `REWARDS`; (N,) float32."""
    if kind == "utilization":
        return (after.volume - before.volume) / bin_.volume
    return reward_so_far(kind, after, bin_, weights) - reward_so_far(kind, before, bin_, weights)
