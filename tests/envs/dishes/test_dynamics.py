"""A slice of many shifts is what `reference` defines, shift by shift.

Laws of both.
"""

from __future__ import annotations

import pytest
import torch

from tests.envs.dishes import reference
from tests.records import values_by_name
from torchrl_gpu.envs.dishes import dynamics
from torchrl_gpu.envs.dishes.economics import Economics

NAMES = ("stack", "fatigue", "wear", "trend")
PRICES = Economics(fragility=0.1, wear_per_dish=0.05)


def drawn(number: int = 400) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, actions, chances and weathers, the ends of every range among them."""
    generator = torch.Generator().manual_seed(0)
    low_high = torch.tensor([[0.0, PRICES.stack_limit], [0.0, 1.0], [0.0, 0.999], [-2.0, 2.0], [0.0, 1.0], [0.0, 1.0]])
    unit = torch.rand(number, 6, generator=generator)
    unit[:60] = unit[:60].round()
    values = low_high[:, 0] + unit * (low_high[:, 1] - low_high[:, 0])
    chance, weather = torch.rand(number, generator=generator), torch.randn(number, generator=generator)
    return dict(zip(NAMES, values[:, :4].T, strict=True)), values[:, 4:], chance, weather


@pytest.mark.parametrize("stationary", [False, True])
def test_parity(stationary: bool) -> None:
    state, action, chance, weather = drawn()
    ours = dynamics.work(PRICES, state, action, chance, weather, stationary)
    for row in range(len(chance)):
        start = [state[name][row].item() for name in NAMES]
        speed, care = action[row].tolist()
        wanted = reference.work(
            PRICES, *start, (speed, care), chance[row].item(), weather[row].item(), stationary=stationary
        )
        for name, value in values_by_name(wanted).items():
            assert getattr(ours, name)[row].item() == pytest.approx(value, rel=1e-4, abs=1e-4), (row, name)


def test_dishes_are_neither_made_nor_lost() -> None:
    state, action, chance, weather = drawn()
    after = dynamics.work(PRICES, state, action, chance, weather)
    came = dynamics.demand_of(PRICES, state["trend"])
    turned_away = (state["stack"] + came - PRICES.stack_limit).clamp_min(0)
    torch.testing.assert_close(state["stack"] + came, after.stack + after.washed + turned_away)
    assert (after.stack >= 0).all()
    assert (after.stack <= PRICES.stack_limit).all()
    assert (after.washed <= PRICES.capacity * action[:, 0] + 1e-5).all()


def test_broken_dishes_follow_the_law_of_poisson() -> None:
    chance = (torch.arange(200_000) + 0.5) / 200_000
    for mean in (0.05, 0.5, 1.5):
        broken = dynamics.poisson(torch.full_like(chance, mean), chance)
        assert broken.mean().item() == pytest.approx(mean, rel=2e-3)
        assert broken.var().item() == pytest.approx(mean, rel=1e-2)
    assert dynamics.poisson(torch.tensor([500.0]), torch.tensor([0.5])).item() == reference.MOST_BROKEN


def test_demand_is_the_usual_one_on_average() -> None:
    trend = PRICES.demand_swing * torch.randn(200_000, generator=torch.Generator().manual_seed(1))
    assert dynamics.demand_of(PRICES, trend).mean().item() == pytest.approx(PRICES.demand, rel=0.01)
