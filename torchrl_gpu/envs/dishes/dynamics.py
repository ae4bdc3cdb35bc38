"""Slices of a batch of shifts in torch, as `tests/envs/dishes/reference.py` defines them."""

from __future__ import annotations

import math
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchrl_gpu.envs.dishes.economics import MOST_BROKEN, Economics

Number = TypeVar("Number")


class Slice(NamedTuple, Generic[Number]):
    """Result of a slice of a shift; of a batch of them, tensors (N,) float32."""

    stack: Number  # dishes that wait at its end
    fatigue: Number  # at its end, in [0, 1]; wear in [0, 1)
    wear: Number
    trend: Number  # logarithm of the demand of the next slice over its usual level
    washed: Number  # dishes that were washed, the broken ones among them
    broken: Number  # dishes that broke, a whole number
    reward: Number  # EUR


def demand_of(prices: Economics, trend: Tensor) -> Tensor:
    """Dishes that come in a slice, (N,); `prices.demand` on average over the trends of a shift."""
    return prices.demand * (trend - prices.demand_swing**2 / 2).exp()


def normal(uniform: Tensor) -> Tensor:
    """Nearly normal numbers (N,) of mean 0 and variance 1, within ±3: sums of three uniform ones each, (N, 3)."""
    return 2 * (uniform.sum(1) - 1.5)


def work(
    prices: Economics,
    state: dict[str, Tensor],
    action: Tensor,
    chance: Tensor,
    weather: Tensor,
    stationary: bool = False,
) -> Slice[Tensor]:
    """Result of a slice in every shift, from its stack, fatigue, wear and trend at the beginning, (N,) float32 each.

    The action (N, 2) is speed and care in [0, 1]. `chance` (N,) in [0, 1) decides how many dishes break, as a Poisson
    number of at most `MOST_BROKEN`; `weather` (N,), standard normal, moves demand. A `stationary` shift has as many
    dishes as are wanted, and neither stack, fatigue nor wear.
    """
    speed, care = action.unbind(1)
    stack, fatigue, wear, trend = (state[name] for name in ("stack", "fatigue", "wear", "trend"))
    washed = prices.capacity * speed * (1 - prices.tired_share * fatigue)
    strain = 1 + prices.tired_odds * fatigue + prices.worn_odds * wear
    waiting = stack
    if not stationary:
        waiting = (stack + demand_of(prices, trend)).clamp_max(prices.stack_limit)
        washed = torch.minimum(waiting, washed)
        strain = strain + prices.stacked_odds * waiting / prices.stack_limit
    broken = poisson(washed * prices.fragility * speed * (1 - care) * strain, chance)
    reward = prices.value * (washed - broken) - prices.damage * broken
    reward = reward - prices.energy * speed**2 - prices.attention * care**2 - prices.wage
    if stationary:
        return Slice(stack, fatigue, wear, trend, washed, broken, reward)
    used = wear + washed * prices.wear_per_dish
    worn = used >= 1
    effort = (speed**2 + care**2) / 2
    memory = prices.demand_memory
    return Slice(
        stack=waiting - washed,
        fatigue=fatigue + prices.fatigue_rate * (effort - fatigue),
        wear=torch.where(worn, 0.0, used),
        trend=memory * trend + prices.demand_swing * math.sqrt(1 - memory**2) * weather,
        washed=washed,
        broken=broken,
        reward=reward - prices.tool * worn.to(reward),
    )


def poisson(mean: Tensor, chance: Tensor) -> Tensor:
    """Poisson numbers (N,) float32 of at most `MOST_BROKEN`: how many cumulative probabilities `chance` reaches."""
    count = torch.arange(MOST_BROKEN, device=mean.device, dtype=torch.int64)
    factors = torch.cat([(-mean).exp()[:, None], mean[:, None] / (count[1:])], 1)
    return (chance[:, None] >= factors.cumprod(1).cumsum(1)).sum(1).float()
