"""The newest message of each input, and what a bridge counts and times."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from torchrl_gpu.streaming.broadcast.rate_limits import FrameSchedule
from torchrl_gpu.system.policy_messages import BadMessage

_LOG = logging.getLogger(__name__)
# Times of which medians are taken.
_RECENT = 256
# How much faster than its own rate a bridge takes messages.
_FASTER = 1.1
# Characters of an error that are kept.
_LONGEST_ERROR = 200

State: TypeAlias = dict[str, float | str | bool | None]
"""Values of a bridge by name, as a page shows them."""


class Arrival(NamedTuple):
    """A message that came.

    Attributes:
        data: Its bytes.
        at: When it came, seconds of the monotonic clock.
        wall_ns: When it came, nanoseconds of the system's clock, which its stamp is compared with.
    """

    data: bytes
    at: float
    wall_ns: int

    def taken_at(self, stamp_ns: int, same_clock: bool, max_age: float) -> float:
        """Return when the message was captured, seconds of the monotonic clock.

        Args:
            stamp_ns: Of the message; 0 for none.
            same_clock: Whether stamps are of a clock in step with this machine's. If not, the arrival counts.
            max_age: Seconds.

        Raises:
            BadMessage: The stamp is more than `max_age` ahead.
        """
        if not same_clock or stamp_ns == 0:
            return self.at
        late = (self.wall_ns - stamp_ns) / 1e9
        if late < -max_age:
            raise BadMessage(
                f"stamp: it is {-late:.1f} s ahead of this machine's clock; same_clock=False takes messages by their"
                " arrival"
            )
        # A stamp slightly ahead is a clock that is slightly off: nothing is captured after it has arrived.
        return self.at - max(0.0, late)


def pace_of(rate: float) -> FrameSchedule:
    """Return a limit of messages per second: the rate, and a tenth more.

    The clock of a sender of the same rate differs, and its messages would be held up longer and longer.
    """
    return FrameSchedule(1 / (_FASTER * rate))


class NewestMessages:
    """One message of each input: the newest.

    The policy's thread waits here for the next one of the first input.

    Attributes:
        received: Messages that came, by input.
        dropped: Messages that newer ones replaced, by input.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.received = dict.fromkeys(names, 0)
        self.dropped = dict.fromkeys(names, 0)
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
        """Wait for a message of the first input whose time has come.

        Returns:
            The new messages of all inputs; None after `close`.
        """
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
    """Counts, times and errors, each kind of which is logged once.

    Any thread may call any method.
    """

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
        """Count an error, and log the first of its kind."""
        line = " ".join(str(error).split())
        message = line[:_LONGEST_ERROR] or type(error).__name__
        with self._lock:
            self._counts[kind] += 1
            is_first = self._counts[kind] == 1
            self._last_error = f"{kind}: {message}"
        if is_first:
            _LOG.warning("RosBridge: %s: %s", kind.replace("_", " "), message)

    def snapshot(self, counted: tuple[str, ...], timed: tuple[str, ...]) -> State:
        """Return counts, times and the last error.

        Of the last 256 times these are median and 95th percentile, milliseconds.
        """
        with self._lock:
            found: State = {name: self._counts[name] for name in counted}
            times = {name: sorted(self._times.get(name, ())) for name in timed}
            found["last_error"] = self._last_error
        for name, values in times.items():
            found[f"{name}_ms"] = 1000 * statistics.median(values) if values else None
            found[f"{name}_p95_ms"] = 1000 * values[int(0.95 * (len(values) - 1))] if values else None
        return found
