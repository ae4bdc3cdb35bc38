"""Lightning callbacks. Importing this package loads neither torch nor lightning; they come with the first callback."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrl_gpu.callbacks.checkpoint import EpisodeCheckpoint
    from torchrl_gpu.callbacks.checkpoint_mirror import CheckpointMirror
    from torchrl_gpu.callbacks.divergence import Divergence
    from torchrl_gpu.callbacks.env_workers import EnvWorkers
    from torchrl_gpu.callbacks.episode_mcap import EpisodeMcap
    from torchrl_gpu.callbacks.final_table import FinalTable
    from torchrl_gpu.callbacks.frame_stream import FrameStream
    from torchrl_gpu.callbacks.gpu_stats import GpuStats
    from torchrl_gpu.callbacks.logger_guard import LoggerGuard
    from torchrl_gpu.callbacks.pictures import EvaluationPictures
    from torchrl_gpu.callbacks.progress import RunProgress
    from torchrl_gpu.callbacks.summary import NetworkSummary
    from torchrl_gpu.callbacks.throughput import Throughput
    from torchrl_gpu.callbacks.training_film import TrainingFilm

_HOMES = {
    "CheckpointMirror": "checkpoint_mirror",
    "Divergence": "divergence",
    "EnvWorkers": "env_workers",
    "EpisodeCheckpoint": "checkpoint",
    "EpisodeMcap": "episode_mcap",
    "EvaluationPictures": "pictures",
    "FinalTable": "final_table",
    "FrameStream": "frame_stream",
    "GpuStats": "gpu_stats",
    "LoggerGuard": "logger_guard",
    "NetworkSummary": "summary",
    "RunProgress": "progress",
    "Throughput": "throughput",
    "TrainingFilm": "training_film",
}
__all__ = [
    "CheckpointMirror",
    "Divergence",
    "EnvWorkers",
    "EpisodeCheckpoint",
    "EpisodeMcap",
    "EvaluationPictures",
    "FinalTable",
    "FrameStream",
    "GpuStats",
    "LoggerGuard",
    "NetworkSummary",
    "RunProgress",
    "Throughput",
    "TrainingFilm",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
