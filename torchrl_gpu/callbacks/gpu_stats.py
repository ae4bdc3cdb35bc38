"""Hardware utilization of a training run, with a warning when the GPU idles."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from torchrl_gpu.system.extras import how_to_install
from torchrl_gpu.system.sections import OUTSIDE, running_clock
from torchrl_gpu.training.step_log import on_host
from torchrl_gpu.training.trainer_fields import is_trial

# Seconds between two readings, at least.
_EVERY_S = 1.0
# A GPU idles where it is busy for less than this share of these seconds.
_IDLE = 0.2
_IDLE_AFTER_S = 60.0
# What may help, by where the host spends its time.
_ADVICE = {
    "environment": "more environments, --model.env.num_envs, and --model.cuda_graphs auto",
    "policy": "more environments, --model.env.num_envs, and --model.cuda_graphs auto",
    "replay": "a larger --model.batch_size, or --model.replay.storage device where it is in host memory",
    "update": "a larger --model.batch_size, and --model.graph_updates auto",
    "transfer": "--model.replay.storage device, or a larger trainer.log_every_n_steps",
    "logging": "a larger trainer.log_every_n_steps",
    "validation": "a larger trainer.val_check_interval, or a smaller data.num_val_episodes",
    "saving": "EpisodeCheckpoint with a longer period",
    "viewers": "FrameStream with a smaller most_share",
    OUTSIDE: "more updates_per_step or rollout_steps in a training step",
}


class GpuStats(Callback):
    """Logs utilization, memory, power and temperature of the GPU.

    Without a GPU it logs CPU and memory of the process. They are read after training steps, without waiting for the
    device; means since the last time are logged as `machine/…` where loggers are given values. Where a GPU is busy for
    less than 20% of a minute, a warning says so once, with what the host did meanwhile and what may help.

    A GPU is asked through NVML, which the extra `monitor` brings.
    """

    def __init__(self) -> None:
        self._read: Read | None = None
        self._readings: list[dict[str, float]] = []
        self._next_at = 0.0
        self._before: dict[str, float] = {}
        self._busy: list[float] = []
        self._warned = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_trial(trainer):
            return
        device = trainer.strategy.root_device
        # A torch for AMD calls its devices cuda too, and asks them without pynvml.
        is_nvidia = device.type == "cuda" and torch.version.cuda
        if is_nvidia and importlib.util.find_spec("pynvml") is None:
            raise ModuleNotFoundError(
                f"GpuStats asks the GPU through pynvml, which is not installed: {how_to_install('monitor')}",
                name="pynvml",
            )
        self._readings = []
        self._busy = []
        self._before = {}
        self._warned = False
        self._next_at = 0.0
        self._read = read_gpu if device.type == "cuda" else ProcessReader()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        now = time.monotonic()
        if self._read is not None and now >= self._next_at:
            self._next_at = now + _EVERY_S
            try:
                self._readings.append(self._read(trainer.strategy.root_device))
            except Exception as error:
                # A driver may raise anything, and training goes on without it.
                self._read = None
                rank_zero_warn(f"GpuStats: the device cannot be asked any more: {type(error).__name__}: {error}")
        logs_this_step = getattr(pl_module, "logs_this_step", None)
        if logs_this_step is None:
            logs_this_step = trainer._logger_connector.should_update_logs
        if not logs_this_step:
            return
        readings = self._readings
        self._readings = []
        names = list(readings[0]) if readings else []
        for name in names:
            values = [each[name] for each in readings]
            mean = sum(values) / len(values)
            pl_module.log(f"machine/{name}", on_host(mean))
        self.look_for_idling([each[UTILIZATION] for each in readings if UTILIZATION in each])

    def look_for_idling(self, busy: list[float]) -> None:
        self._busy += busy
        if self._warned or len(self._busy) * _EVERY_S < _IDLE_AFTER_S:
            return
        share = sum(self._busy) / len(self._busy) / 100
        self._busy = []
        clock = running_clock()
        now = {} if clock is None else clock.read()
        spent = {name: seconds - self._before.get(name, 0.0) for name, seconds in now.items()}
        self._before = now
        if share < _IDLE:
            self._warned = True
            rank_zero_warn(idle_message(share, spent))


def idle_message(busy: float, spent: Mapping[str, float]) -> str:
    """Build the warning about an idle GPU."""
    total = sum(spent.values())
    if not total:
        return f"GpuStats: the GPU was busy for {busy:.0%} of the time"
    name = max(spent, key=lambda each: spent[each])
    helps = _ADVICE.get(name, "--model.cuda_graphs auto and --model.graph_updates auto")
    longest = sorted(spent, key=lambda each: -spent[each])[:4]
    parts = ", ".join(f"{each} {spent[each] / total:.0%}" for each in longest)
    return f"GpuStats: the GPU was busy for {busy:.0%} of the time; the host's went to {parts}: try {helps}"


Read = Callable[[torch.device], dict[str, float]]
UTILIZATION = "gpu_utilization_percent"


def read_gpu(device: torch.device) -> dict[str, float]:
    """Return metrics of a GPU through NVML.

    This asks the driver, and never waits for the work of the device.
    """
    return {
        UTILIZATION: float(torch.cuda.utilization(device)),
        "gpu_memory_gib": torch.cuda.device_memory_used(device) / 2**30,
        "gpu_power_w": torch.cuda.power_draw(device) / 1000,
        "gpu_temperature_c": float(torch.cuda.temperature(device)),
    }


class ProcessReader:
    """Metrics of this process: cores kept busy since the last reading, and memory."""

    def __init__(self) -> None:
        self._wall_s = time.monotonic()
        self._busy_s = time.process_time()

    def __call__(self, device: torch.device) -> dict[str, float]:
        wall_s = time.monotonic()
        busy_s = time.process_time()
        wall = wall_s - self._wall_s
        busy = busy_s - self._busy_s
        self._wall_s = wall_s
        self._busy_s = busy_s
        found = {"cpu_percent": 100 * busy / max(wall, 1e-9)}
        status = Path("/proc/self/statm")
        # Only Linux has this file.
        if status.exists():
            pages = int(status.read_text(encoding="ascii").split()[1])
            found["memory_gib"] = pages * os.sysconf("SC_PAGE_SIZE") / 2**30
        return found
