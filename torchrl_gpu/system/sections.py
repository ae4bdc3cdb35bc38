"""Where the time of a run goes: named sections of the code, and a clock that adds up what each of them takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

OUTSIDE = "Lightning"  # all that is in no section: Lightning's loops, its loggers, callbacks
LOGGING = "logging"
WHOLE = frozenset({"validation", "saving", "viewers", "workers"})
"""Sections inside which others do not count by themselves."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Clock:
    """Seconds of the host by section; each moment belongs to the innermost one. Made on the thread that it watches.

    A GPU works behind the host: there a section has what it takes to queue its work, and the waits in it.

    Args:
        now: Gives seconds.

    Attributes:
        seconds: By section, `OUTSIDE` among them; they add up to the time since the clock was made.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self.thread = threading.get_ident()
        self._now, self._inside = now, [OUTSIDE]
        self._since: float | None = now()

    def enter(self, name: str) -> None:
        """Begins a section."""
        self._spend()
        self._inside.append(self._inside[-1] if self._inside[-1] in WHOLE else name)

    def leave(self) -> None:
        """Ends the section that was begun last."""
        self._spend()
        if len(self._inside) > 1:
            self._inside.pop()

    def pause(self) -> None:
        """Counts nothing until `go_on`."""
        self._spend()
        self._since = None

    def go_on(self) -> None:
        """Counts again."""
        self._since = self._now()

    def read(self) -> dict[str, float]:
        """The seconds so far."""
        self._spend()
        return dict(self.seconds)

    def _spend(self) -> None:
        if self._since is not None:
            now, name = self._now(), self._inside[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
            self._since = now


class _Section(AbstractContextManager[None]):
    """A section that the clock sees."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        if _clock is not None:
            _clock.enter(self.name)

    def __exit__(self, *exc: object) -> None:
        if _clock is not None:
            _clock.leave()


class _TracedSection(_Section):
    """The same as a range of torch's profiler besides."""

    def __enter__(self) -> None:
        super().__enter__()
        self._range = torch.profiler.record_function(self.name)
        self._range.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._range.__exit__(*exc)
        super().__exit__(*exc)


_clock: Clock | None = None
_traces = False
_NOTHING: AbstractContextManager[None] = nullcontext()
_KNOWN: dict[str, _Section] = {}


def section(name: str) -> AbstractContextManager[None]:
    """A section of the code, for `with`. Costs next to nothing where no clock runs, as outside of training."""
    if _clock is None or _clock.thread != threading.get_ident():
        return _NOTHING
    if _traces:
        return _TracedSection(name)
    known = _KNOWN.get(name)
    return known if known is not None else _KNOWN.setdefault(name, _Section(name))


def in_section(name: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Makes a function a section."""

    def decorated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def inside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            with section(name):
                return function(*args, **kwargs)

        return inside

    return decorated


def start_clock() -> Clock:
    """Makes a new clock the one that sections are counted by."""
    global _clock
    _clock = Clock()
    return _clock


def stop_clock() -> None:
    """Counts no more."""
    global _clock
    _clock = None


def running_clock() -> Clock | None:
    """The clock that sections are counted by; None where there is none."""
    return _clock


def trace_sections(on: bool) -> None:
    """Whether sections that begin from now on are ranges of torch's profiler, too."""
    global _traces
    _traces = on


def summary(seconds: Mapping[str, float]) -> str:
    """The shares of the time in one line, the largest first, and what of it Lightning and logging took together."""
    total = max(sum(seconds.values()), 1e-9)
    parts = sorted(((spent, name) for name, spent in seconds.items()), reverse=True)
    shares = ", ".join(f"{name} {spent / total:.1%}" for spent, name in parts)
    both = sum(seconds.get(name, 0.0) for name in (OUTSIDE, LOGGING))
    return f"{total:.1f} s of training: {shares}; Lightning and logging together {both / total:.1%}"
