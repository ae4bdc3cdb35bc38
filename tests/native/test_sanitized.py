"""The run under the sanitizers.

The tests are about what it is given, and that it says clearly where there are none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import sanitized


@pytest.fixture
def gcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "g++"
    path.write_text('#!/bin/sh\ncase "$1" in -print-file-name=*) echo "/lib/${1#*=}";; esac\n')
    path.chmod(0o755)
    monkeypatch.delenv("CXXFLAGS", raising=False)
    return path


def test_kernels_are_compiled_and_run_with_both_sanitizers(gcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXXFLAGS", "-DMINE")
    environment = sanitized.sanitized(str(gcc))
    assert environment["CXX"] == str(gcc)
    assert environment["CXXFLAGS"].startswith("-DMINE -O1 ")
    assert "-fsanitize=address,undefined" in environment["CXXFLAGS"]
    assert environment["LD_PRELOAD"] == "/lib/libasan.so /lib/libstdc++.so.6"
    assert "detect_leaks=0" in environment["ASAN_OPTIONS"]
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(sanitized.ROOT)


@pytest.mark.parametrize("said", ["libasan.so", ""])
def test_a_compiler_without_a_sanitizer_is_named(tmp_path: Path, said: str) -> None:
    clang = tmp_path / "clang++"
    clang.write_text(f"#!/bin/sh\necho {said}\n")
    clang.chmod(0o755)
    script = [sys.executable, str(Path(sanitized.__file__))]
    run = subprocess.run(script, env=os.environ | {"CXX": str(clang)}, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("error: ")
    assert run.stderr.count("\n") == 1
    assert "libasan.so" in run.stderr
    assert repr(str(clang)) in run.stderr
    assert run.stdout == ""


def test_kernels_that_are_not_instrumented_are_refused() -> None:
    # Plain kernels read past the end of a buffer unseen, or are not there at all: no test run may pass for that.
    with pytest.raises(RuntimeError, match=r"^sanitized: .*(buffer .*not reported|compiled .*with .*): "):
        sanitized.check(dict(os.environ))
