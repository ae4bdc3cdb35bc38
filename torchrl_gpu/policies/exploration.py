"""Epsilon-greedy exploration on the device, and uniform draws, also by rows."""

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

# Actions of a mask that are counted together, if it has more.
_BLOCK = 1024


@dataclass(frozen=True)
class EpsilonGreedy:
    """Settings of epsilon-greedy exploration.

    With probability epsilon the action is a uniform draw from the legal actions, or within the bounds.

    Args:
        start: Epsilon at the first frame.
        end: Epsilon after `frames` frames.
        frames: Length of the linear decay, frames over all environments.
    """

    start: float = 1.0
    end: float = 0.05
    frames: int = 100_000

    def __post_init__(self) -> None:
        start = arguments.number("EpsilonGreedy", "start", self.start, 0, 1)
        arguments.number("EpsilonGreedy", "end", self.end, 0, start)
        arguments.whole("EpsilonGreedy", "frames", self.frames, 1)

    def at(self, frame: int) -> float:
        progress = min(1.0, frame / self.frames)
        return self.start + (self.end - self.start) * progress


@final
class EpsilonGreedyModule(TensorDictModuleBase):
    """Exploration that replaces actions by random ones with probability epsilon.

    It does so under `ExplorationType.RANDOM` only. TorchRL's `EGreedyModule` draws masked actions by
    `torch.multinomial`, which reads the device back; this one draws a number for each row and looks it up in a running
    count of the mask. Epsilon is a buffer.

    Attributes:
        replaced: Entries in which a policy describes its own action, which are void for a random one.
    """

    out_keys: ClassVar = ["action"]
    replaced: ClassVar = ("chosen_action_value", "action_log_prob")

    def __init__(self, settings: EpsilonGreedy, space: AgentSpace) -> None:
        super().__init__()
        self.settings = settings
        self.num_actions = space.num_actions
        self.masked = space.masked
        self.in_keys = ["action", "action_mask"] if space.masked else ["action"]
        self.epsilon: Tensor
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("epsilon", float32(settings.start))
        if space.num_actions is None:
            low, high = space.bounds
            register_settings(self, low=low, high=high)

    def anneal(self, frame: int) -> None:
        """Set epsilon for a number of frames, without reading the device."""
        epsilon = self.settings.at(frame)
        self.epsilon.fill_(epsilon)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action`, (…) int64 or (…, D) float32, in its own dtype."""
        if exploration_type() is not ExplorationType.RANDOM:
            return tensordict
        action = tensordict.get("action")
        rows = action[..., :1] if self.num_actions is None else action
        draw = torch.rand(rows.shape, device=action.device, dtype=torch.float32)
        # Rows explore independently of each other, all numbers of a row together.
        explore = draw < self.epsilon
        random_action = self._random_action(tensordict, action)
        action = torch.where(explore, random_action, action)
        return tensordict.set("action", action)

    def _random_action(self, tensordict: TensorDictBase, action: Tensor) -> Tensor:
        if self.num_actions is None:
            size = self.high - self.low
            uniform_action = self.low + torch.rand_like(action) * size
            return uniform_action.clamp(self.low, self.high)
        if self.masked:
            return random_legal(tensordict.get("action_mask"))
        return torch.randint_like(action, self.num_actions)


def random_legal(mask: Tensor) -> Tensor:
    """Draw a true element of each row of a mask (…, A) bool, all equally likely.

    Returns:
        Its index, (…) int64; 0 if the row has none.
    """
    one_per_row = (*mask.shape[:-1], 1)
    draw = uniform(one_per_row, mask.device)
    # C++ looks through a row without writing a running count of it.
    if native.runs_on(mask):
        return native.pick_true(mask, draw.squeeze(-1))
    if mask.shape[-1] > _BLOCK:
        return _pick_in_blocks(mask, draw)
    # True elements up to each, (…, A). The element drawn is the first whose rank exceeds the number drawn.
    rank = mask.cumsum(-1, dtype=torch.int32)
    count = rank[..., -1:]
    drawn = (draw * count).int()
    # A draw next to 1 may be rounded up to the count, which would be an element too many.
    wanted = torch.minimum(drawn, count - 1) + 1
    found = torch.searchsorted(rank, wanted)
    return found.squeeze(-1)


def _pick_in_blocks(mask: Tensor, draw: Tensor) -> Tensor:
    """`random_legal` for a mask of many actions.

    Blocks are counted first, and only one block of each row is looked into. The running count of a whole row would be
    simpler, but a GPU sums a row up in few threads: 1.2 million actions of 16 rows took it 1.9 ms.
    """
    missing = -mask.shape[-1] % _BLOCK
    padded = torch.nn.functional.pad(mask, (0, missing))
    blocks = padded.unflatten(-1, (-1, _BLOCK))
    counts = blocks.sum(-1, dtype=torch.int32)
    count_until = counts.cumsum(-1, dtype=torch.int32)
    count = count_until[..., -1:]
    # The rank is 0 in a row without true elements.
    drawn = (draw * count).int()
    rank = torch.minimum(drawn, count - 1) + 1
    block = torch.searchsorted(count_until, rank)
    # The first block has none before it: it reads its own count, which the next line sets to 0.
    previous = count_until.gather(-1, (block - 1).clamp_min(0))
    count_before = previous * (block > 0)
    of_row = block[..., None].expand(*block.shape, _BLOCK)
    chosen = blocks.gather(-2, of_row).squeeze(-2)
    rank_inside = chosen.cumsum(-1, dtype=torch.int32)
    inside = torch.searchsorted(rank_inside, rank - count_before)
    return (block * _BLOCK + inside).squeeze(-1)


# The streams that `uniform` draws from inside `keyed_draws`.
_row_streams: _RowStreams | None = None


class _RowStreams:
    """Counter-based random streams, one for each row.

    Every row has drawn equally often.
    """

    def __init__(self, key: Tensor) -> None:
        self.key = key
        self.num_drawn = 0

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform numbers (N, …) float64 in [0, 1), of 53 random bits each."""
        number = torch.Size(shape[1:]).numel()
        end = self.num_drawn + number
        device = self.key.device
        indices = torch.arange(self.num_drawn, end, device=device, dtype=torch.int64)
        self.num_drawn += number
        # A number takes two draws of 32 bits.
        counter = 2 * indices
        # A float64 holds 53 bits: 32 of one draw and 21 of the other.
        high = draw_bits(self.key[:, None], counter)
        low = draw_bits(self.key[:, None], counter + 1)
        bits = (high << 21) | (low >> 11)
        return (bits.double() * 2.0**-53).reshape(shape)


@contextmanager
def keyed_draws(key: Tensor) -> Iterator[None]:
    """Let each row of every `uniform` draw from a stream of its own.

    Row i draws from the stream `key[i]`, whatever the other rows are. It applies to draws of as many rows as keys.
    """
    global _row_streams
    # Contexts may be nested: the streams of the outer one go on afterwards.
    before = _row_streams
    _row_streams = _RowStreams(key)
    try:
        yield
    finally:
        _row_streams = before


def uniform(shape: Sequence[int], device: torch.device) -> Tensor:
    """Numbers drawn uniformly from [0, 1), float64, with rows along the first axis."""
    if _row_streams is None or not len(shape) or shape[0] != len(_row_streams.key):
        return torch.rand(*shape, dtype=torch.float64, device=device)
    return _row_streams.uniform(shape)
