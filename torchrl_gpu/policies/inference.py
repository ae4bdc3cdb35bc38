"""A trained policy by itself: observations in, actions out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments
from torchrl_gpu.system.policy_messages import ACTIVE


@final
class InferencePolicy(TensorDictModuleBase):
    """The greedy policy of a trained agent, without an environment, targets or exploration.

    Masks and whatever normalises observations are inside. It is in eval mode, takes no gradients and draws no numbers,
    so that the same observations give the same actions.

    Args:
        policy: Writes `action` for rows whose observations stand at the root, whatever the batch.
        space: What the agent observes and does.
        name: Of the agent.
        about: Origin, as plain data: its environment's settings under `env`, versions, commit, frames.
    """

    def __init__(
        self, policy: TensorDictModuleBase, space: AgentSpace, name: str, about: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.policy, self.space, self.name, self.about = policy, space, name, dict(about or {})
        self.in_keys, self.out_keys = [str(key) for key in policy.in_keys], ["action"]
        is_told = space.observations.get(ACTIVE, ((), ""))[1] == "bool"
        if space.num_actions is None and is_told and ACTIVE not in self.in_keys:
            self.in_keys.append(ACTIVE)  # where it is false a continuous action is 0
        self.requires_grad_(False).eval()

    @property
    def device(self) -> torch.device:
        return next((each.device for each in chain(self.parameters(), self.buffers())), torch.device("cpu"))

    def forward(self, observations: TensorDictBase | Tensor) -> TensorDictBase | Tensor:
        """Actions of a batch, (…) int64 or (…, D) float32.

        Args:
            observations: A TensorDict with the entries `in_keys`, at the root or in the group of robots that the
                environment had, which gets `action` beside them; or, where there is one entry, that alone, (…, F). They
                are moved to `device`, actions back. Where `active` is missing, all robots take part.

        Raises:
            ValueError: An entry is missing, or of another dtype or shape.
        """
        if isinstance(observations, Tensor):
            if len(set(self.in_keys) - {ACTIVE}) > 1:
                raise ValueError(f"{self.name}: want a TensorDict with {', '.join(self.in_keys)}; got one tensor alone")
            shape, _ = self.space.observations[self.in_keys[0]]
            batch = observations.shape[: max(0, observations.ndim - len(shape))]
            return self._decided(TensorDict({self.in_keys[0]: observations}, batch)).to(observations.device)
        group = self.space.group
        rows = observations.get(group, observations) if group else observations
        action = self._decided(rows)
        rows.set("action", action if rows.device is None else action.to(rows.device))
        return observations

    @torch.no_grad()
    def _decided(self, rows: TensorDictBase) -> Tensor:
        there = set(rows.keys())
        entries = {name: self._checked(name, rows) for name in self.in_keys if name != ACTIVE or name in there}
        first = entries[self.in_keys[0]]
        batch = first.shape[: first.ndim - len(self.space.observations[self.in_keys[0]][0])]
        if ACTIVE in self.in_keys and ACTIVE not in entries:
            entries[ACTIVE] = first.new_ones((*batch, *self.space.observations[ACTIVE][0]), dtype=torch.bool)
        action: Tensor = self.policy(TensorDict(entries, batch)).get("action")
        return action

    def _checked(self, name: str, rows: TensorDictBase) -> Tensor:
        shape, dtype = self.space.observations[name]
        value = rows.get(name, None)
        batch = rows.shape if value is None else value.shape[: max(0, value.ndim - len(shape))]
        checked = arguments.tensor(self.name, name, value, getattr(torch, dtype), (*batch, *shape))
        return checked.to(self.device)
