"""Results of episodes, and the conditions under which every policy is evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import pad
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.device import now
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.counter_rng import draw_bits, episode_key
from torchrl_gpu.evaluation.player import eval_mode
from torchrl_gpu.policies.exploration import keyed_draws
from torchrl_gpu.policies.generators import seeded
from torchrl_gpu.policies.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Results(ABC):
    """Results of E episodes, in order, with tensors (E, …) on the CPU.

    Attributes:
        decisions: How many were made, each for one row of a batch, of an episode that goes on or has ended.
        decision_s: Seconds that the policy alone took for them.
        seconds: From the first reset to the end of the last episode.
    """

    decisions: int = 0
    decision_s: float = 0.0
    seconds: float = 0.0

    @abstractmethod
    def scores(self) -> dict[str, float]:
        """Means over the episodes, by name."""

    @property
    def decision_ms(self) -> float:
        """Milliseconds of one decision for one episode of a batch."""
        return 1e3 * self.decision_s / max(self.decisions, 1)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Join the episodes of several batches, in order."""
        joined = {}
        for each in fields(cls):
            joined[each.name] = _joined([getattr(part, each.name) for part in parts])
        return cls(**joined)


def _joined(values: list[Any]) -> Any:
    """One attribute of several batches as one: tensors behind one another, numbers added, dicts entry by entry."""
    values = [value for value in values if value is not None]
    first = values[0] if values else None
    if first is None or isinstance(first, bool):
        return first
    if isinstance(first, dict):
        return {key: _joined([value[key] for value in values]) for key in first}
    if hasattr(first, "joined"):
        return first.joined(values)
    if not isinstance(first, Tensor):
        return sum(values[1:], start=first)
    lengths = [value.shape[-1] for value in values]
    if first.ndim == 2 and min(lengths) < max(lengths):
        # Rows of some batches are longer; -1 stands behind the end of the others.
        values = [pad(value, (0, max(lengths) - value.shape[1]), value=-1) for value in values]
    return torch.cat(values)


class DecisionClock:
    """Clock of the decisions of a policy."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.decisions = 0
        self.decision_s = 0.0
        self._begin = now(device)

    def time(self, number: int, decide: Callable[..., Any], *args: Any) -> Any:
        """Call `decide`, and count its time for `number` decisions."""
        start = now(self.device)
        made = decide(*args)
        self.decision_s += now(self.device) - start
        self.decisions += number
        return made

    def times(self) -> dict[str, Any]:
        """`decisions`, `decision_s` and `seconds` of `Results`."""
        passed = now(self.device) - self._begin
        return {"decisions": self.decisions, "decision_s": self.decision_s, "seconds": passed}


@contextmanager
def evaluation(env: BatchedEnv, policy: Policy) -> Iterator[TensorDictBase]:
    """Restart an environment and let a policy act greedily in it.

    The context gives the first observations. What a policy draws is the same every time: by `policies.draws.uniform`,
    whatever other episodes are played beside; else from torch's generators, which are seeded for these episodes and
    then restored. A module acts in eval mode.
    """
    number = torch.arange(env.num_envs, device=env.device, dtype=torch.int64) + env.first_env
    episode = episode_key(env.seed, number, torch.zeros_like(number))
    # Another counter than those that items are drawn by.
    keys = draw_bits(episode, torch.full_like(number, 2**31))
    greedy = set_exploration_type(ExplorationType.DETERMINISTIC)
    with torch.no_grad(), seeded(env.seed + env.first_env, env.device), keyed_draws(keys), eval_mode(policy), greedy:
        env.set_seed(env.seed)
        yield env.reset()
