"""Episodes as MCAP files, for Foxglove and Rerun. Importing this loads neither torch nor the extra's packages."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrl_gpu.recordings.episodes import EpisodeRecorder
    from torchrl_gpu.recordings.mcap import McapWriter

CHOICES = ("all", "worst", "best", "failures")
"""Words for the episodes that are recorded; see `torchrl_gpu.evaluation.recording`."""

_HOMES = {"EpisodeRecorder": "episodes", "McapWriter": "mcap"}
__all__ = ["CHOICES", "EpisodeRecorder", "McapWriter"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
