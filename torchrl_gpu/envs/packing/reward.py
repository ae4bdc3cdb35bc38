"""Rewards of packing: gains in utilization or in the objective J of compactness, pyramidality and stability."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import Bin, PackingState

Weights = tuple[float, float, float]
WEIGHTS = ALPHA, BETA, GAMMA = 0.75, 0.25, 0.25


def compactness(heightmap: Tensor, volume: Tensor, bin_: Bin) -> Tensor:
    """Compactness C: packed volume over that of the bin filled up to its highest cell; 0 for an empty bin.

    Args:
        heightmap: (N, X, Y) float32, metres.
        volume: (N,) float32, cubic metres packed.
        bin_: The bin.

    Returns:
        (N,) float32. Huang et al., RA-L 2023, eq. 2.
    """
    return _ratio(volume, heightmap.amax((1, 2)) * (bin_.size[0] * bin_.size[1]))


def pyramidality(heightmap: Tensor, volume: Tensor, bin_: Bin) -> Tensor:
    """Pyramidality P: packed volume over the volume under the heightmap; shapes as in `compactness`. Eq. 3."""
    return _ratio(volume, heightmap.sum((1, 2)) * bin_.cell_area)


def objective(heightmap: Tensor, volume: Tensor, stable: Tensor, bin_: Bin, weights: Weights = WEIGHTS) -> Tensor:
    """Objective J = αC + βP + γS with S = 1 where the last placement is stable.

    Args:
        heightmap: (N, X, Y) float32, metres.
        volume: (N,) float32, cubic metres packed.
        stable: (N,) bool.
        bin_: The bin.
        weights: α, β and γ; the paper's by default.

    Returns:
        (N,) float32. Eqs. 1–4, α = 0.75, β = 0.25, γ = 0.25.
    """
    alpha, beta, gamma = weights
    filled = alpha * compactness(heightmap, volume, bin_) + beta * pyramidality(heightmap, volume, bin_)
    return filled + gamma * stable.float()


def _ratio(volume: Tensor, room: Tensor) -> Tensor:
    return torch.where(room > 0, volume / room.clamp_min(1e-12), 0.0)


def _packed(state: PackingState, bin_: Bin, weights: Weights) -> Tensor:
    return state.volume / bin_.volume


def _packed_more(after: PackingState, before: PackingState, bin_: Bin, weights: Weights) -> Tensor:
    return (after.volume - before.volume) / bin_.volume


def _worth(state: PackingState, bin_: Bin, weights: Weights) -> Tensor:
    return objective(state.heightmap, state.volume, state.stable, bin_, weights)


def _worth_more(after: PackingState, before: PackingState, bin_: Bin, weights: Weights) -> Tensor:
    return _worth(after, bin_, weights) - _worth(before, bin_, weights)


# name: the sum of an episode's rewards so far, (N,), and the reward of a step that was legal, (N,)
REWARDS = {"utilization": (_packed, _packed_more), "objective": (_worth, _worth_more)}
