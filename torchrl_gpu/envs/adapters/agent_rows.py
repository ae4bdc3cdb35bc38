"""`AgentRows`: the agents of an environment as rows, for other libraries."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar, final

from tensordict import TensorDictBase
from torch import Tensor, finfo, nan, where
from torchrl.data import Bounded, Categorical, Composite, TensorSpec

from torchrl_gpu.envs.base import BatchedEnv

Grouped = TypeVar("Grouped", TensorDictBase, Composite)


class RowResults(NamedTuple):
    """What a step means for each row.

    Attributes:
        reward: (N,).
        terminated: Whether it ended by itself, (N,) bool.
        done: Whether it ended at all, (N,) bool.
    """

    reward: Tensor
    terminated: Tensor
    done: Tensor


class _FiniteBounds(NamedTuple):
    """How the infinite values of an observation become finite.

    Attributes:
        far: Absolute value that replaces infinity.
        low: Lower bounds of one row; None if no value of it has one.
        high: Upper bounds of one row; None if no value of it has one.
    """

    far: float
    low: Tensor | None = None
    high: Tensor | None = None


@final
class AgentRows:
    """Rows of a `BatchedEnv` with one action.

    They are its environments, or all their robots if it groups robots. A robot ends once in an episode. From then on,
    until the next episode, it earns 0 and does not end again.

    Attributes:
        action_key: Key of the action.
        action: Its spec.
        group: Key of the group of robots; empty if entries are at the root.
        shape: (environments,), or (environments, robots).
        num_rows: N.

    Args:
        env: The environment.
        where: Beginning of error messages.

    Raises:
        ValueError: It has several actions, or one that is neither an index nor bounded.
    """

    def __init__(self, env: BatchedEnv, where: str) -> None:
        if len(env.action_keys) != 1:
            raise ValueError(f"{where}: env must have one action, not {list(env.action_keys)}")
        key = env.action_keys[0]
        self.action_key = key
        self.action: TensorSpec = env.full_action_spec[key]
        if not isinstance(self.action, Categorical | Bounded):
            kind = type(self.action).__name__
            raise ValueError(f"{where}: the action of env must be an index or bounded, not {kind}")
        self.group: tuple[str, ...] = key[:-1] if isinstance(key, tuple) else ()
        num_robots = int(getattr(env, "num_robots", 1))
        self.shape = (env.num_envs, num_robots) if self.group else (env.num_envs,)
        self.num_rows = math.prod(self.shape)
        self._env = env
        self._bounds = {name: self._finite_bounds(spec) for name, spec in self.observations.items()}

    def _finite_bounds(self, spec: TensorSpec) -> _FiniteBounds:
        if not spec.dtype.is_floating_point:
            return _FiniteBounds(far=0.0)
        far = min(self._env.far, finfo(spec.dtype).max)
        if not isinstance(spec, Bounded):
            return _FiniteBounds(far)
        first_row = (0,) * len(self.shape)
        low = spec.space.low[first_row]
        high = spec.space.high[first_row]
        # A clamp costs an operator at every step, so it is left out where it would change nothing.
        has_low = bool(low.isfinite().any())
        has_high = bool(high.isfinite().any())
        return _FiniteBounds(far, low if has_low else None, high if has_high else None)

    def observe(self, name: str, tensordict: TensorDictBase) -> Tensor:
        """Return an observation in finite numbers.

        An infinite value becomes the bound that the spec declares, or `BatchedEnv.far`. Networks of other libraries,
        and their running means, would turn infinity into NaN.
        """
        value: Tensor = self.entries(tensordict)[name]
        if not value.is_floating_point():
            return value
        unbounded = _FiniteBounds(self._env.far)
        far, low, high = self._bounds.get(name, unbounded)
        # By default `nan_to_num` would make NaN 0, and a fault of the environment would pass as a number.
        value = value.nan_to_num(nan, far, -far)
        if low is None and high is None:
            return value
        return value.clamp(low, high)

    @property
    def observations(self) -> dict[str, TensorSpec]:
        """Specs of observations over all environments, without outcomes of episodes."""
        outcomes = self._env.outcome_names
        specs = self.entries(self._env.observation_spec)
        return {name: spec for name, spec in specs.items() if name not in outcomes and not isinstance(spec, Composite)}

    def entries(self, tensordict: Grouped) -> Grouped:
        """Return the part of a tensordict or spec that holds the rows: the group, or all."""
        return tensordict[self.group] if self.group else tensordict

    def flatten(self, value: Tensor) -> Tensor:
        """Return values (N,) of the rows, from one for each row or for each environment."""
        num_envs = self.shape[0]
        # One column, or as many as there are robots.
        columns = value.reshape(len(value), -1)
        return columns.expand(num_envs, self.num_rows // num_envs).reshape(-1)

    def results(self, before: TensorDictBase, after: TensorDictBase, over: Tensor) -> RowResults:
        """Return what a step means for each row.

        Args:
            before: Observations before the step.
            after: Its `next`.
            over: Whether an environment begins a new episode, by which its rows end, too; (environments, 1) bool.
        """
        own = self.entries(after)
        reward = self.flatten(own["reward"])
        terminated = self.flatten(own["terminated"])
        done = self.flatten(own["done"]) | self.flatten(over)
        active = self.entries(before).get("active", None)
        if active is None:
            return RowResults(reward, terminated, done)
        # Whatever the environment says of robots that have ended, they must not end again: other libraries would count
        # an episode for each flag.
        is_active = self.flatten(active)
        return RowResults(where(is_active, reward, 0.0), terminated & is_active, done & is_active)
