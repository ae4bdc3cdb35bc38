"""`Shard`: the environments that one worker holds and plays."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, assert_never

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv, ConstructorArguments

_SHARED = Path("/dev/shm")

# Environments of a worker come in multiples of this if there are enough, see `shares`.
_UNIT = 16


class WorkerFailed(RuntimeError):
    """A worker cannot continue.

    Its environment raised an error, or it died several times in a row.
    """


class WorkerDied(Exception):
    """The process of a worker is gone.

    The message has the reason, as far as it is known.
    """


Tensors = dict[NestedKey, Tensor]
"""Tensors of some environments, by name."""

CommandName = Literal["begin", "restart", "step", "end"]


class Command(NamedTuple):
    """Command to a worker, to call a method of `Shard`.

    Attributes:
        name: Of the method.
        seed: Argument of `begin`.
        frames: Argument of `begin`.
    """

    name: CommandName
    seed: int = 0
    frames: int | None = None


class Recipe(NamedTuple):
    """Class and arguments from which a worker makes its environment.

    Attributes:
        cls: Class of the environment.
        arguments: Of its constructor. A recipe among them stands for the environment that it makes.
        threads: Threads of torch in the worker.
    """

    cls: type[BatchedEnv]
    arguments: ConstructorArguments
    threads: int = 1

    def make(self) -> BatchedEnv:
        """Make the environment."""
        made = {name: each.make() if isinstance(each, Recipe) else each for name, each in self.arguments.items()}
        return self.cls(**made)


class Shard:
    """Part of the environments of a run.

    Its methods are the commands of a worker: tensors in, tensors out.
    """

    def __init__(self, recipe: Recipe) -> None:
        torch.set_num_threads(recipe.threads)
        self.env = recipe.make()

    def run(self, command: Command, tensors: Tensors) -> Tensors:
        """Call the method that a command names."""
        match command.name:
            case "begin":
                return self.begin(command.seed, command.frames, tensors)
            case "restart":
                return self.restart()
            case "step":
                return self.step(tensors)
            case "end":
                return self.end()
            case _:
                assert_never(command.name)

    @torch.no_grad()
    def begin(self, seed: int, frames: int | None, state: Tensors) -> Tensors:
        """Set the seed, the state in which a rollout begins, and the progress of training."""
        if frames is not None:
            self.env.set_frames(frames)
        self.env.seed = seed
        # Copies: the tensors lie in memory that the trainer writes into.
        self.env.set_env_state({str(name): value.clone() for name, value in state.items()})
        return {}

    @torch.no_grad()
    def restart(self) -> Tensors:
        """Begin the next episode of every environment, and return the first observations."""
        return leaves(self.env.reset())

    @torch.no_grad()
    def step(self, actions: Tensors) -> Tensors:
        """Play a step.

        Returns:
            Its `next` under ("next", …), and the observations after restarts under ("current", …).
        """
        # A step needs no more than actions, so nothing else is sent.
        given = self.env.full_action_spec.zero()
        for key, value in actions.items():
            given.set(key, value)
        stepped, current = self.env.step_and_maybe_reset(given)
        return leaves(stepped["next"], "next") | leaves(current, "current")

    def end(self) -> Tensors:
        """Return the state in which the rollout has ended."""
        return dict(self.env.env_state())


def shares(num_envs: int, num_workers: int) -> list[tuple[int, int]]:
    """Divide environments among workers: (first, count) of each.

    Counts are multiples of 16 if there are enough environments. Vectorised loops compute the rows that are left over
    one by one, which may differ in the last bit. With such counts a row that is computed by the loop here is computed
    by the loop there.
    """
    unit = _UNIT if num_envs >= _UNIT * num_workers else 1
    num_units = num_envs // unit
    starts = [num_units * i // num_workers * unit for i in range(num_workers)]
    ends = [*starts[1:], num_envs]
    return [(start, end - start) for start, end in zip(starts, ends, strict=True)]


def axes(whole: Tensors, part: Tensors, num_envs: int, num_in_part: int) -> dict[NestedKey, int]:
    """Find the axis of environments of every tensor.

    No environment declares it, so shapes are compared with those of fewer environments.

    Raises:
        ValueError: A tensor has no such axis, or several.
    """
    found = {}
    for key, tensor in whole.items():
        shape = tuple(tensor.shape)
        other = tuple(part[key].shape)
        axis = _axis_that_differs(shape, other, num_envs, num_in_part)
        if axis is None:
            raise ValueError(
                f"EnvWorkers: cannot split {key} of the state, which needs one axis of environments: it is {shape} for"
                f" {num_envs} environments and {other} for {num_in_part}"
            )
        found[key] = axis
    return found


def _axis_that_differs(shape: tuple[int, ...], other: tuple[int, ...], num_envs: int, num_in_part: int) -> int | None:
    """Return the one axis in which two shapes differ, by the numbers of environments."""
    if len(shape) != len(other):
        return None
    differing = [axis for axis in range(len(shape)) if shape[axis] != other[axis]]
    if len(differing) != 1:
        return None
    axis = differing[0]
    return axis if (shape[axis], other[axis]) == (num_envs, num_in_part) else None


def _share(tensors: Sequence[Tensor]) -> None:
    """Move tensors to shared memory, which containers limit to 64 MiB.

    Raises:
        ValueError: There is too little of it.
    """
    needed = sum(value.numel() * value.element_size() for value in tensors)
    free = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else needed
    # Asked beforehand: a process that writes beyond the end of /dev/shm is killed by SIGBUS.
    if needed > free:
        raise ValueError(_too_little_shared_memory(needed, free))
    try:
        for value in tensors:
            value.share_memory_()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{_too_little_shared_memory(needed, free)} ({reason})") from error


def _too_little_shared_memory(needed: int, free: int) -> str:
    return (
        f"EnvWorkers: the workers' observations and actions take {needed / 2**20:,.1f} MiB of shared memory, and"
        f" {_SHARED} has {free / 2**20:,.1f} MiB free; give it more (docker run --shm-size 2g), or take fewer"
        " environments"
    )


class SplitTensors:
    """Tensors of all environments on the CPU, and each worker's part of them.

    Attributes:
        whole: Tensors of all environments.
        parts: Those of each worker: views, not copies.

    Args:
        like: Tensors of the same shapes and dtypes.
        axes: Axis of environments of those tensors for which it is not 0.
        parts: First environment and number of environments of each worker.
        shared: Whether they lie in shared memory.
    """

    def __init__(
        self, like: Tensors, axes: Mapping[NestedKey, int], parts: Sequence[tuple[int, int]], shared: bool
    ) -> None:
        self.whole: Tensors = {}
        for key, value in like.items():
            self.whole[key] = torch.empty(value.shape, dtype=value.dtype, device="cpu")
        if shared:
            _share(list(self.whole.values()))
        self.parts: list[Tensors] = []
        for start, count in parts:
            part = {key: value.narrow(axes.get(key, 0), start, count) for key, value in self.whole.items()}
            self.parts.append(part)

    def put(self, values: Tensors) -> None:
        """Copy values in, from any device."""
        for key, place in self.whole.items():
            place.copy_(values[key])

    def copy(self, device: torch.device) -> Tensors:
        """Return copies of the tensors on a device."""
        return {key: value.to(device, copy=True) for key, value in self.whole.items()}


def leaves(tensordict: TensorDictBase, above: str | None = None) -> Tensors:
    """Return the tensors of a tensordict by key, below `above` if given."""
    found: Tensors = {}
    for key, value in tensordict.items(True, True):
        path = key if isinstance(key, tuple) else (key,)
        found[path if above is None else (above, *path)] = value
    return found


def one_line(error: Exception) -> str:
    """Write an error in one line.

    Its traceback is printed, unless it is a ValueError, whose message says enough.
    """
    if not isinstance(error, ValueError):
        traceback.print_exception(error)
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}"
