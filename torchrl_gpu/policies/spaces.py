"""What one agent observes and does in an environment, wherever the environment keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
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
        dtypes: Of each observation.
        device: Of the environment.
    """

    where: str
    group: tuple[str, ...]
    observations: dict[str, torch.Size]
    num_actions: int | None = None
    low: Tensor | None = None
    high: Tensor | None = None
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def of(cls, env: EnvBase) -> AgentSpace:
        """The space of an environment with one action, at the root or in a group.

        Raises:
            ValueError: It has several actions, one that is neither an index nor bounded, or an `action_mask` that is
                not one flag for each action.
        """
        where, keys = type(env).__name__, list(env.action_keys)
        if len(keys) != 1:
            raise ValueError(f"AgentSpace: want an environment with one action; {where} has {keys}")
        group, action = _parent(keys[0]), env.full_action_spec[keys[0]]
        lead = len(env.batch_size) + len(group)
        observed = env.observation_spec[group] if group else env.observation_spec
        leaves = {str(key): spec for key, spec in observed.items() if not isinstance(spec, Composite)}
        shapes = {key: spec.shape[lead:] for key, spec in leaves.items()}
        dtypes = {key: spec.dtype for key, spec in leaves.items()}
        device = torch.device(getattr(env, "device", None) or "cpu")
        if isinstance(action, Categorical):
            number = int(action.space.n)
            if shapes.get("action_mask", (number,)) != (number,):
                raise ValueError(
                    f"AgentSpace: want an action_mask of one flag for each of {number} actions; that of {where} has"
                    f" shape {tuple(shapes['action_mask'])}"
                )
            return cls(where, group, shapes, num_actions=number, dtypes=dtypes, device=device)
        if isinstance(action, Bounded):
            first = (0,) * (action.ndim - 1)
            low, high = (bound[first].cpu() for bound in (action.space.low, action.space.high))
            return cls(where, group, shapes, low=low, high=high, dtypes=dtypes, device=device)
        raise ValueError(f"AgentSpace: want an action that is an index or bounded; {where} has {type(action).__name__}")

    def size_of(self, name: str) -> int:
        """Last axis of an observation.

        Raises:
            ValueError: It is not observed.
        """
        if name not in self.observations:
            raise ValueError(f"AgentSpace: want {name} to observe; {self.where} gives only {self.given}")
        return self.observations[name][-1]

    @property
    def values_shape(self) -> tuple[int]:
        """(A,), of the values of all actions.

        Raises:
            ValueError: The action is continuous.
        """
        if self.num_actions is None:
            raise ValueError(f"AgentSpace: want a discrete action; that of {self.where} is continuous")
        return (self.num_actions,)

    @property
    def action_shape(self) -> tuple[int]:
        """(D,), of a continuous action."""
        return (len(self.bounds[0]),)

    @property
    def always_legal(self) -> int | None:
        """How many actions there are where all are always legal; None where there is a mask."""
        return None if self.masked else self.num_actions

    @property
    def masked(self) -> bool:
        """Whether only some of the actions are legal: there is an `action_mask`. Without one, all always are."""
        return self.num_actions is not None and "action_mask" in self.observations

    def check(self, agent: str, network: nn.Module, *, discrete: bool) -> None:
        """ValueError unless the network's inputs are named and observed, and the action is of the agent's kind."""
        named = getattr(network, "in_keys", None)
        if not isinstance(named, list | tuple) or not all(isinstance(key, str) for key in named):
            raise ValueError(
                f"{agent}: want a network with in_keys, a list of the observations that its forward takes;"
                f" {type(network).__name__} has {'none' if named is None else repr(named)}"
            )
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
