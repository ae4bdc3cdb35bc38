"""One slice of one shift in NumPy: the definition that `dynamics` must agree with."""

from __future__ import annotations

import numpy as np

from torchrl_gpu.envs.dishes.dynamics import Slice
from torchrl_gpu.envs.dishes.economics import MOST_BROKEN, Economics


def demand_of(prices: Economics, trend: float) -> float:
    """Return the dishes that come in a slice.

    On average over the trends of a shift they are `prices.demand`.
    """
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
    """Return the result of a slice of one shift.

    Args:
        prices: Prices and rates.
        stack, fatigue, wear, trend: At the beginning of the slice.
        action: Speed and care in [0, 1].
        chance: Decides how many dishes break, a Poisson number of at most `MOST_BROKEN`; in [0, 1).
        weather: Moves demand; of mean 0 and variance 1.
        stationary: Whether there are always enough dishes, and neither stack, fatigue nor wear.
    """
    speed, care = action
    if stationary:
        waiting = np.inf
        load = 0.0
    else:
        waiting = min(stack + demand_of(prices, trend), prices.stack_limit)
        load = waiting / prices.stack_limit
    capacity = prices.capacity * speed * (1 - prices.tired_share * fatigue)
    washed = min(waiting, capacity)

    strain = 1 + prices.tired_odds * fatigue + prices.worn_odds * wear + prices.stacked_odds * load
    mean = washed * prices.fragility * speed * (1 - care) * strain
    # Probabilities of exactly `broken` dishes, and of at most as many.
    broken = 0
    exactly = np.exp(-mean)
    at_most = exactly
    while chance >= at_most and broken < MOST_BROKEN:
        broken += 1
        exactly *= mean / broken
        at_most += exactly

    reward = prices.value * (washed - broken) - prices.damage * broken
    reward -= prices.energy * speed**2 + prices.attention * care**2 + prices.wage
    if stationary:
        return Slice(stack, fatigue, wear, trend, washed, broken, reward)

    worn = wear + washed * prices.wear_per_dish
    if worn >= 1:
        worn = 0.0
        reward -= prices.tool
    effort = (speed**2 + care**2) / 2
    memory = prices.demand_memory
    noise = prices.demand_swing * np.sqrt(1 - memory**2) * weather
    return Slice(
        stack=waiting - washed,
        fatigue=fatigue + prices.fatigue_rate * (effort - fatigue),
        wear=worn,
        trend=memory * trend + noise,
        washed=washed,
        broken=broken,
        reward=reward,
    )
