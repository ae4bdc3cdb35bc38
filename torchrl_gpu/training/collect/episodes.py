"""Counts of finished episodes, kept on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.state_validation import Bounds, Entry, check_entries


class EpisodeMeter:
    """Number of finished episodes and mean outcomes of the recent ones; on the device, unread.

    Args:
        device: Where the steps are.
        names: Outcomes of an episode, given when it ends.
        memory: Share of the old mean that stays after a batch of steps in which episodes finished.
    """

    def __init__(self, device: torch.device, names: Sequence[str] = ("utilization",), memory: float = 0.9) -> None:
        self.memory = memory
        self.finished = torch.zeros((), dtype=torch.int64, device=device)
        self.recent = {name: torch.zeros((), device=device, dtype=torch.float32) for name in names}

    @property
    def outcomes(self) -> dict[str, Tensor]:
        """`recent`, with NaN in place of the zeros that it begins with."""
        return {name: torch.where(self.finished > 0, value, torch.nan) for name, value in self.recent.items()}

    def count(self, steps: Mapping[str, Tensor] | TensorDictBase) -> None:
        """Takes steps (…,) with `done` (…, 1) and each of the names (…, 1), which at the end of an episode is its."""
        done = steps["done"]
        number = done.sum()
        memory = torch.where(self.finished > 0, self.memory, 0.0)
        for name, recent in self.recent.items():
            mean = torch.where(done, steps[name].float(), 0.0).sum() / number.clamp_min(1)
            self.recent[name] = torch.where(number > 0, memory * recent + (1 - memory) * mean, recent)
        self.finished = self.finished + number

    def state_dict(self) -> dict[str, Tensor]:
        return {"finished": self.finished, **{f"recent_{name}": value for name, value in self.recent.items()}}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores a state from `state_dict`."""
        device = self.finished.device
        entries: dict[NestedKey, Entry] = {f"recent_{name}": Entry(torch.float32, ()) for name in self.recent}
        entries["finished"] = Entry(torch.int64, (), Bounds(0, 2**62))
        check_entries("EpisodeMeter.load_state_dict", state, entries, more=True)
        self.finished = state["finished"].to(device)
        self.recent = {name: state[f"recent_{name}"].to(device) for name in self.recent}
