"""Slices of a batch of shifts, in torch.

`tests/envs/dishes/reference.py` defines them in NumPy.
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchrl_gpu.envs.dishes.economics import MOST_BROKEN, Economics

Number = TypeVar("Number")


class Slice(NamedTuple, Generic[Number]):
    """Result of a slice of a shift, or of a batch of them as tensors (N,) float32.

    Attributes:
        stack: Dishes that wait at its end.
        fatigue: At its end, in [0, 1].
        wear: At its end, in [0, 1).
        trend: Logarithm of the demand of the next slice over its usual level.
        washed: Dishes that were washed, including the broken ones.
        broken: Dishes that broke, a whole number.
        reward: EUR.
    """

    stack: Number
    fatigue: Number
    wear: Number
    trend: Number
    washed: Number
    broken: Number
    reward: Number


def demand_of(prices: Economics, trend: Tensor) -> Tensor:
    """Return the dishes that come in a slice, (N,).

    On average over the trends of a shift they are `prices.demand`.
    """
    return prices.demand * (trend - prices.demand_swing**2 / 2).exp()


def normal(uniform: Tensor) -> Tensor:
    """Return nearly normal numbers (N,) of mean 0 and variance 1, within ±3.

    Each is a sum of three uniform ones, (N, 3). Exact normal numbers have no bounds, so that no state of a shift would
    have any.
    """
    return 2 * (uniform.sum(1) - 1.5)


def work(
    prices: Economics,
    state: dict[str, Tensor],
    action: Tensor,
    chance: Tensor,
    weather: Tensor,
    stationary: bool = False,
) -> Slice[Tensor]:
    """Return the result of a slice in every shift.

    Args:
        prices: Prices and rates.
        state: Stack, fatigue, wear and trend at the beginning, (N,) float32 each.
        action: Speed and care in [0, 1], (N, 2).
        chance: Decides how many dishes break, a Poisson number of at most `MOST_BROKEN`; (N,) in [0, 1).
        weather: Moves demand; (N,), of mean 0 and variance 1.
        stationary: Whether there are always enough dishes, and neither stack, fatigue nor wear.
    """
    speed, care = action.unbind(1)
    stack = state["stack"]
    fatigue = state["fatigue"]
    wear = state["wear"]
    trend = state["trend"]
    washed = prices.capacity * speed * (1 - prices.tired_share * fatigue)
    strain = 1 + prices.tired_odds * fatigue + prices.worn_odds * wear
    waiting = stack
    if not stationary:
        waiting = (stack + demand_of(prices, trend)).clamp_max(prices.stack_limit)
        washed = torch.minimum(waiting, washed)
        strain = strain + prices.stacked_odds * waiting / prices.stack_limit
    carelessness = 1 - care
    mean_broken = washed * prices.fragility * speed * carelessness * strain
    broken = poisson(mean_broken, chance)
    sales = prices.value * (washed - broken)
    reward = sales - prices.damage * broken
    reward = reward - prices.energy * speed**2
    reward = reward - prices.attention * care**2
    reward = reward - prices.wage
    if stationary:
        return Slice(stack, fatigue, wear, trend, washed, broken, reward)
    used = wear + washed * prices.wear_per_dish
    worn = used >= 1
    reward = reward - prices.tool * worn.to(reward)
    effort = (speed**2 + care**2) / 2
    fatigue = fatigue + prices.fatigue_rate * (effort - fatigue)
    # The noise keeps the variance of the trend the same from slice to slice.
    memory = prices.demand_memory
    deviation = prices.demand_swing * math.sqrt(1 - memory**2)
    noise = deviation * weather
    return Slice(
        stack=waiting - washed,
        fatigue=fatigue,
        wear=torch.where(worn, 0.0, used),
        trend=memory * trend + noise,
        washed=washed,
        broken=broken,
        reward=reward,
    )


def poisson(mean: Tensor, chance: Tensor) -> Tensor:
    """Return Poisson numbers (N,) float32 of at most `MOST_BROKEN`.

    Each is how many cumulative probabilities its `chance` reaches. `torch.poisson` would take a generator's numbers,
    which no seed of an environment determines.
    """
    count = torch.arange(MOST_BROKEN, device=mean.device, dtype=torch.int64)
    # The probability of k is that of k − 1, times mean / k.
    of_none = (-mean).exp()
    ratios = mean[:, None] / (count[1:])
    factors = torch.cat([of_none[:, None], ratios], 1)
    cumulative = factors.cumprod(1).cumsum(1)
    return (chance[:, None] >= cumulative).sum(1).float()
