"""Profiler of training steps for Lightning's `trainer.profiler`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.profilers import Profiler
from torch.profiler import ProfilerActivity, profile

from torchrl_gpu.system.sections import Clock, running_clock, trace_sections

_STEP = "run_training_batch"  # what Lightning calls a training step with its callbacks


class StepProfiler(Profiler):
    """Profiler of training steps by environment, policy, replay, update, transfer and logging; traces a few of them.

    The printed table counts all training steps but the traced ones, in milliseconds of the host: on a GPU this is the
    time to queue the work, and a second column has the time of the device, from the traced steps. "step" is the rest
    of a training step, "Lightning" the time outside of it: loops, loggers, callbacks. Validation and saving are spread
    over the steps.

    The trace opens in chrome://tracing and https://ui.perfetto.dev; its ranges have the same names.

    Args:
        dirpath: Folder of the trace; None takes that of the logger, or else the working directory.
        filename: Of the trace, without `.trace.json`.
        wait: Training steps before the first traced one.
        steps: Traced ones.
    """

    def __init__(self, dirpath: str | None = None, filename: str = "steps", wait: int = 5, steps: int = 3) -> None:
        super().__init__(dirpath=dirpath, filename=filename)
        if wait < 0 or steps < 1:
            raise ValueError(f"StepProfiler: want wait of at least 0 and steps of at least 1; got {wait} and {steps}")
        self.wait, self.steps = wait, steps
        self.trace: Path | None = None
        self._folder = Path(dirpath or ".")
        self._begun = self._counted = self._traced = 0
        self._clock: Clock | None = None
        self._profile: Any = None
        self._device_ms: dict[str, float] = {}

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage=stage, local_rank=local_rank, log_dir=log_dir)
        self._folder = Path(self.dirpath or log_dir or ".")

    def start(self, action_name: str) -> None:
        if action_name != _STEP:
            return
        if self._begun == self.wait:
            self._begin_trace()
        self._begun += 1

    def stop(self, action_name: str) -> None:
        if action_name != _STEP:
            return
        self._clock = running_clock() or self._clock
        if self._profile is None:
            self._counted += 1
        elif self._begun == self.wait + self.steps:
            self._end_trace()

    def _begin_trace(self) -> None:
        if (clock := running_clock()) is not None:
            clock.pause()
        on_cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profile = profile(activities=[ProfilerActivity.CPU, *on_cuda])
        self._profile.start()
        trace_sections(True)

    def _end_trace(self) -> None:
        trace_sections(False)
        traced, self._profile = self._profile, None
        self._traced = self._begun - self.wait
        traced.stop()
        rank = f"-{self._local_rank}" if self._local_rank else ""
        self.trace = self._folder / f"{self.filename}{rank}.trace.json"
        self._folder.mkdir(parents=True, exist_ok=True)
        traced.export_chrome_trace(str(self.trace))
        ours = set() if self._clock is None else set(self._clock.seconds)
        self._device_ms = {
            each.key: each.device_time_total / 1000 / self._traced
            for each in traced.key_averages()
            if each.key in ours and each.device_time_total
        }
        if (clock := running_clock()) is not None:
            clock.go_on()

    def teardown(self, stage: str | None) -> None:
        trace_sections(False)
        super().teardown(stage=stage)

    def describe(self) -> None:
        if not self._local_rank and self._begun:
            print(self.summary(), flush=True)

    def summary(self) -> str:
        """Table of times, and the path of the trace."""
        if self._profile is not None:
            self._end_trace()
        seconds = {} if self._clock is None else self._clock.read()
        total = sum(seconds.values())
        if not self._counted or not total:
            return "StepProfiler: no training step was made"
        device = f"{'device ms':>12}" if self._device_ms else ""
        lines = [f"StepProfiler: {self._counted} training steps", f"{'':<16}{'ms a step':>12}{'share':>9}{device}"]
        for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
            on_device = f"{self._device_ms.get(name, 0.0):>12.3f}" if self._device_ms else ""
            lines.append(f"{name:<16}{1000 * spent / self._counted:>12.3f}{spent / total:>9.1%}{on_device}")
        lines.append(f"{'all':<16}{1000 * total / self._counted:>12.3f}{1:>9.1%}")
        traced = f"trace of {self._traced} steps: {self.trace}"
        traced = traced if self.trace else f"no trace: want {self.wait + 1} steps"
        return "\n".join([*lines, traced])
