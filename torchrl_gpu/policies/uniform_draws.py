"""Uniform draws of policies: from torch's generator, or, inside `keyed_draws`, each row from a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from torchrl_gpu.envs.counter_rng import draw_bits

_current: _RowStreams | None = None


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
    global _current
    before, _current = _current, _RowStreams(key)
    try:
        yield
    finally:
        _current = before


def uniform(shape: Sequence[int], device: torch.device) -> Tensor:
    """Numbers drawn uniformly from [0, 1), float64; rows are counted by the first axis."""
    if _current is None or not len(shape) or shape[0] != len(_current.key):
        return torch.rand(*shape, dtype=torch.float64, device=device)
    return _current.uniform(shape)
