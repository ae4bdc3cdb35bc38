"""Losses: by hand, by their laws, and against TorchRL's."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives.value.functional import generalized_advantage_estimate

from tests.no_host_reads import NoHostReads
from tests.tolerances import assert_near
from torchrl_gpu.policies.losses import (
    clipped_surrogate,
    cross_entropy,
    discounted,
    generalized_advantage,
    project,
    quantile_error,
    quantile_huber,
    standardized,
    weighted_mean,
)

# -- targets and weighted means --

AFTER = {
    "reward": torch.tensor([[1.0], [2.0], [3.0], [4.0]]),
    "terminated": torch.tensor([[False], [False], [True], [False]]),
    "done": torch.tensor([[False], [True], [True], [False]]),
}
BATCH = TensorDict({"steps_to_next_obs": torch.tensor([[1], [2], [3], [1]]), "next": AFTER}, [4])
VALUES = torch.tensor([[8.0, 4.0]]).expand(4, 2)


def test_targets_by_hand() -> None:
    # γ = 1/2: 1 + 8/2, 2 + 8/4, the end, 4 + 8/2; and the same with 4
    wanted = [[5, 3], [4, 3], [3, 3], [8, 6]]
    assert discounted(BATCH, VALUES, 0.5).tolist() == wanted
    assert discounted(BATCH, torch.where(BATCH["next", "terminated"], torch.nan, VALUES), 0.5).tolist() == wanted
    # One step, where nobody counts.
    wanted[1] = [6, 4]
    assert discounted(BATCH.exclude("steps_to_next_obs"), VALUES, 0.5).tolist() == wanted


@pytest.mark.parametrize(
    ("losses", "weights", "mean"),
    [
        ([1.0, 2.0, 3.0, 4.0], None, 2.5),
        ([1.0, 2.0, 3.0, 4.0], [1.0, 0.5, 0.0, 0.5], (1 + 1 + 0 + 2) / 2),
        ([1.0, torch.inf, torch.nan, 1.0], [2.0, 0.0, 0.0, 0.0], 1.0),
        ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], 0.0),
    ],
)
def test_mean_by_weights(losses: list[float], weights: list[float] | None, mean: float) -> None:
    batch = TensorDict({} if weights is None else {"priority_weight": torch.tensor(weights)}, [4])
    assert weighted_mean(torch.tensor(losses), batch).item() == pytest.approx(mean)


# -- quantiles --


def test_quantile_loss_by_hand() -> None:
    # Value 1 at τ = 0.25, targets 1.5 and −2: errors 0.5 and −3, Huber 0.125 and 2.5, shares 0.25 and 1 − 0.25, so
    #   (0.25 · 0.125 + 0.75 · 2.5) / 2 = 0.953125.
    # Value 0 at τ = 0.5: errors 1.5 and −2, Huber 1 and 1.5, shares 0.5: (0.5 + 0.75) / 2 = 0.625.
    values = torch.tensor([[1.0, 0.0]])
    taus = torch.tensor([[0.25, 0.5]])
    targets = torch.tensor([[1.5, -2.0]])
    assert quantile_huber(values, taus, targets).tolist() == pytest.approx([0.953125 + 0.625])
    assert quantile_error(values, targets).tolist() == pytest.approx([(0.5 + 3 + 1.5 + 2) / 4])
    # At κ = 0.5: an error of 0.25 costs τ · 0.25² / 2 / 0.5, one of 2 costs τ · (2 − 0.25).
    values, taus = torch.zeros(1), torch.tensor([0.8])
    assert quantile_huber(values, taus, torch.tensor([0.25]), 0.5).item() == pytest.approx(0.8 * 0.0625)
    assert quantile_huber(values, taus, torch.tensor([2.0]), 0.5).item() == pytest.approx(0.8 * 1.75)


def test_more_dimensions_are_more_rows_and_nothing_flows_into_targets() -> None:
    values = torch.randn(2, 3, 4, requires_grad=True)
    targets = torch.randn(2, 3, 6, requires_grad=True)
    taus = torch.rand(2, 3, 4)
    loss = quantile_huber(values, taus, targets)
    flat = quantile_huber(values.flatten(0, 1), taus.flatten(0, 1), targets.flatten(0, 1))
    assert_near(loss.flatten().detach(), flat.detach())
    loss.sum().backward()
    assert targets.grad is None
    assert values.grad is not None


def test_descent_ends_at_the_quantiles() -> None:
    # Of 0, 1, …, 99, with κ too small to matter: the share τ lies below τ · 100 − 0.5, within one of them.
    taus, targets = torch.tensor([0.1, 0.5, 0.85]), torch.arange(100.0)
    values = torch.full((3,), 50.0, requires_grad=True)
    optimizer = torch.optim.SGD([values], lr=2.0)
    for _ in range(400):
        optimizer.zero_grad()
        quantile_huber(values, taus, targets, 1e-3).backward()
        optimizer.step()
    assert (values - (100 * taus - 0.5)).abs().max() <= 1


# -- distributions over atoms --

# The atoms −1, 0, 1, 2, 3.
SUPPORT = torch.linspace(-1.0, 3.0, 5)


def test_projection_and_cross_entropy_by_hand() -> None:
    # Values −5, 0.25, 2 with chances 0.2, 0.4, 0.4: the first is clamped to −1, the second gives 0 three quarters of
    # its chance and 1 a quarter, the third hits 2.
    chances, values = torch.tensor([[0.2, 0.4, 0.4]]), torch.tensor([[-5.0, 0.25, 2.0]])
    assert project(chances, values, SUPPORT)[0].tolist() == pytest.approx([0.2, 0.3, 0.1, 0.4, 0.0])
    # Logits 0 and ln 3 are chances 1/4 and 3/4.
    logits, chances = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.5, 0.5]])
    assert cross_entropy(logits, chances).item() == pytest.approx(-0.5 * math.log(1 / 4) - 0.5 * math.log(3 / 4))


def test_chances_still_sum_to_1_and_means_are_kept_inside() -> None:
    chances, values = torch.randn(50, 7).softmax(-1), 4 * torch.rand(50, 7) - 1
    projected = project(chances, values, SUPPORT)
    assert_near(projected.sum(-1), torch.ones(50))
    assert_near((projected * SUPPORT).sum(-1), (chances * values).sum(-1))
    # Most values are outside of the support.
    assert_near(project(chances, 20 * values, SUPPORT).sum(-1), torch.ones(50))
    # These values are on the atoms.
    assert_near(project(chances[:, :5], SUPPORT.expand(50, -1), SUPPORT), chances[:, :5])


# -- advantages --


def steps(n: int = 6, length: int = 17, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return trajectories with terminations.

    Others are cut off, inside and at their last step.
    """
    random = torch.Generator().manual_seed(seed)
    shape = (n, length, 1)
    found = {name: torch.randn(shape, generator=random) for name in ("reward", "value", "next_value")}
    kind = torch.randint(6, shape, generator=random)
    kind[0, -1] = 0
    kind[1, -1] = 1
    kind[2, -1] = 2
    return found | {"terminated": kind == 0, "done": kind <= 1}


