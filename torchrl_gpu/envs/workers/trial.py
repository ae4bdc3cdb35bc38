"""A few steps that the environment and its workers both play, so that it is known whether they are the same."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase, unravel_key
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.workers.shard import Tensors, leaves

if TYPE_CHECKING:
    from torchrl_gpu.envs.workers.pool import WorkerPool

_LOG = logging.getLogger(__name__)
_RESTARTS, _STEPS = 2, 4  # the second episode of an environment need not be counted as the first one is


class Trial:
    """Restarts and random steps of an environment, which is left as it was; generators, too.

    Attributes:
        state: In which it began.
        shown: After a restart of all environments.
        actions: Of the last step.
        stepped: What that led to, as `Shard.step` gives it.
        next, current: The same, as tensordicts.
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
                    acted = _acted(env, current)
                    given = acted.select(*env.action_keys).clone()
                    stepped, current = env.step_and_maybe_reset(acted)
                    self.next, self.current = stepped["next"], current.select(*self.shown)
                    self.stepped = _copies(leaves(self.next, "next") | leaves(self.current, "current"))
                    self._steps.append((given, self.stepped))
                self.actions = leaves(given)
                self._after: Tensors = _copies(dict(env._env_state()))
        finally:
            env._set_env_state({str(key): value.clone() for key, value in self.state.items()})

    def check(self, pool: WorkerPool) -> None:
        """Has workers do the same.

        Raises:
            ValueError: It is not the same by more than rounding.
        """
        try:
            pool.begin()
            for _ in range(_RESTARTS):
                found = pool.restart()
            alike = [self._compare("reset", self.shown, found)]
            for given, wanted in self._steps:
                stepped, current = pool.step_and_maybe_reset(given)
                current = current.select(*self.shown)
                found = leaves(stepped["next"], "next") | leaves(current, "current")
                alike.append(self._compare("step", wanted, found))
            pool.end()
            alike.append(self._compare("state", self._after, dict(self.env._env_state())))
        finally:
            self.env._set_env_state({str(key): value.clone() for key, value in self.state.items()})
        if not all(alike):
            _LOG.warning(
                "EnvWorkers: workers and one process differ by rounding, as %s computes otherwise for fewer"
                " environments or on another device: a run is the same again only with as many workers",
                type(self.env).__name__,
            )

    def _compare(self, what: str, wanted: Tensors, found: Tensors) -> bool:
        """Whether both are the same to the last bit; ValueError where they are others."""
        for key, value in wanted.items():
            if not _close(value, found[key]):
                name = key if isinstance(key, str) else "/".join(key)
                raise ValueError(
                    f"EnvWorkers: want an environment that does the same when it is split, as each of its rows goes by"
                    f" its own number and history; got another {name} from the {what} of"
                    f" {type(self.env).__name__} in workers"
                )
        return all(_same(value, found[key]) for key, value in wanted.items())


def _acted(env: BatchedEnv, current: TensorDictBase) -> TensorDictBase:
    """With random actions, legal ones where an `action_mask` stands beside the action."""
    for key in env.action_keys:
        parent = () if isinstance(key, str) else key[:-1]
        mask = current.get(unravel_key((*parent, "action_mask")), None)
        if mask is None:
            drawn = env.full_action_spec[key].rand()
        else:
            drawn = (torch.rand(mask.shape, device=mask.device, dtype=torch.float32) * mask).argmax(-1)
        current.set(key, drawn)
    return current


def _copies(tensors: Tensors) -> Tensors:
    return {key: value.clone() for key, value in tensors.items()}


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=one.is_floating_point()).all())


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return bool(torch.isclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True).all())
