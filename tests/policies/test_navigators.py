"""Every agent plays the navigation environment through the wrapper and learns from what it played."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.policies.navigation_spaces import AGENTS, DISCRETE, networks_for
from torchrl_gpu import policies
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.policies import Agent, AgentSpace, PolicyWrapper

PLAYS = [("v2", name) for name in DISCRETE] + [("v3", name) for name in AGENTS]


def navigator(version: str, name: str, *, flat: bool = False, **changes: object) -> tuple[MarineNavEnv, Agent]:
    kind = "discrete" if name in DISCRETE else "continuous"
    env = MarineNavEnv(
        4, version=version, actions=kind, robots=1 if flat else 3, flat=flat, device="cpu", seed=0, pool=8
    )
    torch.manual_seed(0)
    return env, getattr(policies, name)(AgentSpace.of(env), **networks_for(name), **changes)


def learnt_from(agent: Agent, steps: TensorDict) -> TensorDict:
    """Transitions of robots, as replay keeps them: those that took no part have no weight."""
    batch = steps.select(*agent.observations, "action")
    after = steps["next"].select(*agent.observations, "reward", "done", "terminated")
    return batch.update({"next": after, "priority_weight": steps["active"][..., 0].float()})


@pytest.mark.parametrize(("version", "name"), PLAYS)
def test_robots_play_and_learn(version: str, name: str) -> None:
    env, agent = navigator(version, name)
    with set_exploration_type(ExplorationType.RANDOM):
        played = env.rollout(6, PolicyWrapper(agent), break_when_any_done=False)
    robots = played["robots"].clone()
    robots["next"] = played["next", "robots"]
    robots.batch_size = robots["action"].shape[:3]
    assert robots.batch_size == (4, 6, 3)
    batch = learnt_from(agent, robots)
    losses = agent.losses(batch)
    sum(losses.values()).backward()  # type: ignore[union-attr]
    assert all(loss.isfinite() for loss in losses.values())
    assert batch["td_error"].shape == (4, 6, 3, 1)
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in agent.parameters_to_train)


@pytest.mark.parametrize(("version", "name"), [("v2", "IQN"), ("v3", "ACIQN")])
def test_one_robot_at_the_root(version: str, name: str) -> None:
    env, agent = navigator(version, name, flat=True)
    with set_exploration_type(ExplorationType.RANDOM):
        steps = env.rollout(6, PolicyWrapper(agent), break_when_any_done=False)
    assert all(loss.isfinite() for loss in agent.losses(learnt_from(agent, steps)).values())


@pytest.mark.parametrize("cvar", [0.5, "adaptive"])
def test_careful_robots(cvar: policies.risk.Risk) -> None:
    env, agent = navigator("v2", "IQN")
    assert (
        env.rollout(6, PolicyWrapper(agent, cvar=cvar).eval(), break_when_any_done=False)["robots", "action"]
        .ge(0)
        .all()
    )


def test_an_actor_that_heeds_its_clearance() -> None:
    env, agent = navigator("v3", "ACIQN", cvar="adaptive")
    steps = env.rollout(4, PolicyWrapper(agent), break_when_any_done=False)
    robots = steps["robots"].clone()
    robots["next"] = steps["next", "robots"]
    robots.batch_size = robots["action"].shape[:3]
    batch = learnt_from(agent, robots)
    assert "clearance" in batch
    assert all(loss.isfinite() for loss in agent.losses(batch).values())
