"""Signals that end a program that serves, or have it load again.

Handlers only set flags, and the program does the work in between.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

# Seconds after which code is interrupted again that has swallowed the exception, as the compiler of an import does.
AGAIN_S = 0.1
_POLL_S = 0.05


class Flag:
    """A flag that a signal's handler may set.

    The handler runs in the main thread between two of its steps. In `threading.Event` it would wait for a lock that the
    same thread may hold. So this one has no lock, and whoever waits looks at it now and then.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def take(self) -> bool:
        """Clear the flag, and return whether it was set."""
        was_set, self._is_set = self._is_set, False
        return was_set

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for some seconds.

        It returns whether it is set.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._is_set and (end is None or time.monotonic() < end):
            time.sleep(_POLL_S if end is None else max(0.0, min(_POLL_S, end - time.monotonic())))
        return self._is_set


class _Ended(BaseException):
    """Raised by an interrupt or SIGTERM inside `Ending.at_once`."""


class Ending:
    """Handler of an interrupt or SIGTERM.

    The program ends as if it had come to its end.

    Attributes:
        event: Set by the signal.
    """

    def __init__(self) -> None:
        self.event = Flag()
        self._at_once = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside this context, signals interrupt whatever runs."""
        self._at_once = True
        try:
            # The signal may have come just before.
            if self.event.is_set():
                raise _Ended
            yield
        finally:
            self._at_once = False
            _set_alarm(0)

    def __call__(self, *_: object) -> None:
        self.event.set()
        if self._at_once:
            _set_alarm(AGAIN_S)
            raise _Ended


@contextmanager
def until_told_to_end() -> Iterator[Ending]:
    """Handle an interrupt or SIGTERM inside this context.

    Off the main thread nothing is handled.
    """
    ending = Ending()
    with _handle(ending, "SIGINT", "SIGTERM", "SIGALRM"), suppress(_Ended):
        yield ending


@contextmanager
def hangups() -> Iterator[Flag]:
    """Give a flag that SIGHUP sets inside this context."""
    flag = Flag()
    with _handle(lambda *_: flag.set(), "SIGHUP"):
        yield flag


@contextmanager
def _handle(handler: Callable[..., None], *names: str) -> Iterator[None]:
    """Have a handler take signals inside this context.

    Those that the system does not have are left out. Signals go to the main thread only.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _set_alarm(seconds: float) -> None:
    # Windows has no alarm.
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
