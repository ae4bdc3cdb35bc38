"""Count of finished episodes and their outcomes, on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.state_validation import Bounds, Entry, check_entries

_MOST_EPISODES = 2**62


class EpisodeMeter:
    """Number of finished episodes and mean outcomes of recent ones.

    Nothing is read back to the host.

    Args:
        device: Where it counts.
        names: Outcomes that are given when an episode ends.
        memory: Share of the old mean that stays after a batch of steps in which episodes finished.
    """

    def __init__(self, device: torch.device, names: Sequence[str] = ("utilization",), memory: float = 0.9) -> None:
        self.memory = memory
        self.finished = torch.zeros((), dtype=torch.int64, device=device)
        self.recent = {name: torch.zeros((), device=device, dtype=torch.float32) for name in names}

    @property
    def outcomes(self) -> dict[str, Tensor]:
        """Mean outcomes by name, NaN before an episode has ended."""
        return {name: torch.where(self.finished > 0, value, torch.nan) for name, value in self.recent.items()}

    def count(self, steps: Mapping[str, Tensor] | TensorDictBase) -> None:
        """Count finished episodes.

        Where `done`, each named entry is that episode's outcome.

        Args:
            steps: Steps (…,) with `done` and the named entries (…, 1).
        """
        done = steps["done"]
        number = done.sum()
        any_ended = number > 0
        at_least_one = number.clamp_min(1)
        memory = torch.where(self.finished > 0, self.memory, 0.0)
        rest = 1 - memory
        for name, recent in self.recent.items():
            # Both cases are computed and one is taken: a branch on whether an episode has ended would read the device
            # back.
            ended = torch.where(done, steps[name].float(), 0.0)
            mean = ended.sum() / at_least_one
            self.recent[name] = torch.where(any_ended, memory * recent + rest * mean, recent)
        self.finished = self.finished + number

    def state_dict(self) -> dict[str, Tensor]:
        recent = {f"recent_{name}": value for name, value in self.recent.items()}
        return {"finished": self.finished, **recent}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        device = self.finished.device
        entries: dict[NestedKey, Entry] = {f"recent_{name}": Entry(torch.float32, ()) for name in self.recent}
        entries["finished"] = Entry(torch.int64, (), Bounds(0, _MOST_EPISODES))
        found = check_entries("EpisodeMeter.load_state_dict", state, entries, more=True)
        self.finished = found["finished"].to(device)
        self.recent = {name: found[f"recent_{name}"].to(device) for name in self.recent}
