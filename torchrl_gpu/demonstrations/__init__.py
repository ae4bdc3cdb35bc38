"""Recorded demonstrations as clips on the device: LeRobotDataset v3, and MP4 files with actions beside them."""

from __future__ import annotations

from torchrl_gpu.demonstrations.loading import load_demonstrations
from torchrl_gpu.demonstrations.saved import open_store, save_store
from torchrl_gpu.demonstrations.store import ClipStore, Video
from torchrl_gpu.demonstrations.writer import LeRobotWriter

__all__ = ["ClipStore", "LeRobotWriter", "Video", "load_demonstrations", "open_store", "save_store"]
