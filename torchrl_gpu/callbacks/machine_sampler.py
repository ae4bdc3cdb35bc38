"""Hardware metrics, sampled on a background thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_warn

Read = Callable[[torch.device], dict[str, float]]
UTILIZATION = "gpu_utilization_percent"


class Sampler:
    """Samples metrics of a device on a background thread, until it is stopped."""

    def __init__(self, read: Read, device: torch.device, every_s: float) -> None:
        self._read, self._device, self._every_s = read, device, every_s
        self._lock, self._ends = threading.Lock(), threading.Event()
        self._found: list[dict[str, float]] = []
        self._busy: list[float] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="GpuStats", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(self._every_s):
            try:
                self.sample()
            except Exception as error:  # whatever a driver raises: training goes on without
                self._error = error
                return

    def sample(self) -> None:
        """Reads once."""
        found = self._read(self._device)
        with self._lock:
            self._found.append(found)
            if UTILIZATION in found:
                self._busy.append(found[UTILIZATION])

    def means(self) -> dict[str, float]:
        """Means of the readings since the last call; empty where there were none. An error is reported once."""
        with self._lock:
            found, self._found = self._found, []
        if self._error is not None:
            error, self._error = self._error, None
            rank_zero_warn(f"GpuStats: the device cannot be asked any more: {type(error).__name__}: {error}")
        return {name: sum(each[name] for each in found) / len(found) for name in (found[0] if found else ())}

    def take_busy(self) -> list[float]:
        """Utilization of each reading since the last call, percent."""
        with self._lock:
            busy, self._busy = self._busy, []
        return busy

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(timeout=5.0)


def read_gpu(device: torch.device) -> dict[str, float]:
    """Metrics of a GPU through NVML; asks the driver and never waits for the device's work."""
    return {
        UTILIZATION: float(torch.cuda.utilization(device)),
        "gpu_memory_gib": torch.cuda.device_memory_used(device) / 2**30,
        "gpu_power_w": torch.cuda.power_draw(device) / 1000,
        "gpu_temperature_c": float(torch.cuda.temperature(device)),
    }


class ProcessReader:
    """Metrics of this process: number of cores it kept busy since the last reading, and its memory."""

    def __init__(self) -> None:
        self._last = time.monotonic(), time.process_time()

    def __call__(self, device: torch.device) -> dict[str, float]:
        now = time.monotonic(), time.process_time()
        wall, busy = (after - before for before, after in zip(self._last, now, strict=True))
        self._last = now
        found = {"cpu_percent": 100 * busy / max(wall, 1e-9)}
        status = Path("/proc/self/statm")
        if status.exists():  # of Linux
            pages = int(status.read_text(encoding="ascii").split()[1])
            found["memory_gib"] = pages * os.sysconf("SC_PAGE_SIZE") / 2**30
        return found
