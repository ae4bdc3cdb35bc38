"""Recorded demonstrations: rows to learn from, clips of video, episodes as MCAP.

Here are readers of several file formats, and writers. Not here are what learns from them (`training`) and how video is
encoded (`streaming.codecs`). Read `reading.py` first for rows, `loading.py` for clips; `untrusted.py` says how files of
strangers are read. The import loads neither torch nor the packages of an extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchrl_gpu.demonstrations.clip_store import ClipStore as ClipStore
    from torchrl_gpu.demonstrations.clip_store import Video as Video
    from torchrl_gpu.demonstrations.loading import load_demonstrations as load_demonstrations
    from torchrl_gpu.demonstrations.mcap import EpisodeRecorder as EpisodeRecorder
    from torchrl_gpu.demonstrations.mcap import McapWriter as McapWriter
    from torchrl_gpu.demonstrations.memmap import open_store as open_store
    from torchrl_gpu.demonstrations.memmap import save_store as save_store
    from torchrl_gpu.demonstrations.reading import read_demonstrations as read_demonstrations
    from torchrl_gpu.demonstrations.transitions import Demonstrations as Demonstrations
    from torchrl_gpu.demonstrations.writer import LeRobotWriter as LeRobotWriter

CHOICES = ("all", "worst", "best", "failures")
"""Words for the episodes that are recorded; see `torchrl_gpu.evaluation.recording`."""

_HOMES = {
    "ClipStore": "clip_store",
    "Demonstrations": "transitions",
    "EpisodeRecorder": "mcap",
    "LeRobotWriter": "writer",
    "McapWriter": "mcap",
    "Video": "clip_store",
    "load_demonstrations": "loading",
    "open_store": "memmap",
    "read_demonstrations": "reading",
    "save_store": "memmap",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
