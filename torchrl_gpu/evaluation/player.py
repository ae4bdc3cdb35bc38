"""Episodes played a step at a time, and what a policy would decide in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, cast

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.viewable import Decision
from torchrl_gpu.policies.generators import generators_kept, random_state, set_random_state
from torchrl_gpu.policies.policy import Policy


class Player:
    """Player of an environment with a greedy policy, a step at a time.

    Episodes that have ended stay visible until the next step. The policy draws from generator states of its own;
    torch's generators are left unchanged.
    """

    def __init__(self, env: BatchedEnv, policy: Policy, seed: int = 0) -> None:
        self.env = env
        self.policy = policy
        # Its draws must not depend on what else draws in this process, such as a run that is being watched.
        devices = random_state(env.device)
        # States of torch's generators that the policy's next step draws from.
        self.generators = {each: torch.Generator(each).manual_seed(seed).get_state() for each in devices}
        self.restart()

    def restart(self) -> None:
        """Go back to the first episodes of the environment's seed."""
        self.env.set_seed(self.env.seed)
        self._current: TensorDictBase = self.env.reset()
        # Which episodes the last step has ended.
        self.done: Tensor = self._current["done"].reshape(self.env.num_envs)  # (N,) bool

    def skip(self) -> None:
        """Abandon the running episodes, and begin the next ones."""
        everywhere = torch.ones_like(self._current["done"])
        self._current = self.env.maybe_reset(self._current.set("done", everywhere))
        self.done = torch.zeros_like(self.done)

    @torch.no_grad()
    def step(self) -> Tensor:
        """Restart the environments that are done, then step all of them.

        Returns:
            Which are done now, (N,) bool.
        """
        greedy = set_exploration_type(ExplorationType.DETERMINISTIC)
        with generators_kept(self.env.device), eval_mode(self.policy), greedy:
            set_random_state(self.generators, self.env.device)
            current = self.env.maybe_reset(self._current)
            stepped = self.env.step(self.policy(current))
            self.generators = random_state(self.env.device)
        self._current = step_mdp(stepped)
        self.done = stepped["next", "done"].reshape(self.env.num_envs)
        return self.done


@contextmanager
def eval_mode(policy: Policy) -> Iterator[None]:
    """Put a module into eval mode, and each of its parts back afterwards."""
    # Each part on its own, since some may be in eval mode on purpose, such as a frozen encoder.
    parts = list(policy.modules()) if isinstance(policy, nn.Module) else []
    training = [each for each in parts if each.training]
    for each in training:
        each.training = False
    try:
        yield
    finally:
        for each in training:
            each.training = True


class Decisions:
    """Decisions of a greedy policy, without side effects.

    The policy, torch's generators and the environment are left unchanged, so that a viewer does not alter a run.

    Args:
        make: Makes the policy at the first decision.
        device: Of the policy.
        has_values: Whether the policy has a value for each action.
        generators: States of the generators that it draws from; None for torch's.
    """

    def __init__(
        self,
        make: Callable[[], Policy],
        device: torch.device,
        has_values: bool,
        generators: Callable[[], Mapping[str, Tensor]] | None = None,
    ) -> None:
        self.has_values = has_values
        self._make = make
        self._device = device
        self._generators = generators
        self._policy: Policy | None = None

    @torch.no_grad()
    def __call__(self, observation: TensorDictBase) -> Decision:
        """Return the decision for an observation of batch size (1,)."""
        with generators_kept(self._device):
            if self._policy is None:
                self._policy = self._make()
            if self._generators is not None:
                set_random_state(dict(self._generators()), self._device)
            with eval_mode(self._policy), set_exploration_type(ExplorationType.DETERMINISTIC):
                # A policy whose values take extra work gives them by `decide` only.
                decide = getattr(self._policy, "decide", self._policy)
                written = decide(observation.copy())
        found = {_last(key): value[0] for key, value in written.items(True, True)}
        values = found.get("action_value") if self.has_values else None
        return Decision(found["action"], values)


class _HasPolicy(Protocol):
    """Lightning module that gives a policy for its environment."""

    env: BatchedEnv

    def policy_for(self, env: BatchedEnv) -> Policy:
        """Return the greedy policy in an environment."""


def decisions_of(module: object) -> Decisions | None:
    """Return the decisions of a module's policy in the environment that it trains in.

    They are None if the module gives no policy.
    """
    if not hasattr(module, "policy_for"):
        return None
    run = cast("_HasPolicy", module)
    env = run.env
    has_values = bool(getattr(run, "has_values", False))
    return Decisions(lambda: run.policy_for(env), env.device, has_values)


def has_values(policy: Policy) -> bool:
    """Return whether a policy gives a value for each action."""
    found = getattr(policy, "has_values", None)
    if found is not None:
        return bool(found)
    return isinstance(policy, TensorDictModuleBase) and "action_value" in map(_last, policy.out_keys)


def _last(key: NestedKey) -> str:
    return key if isinstance(key, str) else str(key[-1])
