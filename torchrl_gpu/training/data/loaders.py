"""Loaders of a run: training steps by their number, and suites to evaluate on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from torchrl_gpu.system.arguments import whole


class StepLoader:
    """Numbers the training steps of an epoch, which has `length` of them. Resumes in the middle of an epoch.

    Experience is made inside the training step, so that a loader has nothing else to give.
    """

    def __init__(self, length: int) -> None:
        self.length, self.done, self._goes_on = length, 0, False

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        if not self._goes_on or self.done >= self.length:  # Lightning may ask for fewer, and never asks for the end
            self.done = 0
        self._goes_on = False
        while self.done < self.length:
            self.done += 1
            yield self.done

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done, self._goes_on = whole("checkpoint", "done", state.get("done"), 0, self.length), True


def single_batch(*suites: object) -> Any:
    """A loader of one batch, the suite; of several, one behind another.

    It has a generator of its own: a loader draws a seed whenever it begins, and training must not depend on how often
    it is validated. Every process gets all suites, so that all log the same and stop at the same step: Lightning would
    give each a share of the suites by a sampler of its own, if there were no such sampler here.
    """
    data: Any = list(suites)
    everyone_all: DistributedSampler[Any] = DistributedSampler(data, num_replicas=1, rank=0, shuffle=False)
    return DataLoader(data, batch_size=None, num_workers=0, generator=torch.Generator(), sampler=everyone_all)
