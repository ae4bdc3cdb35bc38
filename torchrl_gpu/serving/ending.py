"""Signals that end a program that serves, or have it load again: handlers set flags, and work is done in between."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

AGAIN_S = 0.1  # after which what passes over that it is broken off, as the compiler of an import does, is so again
_POLL_S = 0.05


class Flag:
    """A flag that a signal's handler may set; `threading.Event` would have it wait for a lock that its thread holds."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def take(self) -> bool:
        """Clears it; true if it was set."""
        was, self._is_set = self._is_set, False
        return was

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, or for so many seconds; whether it is set."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._is_set and (end is None or time.monotonic() < end):
            time.sleep(_POLL_S if end is None else max(0.0, min(_POLL_S, end - time.monotonic())))
        return self._is_set


class _Ended(BaseException):
    """Raised by an interrupt or SIGTERM within `Ending.at_once`."""


class Ending:
    """Handler of an interrupt or SIGTERM, which sets `event`: the program ends as if it had come to its end."""

    def __init__(self) -> None:
        self.event = Flag()
        self._at_once = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within, they break off whatever runs."""
        self._at_once = True
        try:
            if self.event.is_set():  # it came just before
                raise _Ended
            yield
        finally:
            self._at_once = False
            _alarm(0)

    def __call__(self, *_: object) -> None:
        self.event.set()
        if self._at_once:
            _alarm(AGAIN_S)
            raise _Ended


@contextmanager
def until_told_to_end() -> Iterator[Ending]:
    """Handles an interrupt or SIGTERM within; off the main thread none."""
    ending = Ending()
    with _handled(ending, "SIGINT", "SIGTERM", "SIGALRM"), suppress(_Ended):
        yield ending


@contextmanager
def hangups() -> Iterator[Flag]:
    """A flag that SIGHUP sets within."""
    flag = Flag()
    with _handled(lambda *_: flag.set(), "SIGHUP"):
        yield flag


@contextmanager
def _handled(handler: Any, *names: str) -> Iterator[None]:
    """Within, a handler takes the signals of these names that the system has; they go to the main thread only."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        found = [getattr(signal, name) for name in names if hasattr(signal, name)]
        before = {each: signal.signal(each, handler) for each in found}
    try:
        yield
    finally:
        for each, handled in before.items():
            signal.signal(each, handled)


def _alarm(seconds: float) -> None:
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, seconds)