@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (0.9, 0.0), (0.97, 1.0), (1.0, 1.0)])
def test_advantages_are_those_of_torchrl(gamma: float, lam: float) -> None:
    s = steps()
    # Some are cut off inside.
    assert (s["done"] & ~s["terminated"])[:, :-1].any()
    assert s["terminated"][:, :-1].any()
    with NoHostReads():
        found = generalized_advantage(**s, gamma=gamma, lam=lam)
    theirs, _ = generalized_advantage_estimate(
        gamma, lam, s["value"], s["next_value"], s["reward"], s["done"], s["terminated"]
    )
    assert_near(found, theirs)


def test_advantages_by_hand() -> None:
    # γ = 0.5, λ = 1, V = 1 throughout. The first step earns 2 and is cut off in a state worth 4: 2 + 0.5·4 − 1 = 3, and
    # nothing of the next episode. That one earns 1, then 3 and terminates: 3 − 1 = 2; 1 + 0.5·4 − 1 + 0.5·2 = 3.
    reward = torch.tensor([2.0, 1.0, 3.0]).view(1, 3, 1)
    value = torch.ones(1, 3, 1)
    later = torch.full((1, 3, 1), 4.0)
    terminated = torch.tensor([False, False, True]).view(1, 3, 1)
    done = torch.tensor([True, False, True]).view(1, 3, 1)
    found = generalized_advantage(
        reward=reward, value=value, next_value=later, terminated=terminated, done=done, gamma=0.5, lam=1.0
    )
    assert found.flatten().tolist() == [3.0, 3.0, 2.0]


@pytest.mark.parametrize("broken", [torch.inf, -torch.inf, torch.nan])
def test_nothing_of_the_next_episode_gets_into_advantages(broken: float) -> None:
    reward, zero = torch.tensor([1.0, 2.0, broken]).view(1, 3, 1), torch.zeros(1, 3, 1)
    done = torch.tensor([False, True, False]).view(1, 3, 1)
    found = generalized_advantage(reward, zero, zero, done, done, gamma=0.5, lam=1.0)
    assert found.flatten()[:2].tolist() == [2.0, 2.0]


def test_the_surrogate_by_hand() -> None:
    ratio = torch.tensor([0.5, 0.5, 1.0, 1.5, 1.5], requires_grad=True)
    advantage = torch.tensor([2.0, -2.0, 2.0, 2.0, -2.0])
    gain = clipped_surrogate(ratio, advantage, 0.2)
    assert_near(gain.detach(), torch.tensor([1.0, -1.6, 2.0, 2.4, -3.0]))
    gain.sum().backward()
    assert ratio.grad is not None
    # Nothing is gained beyond the clip.
    assert ratio.grad.tolist() == [2.0, 0.0, 2.0, 0.0, -2.0]


def test_standardized_over_what_counts() -> None:
    values, weight = torch.tensor([1.0, 3.0, torch.inf, torch.nan]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    assert standardized(values, weight)[:2].tolist() == [-1.0, 1.0]
    assert standardized(values[:2]).tolist() == [-1.0, 1.0]
    assert standardized(torch.full((4,), 7.0)).tolist() == [0.0] * 4
    assert standardized(values, torch.zeros(4)).isfinite().all()


def test_standardized_over_several_processes() -> None:
    # 1 and 3 here, 6 and 100 that does not count there: mean 10/3, squares 49/9 + 1/9 + 64/9 = 38/3, deviation √(38/9)
    here = torch.tensor([1.0, 3.0])
    counts = torch.ones(2)
    sums = []

    def total(own: torch.Tensor) -> torch.Tensor:
        sums.append(own)
        # This is what the other process adds.
        return own + torch.tensor([[1.0, 6.0], [64 / 9]][len(sums) - 1])

    assert_near(standardized(here, counts, total), (here - 10 / 3) / (38 / 9) ** 0.5)
    assert len(sums) == 2
