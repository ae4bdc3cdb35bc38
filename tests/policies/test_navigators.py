"""Every agent plays the navigation environment through the wrapper and learns from what it played."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.policies.navigation_spaces import AGENTS, DISCRETE, networks_for
from torchrl_gpu import policies
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.policies import Agent, AgentSpace, PolicyWrapper

PLAYS: list[tuple[str, str, dict[str, Any]]] = [
    *(("v2", name, {}) for name in DISCRETE),
    *(("v3", name, {}) for name in AGENTS),
    ("v2", "IQN", {"flat": True}),
    ("v3", "ACIQN", {"flat": True}),
    ("v3", "ACIQN", {"cvar": "adaptive"}),
]


def navigator(version: str, name: str, *, flat: bool = False, **changes: Any) -> tuple[MarineNavEnv, Agent]:
    kind, robots = "discrete" if name in DISCRETE else "continuous", 1 if flat else 3
    env = MarineNavEnv(4, version=version, actions=kind, robots=robots, flat=flat, device="cpu", seed=0, pool=8)
    torch.manual_seed(0)
    return env, getattr(policies, name)(AgentSpace.of(env), **networks_for(name), **changes)


@pytest.mark.parametrize(("version", "name", "changes"), PLAYS)
def test_robots_play_and_learn(version: str, name: str, changes: dict[str, Any]) -> None:
    env, agent = navigator(version, name, **changes)
    with set_exploration_type(ExplorationType.RANDOM):
        steps = env.rollout(6, PolicyWrapper(agent), break_when_any_done=False)
    if "flat" not in changes:
        robots = steps["robots"].clone()
        robots["next"] = steps["next", "robots"]
        robots.batch_size = robots["action"].shape[:3]
        assert robots.batch_size == (4, 6, 3)
        steps = robots
    # as replay keeps them: robots that took no part have no weight
    after = steps["next"].select(*agent.observations, "reward", "done", "terminated")
    batch = steps.select(*agent.observations, "action")
    batch.update({"next": after, "priority_weight": steps["active"][..., 0].float()})
    assert ("clearance" in batch) == ("cvar" in changes)
    losses = agent.losses(batch)
    sum(losses.values()).backward()  # type: ignore[union-attr]
    assert all(loss.isfinite() for loss in losses.values())
    assert batch["td_error"].shape == (*batch.batch_size, 1)
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in agent.parameters_to_train)
