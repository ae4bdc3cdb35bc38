"""NVIDIA's driver and GPUs, asked without torch and without a context on a GPU."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia")


def driver() -> str:
    """Version of the driver, else the newest CUDA that it runs, else ""."""
    try:
        line = (_DRIVER / "version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        newest = _newest_cuda()
        return f"for CUDA {newest // 1000}.{newest % 1000 // 10}" if newest else ""
    return next((word for word in line.split() if word[0].isdigit() and "." in word), line)


def chips() -> list[str]:
    """Names of the GPUs that the driver lists, as it does on Linux."""
    names = []
    for file in sorted(_DRIVER.glob("gpus/*/information")):
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return names


def _newest_cuda() -> int:
    """The newest CUDA that the driver runs, 12,040 for 12.4, or 0 without a driver."""
    version = ctypes.c_int(0)
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value
