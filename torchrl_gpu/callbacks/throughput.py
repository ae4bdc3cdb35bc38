"""Throughput of a run: env-steps/s, updates/s and episodes/h."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from torchrl_gpu.system import arguments
from torchrl_gpu.training.step_log import on_host

RATE = "throughput/env_steps_per_s"
"""Name of the rate that the progress bar shows."""


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
        self._last: tuple[float, float, float, float] | None = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last = None  # validation is not training

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if self._last is None:  # after the module's warm-up
            self._last = self._read(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self._steps += 1
        if self._steps % self.every_n_steps or self._last is None or trainer.barebones:
            return
        now = self._read(trainer, pl_module)
        seconds, frames, updates, episodes = (b - a for a, b in zip(self._last, now, strict=True))
        self._last = now
        rates = {RATE: frames, "throughput/updates_per_s": updates, "throughput/episodes_per_h": 3600 * episodes}
        for name, count in rates.items():
            pl_module.log(name, on_host(count / seconds), prog_bar=name == RATE)

    @staticmethod
    def _read(trainer: Trainer, pl_module: Any) -> tuple[float, float, float, float]:
        episodes = pl_module.episodes
        if getattr(trainer, "world_size", 1) > 1:  # as `frames`, which counts those of all processes
            episodes = trainer.strategy.reduce(episodes.clone(), reduce_op="sum")
        return time.perf_counter(), float(pl_module.frames), float(trainer.global_step), float(episodes)
