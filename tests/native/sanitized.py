"""Tests with the C++ kernels under AddressSanitizer and UBSan.

`make asan` and `make soak` call this program.

    python tests/native/sanitized.py [pytest's arguments]

The kernels are compiled with the sanitizers, beside the plain ones in the cache, and the sanitizer is loaded ahead of
Python. A read past the end of a tensor, which else goes unseen, then ends the run with a report. That it would is tried
first, on such a read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all"
# Loaded by itself, for time; 64 bytes past the end of 4,096 are looked at.
OVERRUN = f"""
import ctypes, importlib.util as u
s = u.spec_from_file_location("build", {str(ROOT / "torchrl_gpu" / "native" / "build.py")!r})
m = u.module_from_spec(s)
s.loader.exec_module(m)
library, values, out = m.library(), ctypes.create_string_buffer(4096), ctypes.create_string_buffer(1)
print("compiled", library._name, flush=True)
library.any_true(values, ctypes.c_int64(1), ctypes.c_int64(4096 + 64), out)
"""


def main(arguments: Sequence[str]) -> int:
    """Return the exit status of pytest, or 2 where there is no sanitizer."""
    try:
        environment = sanitized(os.environ.get("CXX") or "g++")
        check(environment)
    except RuntimeError as error:
        print(f"error: sanitized: {error}", file=sys.stderr)
        return 2
    # Reports are written past Python: pytest must not hold them back.
    command = [sys.executable, "-m", "pytest", "-n", "0", "--capture=sys", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def sanitized(compiler: str) -> dict[str, str]:
    """The environment in which kernels are compiled and run under the sanitizers.

    Raises:
        RuntimeError: The compiler has none that can be loaded ahead of a program.
    """
    runtimes = [_library(compiler, name) for name in ("libasan.so", "libstdc++.so.6")]
    flags = " ".join(filter(None, (os.environ.get("CXXFLAGS", ""), FLAGS)))
    return os.environ | {
        "CXX": compiler,
        # They are part of the name in the cache.
        "CXXFLAGS": flags,
        "LD_PRELOAD": " ".join(runtimes),
        # Python and torch never free all memory.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }


def check(environment: dict[str, str]) -> None:
    """Nothing, where a read past an end is reported.

    Raises:
        RuntimeError: The kernels do not compile, or the read goes unseen.
    """
    run = subprocess.run(
        [sys.executable, "-c", OVERRUN], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    if not run.stdout.startswith("compiled "):
        raise RuntimeError(f"sanitized: no kernels could be compiled with {FLAGS}: {_last_line(run.stderr)}")
    if run.returncode == 0 or "AddressSanitizer: heap-buffer-overflow" not in run.stderr:
        outcome = f"status {run.returncode}, {_last_line(run.stderr)}"
        raise RuntimeError(f"sanitized: a read past the end of a buffer was not reported: {outcome}")


def _library(compiler: str, name: str) -> str:
    """Return the path of a library of the compiler, or the bare name without one."""
    path = ""
    if shutil.which(compiler):
        found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        path = found.stdout.strip()
    if not Path(path).is_absolute():
        raise RuntimeError(f"{compiler!r} has no {name}: $CXX or g++ must be GCC with its sanitizers")
    return path


def _last_line(text: str) -> str:
    return repr((text.strip().splitlines() or ["no word"])[-1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
