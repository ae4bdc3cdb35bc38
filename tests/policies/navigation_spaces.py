"""As much of a navigation environment as agents look at.

And made-up states and transitions of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded

from torchrl_gpu import policies
from torchrl_gpu.policies import Agent, AgentSpace
from torchrl_gpu.policies.exploration import random_legal

# Sizes of the observation, and of the mask of objects.
SIZES = {"v2": (39, 10), "v3": (32, 5)}
DISCRETE, CONTINUOUS = ("DQN", "Rainbow", "IQN"), ("DDPG", "SAC", "ACIQN")
AGENTS = (*DISCRETE, *CONTINUOUS)


class NavigationSpec:
    """Keys, shapes and bounds: robots in their group, or one robot at the root."""

    def __init__(
        self,
        version: str = "v3",
        *,
        num_actions: int | None = 25,
        bounds: tuple[float, float] = (-1.0, 1.0),
        flat: bool = False,
        num_envs: int = 4,
        num_robots: int = 3,
    ) -> None:
        size, objects = SIZES[version]
        batch = (num_envs,) if flat else (num_envs, num_robots)
        seen: dict[str, object] = {}
        seen["observation"] = Unbounded((*batch, size))
        seen["object_mask"] = Binary(objects, (*batch, objects), dtype=torch.bool)
        seen["active"] = Binary(1, (*batch, 1), dtype=torch.bool)
        seen["clearance"] = Unbounded((*batch, 1))
        action: Any = Bounded(*bounds, (*batch, 2))
        if num_actions is not None:
            seen["action_mask"] = Binary(num_actions, (*batch, num_actions), dtype=torch.bool)
            action = Categorical(num_actions, batch)
        self.batch_size = torch.Size([num_envs])
        self.action_keys = ["action"] if flat else [("robots", "action")]
        inner, acted = Composite(seen, shape=batch), Composite(action=action, shape=batch)
        self.observation_spec = inner if flat else Composite(robots=inner, shape=(num_envs,))
        self.full_action_spec = acted if flat else Composite(robots=acted, shape=(num_envs,))


def spec_for(agent: str, **changes: Any) -> Any:
    return NavigationSpec(**{"num_actions": 25 if agent in DISCRETE else None, **changes})


def space_of(version: str = "v3", **changes: Any) -> AgentSpace:
    return AgentSpace.of(NavigationSpec(version, **changes))  # type: ignore[arg-type]


def networks_for(agent: str) -> dict[str, Callable]:
    """The networks of the published agents, as arguments of an agent."""
    actor, critic = policies.NavigationActor, policies.NavigationCritic
    return {
        "DQN": {"network": policies.NavigationScores},
        "Rainbow": {"network": partial(policies.NavigationAtoms, sigma=0.5)},
        "IQN": {"network": policies.NavigationQuantiles},
        "DDPG": {"actor": actor, "critic": critic},
        "SAC": {"actor": policies.NavigationGaussian, "critic": critic},
        "ACIQN": {"actor": actor, "critic": policies.NavigationQuantileCritic},
    }[agent]


def make(agent: str, *, seed: int = 0, spec: Any = None, **changes: Any) -> Agent:
    """Build an agent with the published networks.

    Its targets differ from what they follow.
    """
    torch.manual_seed(seed)
    space = spec if isinstance(spec, AgentSpace) else AgentSpace.of(spec or spec_for(agent))
    made = getattr(policies, agent)(space, **{**networks_for(agent), **changes})
    with torch.no_grad():
        for weight in made.parameters_to_train:
            weight.add_(0.02 * torch.randn_like(weight))
    return made


def states(*batch: int, version: str = "v3", num_actions: int | None = 25, seed: int = 1) -> TensorDict:
    """Return made-up states.

    Objects come and go, about half of the actions are legal, clearances are from 0 to 20 m.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        size, objects = SIZES[version]
        seen = {}
        seen["observation"] = 10 * torch.randn(*batch, size)
        seen["object_mask"] = torch.rand(*batch, objects) < 0.5
        seen["active"] = torch.rand(*batch, 1) < 0.8
        seen["clearance"] = 20 * torch.rand(*batch, 1)
        if num_actions is not None:
            mask = torch.rand(*batch, num_actions) < 0.5
            mask[..., 0] = True
            seen["action_mask"] = mask
        return TensorDict(seen, batch)


def seen_by(agent: str, *batch: int, **changes: Any) -> TensorDict:
    return states(*batch, num_actions=25 if agent in DISCRETE else None, **changes)


def transitions(agent: str, *batch: int, version: str = "v3", seed: int = 2, **changes: Any) -> TensorDict:
    """Made-up transitions: some terminate, some are cut off, over one to three steps."""
    before = seen_by(agent, *batch, version=version, seed=seed)
    after = seen_by(agent, *batch, version=version, seed=seed + 1)
    with torch.random.fork_rng():
        torch.manual_seed(seed + 2)
        kind = torch.randint(4, (*batch, 1))
        discrete = agent in DISCRETE
        before["action"] = random_legal(before["action_mask"]) if discrete else torch.rand(*batch, 2) * 2 - 1
        before["steps_to_next_obs"] = torch.randint(1, 4, (*batch, 1))
        after["reward"] = 3 * torch.randn(*batch, 1)
    after["terminated"] = kind == 0
    after["truncated"] = kind == 1
    after["done"] = kind <= 1
    before["next"] = after
    for key, value in changes.items():
        before[key] = value
    return before


def grouped(seen: TensorDict) -> TensorDict:
    """Return states (N, R) as an environment shows them.

    Robots are in their group, more is at the root.
    """
    n = seen.shape[0]
    return TensorDict({"robots": seen, "episode_step": torch.zeros(n, 1, dtype=torch.int64)}, [n])


def gradients(agent: Agent) -> dict[str, list[Tensor | None]]:
    slopes = {}
    for name, group in agent.parameter_groups.items():
        slopes[name] = [weight.grad for weight in group]
    return slopes
