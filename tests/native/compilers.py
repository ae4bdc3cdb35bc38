"""What the tests of compiled kernels share. Without a compiler they are skipped: such a machine is a supported one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from torchrl_gpu import native


def need_compiler() -> None:
    """Skips a test where there is no C++ compiler, and says why there is none."""
    if problem := native.problem():
        pytest.skip(f"needs a C++ compiler: {problem}")


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """So many threads, and then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
