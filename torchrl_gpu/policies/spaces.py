"""`AgentSpace`: observations and action of one agent as plain data.

Agents and networks are built from it alone.
"""

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

# Levels of lists and dicts within each other.
_DEEPEST = 8


@dataclass(frozen=True)
class AgentSpace:
    """Observations and action of one row.

    A row is one environment, or one robot of an environment that groups its robots.

    It holds numbers, text, lists and dicts only, so that a checkpoint can keep it and a policy can be rebuilt where
    there is no environment.

    Attributes:
        source: Name of the environment, in error messages.
        group: Key of the group that holds the agents' entries; empty where they are at the root.
        observations: Shape, without batch, and dtype of each observation, such as `((39,), "float32")`.
        num_actions: Number of actions A; None for a continuous action.
        low: Smallest action, D numbers; None for a discrete action.
        high: Largest action, D numbers; None for a discrete action.
        extras: What else the environment tells networks, see `BatchedEnv.space_extras`: a bin, for instance.
    """

    source: str
    group: tuple[str, ...]
    observations: dict[str, tuple[tuple[int, ...], str]]
    num_actions: int | None = None
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A frozen dataclass is written to in this way only.
        object.__setattr__(self, "extras", _plain(self.extras))
        low = self.low or ()
        high = self.high or ()
        is_bounded = 0 < len(low) == len(high)
        if (self.num_actions is None) is not is_bounded or any(map(operator.gt, low, high)):
            found = f"{self.num_actions} actions, low {list(low)}, high {list(high)}"
            raise ValueError(f"AgentSpace: give num_actions, or low and high with low <= high, not {found}")
        if self.masked and self.observations["action_mask"] != ((self.num_actions,), "bool"):
            shape, dtype = self.observations["action_mask"]
            raise ValueError(
                f"AgentSpace: action_mask of {self.source} must have one flag for each of {self.num_actions} actions,"
                f" not shape {shape} and dtype {dtype}"
            )

    @classmethod
    def of(cls, env: EnvBase) -> AgentSpace:
        """Space of an environment with one action, at the root or in a group.

        The environment's outcomes are not observations: agents must not see them.

        ValueError if the environment has several actions, an action that is neither an index nor bounded, or an
        `action_mask` that is not one flag for each action.
        """
        source = type(env).__name__
        keys = list(env.action_keys)
        if len(keys) != 1:
            raise ValueError(f"AgentSpace: {source} must have one action, not {keys}")
        action = env.full_action_spec[keys[0]]
        key = keys[0]
        group = key[:-1] if isinstance(key, tuple) else ()
        extras = getattr(env, "space_extras", {})
        observations = _observations_of(env, group)
        if isinstance(action, Categorical):
            return cls(source, group, observations, num_actions=int(action.space.n), extras=extras)
        if isinstance(action, Bounded):
            # Bounds are the same for all rows, so that those of the first one stand for all.
            first = (0,) * (action.ndim - 1)
            low = tuple(action.space.low[first].tolist())
            high = tuple(action.space.high[first].tolist())
            return cls(source, group, observations, low=low, high=high, extras=extras)
        raise ValueError(f"AgentSpace: the action of {source} must be an index or bounded, not {type(action).__name__}")

    def to_dict(self) -> dict[str, object]:
        """Plain data for `from_dict`, which JSON and a checkpoint can hold."""
        return cast("dict[str, object]", _plain(asdict(self)))

    @classmethod
    def from_dict(cls, given: object) -> AgentSpace:
        """Read the space of a dict that `to_dict` wrote.

        All is validated, as the dict may come from outside, such as from a checkpoint.
        """
        if not isinstance(given, Mapping) or set(given) != set(_FORMS):
            found = list(given) if isinstance(given, Mapping) else given
            arguments.refuse("AgentSpace", "space", f"a mapping of {', '.join(_FORMS)}", found)
        # First the form of each entry is checked, and then the space as a whole, when it is made.
        entries: dict[str, Any] = {name: _plain(value) for name, value in given.items()}
        for name, fits in _TESTS.items():
            if not fits(entries[name]):
                arguments.refuse("AgentSpace", name, _FORMS[name], entries[name])
        entries["group"] = tuple(entries["group"])
        observations = {}
        for name, (shape, dtype) in entries["observations"].items():
            observations[name] = (tuple(shape), dtype)
        entries["observations"] = observations
        for name in ("low", "high"):
            if entries[name] is not None:
                entries[name] = tuple(entries[name])
        return cls(**entries)

    def size_of(self, name: str) -> int:
        """Last axis of an observation.

        ValueError if it is not observed.
        """
        if name not in self.observations:
            raise ValueError(f"AgentSpace: {self.source} does not observe {name}: it has {self.names}")
        return self.observations[name][0][-1]

    def zeros(self, name: str, rows: int) -> Tensor:
        """Zeros in the form of an observation, (rows, …)."""
        shape, dtype = self.observations[name]
        kind = getattr(torch, dtype)
        return torch.zeros(rows, *shape, dtype=kind, device=torch.get_default_device())

    @property
    def masked(self) -> bool:
        """Whether an `action_mask` says which actions are legal (else all are)."""
        return self.num_actions is not None and "action_mask" in self.observations

    @property
    def values_shape(self) -> tuple[int]:
        """(A,), the shape of the values of all actions.

        ValueError if the action is continuous.
        """
        if self.num_actions is None:
            raise ValueError(f"AgentSpace: the action must be discrete, and that of {self.source} is continuous")
        return (self.num_actions,)

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest action, (D,) float32 each.

        ValueError if the action is discrete.
        """
        if self.low is None or self.high is None:
            raise ValueError(f"AgentSpace: the action must be continuous, and that of {self.source} is discrete")
        low = torch.tensor(self.low, dtype=torch.float32, device="cpu")
        high = torch.tensor(self.high, dtype=torch.float32, device="cpu")
        return low, high

    @property
    def action_shape(self) -> tuple[int]:
        """(D,), the shape of a continuous action."""
        return (len(self.bounds[0]),)

    @property
    def names(self) -> str:
        return ", ".join(self.observations)


def _observations_of(env: EnvBase, group: tuple[str, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each observation in a group, without its outcomes."""
    specs = env.observation_spec[group] if group else env.observation_spec
    lead = len(env.batch_size) + len(group)
    outcomes = set()
    for key in getattr(env, "outcomes", ()):
        outcomes.add(key if isinstance(key, str) else key[-1])
    observations = {}
    for key, spec in specs.items():
        if isinstance(spec, Composite) or key in outcomes:
            continue
        shape = tuple(spec.shape[lead:])
        dtype = str(spec.dtype).removeprefix("torch.")
        observations[str(key)] = (shape, dtype)
    return observations


