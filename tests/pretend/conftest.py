"""Tests for a process that has the device: see `tests.pretend_cuda`."""

from __future__ import annotations

from tests import pretend_cuda


def pytest_ignore_collect() -> bool | None:
    """Leave these tests to a job of their own."""
    return None if pretend_cuda.active() else True
