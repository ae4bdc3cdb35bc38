"""The best actions of a stationary shift, found in three ways.

The formula, every action on a grid, and dynamic programming agree.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.envs.dishes.reference import work
from torchrl_gpu.envs.dishes.economics import MOST_BROKEN, Economics, slice_reward, stationary_optimum

# Interior, full speed, full care, idle, care for nothing, no energy, no loss.
CASES = [
    {},
    {"value": 0.6},
    {"attention": 0.05},
    {"value": 0.01, "wage": 1.0},
    {"attention": 0.0},
    {"energy": 0.0},
    {"fragility": 0.0},
    {"fragility": 0.12},
]


@pytest.mark.parametrize("changes", CASES)
def test_no_action_is_better(changes: dict[str, float]) -> None:
    prices = replace(Economics(), **changes)
    speed, care = np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 1, 401))
    best = stationary_optimum(prices)
    rewards = slice_reward(prices, speed, care)
    assert rewards.max() <= best.reward + 1e-12
    assert best.reward - rewards.max() < 1e-4
    assert best.reward == pytest.approx(float(slice_reward(prices, np.array(best.speed), np.array(best.care))))


def test_the_shipped_prices_leave_a_choice() -> None:
    best = stationary_optimum(Economics())
    assert 0.2 < best.care < 0.5 < best.speed < 0.8
    assert best.reward > 0.3


def expected_reward(prices: Economics, action: tuple[float, float], number: int = 4_000) -> float:
    """Reward of the slice that `reference` defines.

    It is a mean over every number of dishes that can break.
    """
    draws = (np.arange(number) + 0.5) / number
    numbers = [work(prices, 0.0, 0.0, 0.0, 0.0, action, chance, 0.0, stationary=True) for chance in draws]
    assert max(each.broken for each in numbers) <= MOST_BROKEN
    return float(np.mean([each.reward for each in numbers]))


@pytest.mark.parametrize("action", [(0.6, 0.3), (1.0, 0.0), (0.2, 1.0)])
def test_the_formula_is_the_mean_of_the_definition(action: tuple[float, float]) -> None:
    prices = Economics()
    formula = slice_reward(prices, np.array(action[0]), np.array(action[1]))
    assert expected_reward(prices, action) == pytest.approx(float(formula), abs=0.001)


# Care costs more than the 16 dishes that can break.
CAPPED = [
    {"capacity": 300.0, "attention": 60.0},
    {"capacity": 300.0, "attention": 60.0, "energy": 100.0},
    {"capacity": 1000.0, "attention": 1e4},
]


@pytest.mark.parametrize("changes", CAPPED)
def test_no_more_dishes_break_than_can(changes: dict[str, float]) -> None:
    prices = replace(Economics(), **changes)
    best = stationary_optimum(prices)
    assert expected_reward(prices, (best.speed, best.care), 1_000) == pytest.approx(best.reward, rel=1e-3)
    speed, care = np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 1, 401))
    assert slice_reward(prices, speed, care).max() <= best.reward + 1e-9


def test_dynamic_programming_finds_the_same_policy() -> None:
    """Dynamic programming backward over a shift of 20 slices.

    A state is the slice's number. The action is the same in each.
    """
    prices, grid = Economics(), np.linspace(0, 1, 51)
    best, value = stationary_optimum(prices), 0.0
    rewards = slice_reward(prices, *np.meshgrid(grid, grid, indexing="ij"))
    for left in range(1, 21):
        total = rewards + value
        row, column = np.unravel_index(total.argmax(), total.shape)
        assert (grid[row], grid[column]) == pytest.approx((best.speed, best.care), abs=0.02)
        value = float(total.max())
        assert value == pytest.approx(left * best.reward, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": -1.0}, "value must be"),
        ({"capacity": 0.0}, "capacity, demand and stack_limit must be above 0"),
        ({"demand_memory": 1.5}, "demand_memory must be at most 1"),
        ({"fragility": 0.5}, "fragility 0.5 "),
        ({"damage": float("nan")}, "damage must be a finite number"),
    ],
)
def test_prices_that_cannot_be(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^Economics: .*{message}"):
        Economics(**changes)