def in_keys(network: nn.Module) -> list[str]:
    """Observations that a network takes, in the order of its arguments."""
    return list(cast("list[str]", network.in_keys))


def observed(network: nn.Module, batch: TensorDictBase) -> list[Tensor]:
    """Inputs of a network from a batch, in the order of its arguments."""
    return [batch.get(key) for key in in_keys(network)]


def detached(batch: TensorDictBase) -> TensorDictBase:
    """Batch for an actor to learn on, without gradients to observations.

    An encoder of observations learns from the critic alone.
    """
    has_gradients = any(value.requires_grad for value in batch.values(leaves_only=True))
    return batch.detach() if has_gradients else batch


def greedy_module(space: AgentSpace) -> QValueModule:
    """Module that writes the legal action of the largest `action_value`."""
    return QValueModule(action_space="categorical", action_mask_key="action_mask" if space.masked else None)


def legal_values(values: Tensor, state: TensorDictBase, space: AgentSpace) -> Tensor:
    """Values (B, A), with −inf for actions that are not legal in a state (B,)."""
    if not space.masked:
        return values
    return torch.where(state.get("action_mask"), values, -torch.inf)


def end_without_actions(rows: TensorDictBase, space: AgentSpace) -> TensorDictBase:
    """Transitions (B,) that terminate if the next state has no legal action.

    The value of such a state is then 0. The transitions given are not written to.
    """
    # The keys of a tensordict: it has no `in` of its own.
    if not space.masked or "next" not in rows.keys():  # noqa: SIM118
        return rows
    # A shallow copy: tensors are shared, and only replaced entries are new.
    after = rows.get("next").copy()
    is_stuck = ~after.get("action_mask").any(-1, keepdim=True)
    for key in ("terminated", "done"):
        ended = after.get(key, None)
        if ended is not None:
            after.set(key, ended | is_stuck)
    return rows.copy().set("next", after)


def of_action(values: Tensor, action: Tensor, axis: int) -> Tensor:
    """Select the values of one action (B,) from those of all actions.

    Actions are along `axis` of the values, (B, U, A) or (B, A, Z).
    """
    return values.take_along_dim(action[:, None, None], axis).squeeze(axis)


def _plain(value: object, depth: int = 0) -> object:
    """Copy plain data, with lists in place of tuples.

    ValueError unless it is made of numbers, text, lists and dicts.
    """
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, Mapping) and depth < _DEEPEST and all(isinstance(key, str) for key in value):
        return {key: _plain(each, depth + 1) for key, each in value.items()}
    if value is not None and not isinstance(value, bool | int | float | str):
        arguments.refuse("AgentSpace", "space", "made of numbers, text, lists and dicts by name", value)
    return value


def _is_list_of(value: object, *kinds: type) -> bool:
    return isinstance(value, list) and all(type(each) in kinds for each in value)


def _is_form(value: object) -> bool:
    """Whether a value is shape and dtype of an observation."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    shape, dtype = value
    if not _is_list_of(shape, int) or min(shape, default=0) < 0:
        return False
    return isinstance(dtype, str) and isinstance(getattr(torch, dtype, None), torch.dtype)


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and value > 0)


def _is_bound(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, list) or not _is_list_of(value, int, float):
        return False
    return all(map(math.isfinite, value))


def _is_name(value: object) -> bool:
    return isinstance(value, str)


def _are_names(value: object) -> bool:
    return _is_list_of(value, str)


def _are_forms(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_form, value.values()))


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


# What each entry of a dict from outside must be, as a test and in words.
_TESTS: dict[str, Callable[[object], bool]] = {
    "source": _is_name,
    "group": _are_names,
    "observations": _are_forms,
    "num_actions": _is_count,
    "low": _is_bound,
    "high": _is_bound,
    "extras": _is_dict,
}
_FORMS = {
    "source": "a name",
    "group": "a list of names",
    "observations": "shape and dtype of each observation by its name",
    "num_actions": "a whole number above 0, or none",
    "low": "finite numbers, or none",
    "high": "finite numbers, or none",
    "extras": "a mapping of names",
}
