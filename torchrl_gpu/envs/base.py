"""`BatchedEnv`: a TorchRL `EnvBase` whose auto-reset never synchronises with the device."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from types import FunctionType
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Self

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from torchrl_gpu.device import get_device
from torchrl_gpu.envs.state_validation import Bounds, Entry, check_entries
from torchrl_gpu.system import arguments

DONE_KEYS = ("done", "terminated", "truncated")
MOST_ENVS = 2**31 - 1

AUTO: Literal["auto"] = "auto"
NumEnvs = int | Literal["auto"]
"""Number of environments, or in the config of a run `AUTO`, which is a number before the environment is made."""
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16, *_WHOLE)


class Conflict(NamedTuple):
    """Inconsistency between two keys of a state: the name of one, what it must be, what it is."""

    name: str
    wanted: str
    came: str


class _Completed(type(EnvBase)):  # type: ignore[misc]  # a metaclass that TorchRL gives no public name
    """Metaclass that calls `_complete` once the constructors of a class and of all its subclasses have returned."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():  # else no step outside could write into the state
            env = super().__call__(*args, **kwargs)
            (env if isinstance(env, BatchedEnv) else env.base_env)._complete()  # TorchRL wraps one that resets itself
        return env


class BatchedEnv(EnvBase, metaclass=_Completed):
    """`EnvBase` over `num_envs` rows whose `step_and_maybe_reset` never synchronises with the device.

    TorchRL's own path asks the host whether any row is done, two to four times a step. Here every step computes what a
    reset would give and keeps it where a row is done (`torch.where`): no branch, no read, one graph. The true terminal
    observation stays in `next`.

    A subclass defines specs, `_state` (a dataclass of tensors that decides how the run goes on), `_step` and
    `_observe_reset`. Beyond TorchRL's interface it may define `outcomes`, `set_frames`, and `metrics` and `pictures`
    for viewers (see `envs.viewable`). It keeps constructor arguments as attributes of the same names, so that `like`
    can make another one.
    """

    reads_host = ""
    """Why a step makes the host wait for the device, which no CUDA graph can hold; empty where none does."""

    is_native = False
    """True where steps are C++ on this device, which torch.compile would only replace by torch's operators."""

    few_envs: int = 0
    """Environments up to which the operators of a step are too small to be worth several threads of a CPU; see
    `system.threads`."""

    outcomes: Sequence[NestedKey] = ()
    """Entries of `next`, numbers or flags (N, 1), that tell at the end of an episode what it came to; the first counts
    most. See `episode_outcomes` for entries of another shape."""

    not_passed_on: ClassVar[Collection[str]] = ()
    """Constructor arguments that a subclass always gives itself, so that `like` leaves them to it."""

    _cleared: Sequence[NestedKey] = ()
    """Entries that a reset clears although no state holds them: rows that go on keep theirs."""

    far: float = 1e6
    """Finite number that adapters for other libraries give for infinite observations that no spec bounds; negative for
    those below."""

    _state: Any = None
    """The state: a dataclass or dict of tensors; None where a subclass gives `_env_state` itself."""

    _completed = False

    def __new__(cls, *args: Any, **kwargs: Any) -> BatchedEnv:
        # EnvBase makes __new__ a class method, which hides the constructor's arguments from jsonargparse.
        return super().__new__(*args, **kwargs)

    def __init__(
        self, num_envs: NumEnvs, device: str | torch.device = "auto", seed: int | None = None, first_env: int = 0
    ) -> None:
        where = type(self).__name__
        if isinstance(num_envs, str):
            arguments.refuse(where, "num_envs", "a whole number, as auto is for model.env in a config", num_envs)
        num_envs = arguments.whole(where, "num_envs", num_envs, 1, MOST_ENVS)
        seed = None if seed is None else arguments.seed(where, "seed", seed)
        super().__init__(device=get_device(device), batch_size=torch.Size([num_envs]))
        self.num_envs = num_envs
        self.renumber(arguments.whole(where, "first_env", first_env, 0, 2**62))
        self.seed = int(torch.randint(2**31 - 1, (), dtype=torch.int64, device="cpu").item()) if seed is None else seed

    def __setattr__(self, name: str, value: Any) -> None:
        own = getattr(type(self), name, None)
        hidden = isinstance(own, FunctionType) and not callable(value)
        if hidden or (isinstance(own, property) and own.fset is None):
            self._refuse_name(name)
        super().__setattr__(name, value)

    def _refuse_name(self, name: str) -> NoReturn:
        where = type(self).__name__
        raise ValueError(f"{where}: want another name for this attribute; {name} is the environment's own")

    def _complete(self) -> None:
        """Hook that runs once, when all constructors have returned."""
        self._completed = True
        arguments.seed(type(self).__name__, "seed", self.seed)  # a subclass may have kept its argument None over it

    @abstractmethod
    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        """Restarts the rows where `mask` (N,) is true; returns observations of all rows."""

    # -- outcomes and progress --------------------------------------------------------------------------------------

    @property
    def outcome_names(self) -> list[str]:
        """Names of `outcomes`, without the groups that hold them."""
        return [key if isinstance(key, str) else key[-1] for key in self.outcomes]

    def episode_outcomes(self, after: TensorDictBase) -> dict[str, Tensor]:
        """Values of `outcomes` by name, from the `next` of steps: (…, 1) each, of the batch shape of `after`."""
        return {name: after.get(key) for name, key in zip(self.outcome_names, self.outcomes, strict=True)}

    def set_frames(self, frames: int) -> None:
        """Updates schedules, such as a curriculum, for the steps played so far over all environments."""

    def renumber(self, first_env: int, copies: int = 1) -> None:
        """Renumbers the environments from `first_env` on; `set_seed` and `reset` then begin their episodes.

        Of `copies` parts of the rows each has the same numbers, and so the same episodes.
        """
        self.first_env = first_env
        row = torch.arange(self.num_envs, device=self.device, dtype=torch.int64)
        self._env_index = row % (self.num_envs // copies) + first_env  # (N,)

    @property
    def env_numbers(self) -> Tensor:
        """Number of each environment, (N,) int64, on which its episodes depend."""
        return self._env_index

    # -- state ------------------------------------------------------------------------------------------------------

    def to(self, device: str | torch.device) -> Self:
        """Moves the environment with its state: `like` makes a new one on the device, which goes on from that state."""
        if get_device(device) != self.device:
            moved = self.like(self.num_envs, device=device)
            moved.load_state_dict(self.state_dict())
            self.__dict__.update(moved.__dict__)
        return self

    @property
    def state(self) -> Any:
        """Current state: the environment's own tensors, which must not be written into.

        Assignment acts as `load_state_dict`: the whole state is validated, then copied.
        """
        return self._env_state() if self._state is None or isinstance(self._state, dict) else self._state

    @state.setter
    def state(self, state: Any) -> None:
        if not self._completed or isinstance(state, Tensor):  # a subclass means an attribute of its own
            self._refuse_name("state")
        given = state if isinstance(state, Mapping) else {n: getattr(state, n, None) for n in self._env_state()}
        self._take_state(f"{type(self).__name__}.state", {"seed": self._seed_tensor, **given}, strict=True)

    @property
    def _seed_tensor(self) -> Tensor:
        return torch.tensor(self.seed, dtype=torch.int64, device="cpu")

    def _env_state(self) -> dict[str, Tensor]:
        """All tensors that decide how the run goes on, by name."""
        if isinstance(self._state, dict):
            return dict(self._state)
        return {field.name: getattr(self._state, field.name) for field in fields(self._state)}

    def _set_env_state(self, state: dict[str, Tensor]) -> None:
        """Sets a state from `_env_state` without validation, so that a rollout may call it between steps."""
        self._state = type(self._state)(**state)

    def _state_bounds(self) -> dict[str, Bounds]:
        """Bounds of the tensors of a state by name, where tighter than their dtype, or than finite for floats.

        This is all that an environment declares for validation; names, dtypes and shapes are those of its own state.
        """
        return {}

    def _state_conflict(self, state: dict[str, Tensor]) -> Conflict | None:
        """First inconsistency of a state whose tensors are valid one by one; None where there is none."""
        return None

    def _derived_state(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a validated state that follow from others, recomputed so that they cannot contradict them."""
        return {}

    @property
    def stored_keys(self) -> list[str]:
        """Observation keys that replay must store."""
        return [str(key) for key in self.observation_spec]

    @property
    def stored_meaning(self) -> str:
        """Digest of the encoding of `stored_keys`: stored rows mean the same in environments that share it."""
        return ""

    @property
    def space_extras(self) -> dict[str, Any]:
        """Properties of this environment that networks need besides shapes: numbers, text, lists and dicts."""
        return {}

    def restore(self, tensordict: TensorDictBase, replay: Any = None) -> TensorDictBase:
        """Adds the observations that `stored_keys` leaves out to states (B,) from replay; in place.

        The replay that they were sampled from, at the positions under the key `index`, serves observations that span
        several transitions.
        """
        return tensordict

    def like(self, num_envs: int, **changes: Any) -> Self:
        """New environment of the same class with the same constructor arguments, but for `changes`.

        ValueError where an argument of the constructor is no attribute of the same name, or a change is no argument.
        """
        return type(self)(**self._arguments_like(num_envs, **changes))

    def _arguments_like(self, num_envs: int, **changes: Any) -> dict[str, Any]:
        where, given = f"{type(self).__name__}.like", {"num_envs": num_envs, **changes}
        wanted = [name for name in _constructor_arguments(type(self)) if name not in self.not_passed_on]
        if unknown := set(changes) - set(wanted):
            raise ValueError(f"{where}: want arguments of the constructor, {', '.join(wanted)}; got {min(unknown)}")
        for name in wanted:
            if name not in given and not hasattr(self, name):
                raise ValueError(f"{where}: want every constructor argument kept as an attribute; {name} is none")
        return {name: given[name] if name in given else getattr(self, name) for name in wanted}

    def shard_arguments(self, num_envs: int, first_env: int) -> dict[str, Any]:
        """Constructor arguments of a worker's environment, which plays some of these rows on the CPU of its process.

        ValueError where the class has a `like` of its own, so that it is not known how one is made.
        """
        if type(self).like is not BatchedEnv.like:
            raise ValueError(
                f"{type(self).__name__}: want an environment that `like` makes from its constructor's arguments alone,"
                " to be split among workers; got one with a `like` of its own"
            )
        return self._arguments_like(num_envs, first_env=first_env, seed=self.seed, device="cpu")

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Full state as tensors, seed and episode counters included."""
        return {"seed": self._seed_tensor, **{name: value.clone() for name, value in self._env_state().items()}}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, **kwargs: Any) -> None:
        """Loads a result of `state_dict`; the next step is the one that the saved environment would have made.

        Unless `strict`, tensors of missing keys stay as they are. ValueError where names, dtypes or shapes differ, as
        when `num_envs` does, or values cannot be those of this environment; nothing has changed then.
        """
        self._take_state(f"{type(self).__name__}.load_state_dict", state_dict, strict)

    def _take_state(self, where: str, given: Any, strict: bool) -> None:
        """Validates a whole state from outside, and only then goes on from a copy of it. Reads the device."""
        present = {"seed": self._seed_tensor, **self._env_state()}
        bounds = self._state_bounds()
        wanted: dict[NestedKey, Entry] = {
            name: Entry(value.dtype, tuple(value.shape), bounds.get(name, Bounds())) for name, value in present.items()
        }
        if isinstance(given, Mapping):
            given = {n: _moved(value, present[n].device) if n in present else value for n, value in given.items()}
        found = check_entries(where, given, wanted, strict, more=not strict)
        state = present | {str(name): value for name, value in found.items()}
        if conflict := self._state_conflict(state):
            raise ValueError(f"{where}: {conflict.name} must be {conflict.wanted}; got {conflict.came}")
        with torch.inference_mode(False), torch.no_grad():  # else no step outside could write into the state
            copy = {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in state.items()}
            copy |= self._derived_state(copy)
            seed, self.seed = self.seed, int(copy.pop("seed"))
            try:
                self._set_env_state(copy)
            except BaseException:
                self.seed = seed
                raise

    def _given_action(self, tensordict: TensorDictBase, key: NestedKey, shape: tuple[int, ...], whole: bool) -> Tensor:
        """Action of a step in a given shape, int64 where it is `whole`; validated without reading its values.

        A trailing axis of size 1 is accepted.
        """
        action = tensordict.get(key, None)
        known = isinstance(action, Tensor) and action.dtype in (_WHOLE if whole else _REAL)
        if not known or tuple(action.shape) not in (shape, (*shape, 1)) or action.device != self.device:
            name, kind = key if isinstance(key, str) else "/".join(key), "whole" if whole else "real"
            came = "none"
            if isinstance(action, Tensor):
                came = f"{str(action.dtype).removeprefix('torch.')} of shape {tuple(action.shape)} on {action.device}"
            raise ValueError(
                f"{type(self).__name__}.step: {name} must be {kind} numbers of shape {shape} on {self.device};"
                f" got {came}"
            )
        action = action.reshape(shape)
        return action.long() if whole else action

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.seed = arguments.seed(f"{type(self).__name__}.set_seed", "seed", seed)
            self._restart_episodes()

    def _restart_episodes(self) -> None:
        """Makes the next reset begin the first episode of `self.seed`."""
        state = self._env_state()
        self._set_env_state(state | {"episode": torch.zeros_like(state["episode"])})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            mask = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        if mask.dtype != torch.bool or mask.numel() != self.num_envs:
            came = f"{str(mask.dtype).removeprefix('torch.')} of shape {tuple(mask.shape)}"
            raise ValueError(
                f"{type(self).__name__}.reset: _reset must be bool of shape ({self.num_envs}, 1); got {came}"
            )
        return self._started(self._observe_reset(mask.reshape(self.num_envs)))

    def _reset_check_done(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> None:
        """Skips TorchRL's check for rows done after a reset, three reads of the device; by `_started` none is."""

    def _started(self, observation: dict[str, Tensor]) -> TensorDict:
        out = dict(observation)
        # One operator for all three flags.
        none = torch.zeros(len(DONE_KEYS), self.num_envs, 1, dtype=torch.bool, device=self.device)
        out |= dict(zip(DONE_KEYS, none.unbind(), strict=True))
        return TensorDict(out, batch_size=self.batch_size, device=self.device)

    def _step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        if tensordict.device != self.device:
            tensordict = tensordict.to(self.device)
        tensordict = self.step(tensordict)
        return tensordict, self.maybe_reset(self._step_mdp(tensordict))

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Restarts the rows that are done, without reading on the host whether there are any."""
        done = tensordict.get("done").reshape(self.num_envs)
        fresh = self._started(self._observe_reset(done))
        for key in self._cleared:
            if (kept := tensordict.get(key, None)) is not None:
                fresh.set(key, where_rows(done, fresh.get(key), kept))
        return tensordict.update(fresh)


def _constructor_arguments(cls: type) -> list[str]:
    """Names of the constructor arguments of a class; `**kwargs` stands for those of the class it passes them to."""
    names: list[str] = []
    for each in cls.__mro__:
        if "__init__" in vars(each):
            found = [p for p in inspect.signature(each.__init__).parameters.values() if p.name != "self"]  # type: ignore[misc]
            names += [p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            if not any(p.kind is p.VAR_KEYWORD for p in found):
                break
    return list(dict.fromkeys(names))


def _moved(value: Any, device: torch.device) -> Any:
    """Value on a device, where that of bounds and of the state is; unchanged where it is no tensor with data."""
    can_move = isinstance(value, Tensor) and value.layout == torch.strided and value.device.type != "meta"
    return value.to(device) if can_move else value


def where_rows(mask: Tensor, fresh: Tensor, kept: Tensor) -> Tensor:
    """Rows of `fresh` where `mask` (N,), else of `kept`."""
    mask = mask.view(-1, *([1] * (kept.ndim - 1)))
    if kept.dtype == torch.uint8 and kept.device.type == "cpu":  # pictures: `where` takes bytes one by one there
        return kept ^ ((kept ^ fresh) & mask.to(torch.uint8).mul_(255))
    return torch.where(mask, fresh, kept)
