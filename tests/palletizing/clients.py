"""A client of one packing session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from torchrl_gpu.palletizing.session import Progress
from torchrl_gpu.palletizing.sessions import PackingSessions

SMALL = {"pallet": [600, 400, 500], "grid": 20}

# Plain data of a message or an answer.
Plain = dict[str, Any]


class Cell:
    """A client of one session."""

    def __init__(self, folder: Path, name: str = "a", **options: Any) -> None:
        self.folder = folder
        self.name = name
        self.sessions = PackingSessions(folder, device="cpu", **options)

    def tell(self, do: str, **given: object) -> tuple[bool, Plain]:
        return self.sessions.answer(json.dumps({"do": do, "session": self.name, **given}))

    def ask(self, do: str, **given: object) -> Plain:
        done, answer = self.tell(do, **given)
        assert done, answer
        return answer

    @property
    def progress(self) -> Progress:
        return self.sessions._open[self.name].progress

    @property
    def heights(self) -> torch.Tensor:
        """Heightmap (X, Y), millimetres."""
        return 1000 * self.progress.loaded.heightmap[0, 0]

    def restart(self) -> None:
        """Start again as after a kill: what is not in the folder is gone."""
        self.sessions = PackingSessions(self.folder, device="cpu")


def same(one: Progress, other: Progress) -> bool:
    """Equality to the bit."""
    maps = zip(one.loaded, other.loaded, strict=True)
    return one[:2] == other[:2] and all(torch.equal(a, b) for a, b in maps)
