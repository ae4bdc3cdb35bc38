"""Compilation of the C++ sources of this folder, once per machine, and loading of the cached library."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from torchrl_gpu.system.cache import private_folder
from torchrl_gpu.system.self_tests import SelfTest

_LOG = logging.getLogger(__name__)
_HERE = Path(__file__).parent
_SOURCE = "packing.cpp"
_COMMON = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-w")
# In this order; the first that compiles is taken. Apple's compiler has no OpenMP, some compilers no -march=native.
_VARIANTS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())


class CompilerError(RuntimeError):
    """The kernels cannot be compiled on this machine; the message is the reason, in one line."""


@cache
def library() -> ctypes.CDLL:
    """The library of compiled kernels.

    It is cached in `$TORCHRL_GPU_CACHE`, or else in the user's cache folder, under a name hashed from the sources, the
    compiler and the processor; the first call on a machine takes a few seconds.

    Raises:
        CompilerError: There is no C++ compiler, or it fails.
    """
    if sys.platform == "win32":
        raise CompilerError("the compiled kernels are written for Linux and macOS")
    command = compiler()
    path = _cache_folder() / f"packing-{_fingerprint(command)}.so"
    if not path.exists():
        _compile(command, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompilerError(f"{path} cannot be loaded: {error}; delete it to have it made again") from None


@cache
def problem() -> str:
    """The reason why the C++ operators cannot be used, in one line; "" where they compile and pass their self-test."""
    try:
        name = Path(library()._name).name  # hashed from sources, compiler and processor
    except CompilerError as error:
        return str(error)
    function = "torchrl_gpu.native.self_test:wrong_operator"
    return SelfTest("the compiled operators", function, (), {"library": name}).failure()


def compiler() -> tuple[str, ...]:
    """The C++ compiler: `$CXX`, c++, g++, clang++, or the one of the Python package `ziglang`.

    Raises:
        CompilerError: None of them is installed.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for words in filter(None, (named, ["c++"], ["g++"], ["clang++"])):
        if path := shutil.which(words[0]):
            return path, *words[1:]
    try:
        import ziglang  # noqa: F401
    except ImportError:
        tried = ", ".join(filter(None, (" ".join(named), "c++", "g++", "clang++")))
        raise CompilerError(
            f"no C++ compiler: none of {tried} is on the PATH; `pip install 'torchrl_gpu[compiler]'` brings one,"
            " and training of packing on a CPU takes up to forty times as long without"
        ) from None
    return sys.executable, "-m", "ziglang", "c++"


def _cache_folder() -> Path:
    folder = private_folder()
    if folder is None:
        raise CompilerError(
            "no folder for compiled kernels that is writable, and by this user alone; set TORCHRL_GPU_CACHE"
        )
    return folder


def _fingerprint(command: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in sorted(_HERE.glob("*.h")) + sorted(_HERE.glob("*.cpp")):
        digest.update(source.read_bytes())
    flags = os.environ.get("CXXFLAGS", ""), repr((_COMMON, _VARIANTS))
    for text in (*command, _version(command), *flags, _processor(), platform.machine()):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:20]


def _version(command: tuple[str, ...]) -> str:
    return _run([*command, "--version"]).stdout


def _processor() -> str:
    """Processor model and instruction sets, on which `-march=native` depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def _compile(command: tuple[str, ...], path: Path) -> None:
    _LOG.warning("torchrl_gpu compiles its packing kernels with %s, once on this machine: 10 to 20 s", command[0])
    extra, said = shlex.split(os.environ.get("CXXFLAGS", "")), ""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        for variant in _VARIANTS:
            run = _run([*command, *_COMMON, *variant, *extra, str(_HERE / _SOURCE), "-o", str(made)])
            lines = run.stderr.strip().splitlines() or ["no reason given"]
            first = next((line for line in lines if "error" in line), lines[0])
            error = first if run.returncode else _load_error(made)
            if not error:
                made.replace(path)  # atomic, also while another process compiles
                return
            said = said or error
    raise CompilerError(f"{' '.join(command)} does not compile the packing kernels: {said}")


def _load_error(path: Path) -> str:
    """The reason why a library cannot be loaded, or "": a compiler may accept -fopenmp without an OpenMP to link."""
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return ""


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompilerError(f"{words[0]} does not run: {error}") from None
