"""Compilation of the C++ sources of this folder, and loading of the library.

A machine compiles once. A wheel has a library that `prebuild` has compiled for every x86-64-v3 processor.
"""

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
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from torchrl_gpu.system.cache import private_folder
from torchrl_gpu.system.extras import how_to_install
from torchrl_gpu.system.self_tests import SelfTest

_LOG = logging.getLogger(__name__)
FOLDER = Path(__file__).parent
_SOURCE = "packing.cpp"
# No trap is set on comparisons of floats, and no error number on roots: so they may stand in vectors.
_FLOATS = ("-fno-trapping-math", "-fno-math-errno")
COMMON_FLAGS = ("-O3", *_FLOATS, "-std=c++17", "-pthread", "-shared", "-fPIC", "-fvisibility=hidden", "-w")
# In this order; the first that compiles is taken. Some compilers have no -march=native.
VARIANTS = (("-march=native",), ("-mcpu=native",), ())
_BASELINE = "x86-64-v3"
# By the names of /proc/cpuinfo.
BASELINE_SETS = frozenset(("abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))

_use_prebuilt = True


class CompilerError(RuntimeError):
    """The kernels cannot be compiled on this machine, for the reason in the message."""


@cache
def library() -> ctypes.CDLL:
    """Return the library of compiled kernels.

    It is cached in `$TORCHRL_GPU_CACHE`, or else in the user's cache folder, under a name hashed from the sources, the
    compiler and the processor. Until it is there, the one of a wheel serves, if there is one. Otherwise the first call
    on a machine takes a few seconds.

    Raises:
        CompilerError: There is no C++ compiler, or it fails.
    """
    path = prebuilt()
    try:
        tuned, command = _tuned()
        if path is None and not tuned.exists():
            _compile(command, tuned)
        path = tuned if tuned.exists() else path
    except CompilerError:
        if path is None:
            raise
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompilerError(f"{path} cannot be loaded: {error}; delete it to have it made again") from None


@cache
def problem() -> str:
    """Return why the C++ operators cannot be used, in one line.

    It is "" if they compile and pass their self-test.
    """
    global _use_prebuilt
    path, failure = _tried()
    if failure and path is not None and path == prebuilt():
        _LOG.warning("%s is not used: %s", path.name, failure)
        _use_prebuilt = False
        library.cache_clear()
        _, failure = _tried()
    return failure


def _tried() -> tuple[Path | None, str]:
    """Return the path of the library, and what its self-test says."""
    try:
        # The name is hashed from sources, compiler and processor.
        path = Path(library()._name)
    except CompilerError as error:
        return None, str(error)
    # It runs in a process of its own, since wrong machine code may crash.
    function = "torchrl_gpu.native.self_test:wrong_operator"
    return path, SelfTest("the compiled operators", function, (), {"library": path.name}, forks=True).failure()


def prebuilt() -> Path | None:
    """Return the library of the wheel, if it is of these sources and runs here."""
    path = prebuilt_path()
    # Without these instruction sets the process would be killed at the first instruction that is unknown.
    lines = [line for line in _processor().splitlines() if line.startswith("flags")]
    runs = any(BASELINE_SETS.issubset(line.split()) for line in lines)
    return path if _use_prebuilt and runs and path.exists() else None


def prebuilt_path() -> Path:
    """Return the file of the library that a wheel may hold, named after the sources."""
    digest = hashlib.sha256(_sources())
    return FOLDER / f"packing-{_BASELINE}-{digest.hexdigest()[:20]}.so"


def prebuild() -> None:
    """Compile the library of a wheel."""
    _compile(compiler(), prebuilt_path(), [(f"-march={_BASELINE}",)])


def tune() -> None:
    """Compile the library for this processor, unless it has been.

    Processes that begin from now on take it.
    """
    path, command = _tuned()
    if not path.exists():
        _compile(command, path)


def _tuned() -> tuple[Path, tuple[str, ...]]:
    """Return the path of the library for this processor, and the compiler for it."""
    if sys.platform == "win32":
        raise CompilerError("the compiled kernels are written for Linux and macOS")
    command = compiler()
    return _cache_folder() / f"packing-{_fingerprint(command)}.so", command


def compiler() -> tuple[str, ...]:
    """Find the C++ compiler: `$CXX`, c++, g++, clang++, or the one of `ziglang`.

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
            f"no C++ compiler: none of {tried} is on the PATH, and training of packing on a CPU takes up to forty"
            f" times as long without; to bring one: {how_to_install('compiler')}"
        ) from None
    return sys.executable, "-m", "ziglang", "c++"


def name_of(command: Sequence[str]) -> str:
    """Say in words which compiler a command runs: Python runs that of `ziglang`."""
    return "the compiler of the package ziglang" if "ziglang" in command else " ".join(command)


def _cache_folder() -> Path:
    folder = private_folder()
    if folder is None:
        raise CompilerError(
            "no folder for compiled kernels that is writable, and by this user alone; set TORCHRL_GPU_CACHE"
        )
    return folder


def _sources() -> bytes:
    """Return the contents of all C++ files."""
    paths = sorted(FOLDER.glob("*.h")) + sorted(FOLDER.glob("*.cpp"))
    return b"".join(path.read_bytes() for path in paths)


def _fingerprint(command: tuple[str, ...]) -> str:
    """Return a name for all that decides what the compiler makes.

    A home folder may be shared by machines with other processors, and a compiler may be updated.
    """
    digest = hashlib.sha256(_sources())
    flags = os.environ.get("CXXFLAGS", "")
    own_flags = repr((COMMON_FLAGS, VARIANTS))
    version = _version(command)
    texts = (*command, version, flags, own_flags, _processor(), platform.machine())
    # A zero byte ends each text: otherwise "a", "bc" and "ab", "c" would have one fingerprint.
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:20]


def _version(command: tuple[str, ...]) -> str:
    return _run([*command, "--version"]).stdout


def _processor() -> str:
    """Return processor model and instruction sets, on which `-march=native` depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    # Every core has the same lines, and how many cores there are decides nothing.
    kept = [line for line in lines if line.startswith(wanted)]
    return "\n".join(dict.fromkeys(kept))


def _compile(command: tuple[str, ...], path: Path, variants: Sequence[Sequence[str]] = VARIANTS) -> None:
    _LOG.warning("torchrl_gpu compiles its kernels with %s, once on this machine: 10 to 20 s", name_of(command))
    extra = shlex.split(os.environ.get("CXXFLAGS", ""))
    first_error = ""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        for variant in variants:
            # The compiler's own files go next to the library: TMPDIR may be full, or not writable.
            words = [*command, *COMMON_FLAGS, *variant, *extra, str(FOLDER / _SOURCE), "-o", str(made)]
            run = _run(words, {**os.environ, "TMPDIR": folder})
            lines = run.stderr.strip().splitlines() or ["no reason given"]
            first = next((line for line in lines if "error" in line), lines[0])
            error = first if run.returncode else _load_error(made)
            if not error:
                # This is atomic, even while another process compiles.
                made.replace(path)
                return
            first_error = first_error or error
    raise CompilerError(f"{name_of(command)} does not compile the packing kernels: {first_error}")


def _load_error(path: Path) -> str:
    """Return the reason why a library cannot be loaded, or ""."""
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return ""


def _run(words: list[str], variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, capture_output=True, check=False, env=variables, text=True, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        raise CompilerError(f"{words[0]} does not run: {error}") from None
