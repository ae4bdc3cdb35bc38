"""Advantages against a NumPy loop and against TorchRL's; the clipped surrogate and standardising by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchrl.objectives.value.functional import generalized_advantage_estimate

from tests.no_host_reads import NoHostReads
from tests.tolerances import assert_near
from torchrl_gpu.policies.losses import clipped_surrogate, generalized_advantage, standardized


def steps(n: int = 6, length: int = 17, seed: int = 0) -> dict[str, torch.Tensor]:
    """Trajectories with terminations, and with ends that are none, inside and at their last step."""
    random = torch.Generator().manual_seed(seed)
    shape = (n, length, 1)
    found = {name: torch.randn(shape, generator=random) for name in ("reward", "value", "next_value")}
    kind = torch.randint(6, shape, generator=random)
    kind[0, -1], kind[1, -1], kind[2, -1] = 0, 1, 2
    return found | {"terminated": kind == 0, "done": kind <= 1}


def by_loop(s: dict[str, np.ndarray], gamma: float, lam: float) -> np.ndarray:
    """The definition: discounted sums of errors, each trajectory and each step by itself."""
    n, length, _ = s["reward"].shape
    out = np.zeros((n, length, 1))
    for i in range(n):
        for t in range(length):
            share = 1.0
            for k in range(t, length):
                follows = 0.0 if s["terminated"][i, k, 0] else gamma * s["next_value"][i, k, 0]
                out[i, t] += share * (s["reward"][i, k, 0] + follows - s["value"][i, k, 0])
                share *= gamma * lam
                if s["done"][i, k, 0]:
                    break
    return out


@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (0.9, 0.0), (0.97, 1.0), (1.0, 1.0)])
def test_advantages_are_those_of_a_loop_and_of_torchrl(gamma: float, lam: float) -> None:
    s = steps()
    assert (s["done"] & ~s["terminated"])[:, :-1].any()  # cut off inside
    assert s["terminated"][:, :-1].any()
    with NoHostReads():
        found = generalized_advantage(**s, gamma=gamma, lam=lam)
    loop = by_loop({name: value.numpy() for name, value in s.items()}, gamma, lam)
    assert_near(found, torch.from_numpy(loop).float())
    theirs, _ = generalized_advantage_estimate(
        gamma, lam, s["value"], s["next_value"], s["reward"], s["done"], s["terminated"]
    )
    assert_near(found, theirs)


def test_advantages_by_hand() -> None:
    # γ = 0.5, λ = 1, V = 1 throughout. The first step earns 2 and is cut off in a state worth 4: 2 + 0.5·4 − 1 = 3, and
    # nothing of the next episode. That one earns 1, then 3 and terminates: 3 − 1 = 2; 1 + 0.5·4 − 1 + 0.5·2 = 3.
    s = {
        "reward": torch.tensor([2.0, 1.0, 3.0]).view(1, 3, 1),
        "value": torch.ones(1, 3, 1),
        "next_value": torch.full((1, 3, 1), 4.0),
        "terminated": torch.tensor([False, False, True]).view(1, 3, 1),
        "done": torch.tensor([True, False, True]).view(1, 3, 1),
    }
    assert generalized_advantage(**s, gamma=0.5, lam=1.0).flatten().tolist() == [3.0, 3.0, 2.0]


def test_the_surrogate_by_hand() -> None:
    ratio = torch.tensor([0.5, 0.5, 1.0, 1.5, 1.5], requires_grad=True)
    advantage = torch.tensor([2.0, -2.0, 2.0, 2.0, -2.0])
    gain = clipped_surrogate(ratio, advantage, 0.2)
    assert_near(gain.detach(), torch.tensor([1.0, -1.6, 2.0, 2.4, -3.0]))
    gain.sum().backward()
    assert ratio.grad is not None
    assert ratio.grad.tolist() == [2.0, 0.0, 2.0, 0.0, -2.0]  # nothing is gained beyond the clip


def test_standardized_over_what_counts() -> None:
    values, weight = torch.tensor([1.0, 3.0, 1000.0]), torch.tensor([1.0, 1.0, 0.0])
    assert_near(standardized(values, weight)[:2], torch.tensor([-1.0, 1.0]))
    assert_near(standardized(values[:2]), torch.tensor([-1.0, 1.0]))
    assert standardized(torch.full((4,), 7.0)).tolist() == [0.0] * 4
    assert standardized(values, torch.zeros(3)).isfinite().all()


def test_standardized_over_several_processes() -> None:
    # 1 and 3 here, 6 and 100 that does not count there: mean 10/3, squares 49/9 + 1/9 + 64/9 = 38/3, deviation √(38/9)
    here, counts, sums = torch.tensor([1.0, 3.0]), torch.ones(2), []

    def total(own: torch.Tensor) -> torch.Tensor:
        sums.append(own)
        return own + torch.tensor([[1.0, 6.0], [64 / 9]][len(sums) - 1])  # what the other process adds

    assert_near(standardized(here, counts, total), (here - 10 / 3) / (38 / 9) ** 0.5)
    assert len(sums) == 2


@pytest.mark.parametrize("broken", [torch.inf, -torch.inf, torch.nan])
def test_nothing_of_the_next_episode_gets_into_an_advantage(broken: float) -> None:
    reward, zero = torch.tensor([1.0, 2.0, broken]).view(1, 3, 1), torch.zeros(1, 3, 1)
    done = torch.tensor([False, True, False]).view(1, 3, 1)
    found = generalized_advantage(reward, zero, zero, done, done, gamma=0.5, lam=1.0)
    assert found.flatten()[:2].tolist() == [2.0, 2.0]


def test_what_does_not_count_may_be_infinite() -> None:
    values, weight = torch.tensor([1.0, 3.0, torch.inf, torch.nan]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    assert standardized(values, weight)[:2].tolist() == [-1.0, 1.0]
