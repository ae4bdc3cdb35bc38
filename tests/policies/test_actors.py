"""Actors: squashing into bounds, and their log-probabilities.

Compared with torch's and TorchRL's distributions.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, TransformedDistribution
from torch.distributions.transforms import AffineTransform, TanhTransform
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import TanhNormal

from tests.no_host_reads import NoHostReads
from tests.tolerances import assert_near
from torchrl_gpu.policies.actors import CategoricalActor, GaussianActor, Squash, SquashedGaussianActor

each_kind = pytest.mark.parametrize("kind", ["tanh", "atan"])
LOW, HIGH = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 7.0])


class Numbers(nn.Module):
    """Mean and log standard deviation that are what is observed."""

    in_keys = ("mean", "log_std")

    def forward(self, mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        return mean, log_std


class Logits(nn.Module):
    in_keys = ("seen",)

    def forward(self, seen: Tensor) -> Tensor:
        return seen


def actor(kind: Any, low: Tensor = LOW, high: Tensor = HIGH) -> GaussianActor:
    return GaussianActor(Numbers(), Squash(low, high, kind))


def numbers(rows: int = 200, log_std: float = -0.5) -> TensorDict:
    torch.manual_seed(0)
    return TensorDict({"mean": torch.randn(rows, 2), "log_std": torch.full((rows, 2), log_std)}, [rows])


def choices(rows: int, num_actions: int = 7) -> TensorDict:
    torch.manual_seed(0)
    mask = torch.rand(rows, num_actions) < 0.5
    mask[:, 3] = True
    return TensorDict({"seen": 2 * torch.randn(rows, num_actions), "action_mask": mask}, [rows])


def drawn(actor: Any, state: TensorDict) -> TensorDict:
    with set_exploration_type(ExplorationType.RANDOM), NoHostReads():
        return actor(state.clone())


# -- squashing --


@each_kind
def test_squashing_by_hand(kind: Any) -> None:
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
    far = torch.tensor([[1e4, -1e4], [50.0, -50.0]])
    assert Squash(LOW, HIGH, kind).log_slope(far).isfinite().all()


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


# -- densities --


@each_kind
def test_the_density_of_actions_integrates_to_one(kind: Any) -> None:
    # ∫ p(a) da over the bounds equals the mean of 1 over samples: E[exp(−log p)] is the volume of the bounds.
    torch.manual_seed(0)
    low, high = torch.tensor([-1.0]), torch.tensor([3.0])
    state = TensorDict({"mean": torch.full((200_000, 1), 0.3), "log_std": torch.full((200_000, 1), 0.3)}, [200_000])
    with NoHostReads():
        action, log_prob = GaussianActor(Numbers(), Squash(low, high, kind)).sample(state)
    # Importance weights are huge near the bounds.
    inside = (action > -0.8).squeeze(-1) & (action < 2.8).squeeze(-1)
    volume = torch.where(inside, (-log_prob).exp(), 0.0).mean().item()
    assert volume == pytest.approx(3.6, rel=0.02)


def test_tanh_is_that_of_torchrl() -> None:
    state = numbers()
    action, log_prob = actor("tanh").sample(state)
    theirs = TanhNormal(state["mean"], state["log_std"].exp(), low=LOW, high=HIGH)
    # The policy inverts rounded actions.
    near = ((action - LOW) / (HIGH - LOW) - 0.5).abs().amax(-1) < 0.49
    assert near.sum() > 150
    assert (log_prob - theirs.log_prob(action))[near].abs().max() < 1e-3
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        greedy = actor("tanh")(state.clone())["action"]
    assert_near(greedy, theirs.deterministic_sample)
    assert not torch.equal(drawn(actor("tanh"), state)["action"], greedy)


def test_log_prob_and_entropy_of_squashed_actions() -> None:
    squashed, state = SquashedGaussianActor(Numbers(), Squash(LOW, HIGH)), numbers(300)
    out = drawn(squashed, state)
    half = (HIGH - LOW).double() / 2
    normal = Normal(state["mean"].double(), state["log_std"].double().exp())
    true = TransformedDistribution(normal, [TanhTransform(), AffineTransform(LOW + half, half)])
    error = out["action_log_prob"] - true.log_prob(out["action"].double()).sum(-1)
    assert error.abs().max() < 1e-3
    assert torch.equal(squashed.evaluate(out)[0], out["action_log_prob"])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert_near(squashed(state)["action"], Squash(LOW, HIGH)(state["mean"]))


@pytest.mark.parametrize("log_std", [-1.0, 0.5])
@each_kind
def test_entropy_is_right_on_average(kind: Any, log_std: float) -> None:
    squashed = SquashedGaussianActor(Numbers(), Squash(LOW, HIGH, kind))
    out = drawn(squashed, numbers(1, log_std).expand(100_000).clone())
    with NoHostReads():
        _, entropy = squashed.evaluate(out)
    assert entropy.mean().item() == pytest.approx(-out["action_log_prob"].mean().item(), abs=0.02)


def test_at_the_bounds_nothing_is_lost() -> None:
    squashed, state = SquashedGaussianActor(Numbers(), Squash(LOW, HIGH)), numbers(4)
    state["mean"] = torch.full((4, 2), 20.0)
    out = drawn(squashed, state)
    assert_near(out["action"], HIGH.expand(4, 2))
    log_prob, _ = squashed.evaluate(out)
    assert log_prob.isfinite().all()
    moved = out.clone().set("mean", out["mean"] + torch.tensor([math.e, 0.0]))
    # The action alone could not tell.
    assert (squashed.evaluate(moved)[0] != log_prob).all()


# -- choices --


def test_log_prob_and_entropy_of_choices() -> None:
    made, state = CategoricalActor(Logits(), masked=True), choices(200)
    out = drawn(made, state)
    legal = Categorical(logits=torch.where(state["action_mask"], state["seen"], -torch.inf))
    assert state["action_mask"].gather(1, out["action"][:, None]).all()
    assert_near(out["action_log_prob"], legal.log_prob(out["action"]))
    with NoHostReads():
        log_prob, entropy = made.evaluate(out)
    assert torch.equal(log_prob, out["action_log_prob"])
    assert_near(entropy, legal.entropy())


def test_choices_are_as_frequent_as_they_are_likely() -> None:
    state = choices(1).expand(40_000).clone()
    action = drawn(CategoricalActor(Logits(), masked=True), state)["action"]
    share = torch.bincount(action, minlength=7) / len(action)
    legal = torch.where(state["action_mask"][0], state["seen"][0], -torch.inf).softmax(0)
    assert (share - legal).abs().max() < 0.01
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        greedy = CategoricalActor(Logits(), masked=True)(state[:1])["action"]
    assert greedy.item() == legal.argmax()


def test_a_draw_of_nothing_is_still_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    state = choices(50).set("seen", torch.zeros(50, 7))
    out = drawn(CategoricalActor(Logits(), masked=True), state)
    assert state["action_mask"].gather(1, out["action"][:, None]).all()


def test_without_a_mask_all_is_legal() -> None:
    made, state = CategoricalActor(Logits(), masked=False), choices(2000).exclude("action_mask")
    assert made.in_keys == ["seen"]
    assert set(drawn(made, state)["action"].tolist()) == set(range(7))


def test_gradients_stay_finite_where_one_action_or_none_is_legal() -> None:
    state = choices(3)
    state["action_mask"] = torch.zeros(3, 7, dtype=torch.bool)
    state["action_mask"][0, 2] = True
    state["action"] = torch.full((3,), 2)
    state["seen"].requires_grad_()
    log_prob, entropy = CategoricalActor(Logits(), masked=True).evaluate(state)
    (log_prob.sum() + entropy.sum()).backward()
    assert state["seen"].grad.isfinite().all()
    assert log_prob[0] == entropy[0] == 0
