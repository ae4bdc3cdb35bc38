"""Epsilon-greedy exploration on the device, within the action mask or the bounds; uniform draws, also by rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, exploration_type

from torchrl_gpu import native
from torchrl_gpu.envs.counter_rng import draw_bits
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import float32, register_settings
from torchrl_gpu.system import arguments

_BLOCK = 1024  # actions of a mask that are counted together, where it has more


@dataclass(frozen=True)
class EpsilonGreedy:
    """Epsilon-greedy settings: with probability epsilon a uniform draw from the legal actions, or within the bounds.

    Args:
        start: Epsilon at the first frame.
        end: Epsilon from `frames` on.
        frames: Frames, over all environments, of the linear decay.
    """

    start: float = 1.0
    end: float = 0.05
    frames: int = 100_000

    def __post_init__(self) -> None:
        start = arguments.number("EpsilonGreedy", "start", self.start, 0, 1)
        arguments.number("EpsilonGreedy", "end", self.end, 0, start)
        arguments.whole("EpsilonGreedy", "frames", self.frames, 1)

    def at(self, frame: int) -> float:
        return self.start + (self.end - self.start) * min(1.0, frame / self.frames)


@final
class EpsilonGreedyModule(TensorDictModuleBase):
    """Replaces actions, with probability epsilon, by random ones; under `ExplorationType.RANDOM` only.

    TorchRL's `EGreedyModule` draws masked actions by `torch.multinomial`, which reads the device back; this one draws
    a number for each row and looks it up in a running count of the mask. Epsilon is a buffer.
    """

    out_keys: ClassVar = ["action"]
    replaced: ClassVar = ("chosen_action_value", "action_log_prob")
    """What a policy says of its own action, and so not of the one that takes its place."""

    def __init__(self, settings: EpsilonGreedy, space: AgentSpace) -> None:
        super().__init__()
        self.settings, self.num_actions, self.masked = settings, space.num_actions, space.masked
        self.in_keys = ["action", "action_mask"] if space.masked else ["action"]
        self.epsilon: Tensor
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("epsilon", float32(settings.start))
        if space.num_actions is None:
            low, high = space.bounds
            register_settings(self, low=low, high=high)

    def anneal(self, frame: int) -> None:
        """Sets epsilon for a count of frames; written into the buffer, nothing is read."""
        self.epsilon.fill_(self.settings.at(frame))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action`, (…) int64 or (…, D) float32, in the dtype that it has."""
        if exploration_type() is not ExplorationType.RANDOM:
            return tensordict
        action = tensordict.get("action")
        rows = action[..., :1] if self.num_actions is None else action
        explore = torch.rand(rows.shape, device=action.device, dtype=torch.float32) < self.epsilon
        return tensordict.set("action", torch.where(explore, self._random_action(tensordict, action), action))

    def _random_action(self, tensordict: TensorDictBase, action: Tensor) -> Tensor:
        if self.num_actions is None:
            return (self.low + torch.rand_like(action) * (self.high - self.low)).clamp(self.low, self.high)
        if self.masked:
            return random_legal(tensordict.get("action_mask"))
        return torch.randint_like(action, self.num_actions)


def random_legal(mask: Tensor) -> Tensor:
    """An index (…) int64 drawn uniformly from the true elements of each row of a mask (…, A) bool; 0 for none."""
    draw = uniform((*mask.shape[:-1], 1), mask.device)
    if native.runs_on(mask):
        return native.pick_true(mask, draw.squeeze(-1))
    if mask.shape[-1] > _BLOCK:
        return _pick_in_blocks(mask, draw)
    rank = mask.cumsum(-1, dtype=torch.int32)  # (…, A), true entries up to each
    count = rank[..., -1:]
    drawn = (draw * count).int()
    return torch.searchsorted(rank, torch.minimum(drawn, count - 1) + 1).squeeze(-1)


def _pick_in_blocks(mask: Tensor, draw: Tensor) -> Tensor:
    """As `random_legal`, of a mask of many actions: blocks are counted, and one of each row is looked into.

    A GPU sums a row up in few threads: 1.2 million actions of 16 rows took it 1.9 ms.
    """
    padded = torch.nn.functional.pad(mask, (0, -mask.shape[-1] % _BLOCK))
    blocks = padded.unflatten(-1, (-1, _BLOCK))  # (…, number of blocks, B)
    until = blocks.sum(-1, dtype=torch.int32).cumsum(-1, dtype=torch.int32)
    count = until[..., -1:]
    rank = torch.minimum((draw * count).int(), count - 1) + 1  # 0 where nothing is true
    block = torch.searchsorted(until, rank)
    before = until.gather(-1, (block - 1).clamp_min(0)) * (block > 0)
    one = blocks.gather(-2, block[..., None].expand(*block.shape, _BLOCK)).squeeze(-2)
    inside = torch.searchsorted(one.cumsum(-1, dtype=torch.int32), rank - before)
    return (block * _BLOCK + inside).squeeze(-1)


_row_streams: _RowStreams | None = None


class _RowStreams:
    """Counter-based random streams, one for each row; every row has drawn equally often."""

    def __init__(self, key: Tensor) -> None:
        self.key, self.drawn = key, 0

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """(N, …) float64 in [0, 1), of 53 random bits each."""
        number = torch.Size(shape[1:]).numel()
        counter = 2 * torch.arange(self.drawn, self.drawn + number, device=self.key.device, dtype=torch.int64)
        self.drawn += number
        high, low = (draw_bits(self.key[:, None], counter + half) for half in (0, 1))
        return (((high << 21) | (low >> 11)).double() * 2.0**-53).reshape(shape)


@contextmanager
def keyed_draws(key: Tensor) -> Iterator[None]:
    """Lets row i of every `uniform` of as many rows draw from the stream `key[i]`, whatever the other rows are."""
    global _row_streams
    before, _row_streams = _row_streams, _RowStreams(key)
    try:
        yield
    finally:
        _row_streams = before


def uniform(shape: Sequence[int], device: torch.device) -> Tensor:
    """Numbers drawn uniformly from [0, 1), float64; rows are counted by the first axis."""
    if _row_streams is None or not len(shape) or shape[0] != len(_row_streams.key):
        return torch.rand(*shape, dtype=torch.float64, device=device)
    return _row_streams.uniform(shape)
