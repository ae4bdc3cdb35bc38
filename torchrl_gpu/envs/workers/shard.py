"""`Shard`: the part of a run's environments that a worker holds and plays on command; how workers fail."""

from __future__ import annotations

import traceback
from typing import Any, NamedTuple

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv


class WorkerFailed(RuntimeError):
    """A worker cannot go on: its environment raised, or it died several times in a row."""


class WorkerDied(Exception):
    """The process of a worker is gone; the message has the reason, as far as it is known."""


Tensors = dict[NestedKey, Tensor]
"""Of some environments, by name."""


class Recipe(NamedTuple):
    """Class and arguments from which a worker makes its environment, in its own process.

    Attributes:
        cls: The class.
        arguments: Of its constructor; a recipe among them stands for the environment that it makes.
        threads: Threads of torch in the worker.
    """

    cls: type[BatchedEnv]
    arguments: dict[str, Any]
    threads: int = 1

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
        given = TensorDict(batch_size=self.env.batch_size)
        given = self.env.full_action_spec.zero().update(given)
        for key, value in actions.items():
            given.set(key, value)
        stepped, current = self.env.step_and_maybe_reset(given)
        return leaves(stepped["next"], "next") | leaves(current, "current")

    def end(self) -> Tensors:
        """State in which the rollout has ended."""
        return dict(self.env._env_state())


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
