"""Deterministic actors that are kept off their bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.policies.navigation_spaces import make, transitions

ACTORS = ("DDPG", "ACIQN")


def actor_loss(name: str, batch: Any, **changes: Any) -> tuple[Tensor, Any]:
    torch.manual_seed(5)
    agent: Any = make(name, **changes)
    torch.manual_seed(6)
    return agent.losses(batch)["actor"], agent


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ACTORS)
def test_the_penalty_is_that_of_the_squares_before_squashing(name: str, weighted: bool) -> None:
    batch = transitions(name, 16)
    weight = torch.linspace(0, 1, 16) if weighted else torch.ones(16)
    if weighted:
        batch["priority_weight"] = weight
    without, agent = actor_loss(name, batch.clone())
    with_it, _ = actor_loss(name, batch.clone(), saturation_penalty=0.5)
    actor = agent.policy.module
    z = actor.network(*(batch[key] for key in actor.in_keys))
    cost = ((z**2).sum(-1) * weight).sum() / weight.sum()
    assert cost > 0
    assert with_it.item() == pytest.approx((without + 0.5 * cost).item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ACTORS)
def test_an_actor_at_a_bound_comes_back(name: str) -> None:
    batch = transitions(name, 16)
    outputs = {}
    for penalty in (0.0, 0.5):
        agent: Any = make(name, saturation_penalty=penalty)
        actor = agent.policy.module
        last = actor.network.head.out
        with torch.no_grad():
            last.bias.fill_(50.0)
        optimizer = torch.optim.Adam([last.bias], lr=1.0)
        for _ in range(60):
            optimizer.zero_grad()
            agent.losses(batch)["actor"].backward()
            optimizer.step()
        outputs[penalty] = actor.network(*(batch[key] for key in actor.in_keys)).abs().mean().item()
    assert outputs[0.5] < 5 < outputs[0.0]
