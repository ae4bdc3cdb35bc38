"""Squashing: densities integrate to one, TorchRL's agree where it has them, bounds hold."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import TanhNormal

from tests.no_host_reads import NoHostReads
from tests.tolerances import assert_near
from torchrl_gpu.policies.squashing import GaussianActor, Squash

each_kind = pytest.mark.parametrize("kind", ["tanh", "atan"])
LOW, HIGH = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 7.0])


class Numbers(nn.Module):
    """Mean and log standard deviation that are what is observed."""

    in_keys = ("mean", "log_std")

    def forward(self, mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        return mean, log_std


def actor(kind: Any, low: Tensor = LOW, high: Tensor = HIGH) -> GaussianActor:
    return GaussianActor(Numbers(), Squash(low, high, kind))


def numbers(rows: int = 200, log_std: float = -0.5) -> TensorDict:
    torch.manual_seed(0)
    return TensorDict({"mean": torch.randn(rows, 2), "log_std": torch.full((rows, 2), log_std)}, [rows])


@each_kind
def test_by_hand(kind: Any) -> None:
    # z = 1: tanh is 0.76159416, (2/π) atan is 1/2; with bounds 2 and 7 the second number is 4.5 + 2.5 times that.
    unit = 0.76159416 if kind == "tanh" else 0.5
    squash = Squash(LOW, HIGH, kind)
    assert squash(torch.tensor([1.0, 1.0])).tolist() == pytest.approx([unit, 4.5 + 2.5 * unit])
    slope = 1 - 0.76159416**2 if kind == "tanh" else 1 / math.pi
    assert squash.log_slope(torch.ones(2)).exp().tolist() == pytest.approx([slope, 2.5 * slope])


@each_kind
def test_the_slope_is_that_of_the_action(kind: Any) -> None:
    squash = Squash(LOW.double(), HIGH.double(), kind)
    z = torch.linspace(-4, 4, 81, dtype=torch.float64)[:, None].repeat(1, 2).requires_grad_()
    (slope,) = torch.autograd.grad(squash(z).sum(), z)
    assert_near(squash.log_slope(z).detach().exp(), slope)


@each_kind
def test_far_out_numbers_are_within_bounds_and_have_a_slope(kind: Any) -> None:
    squash, z = Squash(LOW, HIGH, kind), torch.tensor([[1e4, -1e4], [50.0, -50.0]])
    assert (squash(z) >= LOW).all()
    assert (squash(z) <= HIGH).all()
    assert squash.log_slope(z).isfinite().all()


@each_kind
def test_the_density_of_actions_integrates_to_one(kind: Any) -> None:
    # ∫ p(a) da over the bounds equals the mean of 1 over samples: E[exp(−log p)] is the volume of the bounds.
    torch.manual_seed(0)
    low, high = torch.tensor([-1.0]), torch.tensor([3.0])
    state = TensorDict({"mean": torch.full((200_000, 1), 0.3), "log_std": torch.full((200_000, 1), 0.3)}, [200_000])
    action, log_prob = GaussianActor(Numbers(), Squash(low, high, kind)).sample(state)
    inside = (action > -0.8).squeeze(-1) & (action < 2.8).squeeze(-1)  # importance weights are huge near the bounds
    volume = torch.where(inside, (-log_prob).exp(), 0.0).mean().item()
    assert volume == pytest.approx(3.6, rel=0.02)


def test_tanh_is_that_of_torchrl() -> None:
    state = numbers()
    action, log_prob = actor("tanh").sample(state)
    theirs = TanhNormal(state["mean"], state["log_std"].exp(), low=LOW, high=HIGH)
    near = ((action - LOW) / (HIGH - LOW) - 0.5).abs().amax(-1) < 0.49  # it inverts rounded actions
    assert near.sum() > 150
    assert (log_prob - theirs.log_prob(action))[near].abs().max() < 1e-3
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        greedy = actor("tanh")(state)["action"]
    assert_near(greedy, theirs.deterministic_sample)


@each_kind
def test_gradients_reach_mean_and_spread_through_both(kind: Any) -> None:
    state = numbers(5)
    mean, log_std = (state[key].clone().requires_grad_() for key in ("mean", "log_std"))
    for part in (0, 1):
        given = TensorDict({"mean": mean, "log_std": log_std}, [5])
        slopes = torch.autograd.grad(actor(kind).sample(given)[part].sum(), [mean, log_std])
        assert all(slope.ne(0).all() for slope in slopes)


def test_sampled_or_not() -> None:
    state, greedy = numbers(), actor("tanh")(numbers())["action"]
    with set_exploration_type(ExplorationType.RANDOM):
        assert not torch.equal(actor("tanh")(state)["action"], greedy)


@each_kind
def test_nothing_is_read_back(kind: Any) -> None:
    state, made = numbers(), actor(kind)
    with NoHostReads():
        made.sample(state)
        made(state)


def test_a_squashing_that_is_none() -> None:
    with pytest.raises(ValueError, match="Squash: kind must be one of tanh, atan; got 'sigmoid'"):
        Squash(LOW, HIGH, "sigmoid")  # type: ignore[arg-type]


@each_kind
def test_a_saturated_action_is_the_bound_whatever_it_is(kind: Any) -> None:
    torch.manual_seed(0)
    low = torch.randn(4000) * torch.logspace(-3, 3, 4000)
    high = low + torch.rand(4000) * torch.logspace(3, -3, 4000)
    squash = Squash(low, high, kind)
    for z in (torch.full_like(low, 1e9), torch.full_like(low, -1e9), 3 * torch.randn(4000)):
        action = squash(z)
        assert (action >= low).all()
        assert (action <= high).all()
