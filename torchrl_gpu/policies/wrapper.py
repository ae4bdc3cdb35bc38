"""`PolicyWrapper`: any agent as a policy of an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from tensordict import TensorDict, TensorDictBase, unravel_key
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, exploration_type, set_exploration_type

from torchrl_gpu.policies.risk import Risk, RiskLevel
from torchrl_gpu.policies.weights import drop_settings
from torchrl_gpu.system.tracing import is_traced

if TYPE_CHECKING:
    from torchrl_gpu.policies.agents.base import Agent
    from torchrl_gpu.policies.cloning import Cloned

# Rows for each thread of a CPU.
_BLOCK = 1024


@final
class PolicyWrapper(TensorDictModuleBase):
    """Agent as a policy of an environment, in one pass over all robots.

    It reads the group of robots that the agent's environment has, or the root if there is none, in any batch shape,
    and writes there what the agent's policy gives (`out_keys`). In training mode and under `ExplorationType.RANDOM` it
    explores: the policy samples, and the agent's exploration, if any, replaces actions; entries that described the
    replaced actions are then not written. Otherwise it is greedy. Illegal actions are never chosen; a robot that is
    not `active` gets the continuous action 0. `state_dict` holds weights and epsilon, shared with the agent.

    Args:
        agent: The agent, or a cloned policy.
        flat: Whether entries are at the root although the agent's environment groups its robots.
        cvar: Level of the conditional value at risk to act by, or "adaptive", for an agent whose actions depend on it,
            such as IQN; None keeps the agent's own.
        cvar_distance: Clearance from which the adaptive level is 1, metres.
    """

    def __init__(
        self, agent: Agent | Cloned, *, flat: bool = False, cvar: Risk | None = None, cvar_distance: float = 10.0
    ) -> None:
        super().__init__()
        self.policy = agent.policy
        if cvar is not None:
            self.policy = agent.policy_at(RiskLevel(cvar, cvar_distance))
        self.exploration = agent.exploration
        # Entries of agents that are grouped have keys of several names.
        group = () if flat else agent.space.group
        explored: Sequence[str] = ()
        replaced: Sequence[str] = ()
        if self.exploration is not None:
            explored = self.exploration.in_keys
            replaced = self.exploration.replaced
        read = dict.fromkeys([*self.policy.in_keys, *explored])
        # Entries of the agent and the keys that they have in the environment.
        outputs = self.policy.out_keys
        own = [name for name in read if name not in outputs]
        written = [name for name in outputs if name not in replaced]
        self._reads = {name: unravel_key((*group, name)) for name in own}
        self._writes = {name: unravel_key((*group, name)) for name in written}
        self._active = unravel_key((*group, "active"))
        self._discrete = agent.space.num_actions is not None
        first_entry = next(iter(self._reads))
        self._row_dims = len(agent.space.observations[first_entry][0])
        self.in_keys = list(self._reads.values())
        self.out_keys = list(self._writes.values())
        self.register_load_state_dict_pre_hook(drop_settings)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `out_keys` behind the batch shape of the observations.

        `action` is (…) int64 or (…, D) float32.
        """
        # Evaluation in eval mode is greedy, whatever exploration type the caller has set.
        explores = self.training and exploration_type() is ExplorationType.RANDOM
        with set_exploration_type(ExplorationType.RANDOM if explores else ExplorationType.DETERMINISTIC):
            written = self._in_blocks(self._rows(tensordict))
        active: Tensor | None = tensordict.get(self._active, None)
        # A discrete action of a robot that takes no part is ignored by the environment.
        if active is not None and not self._discrete:
            written["action"] = torch.where(active, written["action"], 0.0)
        for name, key in self._writes.items():
            tensordict.set(key, written[name])
        return tensordict

    def _rows(self, tensordict: TensorDictBase) -> TensorDictBase:
        entries = {name: tensordict.get(key) for name, key in self._reads.items()}
        first = next(iter(entries.values()))
        return TensorDict(entries, batch_size=first.shape[: first.ndim - self._row_dims])

    def _in_blocks(self, rows: TensorDictBase) -> dict[str, Tensor]:
        """Outputs for all rows.

        A CPU computes them in blocks, so that activations between layers stay in its cache.
        """
        first_entry = rows.get(next(iter(self._reads)))
        on_cpu = first_entry.device.type == "cpu"
        if is_traced() or not on_cpu:
            return self._decide(rows)
        block = _BLOCK * torch.get_num_threads()
        if rows.numel() <= block:
            return self._decide(rows)
        blocks = rows.reshape(-1).split(block)
        parts = [self._decide(part) for part in blocks]
        written = {}
        for name in self._writes:
            value = torch.cat([part[name] for part in parts])
            written[name] = value.reshape(*rows.shape, *value.shape[1:])
        return written

    def _decide(self, rows: TensorDictBase) -> dict[str, Tensor]:
        rows = self.policy(rows)
        if self.exploration is not None:
            rows = self.exploration(rows)
        return {name: rows.get(name) for name in self._writes}
