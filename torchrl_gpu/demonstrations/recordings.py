"""Videos that a reader of demonstrations finds, their episodes, and the values recorded beside every frame."""

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
    """A part of a video.

    Attributes:
        first_frame: Its first, counted in the video.
        rows: What is recorded beside the frames, by LeRobot's names: (L, …) each.
    """

    first_frame: int
    rows: Arrays

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))


@dataclass(frozen=True)
class Recording:
    """A video file and the episodes in it, in their order.

    Attributes:
        name: In messages.
        path: Of the file.
        fps: Frames per second that it must have; None where nobody said.
        size: Height and width that it must have; None where nobody said.
        episodes: What is taken of it.
        whole: Whether the episodes must be all that is in it.
    """

    name: str
    path: Path
    fps: float | None
    size: tuple[int, int] | None
    episodes: tuple[Episode, ...]
    whole: bool = False

    @property
    def num_rows(self) -> int:
        """L, over all episodes."""
        return sum(map(len, self.episodes))


@dataclass
class Source:
    """All that a dataset, or some videos, hold.

    Attributes:
        recordings: Videos.
        tasks: What was to be done, by the number that rows have as `task_index`.
        stats: Of the features, by their names: `mean`, `std`, `min`, `max` and the like.
        camera: LeRobot's name of the pictures.
    """

    recordings: list[Recording] = field(default_factory=list)
    tasks: dict[int, str] = field(default_factory=dict)
    stats: dict[str, dict[str, Any]] = field(default_factory=dict)
    camera: str | None = None


class BadParts:
    """Videos or episodes that cannot be used: the first one is an error, or each is listed and passed over.

    Args:
        on_bad: "raise" or "skip".
        what: They are, in the plural.

    Attributes:
        reasons: By the name of the part.
    """

    def __init__(self, on_bad: OnBad, what: str = "videos") -> None:
        arguments.choice("demonstrations", "on_bad", on_bad, ("raise", "skip"))
        self.on_bad, self.what, self.reasons = on_bad, what, dict[str, str]()

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """Within, a ValueError says what is wrong with that part."""
        try:
            yield
        except ValueError as error:
            if self.on_bad == "raise":
                raise
            self.reasons[name] = str(error).removeprefix("demonstrations: ").removeprefix(f"{name}: ")

    def log(self) -> None:
        """One line of all that were skipped."""
        if self.reasons:
            listed = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
            _LOG.warning("demonstrations: %d %s skipped: %s", len(self.reasons), self.what, listed)
