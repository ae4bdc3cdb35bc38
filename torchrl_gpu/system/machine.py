"""Hardware, package versions and commit of the current run."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from torchrl_gpu.system import nvidia

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


def multiplies_bfloat16(device: torch.device) -> bool:
    """Presence of instructions for products in bfloat16; without them they take several times as long as in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(found.get(each, False) for each in ("amx_bf16", "avx512_bf16"))


def cuda_versions(device: torch.device) -> dict[str, str]:
    """Versions that code for a CUDA device may depend on: chip, driver, and the CUDA that torch was built with."""
    properties = torch.cuda.get_device_properties(device)
    capability = f"{properties.major}.{properties.minor}"
    device_name = f"{properties.name}, compute capability {capability}"
    return {"device": device_name, "driver": nvidia.driver() or "none", "CUDA": str(torch.version.cuda)}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def gpu_use(device: torch.device) -> dict[str, str]:
    """GPU utilisation as the driver last sampled it, and peak memory allocated; "n/a" without a GPU."""
    if device.type != "cuda":
        return {"gpu_utilisation": "n/a", "gpu_memory": "n/a"}
    try:
        busy = f"{torch.cuda.utilization(device)}%"
    except Exception as error:  # no pynvml, no permission, a driver that does not report it
        busy = f"n/a ({type(error).__name__})"
    return {"gpu_utilisation": busy, "gpu_memory": f"{torch.cuda.max_memory_allocated(device) / _GIB:.2f} GiB"}


def version(name: str) -> str | None:
    """Version of an installed package; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """Commit of this code's checkout, with a trailing "+" where tracked files differ from it; None without one."""
    here = Path(__file__).parent
    try:
        head, changed = (
            subprocess.run(
                ["git", *words],
                cwd=here,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                check=True,
            ).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", "."])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")
