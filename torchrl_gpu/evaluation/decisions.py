"""Decisions of a policy in an environment's current state, without changing either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.envs.viewable import Decision
from torchrl_gpu.evaluation.player import eval_mode
from torchrl_gpu.policies.generators import generators_kept, set_random_state
from torchrl_gpu.policies.policy import Policy


class Decisions:
    """Asks a policy, greedily: nothing of it, of torch's generators or of the environment changes.

    Args:
        make: Gives the policy; called when it is asked for the first time.
        device: Of the environment.
        has_values: Whether the policy has a value for each action.
        generators: States of torch's generators that the policy draws from; None leaves them as they are.
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
