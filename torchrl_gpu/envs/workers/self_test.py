"""Self-test of workers: a few steps must give the numbers of one process."""

from __future__ import annotations

import logging
from typing import Protocol

import torch
from tensordict import TensorDictBase, unravel_key

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.workers.shard import Tensors, leaves

_LOG = logging.getLogger(__name__)

# An environment may count its second episode in another way than its first.
_RESTARTS = 2
_STEPS = 4

# Differences beyond these are no rounding.
_RELATIVE = 1e-3
_ABSOLUTE = 1e-4


class StepPlayer(Protocol):
    """Player of steps: an environment, or workers that replace it."""

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Play a step as `BatchedEnv.step_and_maybe_reset` does."""
        ...


class RolloutPlayer(StepPlayer, Protocol):
    """Workers that play rollouts of an environment."""

    def begin(self) -> None:
        """Send the environment's state to the workers."""

    def restart(self) -> Tensors:
        """Restart all rows, and return the first observations."""
        ...

    def end(self) -> None:
        """Set the environment's state to that of the workers."""


class SelfTest:
    """Recorded restarts and random steps of an environment.

    Its state and torch's generators are restored afterwards.

    Attributes:
        env: The environment.
        state: Its state at the beginning.
        observed: Observations after a restart.
        actions: Of the last step.
        stepped: Result of the last step, as `Shard.step` returns it.
        next: Its `next`, without tensors.
        current: What follows it, without tensors.
    """

    @torch.no_grad()
    def __init__(self, env: BatchedEnv) -> None:
        self.env = env
        self.state: Tensors = _copies(dict(env.env_state()))
        self._steps: list[tuple[TensorDictBase, Tensors]] = []
        try:
            # A run with workers draws the same numbers as one without.
            devices = [env.device] if env.device.type == "cuda" else []
            with torch.random.fork_rng(devices):
                for _ in range(_RESTARTS):
                    current = env.reset()
                self.observed = _copies(leaves(current))
                for _ in range(_STEPS):
                    _act_at_random(env, current)
                    given = current.select(*env.action_keys).clone()
                    following, current = self._step(env, current)
                    self.stepped = _copies(leaves(following, "next") | leaves(current, "current"))
                    self._steps.append((given, self.stepped))
                self.next = following.empty(recurse=True)
                self.current = current.empty(recurse=True)
                self.actions = leaves(given)
                self._after: Tensors = _copies(dict(env.env_state()))
        finally:
            self._restore()

    def compare(self, pool: RolloutPlayer) -> None:
        """Play the same steps in workers.

        Raises:
            ValueError: The results differ by more than rounding.
        """
        try:
            pool.begin()
            for _ in range(_RESTARTS):
                observed = pool.restart()
            pairs = [("reset", self.observed, observed)]
            for given, stepped in self._steps:
                following, current = self._step(pool, given)
                played = leaves(following, "next") | leaves(current, "current")
                pairs.append(("step", stepped, played))
            pool.end()
            pairs.append(("state", self._after, dict(self.env.env_state())))
        finally:
            self._restore()
        # A difference of rounding is allowed, since libraries choose their algorithms by the size of a batch.
        is_exact = True
        for what, expected, found in pairs:
            self._check_close(what, expected, found)
            is_exact = is_exact and _are_equal(expected, found)
        if not is_exact:
            _LOG.warning(
                "EnvWorkers: workers and one process differ by rounding, since %s computes in another way for fewer"
                " environments or on another device: a run repeats exactly only with the same number of workers",
                type(self.env).__name__,
            )

    def _step(self, env: StepPlayer, acted: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        stepped, current = env.step_and_maybe_reset(acted)
        return stepped["next"], current.select(*self.observed)

    def _restore(self) -> None:
        self.env.set_env_state({str(key): value.clone() for key, value in self.state.items()})

    def _check_close(self, what: str, expected: Tensors, found: Tensors) -> None:
        """Raise ValueError if tensors differ by more than rounding."""
        for key, value in expected.items():
            is_float = value.is_floating_point()
            rtol = _RELATIVE if is_float else 0.0
            atol = _ABSOLUTE if is_float else 0.0
            if not torch.allclose(value, found[key], rtol=rtol, atol=atol, equal_nan=is_float):
                name = key if isinstance(key, str) else "/".join(key)
                raise ValueError(
                    f"EnvWorkers: {type(self.env).__name__} cannot be split among workers: there, the {what} gives"
                    f" another {name}. A row may depend on its own number and history alone"
                )


def _are_equal(expected: Tensors, found: Tensors) -> bool:
    """Return whether tensors are equal to the last bit."""
    for key, value in expected.items():
        # `torch.equal` would call NaN different from NaN.
        is_float = value.is_floating_point()
        if not torch.allclose(value, found[key], rtol=0, atol=0, equal_nan=is_float):
            return False
    return True


def _act_at_random(env: BatchedEnv, current: TensorDictBase) -> None:
    """Write random actions: legal ones if their group has an `action_mask`."""
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
