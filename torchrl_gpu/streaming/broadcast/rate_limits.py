"""Clock of the pictures, schedules of frames at a rate, and rate limits."""

from __future__ import annotations

import math
import time

_OFFSET = time.time() - time.monotonic()


def stream_time() -> float:
    """Seconds since 1970 by a clock that never steps: setting the machine's clock changes no age, order or rate."""
    return time.monotonic() + _OFFSET


class FrameSchedule:
    """Times at which frames are due, one in each interval of so many seconds.

    A frame that comes half an interval early is taken, too: a producer whose period is the interval would lose every
    frame that comes a moment early.
    """

    def __init__(self, interval: float = 0.0) -> None:
        self.interval = interval
        self.taken_at = -math.inf  # when a slot was taken last
        self._slot = -math.inf

    @property
    def next_at(self) -> float:
        """From when on the next slot may be taken."""
        # The second holds where the interval has become shorter: the grid of the longer one may reach far ahead.
        return min(self._slot + self.interval / 2, self.taken_at + self.interval)

    def advance(self, now: float) -> None:
        """Takes the slot of this moment; more than half an interval beside the grid, a new one begins."""
        due = self._slot + self.interval
        self._slot = due if abs(now - due) <= self.interval / 2 else now
        self.taken_at = now


class TokenBucket:
    """Rate limit, of events or bytes: `rate` per second in the long run, `burst` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left = burst
        self._at = -math.inf

    def take(self, now: float, number: float = 1.0) -> bool:
        """Takes so many at a moment of the monotonic clock; false, and takes none, if fewer are left."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < number:
            return False
        self._left -= number
        return True
