"""CUDA graph of a whole rollout: many steps as one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar, final

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs.utils import exploration_type

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system.sections import section
from torchrl_gpu.training.accelerated.graphs import Capture, Graph, capture_for, copied
from torchrl_gpu.training.accelerated.machine import Accelerator, casts, rows_that_differ, uncached_casts
from torchrl_gpu.training.collect.steps import MOST_OTHER, play_steps

WHAT = "GraphedRollout: the rollout"


Key = TypeVar("Key")


class Place(NamedTuple):
    """Where environments stand.

    Attributes:
        state: Their state.
        shown: What they show.
    """

    state: dict[str, Tensor]
    shown: dict[NestedKey, Tensor]


@final
class GraphedRollout(Accelerator[Graph, None, Place, list[Tensor]]):
    """`play_steps` as one replay of a graph of all T steps, on CUDA.

    A call copies the environment's state and observations into tensors of the graph, unless they are there already, so
    that whatever happens to the environment between calls counts. Weights and buffers of the policy are read where they
    are; random numbers come from torch's generator of the device.

    The graph is made at the first call, and again where the seed, the exploration type, the policy's mode or autocast
    has changed. Steps run one by one on other devices and, after a warning, where no graph can be made or its first
    replay gives something else.

    Args:
        env, policy: Neither may read the device back.
        steps: T.
        keys, decisions, outcomes: As in `play_steps`.
        capture: Makes a graph of a function without arguments; None takes `capture_cuda` on a CUDA device, else no
            graph.
    """

    def __init__(
        self,
        env: BatchedEnv,
        policy: Policy,
        steps: int,
        keys: Sequence[NestedKey],
        decisions: Sequence[NestedKey] = ("action",),
        outcomes: Sequence[NestedKey] | None = None,
        *,
        capture: Capture | None = None,
    ) -> None:
        if env.reads_host:
            raise ValueError(f"{WHAT} cannot be a CUDA graph: the environment reads the device back: {env.reads_host}")
        self._capture = capture_for(env.device, capture, WHAT)
        super().__init__(env.device, active=self._capture is not None)
        self.env = env
        self.policy = policy
        self.steps = steps
        self._kept = list(keys), tuple(decisions), outcomes
        self._shown_keys = [*env.full_observation_spec.keys(True, True), *env.full_done_spec.keys(True, True)]
        # The tensors that the graph reads and writes.
        self._place = Place({}, {})
        # Holds what is shown, and is empty.
        self._groups: TensorDictBase = TensorDict()

    @torch.no_grad()
    def __call__(self, current: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Play steps as `play_steps` does, from what the environment shows now, (N,).

        The next call overwrites what it shows then.
        """
        shown = {key: current.get(key) for key in self._shown_keys}
        now = Place(self.env.env_state(), shown)
        if not self._place.state:
            self._place = _copy_of(now)
            self._groups = current.select(*self._shown_keys).empty(recurse=True)
        self._put(now)
        mode = getattr(self.policy, "training", None)
        # Each of these decides which operators run, or what they draw, and none is a tensor that a replay could read.
        settings = self.env.seed, exploration_type(), mode, casts(self.device)
        graph = self.form_for(settings, None)
        if graph is None:
            return self._play(), self._showing()
        with section("rollout graph"):
            graph.replay()
            return copied(graph.result), self._showing()

    def _put(self, place: Place) -> None:
        copy_into(place.state, self._place.state)
        copy_into(place.shown, self._place.shown)
        self.env.set_env_state(self._place.state)

    def _showing(self) -> TensorDictBase:
        """New tensordict over what the environment shows.

        Keys that others set in it stay out of the next call.
        """
        out = self._groups.copy()
        for key, value in self._place.shown.items():
            out.set(key, value)
        return out

    def _play(self) -> TensorDictBase:
        played, after = play_steps(self.env, self.policy, self._showing(), self.steps, *self._kept)
        shown = {key: after.get(key) for key in self._shown_keys}
        self._put(Place(self.env.env_state(), shown))
        return played

    # -- the machine's methods --

    def _saved(self) -> Place:
        return _copy_of(self._place)

    def _restore(self, saved: Place) -> None:
        self._put(saved)

    def _made(self, data: None) -> Graph:
        assert self._capture is not None
        with uncached_casts(self.device):
            return self._capture(self._play, self.device)

    def _tried(self, form: Graph | None, data: None) -> list[Tensor]:
        """Everything of a rollout that has a row for each environment."""
        if form is None:
            played = self._play()
        else:
            form.replay()
            played = form.result
        values = [*played.values(True, True), *self._place.state.values(), *self._place.shown.values()]
        rows = [value for value in values if value.ndim and len(value) == self.env.num_envs]
        return [value.clone() for value in rows]

    def _compare(self, plain: list[Tensor], found: list[Tensor]) -> None:
        rows = [rows_that_differ(*pair) for pair in zip(plain, found, strict=True)]
        other = int(torch.stack(rows).any(0).sum())
        if other > MOST_OTHER * self.env.num_envs:
            raise RuntimeError(
                f"GraphedRollout: the graph plays otherwise than the steps one by one in {other} of"
                f" {self.env.num_envs} environments"
            )


def copies(tensors: dict[Key, Tensor]) -> dict[Key, Tensor]:
    """Contiguous copies of tensors, by the same names."""
    return {key: value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}


def copy_into(values: dict[Key, Tensor], into: dict[Key, Tensor]) -> None:
    """Copy values into the tensors of the same names, unless they are those."""
    for key, value in values.items():
        if value is not into[key]:
            into[key].copy_(value)


def _copy_of(place: Place) -> Place:
    return Place(copies(place.state), copies(place.shown))
