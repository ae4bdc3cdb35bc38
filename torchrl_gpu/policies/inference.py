"""A trained policy by itself: observations in, actions out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments
from torchrl_gpu.system.policy_messages import ACTIVE


@final
class InferencePolicy(TensorDictModuleBase):
    """Greedy policy of a trained agent, without targets or exploration.

    It needs no environment: masks and whatever normalises observations are inside. It is in eval mode, takes no
    gradients and draws no numbers, so the same observations always give the same actions.

    Args:
        policy: Writes `action` for rows whose observations stand at the root, in any batch shape.
        space: What the agent observes and does.
        name: Name of the agent.
        about: Origin, as plain data: its environment's settings under `env`, versions, commit, frames.
    """

    def __init__(
        self, policy: TensorDictModuleBase, space: AgentSpace, name: str, about: Mapping[str, object] | None = None
    ) -> None:
        super().__init__()
        self.policy = policy
        self.space = space
        self.name = name
        self.about = dict(about or {})
        self.in_keys = [str(key) for key in policy.in_keys]
        self.out_keys = ["action"]
        # Where `active` is false a continuous action is 0.
        _, active_dtype = space.observations.get(ACTIVE, ((), ""))
        if space.num_actions is None and active_dtype == "bool" and ACTIVE not in self.in_keys:
            self.in_keys.append(ACTIVE)
        self.requires_grad_(False).eval()

    @property
    def device(self) -> torch.device:
        for each in chain(self.parameters(), self.buffers()):
            return each.device
        return torch.device("cpu")

    def forward(self, observations: TensorDictBase | Tensor) -> TensorDictBase | Tensor:
        """Actions of a batch, (…) int64 or (…, D) float32.

        Args:
            observations: A TensorDict with the entries `in_keys`, at the root or in the group of robots that the
                environment had, which then gets `action`; or, if there is one entry, its tensor alone, (…, F).
                Observations are moved to `device`, actions back. Without `active` all robots take part.

        Raises:
            ValueError: An entry is missing, or of another dtype or shape.
        """
        if isinstance(observations, Tensor):
            if len(set(self.in_keys) - {ACTIVE}) > 1:
                names = ", ".join(self.in_keys)
                raise ValueError(f"{self.name}: put {names} into a TensorDict: one tensor alone is not enough")
            name = self.in_keys[0]
            shape, _ = self.space.observations[name]
            # A tensor of too few axes gets this far, and is refused with a message by `_entry`.
            num_batch_axes = max(0, observations.ndim - len(shape))
            batch = observations.shape[:num_batch_axes]
            action = self._decide(TensorDict({name: observations}, batch))
            return action.to(observations.device)
        # Observations may come as the environment shows them, in a group, or without it.
        group = self.space.group
        rows = observations.get(group, observations) if group else observations
        action = self._decide(rows)
        if rows.device is not None:
            action = action.to(rows.device)
        rows.set("action", action)
        return observations

    @torch.no_grad()
    def _decide(self, rows: TensorDictBase) -> Tensor:
        present = set(rows.keys())
        # `active` alone may be missing: then all robots take part.
        names = [name for name in self.in_keys if name != ACTIVE or name in present]
        entries = {name: self._entry(name, rows) for name in names}
        # All observations have the same batch shape, which the first one tells.
        first = entries[self.in_keys[0]]
        first_shape, _ = self.space.observations[self.in_keys[0]]
        batch = first.shape[: first.ndim - len(first_shape)]
        if ACTIVE in self.in_keys and ACTIVE not in entries:
            active_shape, _ = self.space.observations[ACTIVE]
            whole_shape = (*batch, *active_shape)
            entries[ACTIVE] = first.new_ones(whole_shape, dtype=torch.bool)
        action: Tensor = self.policy(TensorDict(dict(entries), batch)).get("action")
        return action

    def _entry(self, name: str, rows: TensorDictBase) -> Tensor:
        """An observation on the policy's device.

        ValueError if it is missing, or of another dtype or shape.
        """
        shape, dtype = self.space.observations[name]
        value = rows.get(name, None)
        batch = rows.shape
        if value is not None:
            num_batch_axes = max(0, value.ndim - len(shape))
            batch = value.shape[:num_batch_axes]
        kind = getattr(torch, dtype)
        whole_shape = (*batch, *shape)
        checked = arguments.tensor(self.name, name, value, kind, whole_shape)
        return checked.to(self.device)
