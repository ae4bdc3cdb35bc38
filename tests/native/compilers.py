"""Compilers and threads for tests. Without a compiler they are skipped: such a machine is a supported one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torchrl_gpu import native
from torchrl_gpu.cli import doctor
from torchrl_gpu.native import build


def need_compiler() -> None:
    """Skips a test where there is no C++ compiler, and says why there is none."""
    if problem := native.problem():
        pytest.skip(f"needs a C++ compiler: {problem}")


def need_torch_compile() -> None:
    """Skips a test where torch.compile has no compiler for a CPU or no headers of Python, and says which."""
    if problem := doctor.compile_problem():
        pytest.skip(problem)


def loaded_path() -> Path:
    """Return the file of the compiled library that this process uses."""
    return Path(build.library()._name)


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
