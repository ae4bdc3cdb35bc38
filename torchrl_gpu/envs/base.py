"""`BatchedEnv`: a TorchRL environment that resets without waiting for the device."""

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
"""Number of environments, or `AUTO` in the config of a run.

A run replaces `AUTO` by a number before it makes the environment.
"""

ConstructorArguments = dict[str, Any]
"""Arguments of an environment's constructor, by name."""

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16, *_WHOLE)


class Conflict(NamedTuple):
    """Inconsistency between two keys of a state.

    Attributes:
        name: Of one of the two.
        required: What it must be, for a message.
        found: What it is.
    """

    name: str
    required: str
    found: str


# A subclass may do anything in its constructor after `super().__init__()`, so no constructor of ours knows that the
# environment is finished. A call of the class does. TorchRL gives the metaclass of `EnvBase` no public name.
class _CompletingMeta(type(EnvBase)):  # type: ignore[misc]
    """Metaclass that calls `_complete` once all constructors have returned."""

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        # Tensors made in inference mode could not be written into by a step outside of it.
        with torch.inference_mode(False), torch.no_grad():
            env = super().__call__(*args, **kwargs)
            # TorchRL wraps an environment that is to reset itself.
            made = env if isinstance(env, BatchedEnv) else env.base_env
            made._complete()
        return env


