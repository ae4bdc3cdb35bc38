"""Rewards of packing: gains in utilization, or in the objective J.

Huang et al., RA-L 2023, eqs. 1–4: J weighs compactness, pyramidality and stability.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import Bin, PackingState

Weights = tuple[float, float, float]
ALPHA = 0.75
BETA = 0.25
GAMMA = 0.25
WEIGHTS = (ALPHA, BETA, GAMMA)
REWARDS = ("utilization", "objective")


def compactness(heightmap: Tensor, volume: Tensor, bin_: Bin) -> Tensor:
    """Return the compactness C.

    Packed volume over that of the bin filled to its highest cell. Huang et al., RA-L 2023, eq. 2.

    Args:
        heightmap: Metres, (N, X, Y) float32.
        volume: Packed, cubic metres, (N,) float32.
        bin_: The bin.

    Returns:
        (N,) float32; 0 for an empty bin.
    """
    return _ratio(volume, heightmap.amax((1, 2)) * (bin_.size[0] * bin_.size[1]))


def pyramidality(heightmap: Tensor, volume: Tensor, bin_: Bin) -> Tensor:
    """Return the pyramidality P: packed volume over the volume under the heightmap.

    Shape (N,).

    Huang et al., RA-L 2023, eq. 3.
    """
    return _ratio(volume, heightmap.sum((1, 2)) * bin_.cell_area)


def objective(heightmap: Tensor, volume: Tensor, stable: Tensor, bin_: Bin, weights: Weights = WEIGHTS) -> Tensor:
    """Return the objective J = αC + βP + γS, (N,).

    S is 1 where the last placement is `stable`. Huang et al., RA-L 2023, eqs. 1–4; the weights α, β and γ are theirs by
    default.
    """
    alpha, beta, gamma = weights
    filled = alpha * compactness(heightmap, volume, bin_) + beta * pyramidality(heightmap, volume, bin_)
    return filled + gamma * stable.float()


def _ratio(volume: Tensor, room: Tensor) -> Tensor:
    return torch.where(room > 0, volume / room.clamp_min(1e-12), 0.0)


def reward_so_far(kind: str, state: PackingState, bin_: Bin, weights: Weights) -> Tensor:
    """Return the sum of an episode's rewards so far, of a kind of `REWARDS`.

    Shape (N,) float32.
    """
    if kind == "utilization":
        return state.volume / bin_.volume
    return objective(state.heightmap, state.volume, state.stable, bin_, weights)


def reward_of_step(kind: str, after: PackingState, before: PackingState, bin_: Bin, weights: Weights) -> Tensor:
    """Return the reward of a legal step, of a kind of `REWARDS`, (N,) float32."""
    if kind == "utilization":
        return (after.volume - before.volume) / bin_.volume
    return reward_so_far(kind, after, bin_, weights) - reward_so_far(kind, before, bin_, weights)
