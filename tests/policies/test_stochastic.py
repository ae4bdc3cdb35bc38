"""Actors that draw: what they say of their actions against torch's distributions."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, TransformedDistribution
from torch.distributions.transforms import AffineTransform, TanhTransform
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.no_host_reads import NoHostReads
from tests.tolerances import assert_near
from torchrl_gpu.policies.squashing import Squash
from torchrl_gpu.policies.stochastic import CategoricalActor, SquashedGaussianActor

LOW, HIGH = torch.tensor([-1.0, 2.0]), torch.tensor([3.0, 2.5])


class Given(nn.Module):
    """Logits that are observed."""

    in_keys = ("seen",)

    def forward(self, seen: Tensor) -> Tensor:
        return seen


class GivenNormal(nn.Module):
    """Mean and logarithm of the standard deviation that are observed."""

    in_keys = ("seen",)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = seen.chunk(2, -1)
        return mean, log_std


def choices(rows: int, num_actions: int = 7) -> TensorDict:
    torch.manual_seed(0)
    mask = torch.rand(rows, num_actions) < 0.5
    mask[:, 3] = True
    return TensorDict({"seen": 2 * torch.randn(rows, num_actions), "action_mask": mask}, [rows])


def normals(rows: int, log_std: float = -0.5) -> TensorDict:
    torch.manual_seed(0)
    seen = torch.cat([torch.randn(rows, 2), torch.full((rows, 2), log_std)], -1)
    return TensorDict({"seen": seen}, [rows])


def drawn(actor: CategoricalActor | SquashedGaussianActor, state: TensorDict) -> TensorDict:
    with set_exploration_type(ExplorationType.RANDOM), NoHostReads():
        return actor(state.clone())


def test_what_is_said_of_choices_is_true() -> None:
    actor, state = CategoricalActor(Given(), masked=True), choices(200)
    out = drawn(actor, state)
    legal = Categorical(logits=torch.where(state["action_mask"], state["seen"], -torch.inf))
    assert state["action_mask"].gather(1, out["action"][:, None]).all()
    assert_near(out["action_log_prob"], legal.log_prob(out["action"]))
    with NoHostReads():
        log_prob, entropy = actor.evaluate(out)
    assert torch.equal(log_prob, out["action_log_prob"])
    assert_near(entropy, legal.entropy())


def test_choices_are_as_frequent_as_they_are_likely() -> None:
    state = choices(1).expand(40_000).clone()
    action = drawn(CategoricalActor(Given(), masked=True), state)["action"]
    share = torch.bincount(action, minlength=7) / len(action)
    legal = torch.where(state["action_mask"][0], state["seen"][0], -torch.inf).softmax(0)
    assert (share - legal).abs().max() < 0.01
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        greedy = CategoricalActor(Given(), masked=True)(state[:1])["action"]
    assert greedy.item() == legal.argmax()


def test_a_draw_of_nothing_is_still_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    state = choices(50)
    state["seen"] = torch.zeros(50, 7)
    out = drawn(CategoricalActor(Given(), masked=True), state)
    assert state["action_mask"].gather(1, out["action"][:, None]).all()


def test_without_a_mask_all_is_legal() -> None:
    actor, state = CategoricalActor(Given(), masked=False), choices(2000).exclude("action_mask")
    assert actor.in_keys == ["seen"]
    assert set(drawn(actor, state)["action"].tolist()) == set(range(7))


def test_gradients_stay_finite_where_one_action_or_none_is_legal() -> None:
    state = choices(3)
    state["action_mask"] = torch.zeros(3, 7, dtype=torch.bool)
    state["action_mask"][0, 2] = True
    state["action"] = torch.full((3,), 2)
    state["seen"].requires_grad_()
    log_prob, entropy = CategoricalActor(Given(), masked=True).evaluate(state)
    (log_prob.sum() + entropy.sum()).backward()
    assert state["seen"].grad.isfinite().all()
    assert log_prob[0] == entropy[0] == 0


def test_what_is_said_of_squashed_actions_is_true() -> None:
    actor, state = SquashedGaussianActor(GivenNormal(), Squash(LOW, HIGH)), normals(300)
    out = drawn(actor, state)
    mean, log_std = state["seen"].double().chunk(2, -1)
    half = (HIGH - LOW).double() / 2
    true = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(), AffineTransform(LOW + half, half)])
    error = out["action_log_prob"] - true.log_prob(out["action"].double()).sum(-1)
    assert error.abs().max() < 1e-3
    log_prob, _ = actor.evaluate(out)
    assert torch.equal(log_prob, out["action_log_prob"])
    assert ((out["action"] >= LOW) & (out["action"] <= HIGH)).all()
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert_near(actor(state)["action"], Squash(LOW, HIGH)(state["seen"][:, :2]))


@pytest.mark.parametrize("kind", ["tanh", "atan"])
@pytest.mark.parametrize("log_std", [-1.0, 0.5])
def test_entropy_is_right_on_average(kind: str, log_std: float) -> None:
    actor = SquashedGaussianActor(GivenNormal(), Squash(LOW, HIGH, kind))  # type: ignore[arg-type]
    out = drawn(actor, normals(1, log_std).expand(100_000).clone())
    with NoHostReads():
        _, entropy = actor.evaluate(out)
    assert entropy.mean().item() == pytest.approx(-out["action_log_prob"].mean().item(), abs=0.02)


def test_at_the_bounds_nothing_is_lost() -> None:
    actor, state = SquashedGaussianActor(GivenNormal(), Squash(LOW, HIGH)), normals(4)
    state["seen"][:, :2] = 20.0
    out = drawn(actor, state)
    assert_near(out["action"], HIGH.expand(4, 2))
    log_prob, _ = actor.evaluate(out)
    assert log_prob.isfinite().all()
    moved = out.clone()
    moved["seen"] = out["seen"] + torch.tensor([math.e, 0.0, 0.0, 0.0])
    assert (actor.evaluate(moved)[0] != log_prob).all()  # the action alone could not tell
