"""The allocator is asked where it can be, and nothing happens elsewhere."""

from __future__ import annotations

import platform
import resource
import sys
from pathlib import Path

import pytest
import torch

from tests import forks
from torchrl_gpu.system import allocator


def test_elsewhere_than_on_linux_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert allocator.keep_freed_memory() is False


def test_without_mallopt_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert allocator.keep_freed_memory() is False


def touch() -> None:
    for _ in range(20):
        # 4 MiB each.
        _, _ = torch.ones(1 << 20), torch.ones(1 << 20)


def keep_and_touch() -> None:
    kept = allocator.keep_freed_memory()
    assert kept or platform.libc_ver()[0] != "glibc"
    touch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    touch()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    # 40,960 pages were written.
    assert not kept or faults < 1000, faults


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is asked on Linux only")
def test_freed_blocks_are_not_faulted_in_again(tmp_path: Path) -> None:
    assert forks.run(keep_and_touch, log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
