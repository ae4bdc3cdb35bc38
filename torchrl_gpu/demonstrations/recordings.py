"""Video files, their episodes and the rows beside their frames, as readers of demonstrations return them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchrl_gpu.demonstrations.untrusted import Arrays
from torchrl_gpu.system import arguments

_LOG = logging.getLogger(__name__)

OnBad = Literal["raise", "skip"]


@dataclass(frozen=True)
class Episode:
    """A part of a video, from its frame `first_frame` on."""

    first_frame: int
    rows: Arrays  # values beside the frames, by LeRobot's names: (L, …) each

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))


@dataclass(frozen=True)
class Recording:
    """A video file and the episodes in it, in their order."""

    name: str  # in messages
    path: Path
    fps: float | None  # that it must have; None for any
    size: tuple[int, int] | None  # height and width that it must have; None for any
    episodes: tuple[Episode, ...]
    complete: bool = False  # the episodes must be all of the video

    @property
    def num_rows(self) -> int:
        """L, over all episodes."""
        return sum(map(len, self.episodes))


@dataclass
class Source:
    """The content of a dataset, or of some videos."""

    recordings: list[Recording] = field(default_factory=list)
    tasks: dict[int, str] = field(default_factory=dict)  # by `task_index`
    stats: dict[str, dict[str, Any]] = field(default_factory=dict)  # `mean`, `std`, … by feature
    camera: str | None = None  # LeRobot's name of the pictures


class BadParts:
    """Videos or episodes that cannot be used: "raise" on the first one, or "skip" each and keep `reasons`, by name."""

    def __init__(self, on_bad: OnBad, what: str = "videos") -> None:
        arguments.choice("demonstrations", "on_bad", on_bad, ("raise", "skip"))
        self.on_bad, self.what, self.reasons = on_bad, what, dict[str, str]()

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """Context in which a ValueError is about the part `name`."""
        try:
            yield
        except ValueError as error:
            if self.on_bad == "raise":
                raise
            self.reasons[name] = str(error).removeprefix("demonstrations: ").removeprefix(f"{name}: ")

    def log(self) -> None:
        if self.reasons:
            listed = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
            _LOG.warning("demonstrations: %d %s skipped: %s", len(self.reasons), self.what, listed)
