"""Legal actions: those of `action_mask`, or all of them where the environment has no mask."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.modules import QValueModule

from torchrl_gpu.policies.spaces import AgentSpace


def greedy_module(space: AgentSpace) -> QValueModule:
    """Writes the legal action of the largest `action_value`."""
    return QValueModule(action_space="categorical", action_mask_key="action_mask" if space.masked else None)


def legal_values(values: Tensor, state: TensorDictBase, space: AgentSpace) -> Tensor:
    """Values (B, A), with −inf for actions that are not legal in a state (B,)."""
    return torch.where(state.get("action_mask"), values, -torch.inf) if space.masked else values


def end_without_actions(rows: TensorDictBase, space: AgentSpace) -> TensorDictBase:
    """Transitions (B,), the same or copies, that terminate where the next state has no legal action: its value is 0."""
    if not space.masked or "next" not in rows.keys():  # noqa: SIM118  # of a tensordict
        return rows
    after = rows.get("next").copy()
    stuck = ~after.get("action_mask").any(-1, keepdim=True)
    for key in ("terminated", "done"):
        if (ended := after.get(key, None)) is not None:
            after.set(key, ended | stuck)
    return rows.copy().set("next", after)


def of_action(values: Tensor, action: Tensor, axis: int) -> Tensor:
    """Rows of values that belong to actions (B,), of those of all actions along an axis, (B, U, A) or (B, A, Z)."""
    return values.take_along_dim(action[:, None, None], axis).squeeze(axis)
