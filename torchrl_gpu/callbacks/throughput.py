"""Throughput of a run: env-steps/s, updates/s and episodes/h."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from torchrl_gpu.system import arguments
from torchrl_gpu.training.step_log import on_host

if TYPE_CHECKING:
    from torchrl_gpu.training.run import EnvRun

RATE = "throughput/env_steps_per_s"
"""Name of the rate that the progress bar shows."""


class _Reading(NamedTuple):
    """Counts of a run at one time in seconds."""

    seconds: float
    frames: float
    updates: float
    episodes: float


class Throughput(Callback):
    """Logs env-steps/s, updates/s and episodes/h, over all processes.

    Not a `ThroughputMonitor` of Lightning's, which waits for the device in every training step.

    Args:
        every_n_steps: Training steps between two readings; each reads one count back from the device.
    """

    def __init__(self, every_n_steps: int = 20) -> None:
        self.every_n_steps = arguments.whole("Throughput", "every_n_steps", every_n_steps, 1)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._steps = 0
        self._last: _Reading | None = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A validation is no training, so that its time does not count.
        self._last = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        # The first time is after the module has filled its replay.
        if self._last is None:
            self._last = self._read(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        self._steps += 1
        if self._steps % self.every_n_steps or self._last is None or trainer.barebones:
            return
        now = self._read(trainer, pl_module)
        before = self._last
        self._last = now
        seconds = now.seconds - before.seconds
        counts = {
            RATE: now.frames - before.frames,
            "throughput/updates_per_s": now.updates - before.updates,
            "throughput/episodes_per_h": 3600 * (now.episodes - before.episodes),
        }
        for name, count in counts.items():
            pl_module.log(name, on_host(count / seconds), prog_bar=name == RATE)

    @staticmethod
    def _read(trainer: Trainer, pl_module: LightningModule) -> _Reading:
        run = cast("EnvRun", pl_module)
        episodes = run.episodes
        # `frames` counts those of all processes, and so must the episodes.
        if getattr(trainer, "world_size", 1) > 1:
            episodes = cast("Tensor", trainer.strategy.reduce(episodes.clone(), reduce_op="sum"))
        now = time.perf_counter()
        frames = float(run.frames)
        updates = float(trainer.global_step)
        return _Reading(now, frames, updates, float(episodes))
