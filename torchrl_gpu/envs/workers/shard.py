"""`Shard`: the environments that a worker holds and plays on command; which ones, its tensors, and how it fails."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv

_SHARED = Path("/dev/shm")


class WorkerFailed(RuntimeError):
    """A worker cannot go on: its environment raised, or it died several times in a row."""


class WorkerDied(Exception):
    """The process of a worker is gone; the message has the reason, as far as it is known."""


Tensors = dict[NestedKey, Tensor]
"""Of some environments, by name."""


class Recipe(NamedTuple):
    """Class and arguments from which a worker makes its environment, in its own process."""

    cls: type[BatchedEnv]
    arguments: dict[str, Any]  # of its constructor; a recipe among them stands for the environment that it makes
    threads: int = 1  # threads of torch in the worker

    def make(self) -> BatchedEnv:
        """Makes the environment."""
        made = {name: each.make() if isinstance(each, Recipe) else each for name, each in self.arguments.items()}
        return self.cls(**made)


class Shard:
    """Part of the environments of a run; its methods are the commands of a worker, tensors in and tensors out."""

    def __init__(self, recipe: Recipe) -> None:
        torch.set_num_threads(recipe.threads)
        self.env = recipe.make()

    @torch.no_grad()
    def begin(self, seed: int, frames: int | None, state: Tensors) -> Tensors:
        """Sets the seed, the state in which a rollout begins, and the progress of training."""
        if frames is not None:
            self.env.set_frames(frames)
        self.env.seed = seed
        self.env._set_env_state({str(name): value.clone() for name, value in state.items()})
        return {}

    @torch.no_grad()
    def restart(self) -> Tensors:
        """Begins the next episode of every environment; returns the first observations."""
        return leaves(self.env.reset())

    @torch.no_grad()
    def step(self, actions: Tensors) -> Tensors:
        """Plays a step; returns its `next` under ("next", …), and observations after restarts under ("current", …)."""
        given = self.env.full_action_spec.zero()
        for key, value in actions.items():
            given.set(key, value)
        stepped, current = self.env.step_and_maybe_reset(given)
        return leaves(stepped["next"], "next") | leaves(current, "current")

    def end(self) -> Tensors:
        """State in which the rollout has ended."""
        return dict(self.env._env_state())


def shares(num_envs: int, num_workers: int) -> list[tuple[int, int]]:
    """First environment and number of environments of each worker: multiples of 16 where there are enough.

    Then no row is computed by the scalar remainder of a vectorised loop here and by the loop itself there, which may
    differ in the last bit.
    """
    unit = 16 if num_envs >= 16 * num_workers else 1
    ends = [num_envs // unit * (i + 1) // num_workers * unit for i in range(num_workers - 1)] + [num_envs]
    return [(start, end - start) for start, end in zip([0, *ends], ends, strict=False)]


def axes(whole: Tensors, part: Tensors, num_envs: int, of_part: int) -> dict[NestedKey, int]:
    """Axis of environments of every tensor, found by comparing shapes with those of fewer environments.

    ValueError where a tensor has none, or several.
    """
    found = {}
    for key, tensor in whole.items():
        shape, other = tuple(tensor.shape), tuple(part[key].shape)
        differ = [i for i, (a, b) in enumerate(zip(shape, other, strict=False)) if a != b]
        if len(shape) != len(other) or [(shape[i], other[i]) for i in differ] != [(num_envs, of_part)]:
            raise ValueError(
                f"EnvWorkers: want a state whose entries have one axis of environments each, to be split; got {key} of"
                f" {shape} for {num_envs} environments and of {other} for {of_part}"
            )
        found[key] = differ[0]
    return found


def _share(tensors: Sequence[Tensor]) -> None:
    """Moves tensors to shared memory; ValueError where there is too little, which containers limit to 64 MiB."""
    wanted = sum(value.numel() * value.element_size() for value in tensors)
    free = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else wanted
    if wanted > free:
        raise ValueError(_too_little_shared_memory(wanted, free))
    try:
        for value in tensors:
            value.share_memory_()
    except RuntimeError as error:
        raise ValueError(f"{_too_little_shared_memory(wanted, free)} ({str(error).splitlines()[0]})") from error


def _too_little_shared_memory(wanted: int, free: int) -> str:
    return (
        f"EnvWorkers: the workers' observations and actions take {wanted / 2**20:,.1f} MiB of shared memory, and"
        f" {_SHARED} has {free / 2**20:,.1f} MiB free; give it more (docker run --shm-size 2g), or take fewer"
        " environments"
    )


class SplitTensors:
    """Tensors of all environments on the CPU, in shared memory if so wanted, and each worker's part: views, not copies.

    They have the shapes and dtypes of `like`; `axes` names the axis of environments of each where it is not 0.
    """

    def __init__(
        self, like: Tensors, axes: dict[NestedKey, int], parts: Sequence[tuple[int, int]], shared: bool
    ) -> None:
        self.whole: Tensors = {
            key: torch.empty(value.shape, dtype=value.dtype, device="cpu") for key, value in like.items()
        }
        if shared:
            _share(list(self.whole.values()))
        self.parts: list[Tensors] = [
            {key: value.narrow(axes.get(key, 0), start, count) for key, value in self.whole.items()}
            for start, count in parts
        ]

    def put(self, values: Tensors) -> None:
        """Copies values in, from any device."""
        for key, place in self.whole.items():
            place.copy_(values[key])

    def copy(self, device: torch.device) -> Tensors:
        """Copies of the tensors on a device."""
        return {key: value.to(device, copy=True) for key, value in self.whole.items()}


def leaves(tensordict: TensorDictBase, above: str | None = None) -> Tensors:
    """Tensors of a tensordict by key, with the prefix `above` where one is given."""
    found: Tensors = {}
    for key, value in tensordict.items(True, True):
        path = key if isinstance(key, tuple) else (key,)
        found[path if above is None else (above, *path)] = value
    return found


def one_line(error: Exception) -> str:
    """One-line text of an error; its traceback is printed, unless it is a ValueError, which its message explains."""
    if not isinstance(error, ValueError):
        traceback.print_exception(error)
    return f"{type(error).__name__}: " + " ".join(str(error).split())
