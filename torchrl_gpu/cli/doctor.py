"""What this machine can do, and why not where it cannot: `torchrl-gpu doctor [--json]`."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
from importlib import metadata
from typing import NamedTuple

from torchrl_gpu.cli.subcommands import OneLineParser

_PACKAGES = ("torch", "torchrl", "tensordict", "lightning", "jsonargparse", "numpy")
_STREAMING = {"av": "stream", "cv2": "stream", "aiohttp": "stream", "aiortc": "webrtc"}  # module: extra
_GIB = 2**30


class Finding(NamedTuple):
    """One line of the report: a thing, whether it can be used here, and its details or the reason why not."""

    group: str
    name: str
    usable: bool
    detail: str


def main(argv: list[str]) -> int:
    """Prints the report; the exit status is 0 whatever the machine lacks."""
    parser = OneLineParser(prog="torchrl-gpu doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    findings = examine()
    if parser.parse_args(argv).json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        _print_table(findings)
    return 0


def examine() -> list[Finding]:
    """Everything that is worth knowing about this machine, in the order in which it is printed."""
    return [*_software(), *_devices(), *_backends(), _compiler(), _triton(), *_codecs()]


def _software() -> list[Finding]:
    found = [Finding("software", "python", True, f"{platform.python_version()} on {platform.system()}")]
    for name in ("torchrl_gpu", *_PACKAGES):
        try:
            found.append(Finding("software", name, True, metadata.version(name)))
        except metadata.PackageNotFoundError:
            found.append(Finding("software", name, False, "not installed"))
    return found


def _devices() -> list[Finding]:
    import torch

    from torchrl_gpu.device import cuda_problem

    cpu = f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads, {_memory_gib():.1f} GiB"
    found = [Finding("device", "cpu", True, cpu)]
    problem = cuda_problem()
    if problem:
        return [*found, Finding("device", "cuda", False, problem)]
    return found + [_cuda_device(index) for index in range(torch.cuda.device_count())]


def _cuda_device(index: int) -> Finding:
    import torch

    name = f"cuda:{index}"
    properties = torch.cuda.get_device_properties(index)
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:  # for example a device that another process holds exclusively
        return Finding("device", name, False, f"{properties.name}: {str(error).splitlines()[0]}")
    detail = (
        f"{properties.name}, compute capability {properties.major}.{properties.minor}, "
        f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free, CUDA {torch.version.cuda}"
    )
    return Finding("device", name, True, detail)


def _backends() -> list[Finding]:
    """The packing kernels' own account of which of their backends run here, and which one "auto" takes."""
    from torchrl_gpu.device import get_device

    kernels = importlib.import_module("torchrl_gpu.envs.packing.kernels")
    device = get_device()
    reasons: dict[str, str] = kernels.available_backends(device)
    taken = kernels.get_kernels("auto", device).backend
    usable = {name: f"usable on {device}{', the default' if name == taken else ''}" for name in reasons}
    return [Finding("packing", name, not reason, reason or usable[name]) for name, reason in reasons.items()]


def _compiler() -> Finding:
    names = [name for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name]
    for path in filter(None, map(shutil.which, names)):
        run = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return Finding("compile", "C++ compiler", True, run.stdout.splitlines()[0])
    return Finding(
        "compile",
        "C++ compiler",
        False,
        f"none of {', '.join(names)} runs; the compiled kernels and torch.compile need one on a CPU",
    )


def _triton() -> Finding:
    if importlib.util.find_spec("triton") is None:
        return Finding("compile", "triton", False, "not installed; torch.compile needs it on CUDA")
    from torchrl_gpu.device import cuda_problem

    version = metadata.version("triton")
    no_device = cuda_problem()
    return Finding("compile", "triton", not no_device, f"{version}, but no CUDA device" if no_device else version)


def _codecs() -> list[Finding]:
    """What encodes a frame here, and the packages of the extras `stream` and `webrtc`."""
    from torchrl_gpu.device import get_device

    probes = importlib.import_module("torchrl_gpu.streaming.codecs.probes")
    problems = {
        "JPEG on GPU": probes.nvjpeg_problem(get_device()),
        "H.264 by NVENC": probes.nvenc_problem(),
        "H.264 by x264": probes.x264_problem(),
    }
    encoders = [
        Finding("streaming", name, not problem, problem or "has encoded a frame") for name, problem in problems.items()
    ]
    return [*encoders, *(_module(name, extra) for name, extra in _STREAMING.items())]


def _module(name: str, extra: str) -> Finding:
    """Whether a module imports: what is installed may still miss a library of the system."""
    try:
        return Finding("streaming", name, True, str(importlib.import_module(name).__version__))
    except ModuleNotFoundError:
        return Finding("streaming", name, False, f"not installed; pip install 'torchrl_gpu[{extra}]' brings it")
    except ImportError as error:
        return Finding("streaming", name, False, " ".join(str(error).split()))


def _memory_gib() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    except (ValueError, OSError, AttributeError):
        return float("nan")


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="torchrl-gpu doctor")
    for heading in ("", "what", "usable", "details, or why not"):
        table.add_column(heading, overflow="fold")
    group = ""
    for finding in findings:
        table.add_section() if group and finding.group != group else None
        mark = Text("yes", "green") if finding.usable else Text("no", "yellow")
        table.add_row(finding.group if finding.group != group else "", finding.name, mark, Text(finding.detail))
        group = finding.group
    Console().print(table)
