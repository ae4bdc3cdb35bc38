"""The newest message of each input; counts, times and errors of a bridge."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from torchrl_gpu.streaming.broadcast.rate_limits import FrameSchedule
from torchrl_gpu.system.policy_messages import BadMessage

_LOG = logging.getLogger(__name__)
_RECENT = 256


class Arrival(NamedTuple):
    """A message that came."""

    data: bytes
    at: float  # seconds of the monotonic clock
    wall_ns: int  # nanoseconds of the system's clock, which its stamp is compared with

    def taken_at(self, stamp_ns: int, same_clock: bool, max_age: float) -> float:
        """Time of capture, seconds of the monotonic clock: by its stamp, or by its arrival if the clock is another.

        A stamp of 0 is none. BadMessage for one that is more than `max_age` seconds ahead.
        """
        if not same_clock or stamp_ns == 0:
            return self.at
        late = (self.wall_ns - stamp_ns) / 1e9
        if late < -max_age:
            got = f"one that is {-late:.1f} s ahead; same_clock=False takes messages by their arrival"
            raise BadMessage(f"stamp: want one of this machine's clock; got {got}")
        return self.at - max(0.0, late)


def pace_of(rate: float) -> FrameSchedule:
    """Rate limit of messages per second, and a tenth more.

    The clock of a sender of the same rate differs, and its messages would be held up longer and longer.
    """
    return FrameSchedule(1 / (1.1 * rate))


class NewestMessages:
    """Holds one message of each input, and counts those received and those that newer ones replaced.

    The policy's thread waits here for the next one of the first input.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.received, self.dropped = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        self._first = next(iter(names), "")
        self._newest: dict[str, Arrival] = {}
        self._changed = threading.Condition()
        self._closed = False

    def put(self, name: str, data: bytes) -> None:
        arrival = Arrival(data, time.monotonic(), time.time_ns())
        with self._changed:
            self.received[name] += 1
            self.dropped[name] += name in self._newest
            self._newest[name] = arrival
            if name == self._first:
                self._changed.notify()

    def next(self, pace: FrameSchedule) -> dict[str, Arrival] | None:
        """The new messages of each input, once the first input has one and its time has come; None after `close`."""
        with self._changed:
            while not self._closed:
                left = pace.next_at - time.monotonic()
                if self._first in self._newest and left <= 0:
                    pace.advance(time.monotonic())
                    taken, self._newest = self._newest, {}
                    return taken
                self._changed.wait(left if self._first in self._newest else None)
            return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


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