class BatchedEnv(EnvBase, metaclass=_CompletingMeta):
    """Environment of `num_envs` rows that never waits for the device.

    TorchRL's own path asks the host whether any row is done, two to four times a step. Here every step computes what a
    reset would give and keeps it where a row is done (`torch.where`): no branch, no read, one graph. The true terminal
    observation stays in `next`.

    A subclass defines specs, `_state` (a dataclass or dict with all tensors that a resumed run needs), `_step` and
    `_observe_reset`. Beyond TorchRL's interface it may define `outcomes`, `set_frames`, and `metrics` and `pictures`
    for viewers (see `envs.viewable`). It keeps constructor arguments as attributes of the same names, so that `like`
    can make another one.
    """

    reads_host = ""
    """Why a step makes the host wait for the device, which no CUDA graph can hold; empty if it does not."""

    is_native = False
    """Whether steps are C++ on this device, which torch.compile would only replace by torch's operators."""

    few_envs: int = 0
    """Largest number of environments for which several CPU threads do not pay; see `system.threads`."""

    outcomes: Sequence[NestedKey] = ()
    """Entries of `next` that say at the end of an episode how it went: numbers or flags (N, 1).

    The first counts most. See `episode_outcomes` for entries of another shape.
    """

    not_passed_on: ClassVar[Collection[str]] = ()
    """Constructor arguments that a subclass always sets itself, so that `like` does not pass them."""

    cleared_keys: Sequence[NestedKey] = ()
    """Entries that a reset clears although no state holds them; rows that are not reset keep theirs."""

    far: float = 1e6
    """Finite number by which adapters replace infinite observations that no spec bounds, with their sign."""

    _state: Any = None
    """The state: a dataclass or dict of tensors; None in a subclass that defines `env_state` itself."""

    _completed = False

    def __new__(cls, *args: object, **kwargs: object) -> BatchedEnv:
        # EnvBase makes __new__ a class method, which hides the constructor's arguments from jsonargparse.
        return super().__new__(*args, **kwargs)

    def __init__(
        self, num_envs: NumEnvs, device: str | torch.device = "auto", seed: int | None = None, first_env: int = 0
    ) -> None:
        where = type(self).__name__
        if isinstance(num_envs, str):
            arguments.refuse(where, "num_envs", "a whole number (auto is for model.env in a config)", num_envs)
        num_envs = arguments.whole(where, "num_envs", num_envs, 1, MOST_ENVS)
        seed = None if seed is None else arguments.seed(where, "seed", seed)
        super().__init__(device=get_device(device), batch_size=torch.Size([num_envs]))
        self.num_envs = num_envs
        self.renumber(arguments.whole(where, "first_env", first_env, 0, 2**62))
        if seed is None:
            seed = int(torch.randint(2**31 - 1, (), dtype=torch.int64, device="cpu").item())
        self.seed = seed

    def __setattr__(self, name: str, value: object) -> None:
        # An attribute that hid one of our methods, or met a property without a setter, would break the environment
        # far from here.
        own = getattr(type(self), name, None)
        hides_method = isinstance(own, FunctionType) and not callable(value)
        is_read_only = isinstance(own, property) and own.fset is None
        if hides_method or is_read_only:
            self._refuse_name(name)
        super().__setattr__(name, value)

    def _refuse_name(self, name: str) -> NoReturn:
        where = type(self).__name__
        raise ValueError(f"{where}: attribute {name} is the environment's own: give yours another name")

    def _complete(self) -> None:
        """Check the finished environment, once all constructors have returned."""
        self._completed = True
        # A subclass may have kept its argument, None, over the seed that was drawn.
        arguments.seed(type(self).__name__, "seed", self.seed)

    @abstractmethod
    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        """Restart the rows where `mask` (N,) is true, and return all observations."""

    # -- outcomes and progress --------------------------------------------------------------------------------------

    @property
    def outcome_names(self) -> list[str]:
        """Names of `outcomes`, without the groups that hold them."""
        return [key if isinstance(key, str) else key[-1] for key in self.outcomes]

    def episode_outcomes(self, after: TensorDictBase) -> dict[str, Tensor]:
        """Return `outcomes` by name from the `next` of steps.

        Each is (…, 1), where … is the batch shape of `after`.
        """
        return {name: after.get(key) for name, key in zip(self.outcome_names, self.outcomes, strict=True)}

    def set_frames(self, frames: int) -> None:
        """Update schedules, such as a curriculum, for the number of steps played so far.

        Steps of all environments count.
        """

    def renumber(self, first_env: int, copies: int = 1) -> None:
        """Number the environments from `first_env` on.

        `set_seed` and `reset` then begin their episodes. With `copies`, the rows are that many equal parts, each with
        the same numbers, so that each part plays the same episodes.
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
        """Move the environment with its state.

        `like` makes a new one on the device, which continues from the state of this one.
        """
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
        if self._state is None or isinstance(self._state, dict):
            return self.env_state()
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        # Before it is complete, or with one tensor, a subclass means an attribute of its own.
        if not self._completed or isinstance(state, Tensor):
            self._refuse_name("state")
        if isinstance(state, Mapping):
            given = dict(state)
        else:
            given = {name: getattr(state, name, None) for name in self.env_state()}
        # A state holds no seed, so that the present one stays.
        whole = {"seed": self._seed_tensor, **given}
        self._take_state(f"{type(self).__name__}.state", whole, strict=True)

    @property
    def _seed_tensor(self) -> Tensor:
        return torch.tensor(self.seed, dtype=torch.int64, device="cpu")

    def env_state(self) -> dict[str, Tensor]:
        """Return all tensors that a resumed run needs, by name."""
        if isinstance(self._state, dict):
            return dict(self._state)
        return {field.name: getattr(self._state, field.name) for field in fields(self._state)}

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        """Set a state from `env_state`.

        It is not validated, so that a rollout may do this between steps.
        """
        self._state = type(self._state)(**state)

    def _state_bounds(self) -> dict[str, Bounds]:
        """Return bounds of tensors of a state by name.

        A tensor without bounds may have any value of its dtype, and any finite one if it is of floats. This is all
        that an environment declares for validation. Names, dtypes and shapes are those of its own state.
        """
        return {}

    def _state_conflict(self, state: dict[str, Tensor]) -> Conflict | None:
        """Return the first inconsistency of a state whose tensors are valid one by one."""
        return None

    def _derived_state(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute the tensors of a validated state that follow from others.

        They replace those that were given, so that none can contradict another.
        """
        return {}

    @property
    def stored_keys(self) -> list[str]:
        """Observation keys that replay must store."""
        return [str(key) for key in self.observation_spec]

    @property
    def stored_meaning(self) -> str:
        """Digest of how `stored_keys` are encoded.

        Rows stored by one environment mean the same in another with the same digest.
        """
        return ""

    @property
    def space_extras(self) -> dict[str, object]:
        """Properties that networks need besides shapes: numbers, text, lists and dicts."""
        return {}

    def restore(self, tensordict: TensorDictBase, replay: object = None) -> TensorDictBase:
        """Add the observations that `stored_keys` leaves out to states (B,) of replay.

        This is done in place. `replay` is where they were sampled from, at the positions under the key `index`; it
        serves observations that span several transitions.
        """
        return tensordict

    def like(self, num_envs: int, **changes: object) -> Self:
        """Make an environment of this class with the same arguments, except for `changes`.

        Raises:
            ValueError: An argument of the constructor is not kept as an attribute of the same name, or a change is no
                argument.
        """
        return type(self)(**self._arguments_like(num_envs, **changes))

    def _arguments_like(self, num_envs: int, **changes: object) -> ConstructorArguments:
        where = f"{type(self).__name__}.like"
        given: ConstructorArguments = {"num_envs": num_envs, **changes}
        taken = _constructor_arguments(type(self))
        known = [name for name in taken if name not in self.not_passed_on]
        unknown = set(changes) - set(known)
        if unknown:
            raise ValueError(f"{where}: the constructor takes {', '.join(known)}, not {min(unknown)}")
        for name in known:
            if name in given:
                continue
            if not hasattr(self, name):
                raise ValueError(f"{where}: keep the constructor's argument {name} as an attribute of that name")
            given[name] = getattr(self, name)
        return {name: given[name] for name in known}

    def shard_arguments(self, num_envs: int, first_env: int) -> ConstructorArguments:
        """Return the constructor arguments of a worker's environment.

        It plays some of these rows on the CPU of its process.

        Raises:
            ValueError: The class has a `like` of its own, so that it is not known how one is made.
        """
        if type(self).like is not BatchedEnv.like:
            raise ValueError(
                f"{type(self).__name__}: cannot be split among workers, as it has a `like` of its own: define"
                " `shard_arguments`, too"
            )
        return self._arguments_like(num_envs, first_env=first_env, seed=self.seed, device="cpu")

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Return the full state as tensors, including the seed and episode counters."""
        return {"seed": self._seed_tensor, **{name: value.clone() for name, value in self.env_state().items()}}

    def load_state_dict(self, state_dict: Mapping[str, object], strict: bool = True, **kwargs: object) -> None:
        """Load a result of `state_dict`.

        The next step is then that of the saved environment. Unless `strict`, tensors of missing keys keep their values.

        Raises:
            ValueError: Names, dtypes or shapes differ, for instance by another `num_envs`, or values cannot be those of
                this environment. Nothing has changed then.
        """
        self._take_state(f"{type(self).__name__}.load_state_dict", state_dict, strict)

    def _take_state(self, where: str, given: object, strict: bool) -> None:
        """Validate a whole state from outside, then continue from a copy of it.

        Reads the device.
        """
        present = {"seed": self._seed_tensor, **self.env_state()}
        if isinstance(given, Mapping):
            given = {name: _on_device_of(present.get(name), value) for name, value in given.items()}
        found = check_entries(where, given, self._required_entries(present), strict, more=not strict)
        state = present | {str(name): value for name, value in found.items()}
        conflict = self._state_conflict(state)
        if conflict is not None:
            fault = f"{conflict.name} must be {conflict.required}; got {conflict.found}"
            raise ValueError(f"{where}: {fault}")
        # Tensors made in inference mode could not be written into by a step outside of it.
        with torch.inference_mode(False), torch.no_grad():
            copy = {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in state.items()}
            copy |= self._derived_state(copy)
            seed_before = self.seed
            self.seed = int(copy.pop("seed"))
            try:
                self.set_env_state(copy)
            except BaseException:
                self.seed = seed_before
                raise

    def _required_entries(self, present: Mapping[str, Tensor]) -> dict[NestedKey, Entry]:
        """Return the dtype, shape and bounds that each tensor of a state must have."""
        bounds = self._state_bounds()
        required: dict[NestedKey, Entry] = {}
        for name, value in present.items():
            required[name] = Entry(value.dtype, tuple(value.shape), bounds.get(name, Bounds()))
        return required

    def _given_action(self, tensordict: TensorDictBase, key: NestedKey, shape: tuple[int, ...], whole: bool) -> Tensor:
        """Return the action of a step in a given shape, int64 if `whole`.

        Its form is validated without reading its values. A trailing axis of size 1 is accepted.
        """
        action = tensordict.get(key, None)
        dtypes = _WHOLE if whole else _REAL
        known = isinstance(action, Tensor) and action.dtype in dtypes
        if not known or tuple(action.shape) not in (shape, (*shape, 1)) or action.device != self.device:
            name = key if isinstance(key, str) else "/".join(key)
            kind = "whole" if whole else "real"
            found = "none"
            if isinstance(action, Tensor):
                found = f"{str(action.dtype).removeprefix('torch.')} of shape {tuple(action.shape)} on {action.device}"
            raise ValueError(
                f"{type(self).__name__}.step: {name} must be {kind} numbers of shape {shape} on {self.device};"
                f" got {found}"
            )
        action = action.reshape(shape)
        return action.long() if whole else action

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.seed = arguments.seed(f"{type(self).__name__}.set_seed", "seed", seed)
            self.restart_episodes()

    def restart_episodes(self) -> None:
        """Let the next reset begin the first episode of `self.seed`."""
        state = self.env_state()
        self.set_env_state(state | {"episode": torch.zeros_like(state["episode"])})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            mask = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        if mask.dtype != torch.bool or mask.numel() != self.num_envs:
            kind = str(mask.dtype).removeprefix("torch.")
            found = f"{kind} of shape {tuple(mask.shape)}"
            raise ValueError(
                f"{type(self).__name__}.reset: _reset must be bool of shape ({self.num_envs}, 1); got {found}"
            )
        return self._add_done_flags(self._observe_reset(mask.reshape(self.num_envs)))

    def _reset_check_done(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> None:
        """Skip TorchRL's check for rows that are done after a reset.

        It reads the device three times, and `_add_done_flags` leaves no such row.
        """

    def _add_done_flags(self, observation: dict[str, Tensor]) -> TensorDict:
        """Return observations after a reset, with flags that no row is done."""
        out = dict(observation)
        # One operator for all three flags.
        shape = (len(DONE_KEYS), self.num_envs, 1)
        flags = torch.zeros(shape, dtype=torch.bool, device=self.device)
        out |= dict(zip(DONE_KEYS, flags.unbind(), strict=True))
        return TensorDict(out, batch_size=self.batch_size, device=self.device)

    def _step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        if tensordict.device != self.device:
            tensordict = tensordict.to(self.device)
        tensordict = self.step(tensordict)
        return tensordict, self.maybe_reset(self._step_mdp(tensordict))

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Restart the rows that are done.

        The host does not ask whether there are any.
        """
        done = tensordict.get("done").reshape(self.num_envs)
        fresh = self._add_done_flags(self._observe_reset(done))
        for key in self.cleared_keys:
            kept = tensordict.get(key, None)
            if kept is not None:
                fresh.set(key, where_rows(done, fresh.get(key), kept))
        return tensordict.update(fresh)


