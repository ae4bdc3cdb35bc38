"""Results of episodes, and the conditions under which every policy is evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ParamSpec, Protocol, Self, TypedDict, TypeVar, cast, runtime_checkable

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

Given = ParamSpec("Given")
Made = TypeVar("Made")


class Times(TypedDict):
    """What `DecisionClock` measures, as fields of `Results`."""

    decisions: int
    decision_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Results(ABC):
    """Results of E episodes, in order, with tensors (E, …) on the CPU.

    Attributes:
        decisions: How many were made, each for one row of a batch, whether its episode is running or has ended.
        decision_s: Seconds that the policy alone took for them.
        seconds: From the first reset to the end of the last episode.
    """

    decisions: int = 0
    decision_s: float = 0.0
    seconds: float = 0.0

    @abstractmethod
    def scores(self) -> dict[str, float]:
        """Return means over the episodes, by name."""

    @property
    def decision_ms(self) -> float:
        """Milliseconds of one decision for one episode of a batch."""
        return 1e3 * self.decision_s / max(self.decisions, 1)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join the episodes of several batches, in order."""
        joined: dict[str, Any] = {}
        for each in fields(cls):
            joined[each.name] = _join([getattr(part, each.name) for part in parts])
        return cls(**joined)


@runtime_checkable
class _Joinable(Protocol):
    """Part of results that joins itself, such as `Results`."""

    def join(self, parts: Sequence[object]) -> object:
        """Return several of a class as one."""


def _join(values: Sequence[object]) -> object:
    """Return one attribute of several batches as one.

    None counts as missing. Tensors are concatenated, numbers added, and dicts joined entry by entry. A flag is the same
    in all batches.
    """
    values = [value for value in values if value is not None]
    if not values:
        return None
    first = values[0]
    if isinstance(first, bool):
        return first
    if isinstance(first, dict):
        return _join_dicts(cast("Sequence[dict[str, object]]", values))
    if isinstance(first, Tensor):
        return _join_tensors(cast("Sequence[Tensor]", values))
    if isinstance(first, _Joinable):
        return first.join(values)
    # Numbers, lists or tuples.
    numbers = cast("Sequence[int]", values)
    return sum(numbers[1:], start=numbers[0])


def _join_dicts(values: Sequence[dict[str, object]]) -> dict[str, object]:
    joined = {}
    for key in values[0]:
        joined[key] = _join([value[key] for value in values])
    return joined


def _join_tensors(values: Sequence[Tensor]) -> Tensor:
    lengths = [value.shape[-1] for value in values]
    if values[0].ndim == 2 and min(lengths) < max(lengths):
        # Rows of some batches are longer. The others are filled up with -1.
        values = [pad(value, (0, max(lengths) - value.shape[1]), value=-1) for value in values]
    return torch.cat(list(values))


class DecisionClock:
    """Clock of the decisions of a policy."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.decisions = 0
        self.decision_s = 0.0
        self._begin = now(device)

    def time(self, number: int, decide: Callable[Given, Made], *args: Given.args, **more: Given.kwargs) -> Made:
        """Call `decide`, and count its time for `number` decisions."""
        # `now` waits for the device: without that, only launches would be measured.
        start = now(self.device)
        made = decide(*args, **more)
        self.decision_s += now(self.device) - start
        self.decisions += number
        return made

    def times(self) -> Times:
        """Return what was measured, as fields of `Results`."""
        passed = now(self.device) - self._begin
        return {"decisions": self.decisions, "decision_s": self.decision_s, "seconds": passed}


@contextmanager
def evaluation(env: BatchedEnv, policy: Policy) -> Iterator[TensorDictBase]:
    """Restart an environment and let a policy act greedily in it.

    The context gives the first observations. What a policy draws is the same every time. If it draws by
    `policies.exploration.uniform`, that holds whatever other episodes are played in the same batch; otherwise it draws
    from torch's generators, which are seeded for these episodes and then restored. A module acts in eval mode.
    """
    number = torch.arange(env.num_envs, device=env.device, dtype=torch.int64) + env.first_env
    episode = episode_key(env.seed, number, torch.zeros_like(number))
    # A counter that items are never drawn by.
    keys = draw_bits(episode, torch.full_like(number, 2**31))
    greedy = set_exploration_type(ExplorationType.DETERMINISTIC)
    generators = seeded(env.seed + env.first_env, env.device)
    with torch.no_grad(), generators, keyed_draws(keys), eval_mode(policy), greedy:
        env.set_seed(env.seed)
        yield env.reset()
