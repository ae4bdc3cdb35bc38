"""What a figure was measured on, and the ceilings of that machine in the same run."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from torchrl_gpu.bench.timing import Contestant
from torchrl_gpu.versions import commit, version

_PACKAGES = ("torchrl_gpu", "torch", "torchrl", "tensordict", "lightning", "numpy", "mujoco", "jumanji", "jax")
_GIB = 2**30


def describe(device: torch.device) -> dict[str, Any]:
    """Device, processor, cores, threads, versions, commit, load."""
    return {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "openmp": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")},
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in _PACKAGES},
        "commit": commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def gpu_use(device: torch.device) -> dict[str, str]:
    """Utilisation as the driver last sampled it, and the most memory that was allocated; "n/a" without a GPU."""
    if device.type != "cuda":
        return {"gpu_utilisation": "n/a", "gpu_memory": "n/a"}
    try:
        busy = f"{torch.cuda.utilization(device)}%"
    except Exception as error:  # no pynvml, no permission, a driver that does not tell
        busy = f"n/a ({type(error).__name__})"
    return {"gpu_utilisation": busy, "gpu_memory": f"{torch.cuda.max_memory_allocated(device) / _GIB:.2f} GiB"}


COPY, ADD_MAX = "ceiling: memory copy", "ceiling: add and max"


def ceilings(device: torch.device) -> list[Contestant]:
    """Two rates that nothing made of such tensor operations exceeds: bytes copied, and add-max operations, a second.

    The copy is between tensors too large for any cache; what is read and what is written both count. The add-max stays
    in the caches: a subtraction and a maximum of float32, in two calls, as the eager kernel makes them.
    """
    size = (1 << 28) if device.type == "cuda" else (1 << 25)
    source, target = torch.ones(size, device=device), torch.empty(size, device=device)
    small = (1 << 20) if device.type == "cuda" else (1 << 16) * torch.get_num_threads()
    best, cells, scratch = (torch.zeros(small, device=device) for _ in range(3))
    rounds = 1000

    def copy(calls: int) -> None:
        for _ in range(calls):
            target.copy_(source)

    def add_max(calls: int) -> None:
        for _ in range(calls * rounds):
            torch.sub(cells, 0.5, out=scratch)
            torch.maximum(best, scratch, out=best)

    threads = str(torch.get_num_threads())
    return [
        Contestant(COPY, copy, 8 * size, threads, notes="bytes/s"),
        Contestant(ADD_MAX, add_max, small * rounds, threads, notes="add-max/s"),
    ]
