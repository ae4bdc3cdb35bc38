"""Lightning callbacks: checkpoints, progress, pictures, streams, workers.

Importing this package loads neither torch nor Lightning: they come with the first callback. Not here: the files of a
checkpoint (`torchrl_gpu.checkpoints`) and the server of a stream (`torchrl_gpu.streaming`). Read `checkpoint` first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchrl_gpu.callbacks.checkpoint import EpisodeCheckpoint as EpisodeCheckpoint
    from torchrl_gpu.callbacks.checkpoint_mirror import CheckpointMirror as CheckpointMirror
    from torchrl_gpu.callbacks.divergence import Divergence as Divergence
    from torchrl_gpu.callbacks.env_workers import EnvWorkers as EnvWorkers
    from torchrl_gpu.callbacks.episode_mcap import EpisodeMcap as EpisodeMcap
    from torchrl_gpu.callbacks.frame_stream import FrameStream as FrameStream
    from torchrl_gpu.callbacks.gpu_stats import GpuStats as GpuStats
    from torchrl_gpu.callbacks.logger_guard import LoggerGuard as LoggerGuard
    from torchrl_gpu.callbacks.pictures import EvaluationPictures as EvaluationPictures
    from torchrl_gpu.callbacks.pictures import TrainingFilm as TrainingFilm
    from torchrl_gpu.callbacks.progress import FinalTable as FinalTable
    from torchrl_gpu.callbacks.progress import NetworkSummary as NetworkSummary
    from torchrl_gpu.callbacks.progress import RunProgress as RunProgress
    from torchrl_gpu.callbacks.throughput import Throughput as Throughput

_HOMES = {
    "CheckpointMirror": "checkpoint_mirror",
    "Divergence": "divergence",
    "EnvWorkers": "env_workers",
    "EpisodeCheckpoint": "checkpoint",
    "EpisodeMcap": "episode_mcap",
    "EvaluationPictures": "pictures",
    "FinalTable": "progress",
    "FrameStream": "frame_stream",
    "GpuStats": "gpu_stats",
    "LoggerGuard": "logger_guard",
    "NetworkSummary": "progress",
    "RunProgress": "progress",
    "Throughput": "throughput",
    "TrainingFilm": "pictures",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
