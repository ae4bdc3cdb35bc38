"""Hardware, package versions and commit of this run."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TypedDict

import torch

from torchrl_gpu.system import nvidia

_PACKAGES = ("torchrl_gpu", "torch", "torchrl", "tensordict", "lightning", "numpy", "mujoco", "jumanji", "jax")
_OPENMP = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")
_GIB = 2**30


class Machine(TypedDict):
    """Where figures were made, as plain data.

    Attributes:
        device: As torch names it.
        device_name: Of the GPU, or the processor.
        cpu: Name of the processor.
        cores: That this process may use; None where that is unknown.
        torch_threads: Threads of torch's operators.
        openmp: Variables of the environment that decide on threads.
        load_average: Of the last minute; None where the system has none.
        system: Its name, the architecture and the version of Python.
        versions: Of packages; None for one that is not installed.
        commit: See `commit`.
    """

    device: str
    device_name: str
    cpu: str
    cores: int | None
    torch_threads: int
    openmp: dict[str, str | None]
    load_average: float | None
    system: str
    versions: dict[str, str | None]
    commit: str | None


def describe(device: torch.device) -> Machine:
    """Describe the machine that computes, its load and its versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    variables = {variable: os.environ.get(variable) for variable in _OPENMP}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    versions = {package: version(package) for package in _PACKAGES}
    return {
        "device": str(device),
        "device_name": name,
        "cpu": _processor(),
        "cores": cores,
        "torch_threads": torch.get_num_threads(),
        "openmp": variables,
        "load_average": load,
        "system": system,
        "versions": versions,
        "commit": commit(),
    }


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for products in bfloat16.

    Without them such products take several times as long as in float32.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Older versions of torch do not tell.
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(found.get(each, False) for each in ("amx_bf16", "avx512_bf16"))


# A kernel that passed on one of these may fail on another.
def cuda_versions(device: torch.device) -> dict[str, str]:
    """Chip, driver and torch's CUDA, on which code for a device may depend."""
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
    """GPU utilisation as last sampled, and peak memory, or "n/a" without a GPU."""
    if device.type != "cuda":
        return {"gpu_utilisation": "n/a", "gpu_memory": "n/a"}
    try:
        busy = f"{torch.cuda.utilization(device)}%"
    # There may be no pynvml, no permission, or a driver that does not report it.
    except Exception as error:
        busy = f"n/a ({type(error).__name__})"
    return {"gpu_utilisation": busy, "gpu_memory": f"{torch.cuda.max_memory_allocated(device) / _GIB:.2f} GiB"}


def version(name: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """Commit of this checkout, with a "+" where tracked files differ from it.

    None where this is no checkout.
    """
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+" if changed else head


def _git(*words: str) -> str:
    """What a command of git prints in the folder of this code."""
    here = Path(__file__).parent
    run = subprocess.run(
        ["git", *words], cwd=here, capture_output=True, check=True, text=True, encoding="utf-8", errors="replace"
    )
    return str(run.stdout).strip()
