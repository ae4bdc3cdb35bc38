"""What a loader gives where experience is made by the training step: the time, and suites to evaluate on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


class Ticks:
    """Counts training steps; an epoch is `length` of them. Resumes in the middle of an epoch.

    Experience is made inside the training step, so the loader has nothing to give but the time.
    """

    def __init__(self, length: int) -> None:
        self.length, self.done = length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        while self.done < self.length:
            self.done += 1
            yield self.done
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        """Ticks of this epoch so far."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on in the middle of an epoch."""
        self.done = state["done"]


def once(suite: object) -> Any:
    """A loader of one batch: the suite."""
    return DataLoader([suite], batch_size=None, num_workers=0)  # type: ignore[arg-type]
