"""What one agent observes and does in an environment, wherever the environment keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from tensordict import NestedKey
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Composite
from torchrl.envs import EnvBase


@dataclass(frozen=True)
class AgentSpace:
    """Observations and action of one row: one environment, or one robot of an environment that groups its robots.

    Attributes:
        where: The environment, in error messages.
        group: Key of the group that holds the agents' entries; empty where they are at the root.
        observations: Shape of each observation, without batch.
        num_actions: Number of actions; None where the action is continuous.
        low: Smallest action (D,); None where the action is discrete.
        high: Largest action (D,); None where the action is discrete.
    """

    where: str
    group: tuple[str, ...]
    observations: dict[str, torch.Size]
    num_actions: int | None = None
    low: Tensor | None = None
    high: Tensor | None = None

    @classmethod
    def of(cls, env: EnvBase) -> AgentSpace:
        """The space of an environment with one action, at the root or in a group.

        Raises:
            ValueError: It has several actions, or one that is neither an index nor bounded.
        """
        where, keys = type(env).__name__, list(env.action_keys)
        if len(keys) != 1:
            raise ValueError(f"AgentSpace: want an environment with one action; {where} has {keys}")
        group, action = _parent(keys[0]), env.full_action_spec[keys[0]]
        lead = len(env.batch_size) + len(group)
        observed = env.observation_spec[group] if group else env.observation_spec
        leaves = {str(key): spec for key, spec in observed.items() if not isinstance(spec, Composite)}
        shapes = {key: spec.shape[lead:] for key, spec in leaves.items()}
        if isinstance(action, Categorical):
            return cls(where, group, shapes, num_actions=int(action.space.n))
        if isinstance(action, Bounded):
            first = (0,) * (action.ndim - 1)
            low, high = (bound[first].cpu() for bound in (action.space.low, action.space.high))
            return cls(where, group, shapes, low=low, high=high)
        raise ValueError(f"AgentSpace: want an action that is an index or bounded; {where} has {type(action).__name__}")

    def size_of(self, name: str) -> int:
        """Last axis of an observation.

        Raises:
            ValueError: It is not observed.
        """
        if name not in self.observations:
            raise ValueError(f"AgentSpace: want {name} to observe; {self.where} gives only {self.given}")
        return self.observations[name][-1]

    def check(self, agent: str, network: nn.Module, *, discrete: bool) -> None:
        """ValueError unless the network's inputs are observed and the action is of the agent's kind."""
        missing = [key for key in in_keys(network) if key not in self.observations]
        if missing:
            raise ValueError(
                f"{agent}: {type(network).__name__} wants {', '.join(missing)} to observe; {self.where} gives only"
                f" {self.given}"
            )
        if discrete is not (self.num_actions is not None):
            wanted, came = ("discrete", "continuous") if discrete else ("continuous", "discrete")
            raise ValueError(f"{agent}: want a {wanted} action; that of {self.where} is {came}")

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest action, (D,).

        Raises:
            ValueError: The action is discrete.
        """
        if self.low is None or self.high is None:
            raise ValueError(f"AgentSpace: want a continuous action; that of {self.where} is discrete")
        return self.low, self.high

    @property
    def given(self) -> str:
        """Names of the observations, in messages."""
        return ", ".join(self.observations)


def in_keys(network: nn.Module) -> list[str]:
    """Observations that a network takes, in the order of its arguments."""
    return list(cast("list[str]", network.in_keys))


def _parent(key: NestedKey) -> tuple[str, ...]:
    return key[:-1] if isinstance(key, tuple) else ()
