"""The folder of a run's checkpoints: locked while the run trains, and cleared of checkpoints of other runs."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from torchrl_gpu.checkpoints.files import find_checkpoints, order_of, parts_of
from torchrl_gpu.system.archives import ENTRY

BEST, LAST = "best.ckpt", "last.ckpt"


class RunFolder:
    """The folder that a run saves to, in the first process.

    Attributes:
        saved: Names of the run's numbered checkpoints, oldest first.
        best: Content of the run's `best.ckpt`, tensors still on disk; None for none.
        generation: How often the run has gone on from a checkpoint although it had saved later ones.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run
        self.saved: list[str] = []
        self.best: Mapping[str, Any] | None = None
        self.generation = 0
        self._lock: int | None = None

    def claim(self) -> bool:
        """Locks the folder until `release`, where the file system has locks; False if another process holds it.

        Raises:
            OSError: Nothing can be written there, so that all that is learned would be lost at the end.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        with contextlib.suppress(ImportError):
            import fcntl

            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                return not isinstance(error, BlockingIOError)
            self._lock = descriptor
        return True

    def release(self) -> None:
        """Unlocks the folder."""
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def read(self, numbered: re.Pattern[str], came_from: tuple[int, int, int], resumed: Path | None) -> None:
        """Finds the run's own checkpoints, and moves those of other runs to a folder `earlier-N`."""
        own, others = dict[str, tuple[int, int, int]](), list[Path]()
        for path, content in find_checkpoints(self.path):
            entry = None if isinstance(content, str) else content.get(ENTRY)
            if isinstance(content, str) or entry is None or entry.get("run") != self.run:
                others.append(path)
            elif path.name == BEST:
                self.best = content
            else:
                own[path.name] = order_of(content, f"checkpoint {path}")
        if resumed is None or resumed.resolve() not in {path.resolve() for path in others}:
            self._move(others)  # else it was saved by another callback: it stays where it was asked for
        later = [order[0] for order in own.values() if order > came_from]
        self.generation = 1 + max(later) if later else came_from[0]
        self.saved = [name for name in sorted(own, key=own.__getitem__) if numbered.fullmatch(Path(name).stem)]

    def _move(self, others: list[Path]) -> None:
        if others:
            number = next(n for n in range(1, 1_000_000) if not (self.path / f"earlier-{n}").exists())
            aside = self.path / f"earlier-{number}"
            aside.mkdir()
            for path in [*others, *(part for each in others for part in parts_of(each))]:
                path.replace(aside / path.name)
            rank_zero_info(f"EpisodeCheckpoint: {len(others)} checkpoints of another run moved to {aside}")
