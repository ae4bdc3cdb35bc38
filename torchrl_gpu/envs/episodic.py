"""`EpisodicEnv`: a `BatchedEnv` defined by how an episode begins and how it advances."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded

from torchrl_gpu.envs.base import DONE_KEYS, BatchedEnv, NumEnvs, where_rows
from torchrl_gpu.envs.counter_rng import draw_bits, draw_uniform, episode_key
from torchrl_gpu.envs.state_validation import Entry
from torchrl_gpu.system import arguments
from torchrl_gpu.system.threads import runs_single_threaded

_COUNTS = ("step_count", "episode", "score")
_OF_STEPS = ("action", "reward", "next", "_reset", *DONE_KEYS)  # entries that TorchRL has itself


class Advanced(NamedTuple):
    """Result of an action in all environments.

    Attributes:
        state: All tensors of the state of `begin`, of the same shapes and dtypes.
        reward: (N,) or (N, 1) float32.
        terminated: (N,) or (N, 1) bool; episodes are also cut off after `max_steps`.
        outcomes: (N,) or (N, 1) each: those that the environment names in `outcomes`.
    """

    state: dict[str, Tensor]
    reward: Tensor
    terminated: Tensor
    outcomes: Mapping[str, Tensor] = {}


class EpisodicEnv(BatchedEnv):
    """A `BatchedEnv` whose subclasses define only how an episode begins (`begin`) and how it advances (`advance`).

    Specs, restarts, limits, counts and the state to resume from are made here. A subclass passes on `num_envs`,
    `max_steps`, `device`, `seed` and `first_env`; other arguments of its own it keeps under their names. With
    `pictures(index, width, height)`, see `envs.viewable.Viewable`, viewers can show it. Names, shapes, dtypes and
    devices of the results of both methods are checked, which reads nothing back; `begin` is first called when the
    constructor has returned.

    Args:
        num_envs: N.
        observations: Specs of the observations of one environment, by name; by default they are tensors of the state.
        action: Spec of its action: `Categorical`, or `Bounded` (D,) float32.
        outcomes: Specs of the outcomes that `advance` returns, by name.
        max_steps: Actions after which an episode is cut off.
        device: As in `get_device`.
        seed: Seed of all draws of `uniform`; None draws one from torch's global generator.
        first_env: Number of the first environment, so that ranks or shards see different episodes.
    """

    not_passed_on = ("observations", "action", "outcomes")

    def __init__(
        self,
        num_envs: NumEnvs,
        *,
        observations: Mapping[str, TensorSpec],
        action: TensorSpec,
        outcomes: Mapping[str, TensorSpec] | None = None,
        max_steps: int = 1000,
        device: str | torch.device = "auto",
        seed: int | None = None,
        first_env: int = 0,
    ) -> None:
        where = type(self).__name__
        super().__init__(num_envs, device, seed, first_env)
        num_envs = self.num_envs
        self.max_steps = arguments.whole(where, "max_steps", max_steps, 1)
        observed = _declared(where, "observations", observations)
        columns = _declared(where, "outcomes", outcomes or {})
        for name, spec in columns.items():
            if tuple(spec.shape) not in ((), (1,)):
                raise ValueError(f"{where}: want outcome {name} of shape (1,); got {tuple(spec.shape)}")
            columns[name] = spec if spec.shape else spec.expand(1)
        if taken := observed.keys() & {*_OF_STEPS, *columns} or columns.keys() & {*_OF_STEPS}:
            raise ValueError(f"{where}: want other names than those of outcomes and TorchRL's own; got {min(taken)}")
        if not isinstance(action, Categorical | Bounded):
            arguments.refuse(where, "action", "a Categorical or Bounded of TorchRL", action)
        self._discrete = isinstance(action, Categorical)
        leaves = {key: self._spec(spec) for key, spec in {**observed, **columns}.items()}
        self.observation_spec = Composite(leaves, shape=(num_envs,))
        self.action_spec = self._spec(action)
        self.reward_spec = self._spec(Unbounded((1,), dtype=torch.float32))
        done = self._spec(Binary(1, (1,), dtype=torch.bool))
        self.done_spec = Composite({key: done.clone() for key in DONE_KEYS}, shape=(num_envs,))
        self.outcomes = self._cleared = tuple(columns)
        forms = {name: Entry(leaf.dtype, tuple(leaf.shape)) for name, leaf in leaves.items()}
        self._observed = {name: forms[name] for name in observed}
        self._outcome_forms = {name: forms[name] for name in columns}
        count = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        score = torch.zeros(num_envs, dtype=torch.float32, device=self.device)
        self._state = {"step_count": count, "episode": count.clone(), "score": score}
        self._reward, self._flag = (Entry(dtype, (num_envs, 1)) for dtype in (torch.float32, torch.bool))
        self._kept: dict[str, Entry] = {}
        self._drawn = 0

    def _complete(self) -> None:
        arguments.seed(type(self).__name__, "seed", self.seed)  # may have been kept as it came, None
        self._drawn = 0
        state = self.begin()
        self._kept = self._forms_of(state)
        self._state = self._state | self._checked("begin", "state", state, self._kept)
        self._current_observations()
        super()._complete()

    @abstractmethod
    def begin(self) -> dict[str, Tensor]:
        """State at the beginning of an episode of every environment, (N, …) each by name; drawn by `uniform`."""

    @abstractmethod
    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        """Result of an action (N,) int64, or (N, D) float32, in all environments; reads nothing back."""

    def observe(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Observations, (N, …) each by name: the tensors of the state that are observed."""
        return {name: state[name] for name in self._observed}

    def uniform(self, *shape: int) -> Tensor:
        """Uniform random numbers (N, *shape) float32 in [0, 1) for this episode and step of each environment.

        They depend on seed, environment and episode alone, so that the same episodes are played in batches of any size.
        """
        key = episode_key(self.seed, self._env_index, self._state["episode"])
        key = draw_bits(key, self._state["step_count"])
        size = torch.Size(shape).numel()
        number = torch.arange(self._drawn, self._drawn + size, device=self.device, dtype=torch.int64)
        self._drawn += size
        return draw_uniform(key[:, None], number).reshape(self.num_envs, *shape)

    @property
    def stored_keys(self) -> list[str]:
        """Observation keys that replay must store: all but outcomes."""
        return [key for key in super().stored_keys if key not in self.outcomes]

    def metrics(self) -> dict[str, Tensor]:
        """Metrics for viewers: steps, episodes begun and return so far of the running episodes, (N,) each."""
        return {"step": self._state["step_count"], "episode": self._state["episode"], "return": self._state["score"]}

    @property
    def entries(self) -> dict[str, Tensor]:
        """Tensors of the state that the subclass made, by name."""
        return {name: value for name, value in self._state.items() if name not in _COUNTS}

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(self.device).expand(self.num_envs, *spec.shape)

    # -- validation of a subclass's results ---------------------------------------------------------------------------

    def _forms_of(self, state: Any) -> dict[str, Entry]:
        """Shapes and dtypes of the state of the first `begin`; they stay the same from then on."""
        where = f"{type(self).__name__}.begin"
        if not isinstance(state, Mapping):
            raise ValueError(f"{where}: want a dict of tensors by name; got {arguments.shown(state)}")
        seen = self._observed if type(self).observe is EpisodicEnv.observe else {}
        if seen.keys() - state.keys():
            raise ValueError(f"{where}: want {_names(seen)} among the state, to be observed; got {_names(state)}")
        if taken := state.keys() & {*_COUNTS, "seed"}:
            raise ValueError(f"{where}: want another name in the state; {min(taken)} is the environment's own")
        forms = {}
        for name, value in state.items():
            shape, dtype = (value.shape[1:], value.dtype) if isinstance(value, Tensor) else ((), torch.float32)
            forms[name] = seen.get(name, Entry(dtype, (self.num_envs, *shape)))
        return forms

    def _checked(
        self, method: str, what: str, given: Any, wanted: Mapping[str, Entry], columns: bool = False
    ) -> dict[str, Tensor]:
        """Tensors by name from a method of the subclass, validated in form without reading their values."""
        if not isinstance(given, Mapping) or given.keys() != wanted.keys():
            came = _names(given) if isinstance(given, Mapping) else arguments.shown(given)
            raise ValueError(f"{type(self).__name__}.{method}: want {what} {_names(wanted)}; got {came}")
        return {name: self._fitting(method, name, given[name], form, columns) for name, form in wanted.items()}

    def _fitting(self, method: str, name: str, given: Any, form: Entry, column: bool = False) -> Tensor:
        """Validated tensor of this form; as a column (N, 1) also where (N,) was given."""
        value = given[:, None] if column and isinstance(given, Tensor) and given.ndim == 1 else given
        where = f"{type(self).__name__}.{method}"
        return arguments.tensor(where, name, value, form.dtype, form.shape, self.device)

    # -- steps --------------------------------------------------------------------------------------------------------

    @runs_single_threaded
    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        before = self._state
        self._state = before | {"step_count": before["step_count"] * ~mask}
        self._drawn = 0
        fresh = self._checked("begin", "state", self.begin(), self._kept)
        fresh |= {"episode": before["episode"] + 1, "score": torch.zeros_like(before["score"])}
        self._state |= {name: where_rows(mask, value, before[name]) for name, value in fresh.items()}
        return self._first_observations()

    def _current_observations(self) -> dict[str, Tensor]:
        method = "begin" if type(self).observe is EpisodicEnv.observe else "observe"
        return self._checked(method, "observations", self.observe(self.entries), self._observed)

    def _first_observations(self) -> dict[str, Tensor]:
        """Observations before a step, with zeros for outcomes, which are not known yet."""
        return self._current_observations() | {name: self.observation_spec[name].zero() for name in self.outcomes}

    @runs_single_threaded
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = tuple(self.action_spec.shape)
        action = self._given_action(tensordict, "action", shape, whole=self._discrete).to(self.action_spec.dtype)
        self._state = self._state | {"step_count": self._state["step_count"] + 1}
        self._drawn = 0
        came = self.advance(self.entries, action)
        if not isinstance(came, Advanced):
            raise ValueError(f"{type(self).__name__}.advance: want an Advanced; got {arguments.shown(came)}")
        state = self._checked("advance", "state", came.state, self._kept)
        reward = self._fitting("advance", "reward", came.reward, self._reward, column=True)
        terminated = self._fitting("advance", "terminated", came.terminated, self._flag, column=True)
        outcomes = self._checked("advance", "outcomes", came.outcomes, self._outcome_forms, columns=True)
        cut = (self._state["step_count"] >= self.max_steps)[:, None] & ~terminated
        self._state |= {**state, "score": self._state["score"] + reward[:, 0]}
        ends = {"terminated": terminated, "truncated": cut, "done": terminated | cut}
        out = self._current_observations() | {**outcomes, "reward": reward, **ends}
        return TensorDict(out, batch_size=self.batch_size, device=self.device)

    def observation(self, index: int) -> TensorDictBase:
        """Current observation of one environment, batch size (1,)."""
        return TensorDict(self._first_observations(), batch_size=self.batch_size, device=self.device)[index : index + 1]


def _names(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names)) or "none"


def _declared(where: str, argument: str, given: Any) -> dict[str, TensorSpec]:
    specs = dict(given.items()) if isinstance(given, Mapping | Composite) else {"": None}
    leaves = [isinstance(spec, TensorSpec) and not isinstance(spec, Composite) for spec in specs.values()]
    if not all(leaves) or not all(isinstance(name, str) for name in specs):
        arguments.refuse(where, argument, "specs by name, such as {'place': Bounded(-1.0, 1.0, (2,))}", given)
    return specs
