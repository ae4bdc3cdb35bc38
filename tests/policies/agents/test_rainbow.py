"""What is Rainbow's own: noise, atoms and their published defects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.policies.navigation_spaces import make, transitions
from tests.tolerances import assert_near


def noise(network: Any) -> list[Tensor]:
    return [value.clone() for name, value in network.named_buffers() if name.endswith("epsilon")]


def redrawn(before: list[Tensor], network: Any) -> list[bool]:
    return [not torch.equal(then, now) for then, now in zip(before, noise(network), strict=True)]


@pytest.mark.parametrize("tau", [0.1, None])
@pytest.mark.parametrize("compat", [False, True])
def test_noise_is_drawn_anew_after_every_update(compat: bool, tau: float | None) -> None:
    agent: Any = make("Rainbow", upstream_compat=compat, tau=tau, target_period=1000)
    online, target = noise(agent.online), noise(agent.target)
    agent.follow(1)
    assert all(redrawn(target, agent.target))
    assert redrawn(online, agent.online) == [not compat] * len(online)  # published: drawn once, when it is made


def test_online_and_target_noise_are_not_the_same() -> None:
    agent: Any = make("Rainbow")
    agent.follow(1)
    assert not [a for a, b in zip(noise(agent.online), noise(agent.target), strict=True) if torch.equal(a, b)]


def test_noise_is_in_the_loss_and_its_size_is_learnt() -> None:
    agent: Any = make("Rainbow")
    first = agent.losses(transitions("Rainbow", 16))["value"]
    agent.follow(1)
    second = agent.losses(transitions("Rainbow", 16))["value"]
    assert first != second
    second.backward()
    sizes = [weight.grad for name, weight in agent.online.named_parameters() if "sigma" in name]
    assert len(sizes) == 12
    assert all(slope.any() for slope in sizes)


def test_atoms() -> None:
    agent: Any = make("Rainbow")
    assert_near(agent.online.support, torch.linspace(-10, 45, 51))
    assert_near(make("Rainbow", upstream_compat=True).online.support, torch.linspace(-1, 1, 51))  # type: ignore[union-attr]


def test_scores_are_means_by_hand() -> None:
    # Two chances of one half each on the first and the last atom: (−10 + 45) / 2.
    agent: Any = make("Rainbow")
    chances = torch.zeros(51)
    chances[0] = chances[-1] = 0.5
    assert agent.online.mean_of(chances).item() == pytest.approx(17.5)


def test_returns_beyond_the_published_atoms_are_lost() -> None:
    # A reward of 30 at the end lies among our atoms; the published ones tell it from 1 in nothing.
    batch = transitions("Rainbow", 8)
    batch["next", "terminated"] = batch["next", "done"] = torch.ones(8, 1, dtype=torch.bool)
    for compat in (False, True):
        losses = []
        for reward in (1.0, 30.0):
            batch["next", "reward"] = torch.full((8, 1), reward)
            losses.append(make("Rainbow", upstream_compat=compat).losses(batch)["value"])
        assert torch.equal(*losses) is compat


def test_exploring_is_by_noise_alone_unless_told_otherwise() -> None:
    agent: Any = make("Rainbow")
    assert agent.exploration.epsilon == 0
    seen = transitions("Rainbow", 60).exclude("next", "action")
    with set_exploration_type(ExplorationType.RANDOM):
        one, again = (agent.acting(seen.clone())["action"] for _ in range(2))
        agent.follow(1)
        other = agent.acting(seen.clone())["action"]
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_atoms_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"Rainbow: v_min must be below v_max; got 3.0, 3.0"):
        make("Rainbow", v_min=3.0, v_max=3.0)
