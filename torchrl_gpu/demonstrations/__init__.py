"""Recorded demonstrations: rows to learn from, of several formats, and clips of video on the device."""

from __future__ import annotations

from torchrl_gpu.demonstrations.clip_store import ClipStore, Video
from torchrl_gpu.demonstrations.loading import load_demonstrations
from torchrl_gpu.demonstrations.reading import read_demonstrations
from torchrl_gpu.demonstrations.saved import open_store, save_store
from torchrl_gpu.demonstrations.transitions import Demonstrations
from torchrl_gpu.demonstrations.writer import LeRobotWriter

__all__ = [
    "ClipStore",
    "Demonstrations",
    "LeRobotWriter",
    "Video",
    "load_demonstrations",
    "open_store",
    "read_demonstrations",
    "save_store",
]
