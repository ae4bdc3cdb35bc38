"""Self-test of workers: a few steps must give the same numbers as in the environment itself."""

from __future__ import annotations

import logging
from typing import Protocol

import torch
from tensordict import TensorDictBase, unravel_key

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.workers.shard import Tensors, leaves

_LOG = logging.getLogger(__name__)
_RESTARTS, _STEPS = 2, 4  # an environment may count its second episode otherwise than its first


class StepPlayer(Protocol):
    """What plays steps: an environment, or workers in its place."""

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """The step after the actions in `tensordict`, and what follows it."""
        ...


class RolloutPlayer(StepPlayer, Protocol):
    """Workers that play rollouts of an environment."""

    def begin(self) -> None:
        """Take the state of the environment."""

    def restart(self) -> Tensors:
        """Observations after a restart of all rows."""
        ...

    def end(self) -> None:
        """Leave the state in the environment."""


class SelfTest:
    """Recorded restarts and random steps of an environment, whose state and generators are restored.

    Kept are its `state`, the observations `shown` after a restart, and the `actions` of the last step, with its result
    `stepped`, as `Shard.step` returns it, and the tensordicts `next` and `current` of that, without their tensors.
    """

    @torch.no_grad()
    def __init__(self, env: BatchedEnv) -> None:
        self.env = env
        self.state: Tensors = _copies(dict(env._env_state()))
        self._steps: list[tuple[TensorDictBase, Tensors]] = []
        try:
            with torch.random.fork_rng([env.device] if env.device.type == "cuda" else []):
                for _ in range(_RESTARTS):
                    current = env.reset()
                self.shown = _copies(leaves(current))
                for _ in range(_STEPS):
                    _act_at_random(env, current)
                    given = current.select(*env.action_keys).clone()
                    following, current = self._step(env, current)
                    self.stepped = _copies(leaves(following, "next") | leaves(current, "current"))
                    self._steps.append((given, self.stepped))
                    self.next, self.current = following.empty(recurse=True), current.empty(recurse=True)
                self.actions = leaves(given)
                self._after: Tensors = _copies(dict(env._env_state()))
        finally:
            self._restore()

    def compare(self, pool: RolloutPlayer) -> None:
        """Plays the same steps in workers; ValueError where the results differ by more than rounding."""
        try:
            pool.begin()
            for _ in range(_RESTARTS):
                shown = pool.restart()
            pairs = [("reset", self.shown, shown)]
            for given, stepped in self._steps:
                following, current = self._step(pool, given)
                pairs.append(("step", stepped, leaves(following, "next") | leaves(current, "current")))
            pool.end()
            pairs.append(("state", self._after, dict(self.env._env_state())))
        finally:
            self._restore()
        if not all([self._same(*pair) for pair in pairs]):
            _LOG.warning(
                "EnvWorkers: workers and one process differ by rounding, as %s computes otherwise for fewer"
                " environments or on another device: a run is the same again only with as many workers",
                type(self.env).__name__,
            )

    def _step(self, env: StepPlayer, acted: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        stepped, current = env.step_and_maybe_reset(acted)
        return stepped["next"], current.select(*self.shown)

    def _restore(self) -> None:
        self.env._set_env_state({str(key): value.clone() for key, value in self.state.items()})

    def _same(self, what: str, wanted: Tensors, found: Tensors) -> bool:
        """True where both are equal to the last bit; raises ValueError where they differ by more than rounding."""
        for key, value in wanted.items():
            rounding = {"rtol": 1e-3, "atol": 1e-4} if value.is_floating_point() else {"rtol": 0.0, "atol": 0.0}
            if not torch.allclose(value, found[key], equal_nan=value.is_floating_point(), **rounding):
                name = key if isinstance(key, str) else "/".join(key)
                raise ValueError(
                    f"EnvWorkers: want an environment that does the same when it is split, as each of its rows goes by"
                    f" its own number and history; got another {name} from the {what} of"
                    f" {type(self.env).__name__} in workers"
                )
        return all(
            torch.allclose(value, found[key], rtol=0, atol=0, equal_nan=value.is_floating_point())
            for key, value in wanted.items()
        )


def _act_at_random(env: BatchedEnv, current: TensorDictBase) -> None:
    """Writes random actions, legal ones where there is an `action_mask` beside the action."""
    for key in env.action_keys:
        parent = () if isinstance(key, str) else key[:-1]
        mask = current.get(unravel_key((*parent, "action_mask")), None)
        if mask is None:
            drawn = env.full_action_spec[key].rand()
        else:
            drawn = (torch.rand(mask.shape, device=mask.device, dtype=torch.float32) * mask).argmax(-1)
        current.set(key, drawn)


def _copies(tensors: Tensors) -> Tensors:
    return {key: value.clone() for key, value in tensors.items()}
