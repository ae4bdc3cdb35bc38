"""Any agent as a policy of an environment, whatever the batch and wherever the environment keeps its agents."""

from __future__ import annotations

from typing import final

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor
from torchrl.envs.utils import ExplorationType, exploration_type, set_exploration_type

from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.policies.agents.iqn import IQN
from torchrl_gpu.policies.risk import Risk, RiskLevel

_BLOCK = 1024  # rows for each thread of a CPU


@final
class PolicyWrapper(TensorDictModuleBase):
    """Writes the action of every robot of every environment: one forward pass over all of them.

    It reads the group of robots that the agent's environment has, or the root where there is none, in any batch shape.
    In training mode and under `ExplorationType.RANDOM` it explores; otherwise it is greedy. Illegal actions are never
    chosen; a robot that is not `active` gets the continuous action 0. It shares weights, bounds and epsilon with the
    agent, and `state_dict` holds these alone: neither targets nor critics.

    Args:
        agent: The agent.
        flat: Whether entries are at the root although the agent's environment groups its robots.
        cvar: Level of the conditional value at risk that an IQN acts by, or "adaptive"; None leaves the agent's own.
        cvar_distance: Clearance from which on the adaptive level is 1, metres.
    """

    def __init__(
        self, agent: Agent, *, flat: bool = False, cvar: Risk | None = None, cvar_distance: float = 10.0
    ) -> None:
        super().__init__()
        self.policy, self.exploration = _policy(agent, cvar, cvar_distance), agent.exploration
        # Held outside the module: its weights would be saved twice.
        self.__dict__["explorer"] = TensorDictSequential(self.policy, self.exploration)
        self._group = () if flat else agent.space.group
        self._discrete = agent.space.num_actions is not None
        own = dict.fromkeys([*self.policy.in_keys, *self.exploration.in_keys])
        self._names = [str(name) for name in own if name not in self.policy.out_keys]
        self._row_dims = len(agent.space.observations[self._names[0]])
        self.in_keys = [self._key(name) for name in self._names]
        self.out_keys = [self._key("action")]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the action: (…) int64 or (…, D) float32, behind the batch shape of the observations."""
        seen = self._seen(tensordict)
        if self.training and exploration_type() is ExplorationType.RANDOM:
            action = self._in_blocks(self.__dict__["explorer"], seen)
        else:
            with set_exploration_type(ExplorationType.DETERMINISTIC):
                action = self._in_blocks(self.policy, seen)
        active: Tensor | None = tensordict.get(self._key("active"), None)
        if active is not None and not self._discrete:
            action = torch.where(active, action, 0.0)
        return tensordict.set(self.out_keys[0], action)

    @property
    def has_values(self) -> bool:
        """Whether `decide` writes what is expected of each action."""
        return "action_value" in self.policy.out_keys

    def decide(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What the greedy policy writes for every robot: `action`, and `action_value` (…, A) where it has values."""
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            return self.policy(self._seen(tensordict))

    def _in_blocks(self, policy: TensorDictModuleBase, seen: TensorDictBase) -> Tensor:
        """Actions of all rows; on a CPU a block at a time, so that what lies between layers stays in its cache."""
        if torch.compiler.is_compiling() or seen.get(self._names[0]).device.type != "cpu":
            return policy(seen).get("action")
        block = _BLOCK * torch.get_num_threads()
        if seen.numel() <= block:
            return policy(seen).get("action")
        action = torch.cat([policy(part).get("action") for part in seen.reshape(-1).split(block)])
        return action.reshape(*seen.shape, *action.shape[1:])

    def _seen(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What the agent reads, at the root of a tensordict with a row for every robot."""
        entries = {name: tensordict.get(key) for name, key in zip(self._names, self.in_keys, strict=True)}
        first = entries[self._names[0]]
        return TensorDict(entries, batch_size=first.shape[: first.ndim - self._row_dims])

    def _key(self, name: str) -> NestedKey:
        return unravel_key((*self._group, name))


def _policy(agent: Agent, cvar: Risk | None, distance: float) -> TensorDictModuleBase:
    if cvar is None:
        return agent.policy
    if not isinstance(agent, IQN):
        raise ValueError(f"PolicyWrapper: cvar is for an IQN, whose actions depend on it; got a {agent.name}")
    return agent.policy_at(RiskLevel(cvar, distance).check("PolicyWrapper", agent.space))
