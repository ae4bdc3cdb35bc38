"""`torchrl-gpu doctor [--full] [--json]`: each ability of this machine, tried now.

What fails is shown with the reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torchrl_gpu.cli.parser import OneLineParser
from torchrl_gpu.system.cores import usable_cores
from torchrl_gpu.system.extras import how_to_install

if TYPE_CHECKING:
    import torch

_PACKAGES = ("torch", "torchrl", "tensordict", "lightning", "jsonargparse", "numpy", "triton")
# The extra that brings each module.
_STREAMING = {"av": "stream", "cv2": "stream", "aiohttp": "stream", "aiortc": "webrtc"}
_GIB = 2**30
_STATES = {"works": "green", "cannot": "yellow", "not tried": "cyan", "installed": ""}


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        state: "works" (tried just now), "cannot" or "not tried"; of packages "installed".
        detail: Version or device, why it does not work, or how to try it.
    """

    group: str
    name: str
    state: str
    detail: str


def main(argv: list[str]) -> int:
    """Print the report.

    The exit status is 0 whatever the machine lacks.
    """
    parser = OneLineParser(prog="torchrl-gpu doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    full = "try what takes up to a minute, too, and compile the kernels of a wheel for this machine"
    parser.add_argument("--full", action="store_true", help=full)
    arguments = parser.parse_args(argv)
    findings = examine(full=arguments.full)
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        _print_table(findings)
    return 0


def examine(*, full: bool = False) -> list[Finding]:
    """Make the report, in the order in which it is printed.

    `full` is as for the command.
    """
    from torchrl_gpu import native
    from torchrl_gpu.system.self_tests import forget_results

    # An old result would hide what has changed since, such as a driver.
    forget_results()
    print(
        "torchrl-gpu doctor: trying what there is; some seconds, a minute where kernels are compiled", file=sys.stderr
    )
    # A wheel brings kernels for any machine. Tuned ones are compiled for this processor.
    if full:
        # The reason for an error is in the report.
        with contextlib.suppress(native.CompilerError):
            native.tune()
    # This comes first, since the kernels are of the same library.
    operators = native.problem()
    parts: list[Callable[[], Iterable[Finding]]] = [
        _software,
        _devices,
        _backends,
        lambda: _compiled(operators),
        lambda: [_torch_compile(full)],
        lambda: [_graphs()],
        codecs,
    ]
    findings: list[Finding] = []
    # Most parts wait for processes, so that they take turns in threads.
    with ThreadPoolExecutor(len(parts)) as pool:
        for part in [pool.submit(each) for each in parts]:
            findings += part.result()
    return findings


def _finding(group: str, name: str, problem: str, detail: str) -> Finding:
    return Finding(group, name, "cannot" if problem else "works", problem or detail)


def _compiled(operators: str) -> list[Finding]:
    return [_compiler(), _finding("compile", "C++ operators", operators, "agree with plain Python")]


def _software() -> list[Finding]:
    python = f"{platform.python_version()} on {platform.system()}"
    found = [Finding("software", "python", "installed", python)]
    for name in ("torchrl_gpu", *_PACKAGES):
        try:
            found.append(Finding("software", name, "installed", metadata.version(name)))
        except metadata.PackageNotFoundError:
            found.append(Finding("software", name, "cannot", "not installed"))
    return found


def _devices() -> list[Finding]:
    import torch

    from torchrl_gpu.device import cuda_problem

    cores = f"{usable_cores()} of {os.cpu_count()} cores usable"
    cpu = f"{cores}, {torch.get_num_threads()} torch threads, {_memory_gib():.1f} GiB"
    found = [Finding("device", "cpu", "works", cpu)]
    problem = cuda_problem()
    if problem:
        return [*found, Finding("device", "cuda", "cannot", problem)]
    return found + [_cuda_device(index) for index in range(torch.cuda.device_count())]


def _cuda_device(index: int) -> Finding:
    import torch

    from torchrl_gpu.streaming.codecs.probes import cuda_problem
    from torchrl_gpu.system import machine

    device = torch.device("cuda", index)
    versions = machine.cuda_versions(device)
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        # Another process may hold the device exclusively.
        return Finding("device", str(device), "cannot", f"{versions['device']}: {str(error).splitlines()[0]}")
    detail = f"{versions['device']}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    detail += f", CUDA {versions['CUDA']}, driver {versions['driver']}"
    return _finding("device", str(device), cuda_problem(device), detail)


def _backends() -> list[Finding]:
    """List the backends of the packing kernels, with the one that "auto" takes."""
    import torch

    from torchrl_gpu.device import get_device

    device = get_device()
    found = backends_on(device)
    if device.type == "cpu":
        return found
    # The compiled kernels run on a CPU alone: in the list of a GPU they would stand as what cannot work.
    all_on_cpu = backends_on(torch.device("cpu"))
    on_cpu = [each for each in all_on_cpu if each.name == "compiled"]
    others = [
        Finding("packing", f"triton on cuda:{index}", "not tried", f"CUDA_VISIBLE_DEVICES={index} torchrl-gpu doctor")
        for index in range(torch.cuda.device_count())
        if index != device.index
    ]
    return [*(each for each in found if each.name != "compiled"), *on_cpu, *kernels_on(device), *others]


def kernels_on(device: torch.device) -> list[Finding]:
    """List the Triton kernels besides those of packing steps."""
    fused = importlib.import_module("torchrl_gpu.envs.marine.fused")
    values = importlib.import_module("torchrl_gpu.policies.packing.ntuple.values")
    problems = values.triton_problems(device) | {"steps of marine navigation": fused.problem(device)}
    passed = f"self-test passed on {device}"
    return [_finding("triton", what, problem, passed) for what, problem in problems.items()]


def backends_on(device: torch.device) -> list[Finding]:
    kernels = importlib.import_module("torchrl_gpu.envs.packing.kernels")
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        # By the interpreter a self-test takes minutes.
        problems = kernels.available_backends(device)
        states = {name: "cannot" if problem else "not tried" for name, problem in problems.items()}
        return [Finding("packing", name, states[name], problems[name] or "unset TRITON_INTERPRET") for name in problems]
    taken = kernels.get_kernels("auto", device).backend
    found: list[Finding] = []
    for name, problem in kernels.tested_backends(device).items():
        agrees = "what the others are compared with" if name == "eager" else "every job agrees with eager"
        if name != "reference":
            default = ", the default" if name == taken else ""
            detail = f"on {device}{default}: {agrees}"
            found.append(_finding("packing", name, problem, detail))
    return [*found, Finding("packing", "reference", "not tried", "make test; the definition, for tests alone")]


def _compiler() -> Finding:
    names = [name for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name]
    for path in filter(None, map(shutil.which, names)):
        run = subprocess.run(
            [path, "--version"], capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
        )
        if run.returncode == 0:
            return Finding("compile", "C++ compiler", "works", run.stdout.splitlines()[0])
    if importlib.util.find_spec("ziglang") is not None:
        detail = f"that of ziglang {metadata.version('ziglang')}, for the compiled kernels; torch.compile needs another"
        return Finding("compile", "C++ compiler", "works", detail)
    problem = f"none of {', '.join(names)} runs; the compiled kernels and torch.compile need one on a CPU"
    return Finding("compile", "C++ compiler", "cannot", problem)


def _torch_compile(full: bool) -> Finding:
    from torchrl_gpu.device import get_device

    device = get_device()
    problem = compile_problem() if device.type == "cpu" else ""
    if problem:
        return Finding("compile", "torch.compile", "cannot", f"{problem}; no shipped run needs it")
    if not full:
        how = "torchrl-gpu doctor --full tries it; no shipped run needs it"
        return Finding("compile", "torch.compile", "not tried", how)
    return _finding("compile", "torch.compile", failure("torch_compile", device), f"a few operators on {device}")


# To compile something would tell more, and takes up to a minute. What is missing most often can be seen.
def compile_problem() -> str:
    """Return what torch.compile lacks on a CPU, "" for nothing.

    It needs a compiler and Python's headers.
    """
    usual = {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
    named = shlex.split(os.environ.get("CXX", ""))
    compiler = named[0] if named else usual
    if shutil.which(compiler) is None:
        return f"torch.compile needs {compiler} on the PATH"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "torch.compile needs Python.h, which on Debian and Ubuntu is in python3-dev, on Fedora in python3-devel"
    return ""


def _graphs() -> Finding:
    from torchrl_gpu.device import cuda_problem, get_device

    problem = cuda_problem()
    problem = f"a CPU has none: {problem}" if problem else failure("cuda_graph", get_device())
    return _finding("compile", "CUDA graphs", problem, "a few operators and random numbers, replayed")


def codecs() -> list[Finding]:
    """List the encoders of frames, and the packages that streaming needs."""
    from torchrl_gpu.device import get_device

    probes = importlib.import_module("torchrl_gpu.streaming.codecs.probes")
    problems = {
        "JPEG on GPU": probes.nvjpeg_problem(get_device()),
        "H.264 by NVENC": probes.nvenc_problem(),
        "H.264 by x264": probes.x264_problem(),
    }
    encoders = [_finding("streaming", name, problem, "has encoded a frame") for name, problem in problems.items()]
    opengl = _finding("streaming", "OpenGL", opengl_problem(), "is there, for the cameras of MuJoCo")
    return [*encoders, *(_module(name, extra) for name, extra in _STREAMING.items()), opengl]


def opengl_problem() -> str:
    """Return why MuJoCo cannot render offscreen, "" where it can."""
    try:
        if sys.platform == "linux" and os.environ.get("MUJOCO_GL", "egl") == "egl":
            ctypes.CDLL("libEGL.so.1")
    except OSError as error:
        return f"the cameras of MuJoCo need libEGL, which on Debian and Ubuntu is in libegl1: {error}"
    return ""


def _module(name: str, extra: str) -> Finding:
    """Report the version of a module that imports.

    An installed one may still lack a library of the system.
    """
    try:
        return Finding("streaming", name, "works", str(importlib.import_module(name).__version__))
    except ModuleNotFoundError:
        return Finding("streaming", name, "cannot", f"not installed; to bring it: {how_to_install(extra)}")
    except ImportError as error:
        return Finding("streaming", name, "cannot", " ".join(str(error).split()))


def _memory_gib() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    except (ValueError, OSError, AttributeError):
        return float("nan")


def _print_table(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from torchrl_gpu.system.console import wide_console

    table = Table(title="torchrl-gpu doctor")
    for heading in ("", "what", "tried just now", "details, why not, or how to try"):
        table.add_column(heading, overflow="fold")
    group = ""
    for finding in findings:
        is_new = finding.group != group
        if group and is_new:
            table.add_section()
        mark = Text(finding.state, _STATES[finding.state])
        heading = finding.group if is_new else ""
        # As a `Text`, since rich takes brackets in a string for its own markup, and error messages have some.
        table.add_row(heading, finding.name, mark, Text(finding.detail))
        group = finding.group
    wide_console().print(table)


def failure(what: str, device: torch.device) -> str:
    """Return why the self-test `what`, a function below, fails on a device, or ""."""
    import torch

    from torchrl_gpu.system import machine
    from torchrl_gpu.system.self_tests import SelfTest

    triton = str(machine.version("triton"))
    depends_on = {"torch": torch.__version__, "triton": triton, "device": str(device)}
    if device.type == "cuda":
        depends_on |= machine.cuda_versions(device)
    else:
        depends_on["processor"] = platform.processor()
    return SelfTest(f"{what} on {device}", f"{__name__}:{what}", (str(device),), depends_on).failure()


def cuda_graph(device: str) -> str:
    """Return why a graph of operators and random numbers cannot be replayed, or ""."""
    import torch
    from tensordict import TensorDict, TensorDictBase

    from torchrl_gpu.system.self_tests import usable
    from torchrl_gpu.training.accelerated.graphs import capture_cuda

    there = usable(device)
    x = torch.zeros(4, device=there, dtype=torch.float32)

    def body() -> TensorDictBase:
        return TensorDict({"sum": x.add_(1) + 2, "draw": torch.rand(4, device=there, dtype=torch.float32)})

    graph = capture_cuda(body, there)
    x.zero_()
    # Two replays that draw the same numbers would be the fault of a generator that the graph does not know.
    draws = []
    for number in range(1, 4):
        graph.replay()
        draws.append(graph.result["draw"].clone())
        if graph.result["sum"].tolist() != [number + 2.0] * 4:
            return "a replay gives wrong numbers"
    return "replays draw the same random numbers" if torch.equal(draws[0], draws[1]) else ""


def torch_compile(device: str) -> str:
    """Return why torch.compile does not compile a few operators, or ""."""
    import torch

    from torchrl_gpu.system.self_tests import usable

    there = usable(device)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x.sin(), x * 2).sum(1)

    numbers = torch.linspace(-1, 1, 4096, device=there, dtype=torch.float32)
    x = numbers.view(64, 64)
    came = torch.compile(function, fullgraph=True, dynamic=False)(x)
    return "" if torch.allclose(came, function(x), rtol=1e-4, atol=1e-4) else "it gives wrong numbers"
