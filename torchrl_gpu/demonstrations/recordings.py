"""Video files with their episodes and rows, as readers return them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from torchrl_gpu.demonstrations.untrusted import Arrays
from torchrl_gpu.system import arguments

_LOG = logging.getLogger(__name__)

OnBad = Literal["raise", "skip"]

Stats: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]
"""`mean`, `std`, … by feature and by word."""


@dataclass(frozen=True)
class Episode:
    """A part of a video, from its frame `first_frame` on.

    Attributes:
        rows: Values of each frame, by LeRobot's names: (L, …) each.
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
        fps: The rate that it must have; None for any.
        size: Height and width that it must have; None for any.
        complete: Whether the episodes must be all of the video.
    """

    name: str
    path: Path
    fps: float | None
    size: tuple[int, int] | None
    episodes: tuple[Episode, ...]
    complete: bool = False

    @property
    def num_rows(self) -> int:
        """L, over all episodes."""
        return sum(map(len, self.episodes))


@dataclass
class Source:
    """The content of a dataset, or of some videos.

    Attributes:
        tasks: Descriptions by `task_index`.
        stats: Of each feature.
        camera: LeRobot's name of the pictures.
    """

    recordings: list[Recording] = field(default_factory=list)
    tasks: dict[int, str] = field(default_factory=dict)
    stats: Stats = field(default_factory=dict)
    camera: str | None = None


class BadParts:
    """Videos or episodes that cannot be used.

    Args:
        on_bad: "raise" on the first one, or "skip" each.
        what: Parts are, in the log.

    Attributes:
        reasons: Why each skipped part cannot be used, by name.
    """

    def __init__(self, on_bad: OnBad, what: str = "videos") -> None:
        arguments.choice("demonstrations", "on_bad", on_bad, ("raise", "skip"))
        self.on_bad = on_bad
        self.what = what
        self.reasons: dict[str, str] = {}

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """Inside this context, a ValueError is about the part `name`."""
        try:
            yield
        except ValueError as error:
            if self.on_bad == "raise":
                raise
            # The log names the part itself.
            self.reasons[name] = str(error).removeprefix("demonstrations: ").removeprefix(f"{name}: ")

    def log(self) -> None:
        """Log what was skipped, in one line."""
        if self.reasons:
            listed = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
            _LOG.warning("demonstrations: %d %s skipped: %s", len(self.reasons), self.what, listed)
