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
    """Results of E episodes, in order; tensors are (E, …) on the CPU.

    `decisions` were made, each for one row of a batch, of an episode that goes on or has ended; the policy alone took
    `decision_s` seconds for them. `seconds` are from the first reset to the end of the last episode.
    """

    decisions: int = 0
    decision_s: float = 0.0
    seconds: float = 0.0

    @abstractmethod
    def scores(self) -> dict[str, float]: ...

    @property
    def decision_ms(self) -> float:
        """Of one decision for one episode, all episodes of a batch decided for at once."""
        return 1e3 * self.decision_s / max(self.decisions, 1)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The episodes of several batches, in order."""
        return cls(**{each.name: _joined([getattr(part, each.name) for part in parts]) for each in fields(cls)})


def _joined(values: list[Any]) -> Any:
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
    longest = max(value.shape[-1] for value in values)
    ragged = first.ndim == 2 and any(value.shape[1] < longest for value in values)
    return torch.cat([pad(value, (0, longest - value.shape[1]), value=-1) if ragged else value for value in values])


class DecisionClock:
    """Adds up what the decisions of a policy take."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.decisions, self.decision_s, self._begin = device, 0, 0.0, now(device)

    def time(self, number: int, decide: Callable[..., Any], *args: Any) -> Any:
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
    """Context manager of the first observations of an environment that begins anew; within, the policy acts greedily.

    What a policy draws is the same every time: by `policies.draws.uniform`, whatever other episodes are played beside;
    else from torch's generators, which are seeded for these episodes and then restored. A module acts in eval mode.
    """
    number = torch.arange(env.num_envs, device=env.device, dtype=torch.int64) + env.first_env
    episode = episode_key(env.seed, number, torch.zeros_like(number))
    keys = draw_bits(episode, torch.full_like(number, 2**31))  # not those that items are drawn by
    greedy = set_exploration_type(ExplorationType.DETERMINISTIC)
    with torch.no_grad(), seeded(env.seed + env.first_env, env.device), keyed_draws(keys), eval_mode(policy), greedy:
        env.set_seed(env.seed)
        yield env.reset()
