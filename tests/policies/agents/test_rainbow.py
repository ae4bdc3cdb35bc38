"""What is Rainbow's own: noise and atoms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.policies.navigation_spaces import make, transitions
from torchrl_gpu.policies import PeriodicTargets, PolicyWrapper, SoftTargets
from torchrl_gpu.policies.targets import TargetUpdate


def noise(network: Any) -> list[Tensor]:
    return [value.clone() for name, value in network.named_buffers() if name.endswith("epsilon")]


def redrawn(before: list[Tensor], network: Any) -> list[bool]:
    return [not torch.equal(then, now) for then, now in zip(before, noise(network), strict=True)]


@pytest.mark.parametrize("targets", [SoftTargets(0.1), PeriodicTargets(1000)], ids=["soft", "periodic"])
def test_noise_is_drawn_anew_after_every_update(targets: TargetUpdate) -> None:
    agent: Any = make("Rainbow", targets=targets)
    online, target = noise(agent.online), noise(agent.target)
    agent.update_targets(1)
    assert all(redrawn(target, agent.target))
    assert all(redrawn(online, agent.online))
    assert not [a for a, b in zip(noise(agent.online), noise(agent.target), strict=True) if torch.equal(a, b)]


def test_noise_is_in_the_loss_and_its_size_is_learnt() -> None:
    agent: Any = make("Rainbow")
    first = agent.losses(transitions("Rainbow", 16))["value"]
    agent.update_targets(1)
    second = agent.losses(transitions("Rainbow", 16))["value"]
    assert first != second
    second.backward()
    sizes = [weight.grad for name, weight in agent.online.named_parameters() if "sigma" in name]
    assert len(sizes) == 12
    assert all(slope.any() for slope in sizes)


def test_exploring_is_by_noise_alone_unless_told_otherwise() -> None:
    agent: Any = make("Rainbow")
    assert agent.exploration is None
    seen = transitions("Rainbow", 60).exclude("next", "action")
    with set_exploration_type(ExplorationType.RANDOM):
        one, again = (PolicyWrapper(agent, flat=True)(seen.clone())["action"] for _ in range(2))
        agent.update_targets(1)
        other = PolicyWrapper(agent, flat=True)(seen.clone())["action"]
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_atoms_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"Rainbow: v_max must be above 3; got 3\.0"):
        make("Rainbow", v_min=3.0, v_max=3.0)
