"""Counts of finished episodes, kept on the device."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor


class EpisodeMeter:
    """How many episodes have finished, and how well the recent ones did; reading is left to whoever logs.

    Args:
        device: Where the steps are.
        memory: Share of the old mean that stays after a batch of steps in which episodes finished.
    """

    def __init__(self, device: torch.device, memory: float = 0.9) -> None:
        self.memory = memory
        self.finished = torch.zeros((), dtype=torch.int64, device=device)
        self.recent_score = torch.zeros((), device=device)

    def count(self, steps: TensorDictBase) -> None:
        """Takes steps (…,) with `done` (…, 1) and `utilization` (…, 1), which at the end of an episode is its score."""
        done = steps["done"]
        number = done.sum()
        mean = torch.where(done, steps["utilization"], 0.0).sum() / number.clamp_min(1)
        memory = torch.where(self.finished > 0, self.memory, 0.0)
        blended = memory * self.recent_score + (1 - memory) * mean
        self.recent_score = torch.where(number > 0, blended, self.recent_score)
        self.finished = self.finished + number

    def state_dict(self) -> dict[str, Tensor]:
        """Both counts."""
        return {"finished": self.finished, "recent_score": self.recent_score}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes what `state_dict` gave."""
        self.finished = state["finished"].to(self.finished.device)
        self.recent_score = state["recent_score"].to(self.recent_score.device)
