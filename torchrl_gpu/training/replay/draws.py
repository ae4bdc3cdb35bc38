"""Draws from a replay that a CUDA graph can hold."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.data.replay_buffers.storages import Storage


class DrawNumbers:
    """Numbers that draws depend on, kept on the device.

    A CUDA graph reads them anew at every replay.

    Attributes:
        size: () int64, transitions that there are.
        updates: () int64, draws made so far: one for each update.
    """

    def __init__(self, device: torch.device) -> None:
        self.size = torch.zeros((), dtype=torch.int64, device=device)
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        self._size_there = 0

    def set_size(self, size: int) -> None:
        """Set how many transitions there are.

        Nothing is launched where that is known.
        """
        if size != self._size_there:
            self.size.fill_(size)
            self._size_there = size

    def set_updates(self, updates: int) -> None:
        """Set how many updates were made before the next draw."""
        self.updates.fill_(updates)

    def count_draw(self) -> None:
        """Add a draw, on the device."""
        self.updates.add_(1)


class UniformSampler(RandomSampler):
    """Uniform sampling of transitions.

    Attributes:
        numbers: Where the number of transitions is read from; None for the storage itself, as on a CPU.
    """

    numbers: DrawNumbers | None = None

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict]:
        """Draw indices (B,) int64."""
        if self.numbers is None:
            return super().sample(storage, batch_size)
        size = self.numbers.size
        share = torch.rand(batch_size, dtype=torch.float64, device=size.device)
        # A share next to 1 may be rounded up to the size itself.
        index = torch.minimum((share * size).long(), size - 1)
        self.numbers.count_draw()
        return index, {}
