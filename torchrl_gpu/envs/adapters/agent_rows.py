"""`AgentRows`: the agents of an environment as rows, for the adapters to other libraries."""

from __future__ import annotations

import math
from typing import Any, final

from tensordict import TensorDictBase
from torch import Tensor, finfo, nan, where
from torchrl.data import Bounded, Categorical, Composite, TensorSpec

from torchrl_gpu.envs.base import BatchedEnv


@final
class AgentRows:
    """The rows of a `BatchedEnv` with one action: its environments, or, where it groups its robots, all their robots.

    A robot ends once in an episode; until the next one it then earns 0 and ends no more. ValueError, which begins with
    `where`, for several actions, or one that is neither an index nor bounded.
    """

    def __init__(self, env: BatchedEnv, where: str) -> None:
        if len(env.action_keys) != 1:
            raise ValueError(f"{where}: want an environment with one action; got {list(env.action_keys)}")
        key = self.action_key = env.action_keys[0]
        self.action: TensorSpec = env.full_action_spec[key]
        if not isinstance(self.action, Categorical | Bounded):
            raise ValueError(f"{where}: want an action that is an index or bounded; got {type(self.action).__name__}")
        self.group: tuple[str, ...] = key[:-1] if isinstance(key, tuple) else ()  # empty where entries are at the root
        self.shape = (env.num_envs, int(getattr(env, "num_robots", 1))) if self.group else (env.num_envs,)
        self.number = math.prod(self.shape)
        self._env = env
        self._bounds = {name: self._finite_bounds(spec) for name, spec in self.observations.items()}

    def _finite_bounds(self, spec: TensorSpec) -> tuple[float, Tensor | None, Tensor | None]:
        """Substitute for infinity in an observation, and the finite bounds of one row that its spec declares."""
        if not spec.dtype.is_floating_point:
            return 0.0, None, None
        far = min(self._env.far, finfo(spec.dtype).max)
        if not isinstance(spec, Bounded):
            return far, None, None
        first = (0,) * len(self.shape)
        low, high = (bound[first] for bound in (spec.space.low, spec.space.high))
        return far, low if bool(low.isfinite().any()) else None, high if bool(high.isfinite().any()) else None

    def shown(self, name: str, tensordict: TensorDictBase) -> Tensor:
        """Finite observation: infinite values become the bound that its specification declares, else `far`."""
        value: Tensor = self.entries(tensordict)[name]
        if not value.is_floating_point():
            return value
        far, low, high = self._bounds.get(name, (self._env.far, None, None))
        value = value.nan_to_num(nan, far, -far)
        return value if low is None and high is None else value.clamp(low, high)

    @property
    def observations(self) -> dict[str, Any]:
        """Specifications of observations by name, over all environments: all but outcomes of episodes."""
        outcomes = self._env.outcome_names
        specs = self.entries(self._env.observation_spec)
        return {name: spec for name, spec in specs.items() if name not in outcomes and not isinstance(spec, Composite)}

    def entries(self, tensordict: Any) -> Any:
        """Part of a tensordict or specification that holds the rows: the group, or the root."""
        return tensordict[self.group] if self.group else tensordict

    def flat(self, value: Tensor) -> Tensor:
        """Values (N,) of the rows, from one for each row or for each environment."""
        return value.reshape(len(value), -1).expand(self.shape[0], self.number // self.shape[0]).reshape(-1)

    def earned(self, before: TensorDictBase, after: TensorDictBase, over: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards, terminations and ends (N,) of a step by row, from observations `before` it and its `next`, `after`.

        Rows end, too, where their environment begins anew, `over` (environments, 1) bool.
        """
        own = self.entries(after)
        reward, terminated, done = (self.flat(own[name]) for name in ("reward", "terminated", "done"))
        done = done | self.flat(over)
        active = self.entries(before).get("active", None)
        if active is not None:
            there = self.flat(active)
            reward, terminated, done = where(there, reward, 0.0), terminated & there, done & there
        return reward, terminated, done
