"""Prices and rates of a shift, and the optimum of a stationary one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from torchrl_gpu.system import arguments

MOST_BROKEN = 16
"""Dishes that can break in a slice."""


@dataclass(frozen=True)
class Economics:
    """Prices and rates of a shift, by slices of a minute.

    Attributes:
        value: Of a clean dish, EUR.
        damage: Of a broken dish, EUR, beyond the value that it does not bring.
        energy: Hot water and force of a slice at full speed, EUR. It grows with the square of speed.
        attention: Effort of a slice at full care, EUR. It grows with the square of care.
        wage: Of a slice, EUR.
        tool: Price of a new sponge, EUR. A worn one is replaced automatically.
        capacity: Dishes of a slice at full speed by a rested arm.
        fragility: Odds of breaking a dish at full speed without care, rested, with a new sponge and no stack.
        tired_odds, worn_odds, stacked_odds: Share by which full fatigue, a worn sponge and a full stack raise the odds.
        tired_share: Share of the capacity that full fatigue takes.
        fatigue_rate: Share of the way from fatigue to effort that a slice goes.
        wear_per_dish: Of a sponge, which is worn at 1.
        demand: Dishes that come in a slice, the mean of a shift.
        demand_swing: How far demand swings: standard deviation of its logarithm.
        demand_memory: Correlation of that logarithm from slice to slice.
        stack_limit: Dishes that the stack holds; others go elsewhere.
    """

    value: float = 0.40
    damage: float = 0.60
    energy: float = 3.00
    attention: float = 0.66
    wage: float = 0.25
    tool: float = 0.50
    capacity: float = 12.0
    fragility: float = 0.10
    tired_odds: float = 2.0
    worn_odds: float = 4.0
    stacked_odds: float = 1.0
    tired_share: float = 0.3
    fatigue_rate: float = 0.05
    wear_per_dish: float = 0.010
    demand: float = 4.0
    demand_swing: float = 1.2
    demand_memory: float = 0.90
    stack_limit: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = arguments.number("Economics", field.name, getattr(self, field.name), 0.0, 1e6)
            # A frozen class refuses plain assignments, its own included.
            object.__setattr__(self, field.name, value)
        for name in ("fatigue_rate", "demand_memory", "tired_share", "wear_per_dish"):
            if getattr(self, name) > 1:
                raise ValueError(f"Economics: {name} must be at most 1, not {getattr(self, name)}")
        if min(self.capacity, self.demand, self.stack_limit) <= 0:
            raise ValueError(
                "Economics: capacity, demand and stack_limit must be above 0;"
                f" they are {self.capacity}, {self.demand} and {self.stack_limit}"
            )
        # Odds of each dish, which a Poisson number of broken ones is computed from.
        worst_strain = 1 + self.tired_odds + self.worn_odds + self.stacked_odds
        worst = self.fragility * worst_strain
        if worst > 1:
            raise ValueError(
                f"Economics: fragility {self.fragility:g} gives odds of {worst:.3g} in the worst case, more than 1"
            )


class Optimum(NamedTuple):
    """Optimum of a stationary shift.

    Attributes:
        speed: Of every slice.
        care: Of every slice.
        reward: Of a slice, EUR.
    """

    speed: float
    care: float
    reward: float


def slice_reward(prices: Economics, speed: np.ndarray, care: np.ndarray) -> np.ndarray:
    """Return the expected reward of a slice of a stationary shift, EUR.

    The arm is rested, the sponge new, and there are enough dishes, but no stack. The reward is `v·c·s − (v +
    d)·E[min(n, 16)] − e·s² − a·k² − w` of speed s and care k in [0, 1], with capacity c, value v, damage d, energy e,
    attention a, wage w, and n broken dishes, a Poisson number of mean `c·b·s²·(1 − k)` with fragility b.
    """
    washed = prices.capacity * speed
    uncapped = washed * prices.fragility * speed * (1 - care)
    broken = _mean_broken(uncapped)
    loss = (prices.value + prices.damage) * broken
    gain = prices.value * washed - loss
    gain = gain - prices.energy * speed**2
    gain = gain - prices.attention * care**2
    return gain - prices.wage


def _mean_broken(mean: np.ndarray) -> np.ndarray:
    """Return the mean of the smaller of a Poisson number and `MOST_BROKEN`.

    It is the sum over k < `MOST_BROKEN` of the probability of more than k.
    """
    # Probabilities of exactly `number`, and of at most as many.
    exactly = np.exp(-mean)
    at_most = exactly
    total = 1 - at_most
    for number in range(1, MOST_BROKEN):
        exactly = exactly * mean / number
        at_most = at_most + exactly
        total = total + np.maximum(1 - at_most, 0.0)
    # Below this mean, rounding errors of the sum exceed what the cap takes away.
    return np.where(mean < 0.1, mean, total)


def stationary_optimum(prices: Economics) -> Optimum:
    """Return the optimal speed and care of a stationary shift.

    For a speed s the best care is min(1, κs²), κ = c(v + d)b / 2a. That leaves a polynomial in s on either side of
    κs² = 1. Its largest value is at a root of its derivative or at an end. `docs/environments/dishwashing.md` derives
    this. It ignores the cap `MOST_BROKEN`. If that cap matters, the optimum is elsewhere, and a grid search finds it.
    """
    loss_per_dish = prices.value + prices.damage
    loss = prices.capacity * loss_per_dish * prices.fragility
    gain = prices.capacity * prices.value
    energy = prices.energy
    attention = prices.attention
    # The speed from which on care is full.
    full_care = np.sqrt(2 * attention / loss) if loss > 0 else np.inf
    speeds = [0.0, 1.0, min(1.0, full_care)]
    # Roots of the derivative beyond that speed, and below it.
    if energy > 0:
        speeds.append(min(1.0, gain / (2 * energy)))
    if attention > 0:
        derivative = [loss**2 / attention, 0.0, -2 * (loss + energy), gain]
        roots = np.roots(derivative)
        speeds += [root.real for root in roots if abs(root.imag) < 1e-9]

    speed = np.array([each for each in speeds if 0 <= each <= 1])
    care = np.ones_like(speed)
    if full_care > 0:
        care = np.minimum(1.0, (speed / full_care) ** 2)
    derived = _best_of(prices, speed, care)
    searched = _grid_optimum(prices)
    # The search finds the derived optimum up to rounding, which is less exact.
    rounding = 1e-9 * max(1.0, abs(derived.reward))
    is_better = searched.reward > derived.reward + rounding
    return searched if is_better else derived


def _grid_optimum(prices: Economics) -> Optimum:
    """Search a grid of speeds and cares, and ever finer ones around its best point."""
    best = Optimum(0.5, 0.5, -np.inf)
    width = 0.5
    while width > 1e-9:
        speeds = _grid(best.speed, width)
        cares = _grid(best.care, width)
        speed, care = np.meshgrid(speeds, cares, indexing="ij")
        best = _best_of(prices, speed.ravel(), care.ravel())
        width /= 10
    return best


def _best_of(prices: Economics, speed: np.ndarray, care: np.ndarray) -> Optimum:
    """Return the best of some speeds and cares, (n,) each.

    Of equal ones, it is the first.
    """
    reward = slice_reward(prices, speed, care)
    best = int(reward.argmax())
    return Optimum(float(speed[best]), float(care[best]), float(reward[best]))


def _grid(middle: float, width: float) -> np.ndarray:
    """Return points around a middle, within [0, 1]."""
    first = max(0.0, middle - width)
    last = min(1.0, middle + width)
    return np.linspace(first, last, 101)
