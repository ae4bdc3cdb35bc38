"""Wall-clock profiler of named code sections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

# Time outside of all sections: Lightning's loops, its loggers, callbacks.
OUTSIDE = "Lightning"
LOGGING = "logging"
WHOLE = frozenset({"validation", "saving", "viewers", "workers"})
"""Sections inside which others do not count by themselves."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Clock:
    """Host time by section, each moment counted for the innermost one.

    It is made on the thread that it measures. A GPU works asynchronously: there a section counts the time to queue
    its work, and the waits in it.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        # With `OUTSIDE` they add up to the time since the clock was made.
        self.seconds: dict[str, float] = {}
        self.thread = threading.get_ident()
        self._now = now
        self._inside = [OUTSIDE]
        self._since = now()

    def enter(self, name: str) -> None:
        self._spend()
        self._inside.append(self._inside[-1] if self._inside[-1] in WHOLE else name)

    def leave(self) -> None:
        self._spend()
        if len(self._inside) > 1:
            self._inside.pop()

    def read(self) -> dict[str, float]:
        self._spend()
        return dict(self.seconds)

    def _spend(self) -> None:
        now = self._now()
        name = self._inside[-1]
        before = self.seconds.get(name, 0.0)
        self.seconds[name] = before + now - self._since
        self._since = now


class _Section(AbstractContextManager[None]):
    """Section that the clock counts."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        if _clock is not None:
            _clock.enter(self.name)

    def __exit__(self, *exc: object) -> None:
        if _clock is not None:
            _clock.leave()


class _TracedSection(_Section):
    """Section that the clock counts, and torch's profiler as a range."""

    def __enter__(self) -> None:
        super().__enter__()
        self._range = torch.profiler.record_function(self.name)
        self._range.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._range.__exit__(*exc)
        super().__exit__(*exc)


_clock: Clock | None = None
# Made once, as every step enters sections.
_NOTHING: AbstractContextManager[None] = nullcontext()
_KNOWN: dict[str, _Section] = {}


def section(name: str) -> AbstractContextManager[None]:
    """Context manager of a code section.

    It is a range of torch's profiler, too, while that runs.

    Costs next to nothing where no clock runs, as outside of training.
    """
    # Seconds of other threads run at the same time as those of training, and would be counted twice.
    if _clock is None or _clock.thread != threading.get_ident():
        return _NOTHING
    if torch.autograd._profiler_enabled():
        return _TracedSection(name)
    known = _KNOWN.get(name)
    return known if known is not None else _KNOWN.setdefault(name, _Section(name))


def in_section(name: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorator that makes a function a section."""

    def decorated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def inside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            with section(name):
                return function(*args, **kwargs)

        return inside

    return decorated


def start_clock() -> Clock:
    """Start a new clock, which counts sections from now on."""
    global _clock
    _clock = Clock()
    return _clock


def stop_clock() -> None:
    """Stop counting sections."""
    global _clock
    _clock = None


def running_clock() -> Clock | None:
    """The clock that counts sections now, or None."""
    return _clock


def summary(seconds: Mapping[str, float]) -> str:
    """One line with the sections' shares of the time, the largest first.

    Lightning and logging stand together at its end.
    """
    total = max(sum(seconds.values()), 1e-9)
    parts = sorted(((spent, name) for name, spent in seconds.items()), reverse=True)
    shares = ", ".join(f"{name} {spent / total:.1%}" for spent, name in parts)
    both = sum(seconds.get(name, 0.0) for name in (OUTSIDE, LOGGING))
    return f"{total:.1f} s of training: {shares}; Lightning and logging together {both / total:.1%}"
