"""Coroutine tests run as those of streaming do."""

from tests.streaming.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
