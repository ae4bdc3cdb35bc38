"""One slice of one shift in NumPy: the definition that `dynamics` must agree with."""

from __future__ import annotations

import numpy as np

from torchrl_gpu.envs.dishes.dynamics import Slice
from torchrl_gpu.envs.dishes.economics import MOST_BROKEN, Economics


def demand_of(prices: Economics, trend: float) -> float:
    """Dishes that come in a slice; `prices.demand` on average over the trends of a shift."""
    return prices.demand * float(np.exp(trend - prices.demand_swing**2 / 2))


def work(
    prices: Economics,
    stack: float,
    fatigue: float,
    wear: float,
    trend: float,
    action: tuple[float, float],
    chance: float,
    weather: float,
    stationary: bool = False,
) -> Slice[float]:
    """Result of a slice of one shift, from its stack, fatigue, wear and trend at the beginning.

    The action is (speed, care) in [0, 1]. `chance` in [0, 1) decides how many dishes break, as a Poisson number of at
    most `MOST_BROKEN`; `weather`, standard normal, moves demand. A `stationary` shift has as many dishes as are wanted,
    and neither stack, fatigue nor wear.
    """
    speed, care = action
    if stationary:
        waiting, load = np.inf, 0.0
    else:
        waiting = min(stack + demand_of(prices, trend), prices.stack_limit)
        load = waiting / prices.stack_limit
    washed = min(waiting, prices.capacity * speed * (1 - prices.tired_share * fatigue))
    strain = 1 + prices.tired_odds * fatigue + prices.worn_odds * wear + prices.stacked_odds * load
    mean = washed * prices.fragility * speed * (1 - care) * strain
    broken, term, total = 0, np.exp(-mean), np.exp(-mean)
    while chance >= total and broken < MOST_BROKEN:
        broken += 1
        term *= mean / broken
        total += term
    reward = prices.value * (washed - broken) - prices.damage * broken
    reward -= prices.energy * speed**2 + prices.attention * care**2 + prices.wage
    if stationary:
        return Slice(stack, fatigue, wear, trend, washed, broken, reward)
    worn = wear + washed * prices.wear_per_dish
    if worn >= 1:
        worn, reward = 0.0, reward - prices.tool
    effort = (speed**2 + care**2) / 2
    memory = prices.demand_memory
    return Slice(
        stack=waiting - washed,
        fatigue=fatigue + prices.fatigue_rate * (effort - fatigue),
        wear=worn,
        trend=memory * trend + prices.demand_swing * np.sqrt(1 - memory**2) * weather,
        washed=washed,
        broken=broken,
        reward=reward,
    )
