"""`EpisodicEnv`: an environment defined by how an episode begins and advances."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded

from torchrl_gpu.envs.base import DONE_KEYS, BatchedEnv, NumEnvs, where_rows
from torchrl_gpu.envs.counter_rng import draw_bits, draw_uniform, episode_key
from torchrl_gpu.envs.state_validation import Entry
from torchrl_gpu.system import arguments
from torchrl_gpu.system.threads import runs_single_threaded

# Entries of the state that are kept here, not by the subclass.
_COUNTS = ("step_count", "episode", "score")

# Entries of a step that TorchRL has itself.
_OF_STEPS = frozenset(("action", "reward", "next", "_reset", *DONE_KEYS))


class Advanced(NamedTuple):
    """Result of an action in all environments.

    Attributes:
        state: All tensors of the state of `begin`, of the same shapes and dtypes.
        reward: (N,) or (N, 1) float32.
        terminated: (N,) or (N, 1) bool; episodes are also cut off after `max_steps`.
        outcomes: Values of the outcomes that the constructor declares, (N,) or (N, 1) each.
    """

    state: dict[str, Tensor]
    reward: Tensor
    terminated: Tensor
    outcomes: Mapping[str, Tensor] = {}


class EpisodicEnv(BatchedEnv):
    """A `BatchedEnv` that only needs to know how an episode begins and advances.

    A subclass defines `begin` and `advance`. Specs, restarts, limits, counts and the state to resume from are made
    here. A subclass passes on `num_envs`, `max_steps`, `device`, `seed` and `first_env`, and keeps arguments of its own
    as attributes of the same names. If it has `pictures(index, width, height)`, see `envs.viewable.Viewable`, viewers
    can show it. Names, shapes, dtypes and devices of the results of both methods are checked, without reading values;
    `begin` is first called when the constructor has returned.

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
        observed = _declared_specs(where, "observations", observations)
        columns = _outcome_specs(where, outcomes or {})
        taken = (observed.keys() & (_OF_STEPS | columns.keys())) | (columns.keys() & _OF_STEPS)
        if taken:
            raise ValueError(f"{where}: {min(taken)} is the name of an outcome or of TorchRL's own: choose another")
        if not isinstance(action, Categorical | Bounded):
            arguments.refuse(where, "action", "a Categorical or Bounded of TorchRL", action)
        self._discrete = isinstance(action, Categorical)

        leaves: dict[str, TensorSpec] = {}
        for key, spec in {**observed, **columns}.items():
            leaves[key] = self._spec(spec)
        self.observation_spec = Composite(leaves, shape=(num_envs,))
        self.action_spec = self._spec(action)
        self.reward_spec = self._spec(Unbounded((1,), dtype=torch.float32))
        done = self._spec(Binary(1, (1,), dtype=torch.bool))
        flags = {key: done.clone() for key in DONE_KEYS}
        self.done_spec = Composite(flags, shape=(num_envs,))
        self.outcomes = tuple(columns)
        self.cleared_keys = self.outcomes

        # Forms of what the subclass returns. Those of the state are known after the first `begin`.
        forms = {name: Entry(leaf.dtype, tuple(leaf.shape)) for name, leaf in leaves.items()}
        self._observed = {name: forms[name] for name in observed}
        self._outcome_forms = {name: forms[name] for name in columns}
        self._reward_form = Entry(torch.float32, (num_envs, 1))
        self._flag_form = Entry(torch.bool, (num_envs, 1))
        self._state_forms: dict[str, Entry] = {}

        count = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        score = torch.zeros(num_envs, dtype=torch.float32, device=self.device)
        self._state = {"step_count": count, "episode": count.clone(), "score": score}
        # Numbers that `uniform` has given in this step, which the next ones must not repeat.
        self._num_drawn = 0

    def _complete(self) -> None:
        # A subclass may have kept its argument, None, over the seed that was drawn.
        arguments.seed(type(self).__name__, "seed", self.seed)
        self._num_drawn = 0
        state = self.begin()
        self._state_forms = self._forms_of(state)
        self._state = self._state | self._check_entries("begin", "state", state, self._state_forms)
        self._current_observations()
        super()._complete()

    @abstractmethod
    def begin(self) -> dict[str, Tensor]:
        """Return the state at the beginning of an episode in every environment.

        Tensors (N, …) by name. Random numbers come from `uniform`.
        """

    @abstractmethod
    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        """Return the result of an action in all environments.

        `action` is (N,) int64, or (N, D) float32. Nothing may be read on the host.
        """

    def observe(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return observations (N, …) by name: by default those tensors of the state."""
        return {name: state[name] for name in self._observed}

    def uniform(self, *shape: int) -> Tensor:
        """Draw numbers in [0, 1), (N, *shape) float32.

        They depend on seed, environment, episode and step alone, so that the same episodes are played in batches of
        any size.
        """
        key = episode_key(self.seed, self._env_index, self._state["episode"])
        key = draw_bits(key, self._state["step_count"])
        size = torch.Size(shape).numel()
        number = torch.arange(self._num_drawn, self._num_drawn + size, device=self.device, dtype=torch.int64)
        self._num_drawn += size
        drawn = draw_uniform(key[:, None], number)
        return drawn.reshape(self.num_envs, *shape)

    @property
    def stored_keys(self) -> list[str]:
        """Observation keys that replay must store: all except outcomes."""
        return [key for key in super().stored_keys if key not in self.outcomes]

    def metrics(self) -> dict[str, Tensor]:
        """Return steps, episodes begun and return so far, (N,) each, for viewers."""
        return {"step": self._state["step_count"], "episode": self._state["episode"], "return": self._state["score"]}

    @property
    def entries(self) -> dict[str, Tensor]:
        """Tensors of the state that the subclass made, by name."""
        return {name: value for name, value in self._state.items() if name not in _COUNTS}

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(self.device).expand(self.num_envs, *spec.shape)

    # -- validation of a subclass's results ---------------------------------------------------------------------------

    def _forms_of(self, state: object) -> dict[str, Entry]:
        """Return shapes and dtypes of the first state, which all later ones have."""
        where = f"{type(self).__name__}.begin"
        if not isinstance(state, Mapping):
            raise ValueError(f"{where}: return a dict of tensors by name, not {arguments.shown(state)}")
        observed = self._observed if self._observes_state() else {}
        if observed.keys() - state.keys():
            raise ValueError(f"{where}: the state must hold {_names(observed)}, to be observed, not {_names(state)}")
        taken = state.keys() & {*_COUNTS, "seed"}
        if taken:
            raise ValueError(f"{where}: {min(taken)} of the state is the environment's own name: choose another")
        forms = {}
        for name, value in state.items():
            if name in observed:
                forms[name] = observed[name]
            elif isinstance(value, Tensor):
                forms[name] = Entry(value.dtype, (self.num_envs, *value.shape[1:]))
            else:
                # No tensor has this form, so that the check of the entry says what the value is.
                forms[name] = Entry(torch.float32, (self.num_envs,))
        return forms

    def _observes_state(self) -> bool:
        """Return whether observations are tensors of the state."""
        return type(self).observe is EpisodicEnv.observe

    def _check_entries(
        self, method: str, what: str, given: object, forms: Mapping[str, Entry], *, columns: bool = False
    ) -> dict[str, Tensor]:
        """Return tensors by name from a method of the subclass, of these forms.

        Values are not read.
        """
        if not isinstance(given, Mapping) or given.keys() != forms.keys():
            found = _names(given) if isinstance(given, Mapping) else arguments.shown(given)
            raise ValueError(f"{type(self).__name__}.{method}: {what} must be {_names(forms)}, not {found}")
        checked = {}
        for name, form in forms.items():
            checked[name] = self._check_entry(method, name, given[name], form, column=columns)
        return checked

    def _check_entry(self, method: str, name: str, given: object, form: Entry, *, column: bool = False) -> Tensor:
        """Return a tensor of this form.

        A `column` (N, 1) may have been given as (N,).
        """
        value = given[:, None] if column and isinstance(given, Tensor) and given.ndim == 1 else given
        where = f"{type(self).__name__}.{method}"
        return arguments.tensor(where, name, value, form.dtype, form.shape, self.device)

    # -- steps --------------------------------------------------------------------------------------------------------

    @runs_single_threaded
    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        before = self._state
        # Before `begin` draws, since draws depend on the step: an episode must not depend on when the last one ended.
        self._state = before | {"step_count": before["step_count"] * ~mask}
        self._num_drawn = 0
        fresh = self._check_entries("begin", "state", self.begin(), self._state_forms)
        fresh["episode"] = before["episode"] + 1
        fresh["score"] = torch.zeros_like(before["score"])
        self._state |= {name: where_rows(mask, value, before[name]) for name, value in fresh.items()}
        return self._first_observations()

    def _current_observations(self) -> dict[str, Tensor]:
        method = "begin" if self._observes_state() else "observe"
        return self._check_entries(method, "observations", self.observe(self.entries), self._observed)

    def _first_observations(self) -> dict[str, Tensor]:
        """Return observations before a step, with zeros for outcomes."""
        observed = self._current_observations()
        zeros = {name: self.observation_spec[name].zero() for name in self.outcomes}
        return observed | zeros

    @runs_single_threaded
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = tuple(self.action_spec.shape)
        given = self._given_action(tensordict, "action", shape, whole=self._discrete)
        action = given.to(self.action_spec.dtype)
        self._state = self._state | {"step_count": self._state["step_count"] + 1}
        self._num_drawn = 0
        advanced = self.advance(self.entries, action)
        if not isinstance(advanced, Advanced):
            raise ValueError(f"{type(self).__name__}.advance: return an Advanced, not {arguments.shown(advanced)}")
        state = self._check_entries("advance", "state", advanced.state, self._state_forms)
        reward = self._check_entry("advance", "reward", advanced.reward, self._reward_form, column=True)
        terminated = self._check_entry("advance", "terminated", advanced.terminated, self._flag_form, column=True)
        outcomes = self._check_entries("advance", "outcomes", advanced.outcomes, self._outcome_forms, columns=True)
        is_over = self._state["step_count"] >= self.max_steps
        truncated = is_over[:, None] & ~terminated
        score = self._state["score"] + reward[:, 0]
        self._state |= {**state, "score": score}
        ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        out = self._current_observations() | {**outcomes, "reward": reward, **ends}
        return TensorDict(out, batch_size=self.batch_size, device=self.device)

    def observation(self, index: int) -> TensorDictBase:
        """Return the current observation of one environment, batch size (1,)."""
        observations = TensorDict(self._first_observations(), batch_size=self.batch_size, device=self.device)
        return observations[index : index + 1]


def _names(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"


def _declared_specs(where: str, argument: str, given: object) -> dict[str, TensorSpec]:
    """Return the specs of a subclass by name, each of one tensor."""
    if not isinstance(given, Mapping | Composite):
        _refuse_specs(where, argument, given)
    specs = dict(given.items())
    for name, spec in specs.items():
        is_leaf = isinstance(spec, TensorSpec) and not isinstance(spec, Composite)
        if not isinstance(name, str) or not is_leaf:
            _refuse_specs(where, argument, given)
    return specs


def _refuse_specs(where: str, argument: str, given: object) -> NoReturn:
    arguments.refuse(where, argument, "specs by name, such as {'place': Bounded(-1.0, 1.0, (2,))}", given)


def _outcome_specs(where: str, given: object) -> dict[str, TensorSpec]:
    """Return the specs of outcomes by name, of shape (1,) each."""
    specs = _declared_specs(where, "outcomes", given)
    for name, spec in specs.items():
        if tuple(spec.shape) not in ((), (1,)):
            raise ValueError(f"{where}: outcome {name} must have shape (1,), not {tuple(spec.shape)}")
        specs[name] = spec if spec.shape else spec.expand(1)
    return specs