def _constructor_arguments(cls: type) -> list[str]:
    """Return the names of the constructor arguments of a class.

    `**kwargs` stands for the arguments of the base class, which they are passed to.
    """
    names: list[str] = []
    for each in cls.__mro__:
        if "__init__" not in vars(each):
            continue
        parameters = list(inspect.signature(each.__init__).parameters.values())  # type: ignore[misc]
        # The first is `self`.
        own = parameters[1:]
        names += [each.name for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        if not any(each.kind is each.VAR_KEYWORD for each in own):
            break
    return list(dict.fromkeys(names))


def _on_device_of(tensor: Tensor | None, value: object) -> object:
    """Move a dense tensor with data to the device of another.

    Any other value is returned unchanged.
    """
    if tensor is None or not isinstance(value, Tensor):
        return value
    if value.layout != torch.strided or value.device.type == "meta":
        return value
    return value.to(tensor.device)


def where_rows(mask: Tensor, fresh: Tensor, kept: Tensor) -> Tensor:
    """Return rows of `fresh` where `mask` (N,) is true, else rows of `kept`."""
    trailing_axes = [1] * (kept.ndim - 1)
    mask = mask.view(-1, *trailing_axes)
    # On a CPU `where` selects pictures byte by byte, without vector instructions. Operators on bits use them.
    if kept.dtype == torch.uint8 and kept.device.type == "cpu":
        all_bits = mask.to(torch.uint8).mul_(255)
        return kept ^ ((kept ^ fresh) & all_bits)
    return torch.where(mask, fresh, kept)
