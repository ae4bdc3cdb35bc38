"""Counts, times and errors of a bridge."""

from __future__ import annotations

import logging
import statistics
import threading
from collections import Counter, deque

_LOG = logging.getLogger(__name__)
_RECENT = 256


class Statistics:
    """Counts, times and errors, each kind of which is logged once; any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._times: dict[str, deque[float]] = {}
        self._last_error: str | None = None

    def count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def time(self, name: str, seconds: float) -> None:
        with self._lock:
            self._times.setdefault(name, deque(maxlen=_RECENT)).append(seconds)

    def error(self, kind: str, error: BaseException) -> None:
        message = " ".join(str(error).split())[:200] or type(error).__name__
        with self._lock:
            self._counts[kind] += 1
            first, self._last_error = self._counts[kind] == 1, f"{kind}: {message}"
        if first:
            _LOG.warning("RosBridge: %s: %s", kind.replace("_", " "), message)

    def snapshot(self, counted: tuple[str, ...], timed: tuple[str, ...]) -> dict[str, float | str | None]:
        """Counts, medians and 95th percentiles of the last 256 times in milliseconds, and the last error."""
        with self._lock:
            found: dict[str, float | str | None] = {name: self._counts[name] for name in counted}
            times = {name: sorted(self._times.get(name, ())) for name in timed}
            found["last_error"] = self._last_error
        for name, values in times.items():
            found[f"{name}_ms"] = 1000 * statistics.median(values) if values else None
            found[f"{name}_p95_ms"] = 1000 * values[int(0.95 * (len(values) - 1))] if values else None
        return found
