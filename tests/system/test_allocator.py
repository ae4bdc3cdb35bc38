"""The allocator is asked where it can be, and nothing happens elsewhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from torchrl_gpu.system import allocator


def test_elsewhere_than_on_linux_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert allocator.keep_freed_memory() is False


def test_without_mallopt_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert allocator.keep_freed_memory() is False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is asked on Linux only")
def test_freed_blocks_are_not_faulted_in_again() -> None:
    program = """
import resource, platform
import torch
from torchrl_gpu.system.allocator import keep_freed_memory
kept = keep_freed_memory()
assert kept or platform.libc_ver()[0] != "glibc"
def touch():
    for _ in range(20):
        a, b = torch.ones(1 << 20), torch.ones(1 << 20)  # 4 MiB each
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
touch()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
assert not kept or faults < 1000, faults  # 40,960 pages were written
"""
    subprocess.run([sys.executable, "-c", program], check=True)
