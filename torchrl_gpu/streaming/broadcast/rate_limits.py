"""The clock of pictures, schedules of frames, and rate limits."""

from __future__ import annotations

import math
import time

_OFFSET = time.time() - time.monotonic()


def stream_time() -> float:
    """Return the seconds since 1970 by a clock that never steps.

    Setting the machine's clock changes no age, order or rate.
    """
    return time.monotonic() + _OFFSET


class FrameSchedule:
    """Times at which frames are due: one slot in each interval.

    A frame may come half an interval early. A producer whose period equals the interval would otherwise lose every
    frame that comes a moment before its slot.

    Attributes:
        interval: Seconds between two slots.
        taken_at: When the last slot was taken, by the monotonic clock; −inf before the first.
    """

    def __init__(self, interval: float = 0.0) -> None:
        self.interval = interval
        self.taken_at = -math.inf
        self._slot = -math.inf

    @property
    def next_at(self) -> float:
        """The earliest time at which the next slot may be taken."""
        # The interval may have become shorter since the last slot, which was on the grid of the longer one and may lie
        # far ahead. So a whole new interval after the last frame is always enough.
        half_early = self._slot + self.interval / 2
        return min(half_early, self.taken_at + self.interval)

    def advance(self, now: float) -> None:
        """Take the slot of this moment.

        The grid of slots stays, so that a producer which is sometimes late keeps its rate on average. A moment that is
        more than half an interval off the grid begins a new one.
        """
        due = self._slot + self.interval
        is_on_grid = abs(now - due) <= self.interval / 2
        self._slot = due if is_on_grid else now
        self.taken_at = now


class TokenBucket:
    """Rate limit of events or bytes.

    Args:
        rate: Tokens a second in the long run.
        burst: Tokens that may be taken at once.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = -math.inf

    def take(self, now: float, number: float = 1.0) -> bool:
        """Take tokens at a time of the monotonic clock.

        Returns:
            False if too few are left, in which case none is taken.
        """
        refill = (now - self._at) * self._rate
        self._left = min(self._burst, self._left + refill)
        self._at = now
        if self._left < number:
            return False
        self._left -= number
        return True
