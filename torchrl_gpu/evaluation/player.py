"""Episodes played a step at a time, to be looked at, and what a policy would decide in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.viewable import Decision
from torchrl_gpu.policies.generators import generators_kept, random_state, set_random_state
from torchrl_gpu.policies.policy import Policy


class Player:
    """Steps an environment with a policy, greedily; what has finished stays to be seen until the next step.

    What the policy draws comes from a generator state of its own: torch's are left as they were.
    """

    def __init__(self, env: BatchedEnv, policy: Policy, seed: int = 0) -> None:
        self.env, self.policy = env, policy
        devices = random_state(env.device)
        self.generators = {each: torch.Generator(each).manual_seed(seed).get_state() for each in devices}
        """States of torch's generators that the policy's next step draws from."""
        self.restart()

    def restart(self) -> None:
        """Goes back to the first episodes of the environment's seed."""
        self.env.set_seed(self.env.seed)
        self._current: TensorDictBase = self.env.reset()
        self.done: Tensor = self._current["done"].reshape(self.env.num_envs)  # (N,) bool, since the last step

    def skip(self) -> None:
        """Leaves the episodes that are running for the next ones."""
        self._current = self.env.maybe_reset(self._current.set("done", torch.ones_like(self._current["done"])))
        self.done = torch.zeros_like(self.done)

    @torch.no_grad()
    def step(self) -> Tensor:
        """A step of every environment, after the restart of those that are done; which are done now, (N,) bool."""
        greedy = set_exploration_type(ExplorationType.DETERMINISTIC)
        with generators_kept(self.env.device), eval_mode(self.policy), greedy:
            set_random_state(self.generators, self.env.device)
            stepped = self.env.step(self.policy(self.env.maybe_reset(self._current)))
            self.generators = random_state(self.env.device)
        self._current = step_mdp(stepped)
        self.done = stepped["next", "done"].reshape(self.env.num_envs)
        return self.done


@contextmanager
def eval_mode(policy: Policy) -> Iterator[None]:
    """A module acts as it does when it does not learn, and is then put back."""
    training = [each for each in policy.modules() if each.training] if isinstance(policy, nn.Module) else []
    for each in training:
        each.training = False
    try:
        yield
    finally:
        for each in training:
            each.training = True


class Decisions:
    """Asks a policy, greedily: nothing of it, of torch's generators or of the environment changes.

    `make` gives the policy, which may have a value for each action, when it is asked for the first time. It draws from
    generators with the states `generators`, or from torch's as they are.
    """

    def __init__(
        self,
        make: Callable[[], Policy],
        device: torch.device,
        has_values: bool,
        generators: Callable[[], Mapping[str, Tensor]] | None = None,
    ) -> None:
        self.has_values, self._make, self._device, self._generators = has_values, make, device, generators
        self._policy: Any = None

    @torch.no_grad()
    def __call__(self, observation: TensorDictBase) -> Decision:
        """The decision for an observation of batch size (1,)."""
        with generators_kept(self._device):
            if self._policy is None:
                self._policy = self._make()
            if self._generators is not None:
                set_random_state(dict(self._generators()), self._device)
            with eval_mode(self._policy), set_exploration_type(ExplorationType.DETERMINISTIC):
                decide = getattr(self._policy, "decide", self._policy)
                written = decide(observation.copy())
        found = {_last(key): value[0] for key, value in written.items(True, True)}
        return Decision(found["action"], found.get("action_value") if self.has_values else None)


def decisions_of(module: Any) -> Decisions | None:
    """Asks the policy of a Lightning module in the environment that it trains in; None where it gives no policy."""
    if not hasattr(module, "policy_for"):
        return None
    env = module.env
    return Decisions(lambda: module.policy_for(env), env.device, bool(getattr(module, "has_values", False)))


def has_values(policy: Policy) -> bool:
    """True if a policy gives a value for each action, for `Decisions`."""
    found = getattr(policy, "has_values", None)
    if found is not None:
        return bool(found)
    return isinstance(policy, TensorDictModuleBase) and "action_value" in map(_last, policy.out_keys)


def _last(key: Any) -> str:
    return key if isinstance(key, str) else key[-1]
