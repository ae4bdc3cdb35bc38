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
        energy: Hot water and force of a slice at full speed, EUR; goes with the square of speed.
        attention: Effort of a slice at full care, EUR; goes with the square of care.
        wage: Of a slice, EUR.
        tool: Price of a new sponge, EUR; a worn one is replaced by itself.
        capacity: Dishes of a slice at full speed by a rested arm.
        fragility: Odds of breaking a dish at full speed without care, rested, with a new sponge and no stack.
        tired_odds, worn_odds, stacked_odds: By how much of themselves full fatigue, a worn sponge and a full stack
            raise the odds.
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
            object.__setattr__(self, field.name, value)
        for name in ("fatigue_rate", "demand_memory", "tired_share", "wear_per_dish"):
            if getattr(self, name) > 1:
                raise ValueError(f"Economics: {name} must be at most 1; got {getattr(self, name)}")
        if not (self.capacity > 0 and self.demand > 0 and self.stack_limit > 0):
            raise ValueError(
                "Economics: capacity, demand and stack_limit must be above 0;"
                f" got {self.capacity}, {self.demand} and {self.stack_limit}"
            )
        worst = self.fragility * (1 + self.tired_odds + self.worn_odds + self.stacked_odds)
        if worst > 1:
            raise ValueError(f"Economics: fragility must leave odds of at most 1 in the worst case; got {worst:.3g}")


class Optimum(NamedTuple):
    """Optimum of a stationary shift: speed and care of every slice, and the reward of a slice, EUR."""

    speed: float
    care: float
    reward: float


def slice_reward(prices: Economics, speed: np.ndarray, care: np.ndarray) -> np.ndarray:
    """Expected reward of a slice, EUR, rested, with a new sponge, no stack and as many dishes as are wanted.

    `v·c·s − (v + d)·E[min(n, 16)] − e·s² − a·k² − w` of speed s and care k in [0, 1], with capacity c, value v, damage
    d, energy e, attention a, wage w, and n broken dishes, a Poisson number of mean `c·b·s²·(1 − k)` with fragility b.
    """
    washed = prices.capacity * speed
    broken = _mean_broken(washed * prices.fragility * speed * (1 - care))
    gain = prices.value * washed - (prices.value + prices.damage) * broken
    return gain - prices.energy * speed**2 - prices.attention * care**2 - prices.wage


def _mean_broken(mean: np.ndarray) -> np.ndarray:
    """Mean of the smaller of a Poisson number and `MOST_BROKEN`."""
    term = up_to = np.exp(-mean)  # of as many, and of no more
    total = 1 - up_to
    for number in range(1, MOST_BROKEN):
        term = term * mean / number
        up_to = up_to + term
        total = total + np.maximum(1 - up_to, 0.0)
    return np.where(mean < 0.1, mean, total)  # below, the sum rounds more than the cap takes


def stationary_optimum(prices: Economics) -> Optimum:
    """Optimal speed and care of a stationary shift; derived in `docs/environments/dishwashing.md`.

    For a speed s the best care is min(1, κs²), κ = c(v + d)b / 2a; what is left is a polynomial in s on either side of
    κs² = 1, whose largest value is at a root of its derivative or at an end. Where more dishes would break than can,
    the optimum is elsewhere, and a grid search that closes in finds it.
    """
    loss = prices.capacity * (prices.value + prices.damage) * prices.fragility
    gain, energy, attention = prices.capacity * prices.value, prices.energy, prices.attention
    bend = np.sqrt(2 * attention / loss) if loss > 0 else np.inf  # the speed from which on care is full
    within = np.roots([loss**2 / attention, 0.0, -2 * (loss + energy), gain]) if attention > 0 else np.array([])
    beyond = gain / (2 * energy) if energy > 0 else 1.0
    speeds = [0.0, 1.0, min(1.0, bend), min(1.0, beyond), *(root.real for root in within if abs(root.imag) < 1e-9)]
    speed = np.array([each for each in speeds if 0 <= each <= 1])
    care = np.minimum(1.0, (speed / bend) ** 2) if bend > 0 else np.ones_like(speed)
    reward = slice_reward(prices, speed, care)
    best = int(reward.argmax())
    found = Optimum(float(speed[best]), float(care[best]), float(reward[best]))
    capped = _grid_optimum(prices)
    return capped if capped.reward > found.reward + 1e-9 * max(1.0, abs(found.reward)) else found


def _grid_optimum(prices: Economics) -> Optimum:
    """Optimum on a grid of speeds and cares, and on ever finer ones around it."""
    best, width = np.array([0.5, 0.5]), 0.5
    while width > 1e-9:
        speeds, cares = (np.linspace(max(0.0, at - width), min(1.0, at + width), 101) for at in best)
        speed, care = np.meshgrid(speeds, cares, indexing="ij")
        reward = slice_reward(prices, speed, care)
        place = np.unravel_index(reward.argmax(), reward.shape)
        best, width = np.array([speed[place], care[place]]), width / 10
    return Optimum(float(best[0]), float(best[1]), float(reward[place]))
