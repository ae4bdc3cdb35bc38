"""Compilers and threads for tests.

Tests are skipped without a compiler, since such a machine is supported.
"""

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
    """Skip a test where there is no C++ compiler, and say why there is none."""
    if problem := native.problem():
        pytest.skip(f"needs a C++ compiler: {problem}")


def need_torch_compile() -> None:
    """Skip a test where torch.compile lacks a compiler or headers of Python.

    The reason says which.
    """
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
