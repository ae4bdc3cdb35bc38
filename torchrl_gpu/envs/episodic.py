"""The shortest way to an environment: say how an episode begins and how it goes on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Categorical, Composite, TensorSpec, Unbounded

from torchrl_gpu import arguments
from torchrl_gpu.envs.base import DONE_KEYS, BatchedEnv, where_rows
from torchrl_gpu.envs.counter_rng import draw_bits

_COUNTS = ("step_count", "episode", "score")


class Advanced(NamedTuple):
    """What an action leads to, in all environments.

    Attributes:
        state: The entries of the state, (N, …) each.
        reward: (N,) float32.
        terminated: (N,) bool; episodes are also cut off after `max_steps`.
        outcomes: Entries (N,) of `next` besides, such as those that the environment names in `outcomes`.
    """

    state: dict[str, Tensor]
    reward: Tensor
    terminated: Tensor
    outcomes: Mapping[str, Tensor] = {}


class EpisodicEnv(BatchedEnv):
    """A `BatchedEnv` of which a subclass says only how an episode begins (`begin`) and how it goes on (`advance`).

    Specs, restarts, limits, counts and the state to resume from are made here. A subclass passes on `num_envs`,
    `max_steps`, `device`, `seed` and `first_env`; other arguments of its own it keeps under their names. With
    `pictures(index, width, height)`, see `envs.viewable.Viewable`, it can be watched.

    Args:
        num_envs: N.
        observations: Specs of what is seen of one environment, by name; entries of the state by default.
        action: Spec of its action: `Categorical`, or `Bounded` (D,) float32.
        outcomes: Specs of what `advance` tells besides, by name.
        max_steps: Actions after which an episode is cut off.
        device: As in `get_device`.
        seed: Decides all that is drawn by `uniform`; None draws one from torch's global generator.
        first_env: Number of the first environment, so that ranks or shards see different episodes.
    """

    not_passed_on = ("observations", "action", "outcomes")

    def __init__(
        self,
        num_envs: int,
        *,
        observations: Mapping[str, TensorSpec],
        action: TensorSpec,
        outcomes: Mapping[str, TensorSpec] | None = None,
        max_steps: int = 1000,
        device: str | torch.device = "auto",
        seed: int | None = None,
        first_env: int = 0,
    ) -> None:
        super().__init__(num_envs, device, seed, first_env)
        self.max_steps = arguments.whole(type(self).__name__, "max_steps", max_steps, 1)
        self._observed = list(observations)
        self._discrete = isinstance(action, Categorical)
        seen = {**observations, **{name: _column(spec) for name, spec in (outcomes or {}).items()}}
        self.observation_spec = Composite({key: self._spec(spec) for key, spec in seen.items()}, shape=(num_envs,))
        self.action_spec = self._spec(action)
        self.reward_spec = self._spec(Unbounded((1,)))
        done = self._spec(Binary(1, (1,), dtype=torch.bool))
        self.done_spec = Composite({key: done.clone() for key in DONE_KEYS}, shape=(num_envs,))
        self.outcomes = tuple(outcomes or {})
        count = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._rows = {"step_count": count, "episode": count.clone(), "score": torch.zeros(num_envs, device=self.device)}
        self._drawn = 0
        self._rows |= self._begun()

    @abstractmethod
    def begin(self) -> dict[str, Tensor]:
        """The state at the beginning of an episode of every environment, (N, …) each by name; drawn by `uniform`."""

    @abstractmethod
    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        """What an action (N,) int64, or (N, D) float32, leads to in all environments; reads nothing back."""

    def observe(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """What is seen, (N, …) each by name: the entries of the state that are observed."""
        return {name: state[name] for name in self._observed}

    def uniform(self, *shape: int) -> Tensor:
        """Numbers (N, *shape) float32 in [0, 1), drawn for this episode and step of each environment.

        They depend on seed, environment and episode alone, so that the same episodes are played in batches of any size.
        """
        key = draw_bits(draw_bits(torch.full_like(self._env_index, self.seed), self._env_index), self._rows["episode"])
        key = draw_bits(key, self._rows["step_count"])
        size = torch.Size(shape).numel()
        number = torch.arange(self._drawn, self._drawn + size, device=self.device)
        self._drawn += size
        bits = draw_bits(key[:, None], number) >> 8  # as many as a float32 holds
        return (bits.float() * 2.0**-24).reshape(self.num_envs, *shape)

    @property
    def stored_keys(self) -> list[str]:
        """Observations that replay must keep: all but outcomes."""
        return [key for key in super().stored_keys if key not in self.outcomes]

    def metrics(self) -> dict[str, Tensor]:
        """Steps, episodes begun and return so far of the running episodes, (N,) each, for viewers."""
        return {
            "step": self._rows["step_count"],
            "episode": self._rows["episode"],
            "return": self._rows["score"],
        }

    @property
    def entries(self) -> dict[str, Tensor]:
        """The entries of the state that the subclass made."""
        return {name: value for name, value in self._rows.items() if name not in _COUNTS}

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(self.device).expand(self.num_envs, *spec.shape)

    def _begun(self) -> dict[str, Tensor]:
        self._drawn = 0
        return self.begin()

    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        before, self._rows = self._rows, {**self._rows, "step_count": self._rows["step_count"] * ~mask}
        fresh = self._begun()
        self._rows |= {name: where_rows(mask, value, before[name]) for name, value in fresh.items()}
        self._rows |= {"episode": before["episode"] + mask, "score": before["score"] * ~mask}
        return self._seen()

    def _seen(self, outcomes: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        empty = {name: self.observation_spec[name].zero() for name in self.outcomes}
        return self.observe(self.entries) | empty | {name: value[:, None] for name, value in (outcomes or {}).items()}

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = tuple(self.action_spec.shape)
        action = self._given_action(tensordict, "action", shape, whole=self._discrete)
        self._rows = {**self._rows, "step_count": self._rows["step_count"] + 1}
        self._drawn = 0
        state, reward, terminated, outcomes = self.advance(self.entries, action)
        cut = (self._rows["step_count"] >= self.max_steps) & ~terminated
        self._rows |= {**state, "score": self._rows["score"] + reward}
        ends = {"terminated": terminated, "truncated": cut, "done": terminated | cut}
        out = self._seen(outcomes) | {name: value[:, None] for name, value in {"reward": reward, **ends}.items()}
        return TensorDict(out, batch_size=self.batch_size, device=self.device)

    def observation(self, index: int) -> TensorDictBase:
        """What is seen of one environment as it stands, batch size (1,)."""
        return TensorDict(self._seen(), batch_size=self.batch_size, device=self.device)[index : index + 1]

    def _restart_episodes(self) -> None:
        self._rows = {**self._rows, "episode": torch.zeros_like(self._rows["episode"])}

    def _env_state(self) -> dict[str, Tensor]:
        return dict(self._rows)

    def _set_env_state(self, state: dict[str, Any]) -> None:
        self._rows = dict(state)


def _column(spec: TensorSpec) -> TensorSpec:
    return spec if spec.shape else spec.expand(1)
