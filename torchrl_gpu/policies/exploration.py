"""Exploration that is drawn on the device, and knows the action mask or the bounds."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, exploration_type

from torchrl_gpu import native
from torchrl_gpu.policies.draws import uniform


class EpsilonGreedy(TensorDictModuleBase):
    """Replaces actions, with probability epsilon, by random ones; under `ExplorationType.RANDOM` only.

    Args:
        start: Epsilon at the first frame.
        end: Epsilon from `frames` on.
        frames: Frames, over all environments, of the linear decay.
    """

    out_keys: ClassVar = ["action"]
    continuous: ClassVar[bool] = False

    def __init__(self, start: float = 1.0, end: float = 0.05, frames: int = 100_000) -> None:
        super().__init__()
        if not (0 <= end <= start <= 1) or frames < 1:
            raise ValueError(
                f"{type(self).__name__}: want 0 <= end <= start <= 1 and at least 1 frame;"
                f" got start {start}, end {end}, {frames} frames"
            )
        self.start, self.end, self.frames = start, end, frames
        self.epsilon: Tensor
        self.register_buffer("epsilon", torch.tensor(float(start)))

    def anneal(self, frame: int) -> None:
        """Sets epsilon for a count of frames; written into the buffer, nothing is read."""
        done = min(1.0, frame / self.frames)
        self.epsilon.fill_(self.start + (self.end - self.start) * done)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action`, in the shape and dtype that it has."""
        if exploration_type() is not ExplorationType.RANDOM:
            return tensordict
        action = tensordict.get("action")
        rows = action[..., :1] if self.continuous else action
        explore = torch.rand(rows.shape, device=action.device) < self.epsilon
        return tensordict.set("action", torch.where(explore, self.random_action(tensordict), action))

    @abstractmethod
    def random_action(self, tensordict: TensorDictBase) -> Tensor:
        """A random action for every row, as `action`."""


@final
class MaskedEpsilonGreedy(EpsilonGreedy):
    """Epsilon-greedy over indices: random actions are drawn uniformly from the legal ones, `action_mask` (…, A) bool.

    TorchRL's `EGreedyModule` draws masked actions by `torch.multinomial`, which reads the device back; this one draws
    a number for each row and looks it up in a running count of the mask.

    Args:
        start: Epsilon at the first frame.
        end: Epsilon from `frames` on.
        frames: Frames, over all environments, of the linear decay.
        num_actions: How many actions there are where all are always legal; None where there is a mask.
    """

    def __init__(
        self, start: float = 1.0, end: float = 0.05, frames: int = 100_000, num_actions: int | None = None
    ) -> None:
        super().__init__(start, end, frames)
        self.num_actions = num_actions
        self.in_keys = ["action"] if num_actions is not None else ["action", "action_mask"]

    def random_action(self, tensordict: TensorDictBase) -> Tensor:
        """(…,) int64."""
        if self.num_actions is None:
            return random_legal(tensordict.get("action_mask"))
        return torch.randint_like(tensordict.get("action"), self.num_actions)


@final
class UniformEpsilonGreedy(EpsilonGreedy):
    """Epsilon-greedy over continuous actions: random ones are drawn uniformly within bounds.

    Args:
        low: Smallest action, (D,).
        high: Largest action, (D,).
        start: Epsilon at the first frame.
        end: Epsilon from `frames` on.
        frames: Frames, over all environments, of the linear decay.
    """

    in_keys: ClassVar = ["action"]
    continuous: ClassVar[bool] = True

    def __init__(self, low: Tensor, high: Tensor, start: float = 1.0, end: float = 0.05, frames: int = 100_000) -> None:
        super().__init__(start, end, frames)
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", low.clone())
        self.register_buffer("high", high.clone())

    def random_action(self, tensordict: TensorDictBase) -> Tensor:
        """(…, D)."""
        return self.low + torch.rand_like(tensordict.get("action")) * (self.high - self.low)


def random_legal(mask: Tensor) -> Tensor:
    """An index drawn uniformly from the true entries of each row; 0 where there is none.

    Args:
        mask: (…, A) bool.

    Returns:
        (…,) int64.
    """
    draw = uniform((*mask.shape[:-1], 1), mask.device)
    if native.runs_on(mask):
        return native.pick_true(mask, draw.squeeze(-1))
    rank = mask.cumsum(-1, dtype=torch.int32)  # (…, A), true entries up to each
    count = rank[..., -1:]
    drawn = (draw * count).int()
    return torch.searchsorted(rank, torch.minimum(drawn, count - 1) + 1).squeeze(-1)
