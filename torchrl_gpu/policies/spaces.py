"""`AgentSpace`: observations and action of one agent as plain data, all that agents and networks are built from."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Composite
from torchrl.envs import EnvBase
from torchrl.modules import QValueModule

from torchrl_gpu.system import arguments

_DEEPEST = 8  # lists and dicts within each other


@dataclass(frozen=True)
class AgentSpace:
    """Observations and action of one row: one environment, or one robot of an environment that groups its robots.

    It holds numbers, text, lists and dicts only, so that a checkpoint can keep it and a policy can be rebuilt where
    there is no environment.

    Attributes:
        source: Name of the environment, in error messages.
        group: Key of the group that holds the agents' entries; empty where they are at the root.
        observations: Shape, without batch, and dtype of each observation, such as `((39,), "float32")`.
        num_actions: Number of actions A; None where the action is continuous.
        low: Smallest action, D numbers; None where the action is discrete.
        high: Largest action, likewise.
        extras: What the environment tells networks besides, see `BatchedEnv.space_extras`: a bin, for instance.
    """

    source: str
    group: tuple[str, ...]
    observations: dict[str, tuple[tuple[int, ...], str]]
    num_actions: int | None = None
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extras", _plain(self.extras))
        low, high = self.low or (), self.high or ()
        if (self.num_actions is None) is not (0 < len(low) == len(high)) or any(map(operator.gt, low, high)):
            came = f"{self.num_actions} actions, low {list(low)}, high {list(high)}"
            raise ValueError(f"AgentSpace: want a number of actions, or bounds with low <= high; got {came}")
        if self.masked and self.observations["action_mask"] != ((self.num_actions,), "bool"):
            shape, dtype = self.observations["action_mask"]
            raise ValueError(
                f"AgentSpace: want an action_mask of one flag for each of {self.num_actions} actions; that of"
                f" {self.source} has shape {shape} and dtype {dtype}"
            )

    @classmethod
    def of(cls, env: EnvBase) -> AgentSpace:
        """The space of an environment with one action, at the root or in a group; outcomes are not for agents to see.

        ValueError where it has several actions, one that is neither an index nor bounded, or an `action_mask` that is
        not one flag for each action.
        """
        source, keys = type(env).__name__, list(env.action_keys)
        if len(keys) != 1:
            raise ValueError(f"AgentSpace: want an environment with one action; {source} has {keys}")
        action = env.full_action_spec[keys[0]]
        group = keys[0][:-1] if isinstance(keys[0], tuple) else ()
        observed = env.observation_spec[group] if group else env.observation_spec
        lead = len(env.batch_size) + len(group)
        outcomes = {key if isinstance(key, str) else key[-1] for key in getattr(env, "outcomes", ())}
        leaves = {
            str(key): (tuple(spec.shape[lead:]), str(spec.dtype).removeprefix("torch."))
            for key, spec in observed.items()
            if not isinstance(spec, Composite) and key not in outcomes
        }
        extras = getattr(env, "space_extras", {})
        if isinstance(action, Categorical):
            return cls(source, group, leaves, num_actions=int(action.space.n), extras=extras)
        if isinstance(action, Bounded):
            first = (0,) * (action.ndim - 1)
            low, high = (tuple(bound[first].tolist()) for bound in (action.space.low, action.space.high))
            return cls(source, group, leaves, low=low, high=high, extras=extras)
        raise ValueError(
            f"AgentSpace: want an action that is an index or bounded; {source} has {type(action).__name__}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as numbers, text, lists and dicts, for `from_dict`: JSON and a checkpoint can hold it."""
        return _plain(asdict(self))

    @classmethod
    def from_dict(cls, given: Any) -> AgentSpace:
        """The space of a dict that `to_dict` wrote, validated: it may come from outside, such as from a checkpoint."""
        if not isinstance(given, Mapping) or set(given) != set(_FORMS):
            came = list(given) if isinstance(given, Mapping) else given
            arguments.refuse("AgentSpace", "space", f"a mapping of {', '.join(_FORMS)}", came)
        found = _plain(given)
        for name, (wanted, fits) in _FORMS.items():
            if not fits(found[name]):
                arguments.refuse("AgentSpace", name, wanted, found[name])
        found["group"] = tuple(found["group"])
        found["observations"] = {name: (tuple(shape), dtype) for name, (shape, dtype) in found["observations"].items()}
        return cls(**found | {name: None if found[name] is None else tuple(found[name]) for name in ("low", "high")})

    def size_of(self, name: str) -> int:
        """Last axis of an observation; ValueError where it is not observed."""
        if name not in self.observations:
            raise ValueError(f"AgentSpace: want {name} to observe; {self.source} gives only {self.names}")
        return self.observations[name][0][-1]

    def zeros(self, name: str, rows: int) -> Tensor:
        """An observation of that many rows, (rows, …), all zeros."""
        shape, dtype = self.observations[name]
        return torch.zeros(rows, *shape, dtype=getattr(torch, dtype), device=torch.get_default_device())

    @property
    def masked(self) -> bool:
        """True where only some of the actions are legal: there is an `action_mask`. Without one, all always are."""
        return self.num_actions is not None and "action_mask" in self.observations

    @property
    def values_shape(self) -> tuple[int]:
        """(A,), of the values of all actions; ValueError where the action is continuous."""
        if self.num_actions is None:
            raise ValueError(f"AgentSpace: want a discrete action; that of {self.source} is continuous")
        return (self.num_actions,)

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest action, (D,) float32; ValueError where the action is discrete."""
        if self.low is None or self.high is None:
            raise ValueError(f"AgentSpace: want a continuous action; that of {self.source} is discrete")
        low, high = (torch.tensor(each, dtype=torch.float32, device="cpu") for each in (self.low, self.high))
        return low, high

    @property
    def action_shape(self) -> tuple[int]:
        """(D,), of a continuous action."""
        return (len(self.bounds[0]),)

    @property
    def names(self) -> str:
        return ", ".join(self.observations)


def in_keys(network: nn.Module) -> list[str]:
    """Observations that a network takes, in the order of its arguments."""
    return list(cast("list[str]", network.in_keys))


def observed(network: nn.Module, batch: TensorDictBase) -> list[Tensor]:
    """Inputs of a network from a batch, in the order of its arguments."""
    return [batch.get(key) for key in in_keys(network)]


def detached(batch: TensorDictBase) -> TensorDictBase:
    """A batch as an actor learns on it: features that networks made of observations are detached from them."""
    return batch.detach() if any(value.requires_grad for value in batch.values(leaves_only=True)) else batch


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


def _plain(value: Any, depth: int = 0) -> Any:
    """A copy in which tuples are lists; ValueError unless it is made of numbers, text, lists and dicts."""
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, Mapping) and depth < _DEEPEST and all(isinstance(key, str) for key in value):
        return {key: _plain(each, depth + 1) for key, each in value.items()}
    if value is not None and not isinstance(value, bool | int | float | str):
        arguments.refuse("AgentSpace", "space", "made of numbers, text, lists and dicts by name", value)
    return value


def _all(value: Any, *kinds: type) -> bool:
    return isinstance(value, list) and all(type(each) in kinds for each in value)


def _is_form(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2 or not _all(value[0], int) or min(value[0], default=0) < 0:
        return False
    return isinstance(value[1], str) and isinstance(getattr(torch, value[1], None), torch.dtype)


def _is_bound(value: Any) -> bool:
    return value is None or (_all(value, int, float) and all(map(math.isfinite, value)))


_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "source": ("a name", lambda value: isinstance(value, str)),
    "group": ("a list of names", lambda value: _all(value, str)),
    "observations": (
        "shape and dtype of each observation by its name",
        lambda value: isinstance(value, dict) and all(map(_is_form, value.values())),
    ),
    "num_actions": (
        "a whole number above 0, or none",
        lambda value: value is None or (type(value) is int and value > 0),
    ),
    "low": ("finite numbers, or none", _is_bound),
    "high": ("finite numbers, or none", _is_bound),
    "extras": ("a mapping of names", lambda value: isinstance(value, dict)),
}
"""What each entry of a dict from outside must be."""
