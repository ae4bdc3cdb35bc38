"""Flow control: how many unacknowledged pictures a viewer may have."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

_MOST = 2
_LATE = 6  # acknowledgements in a row that show a queue
_ALONE = 3  # pictures sent alone that show what one at a time is worth
_LEAST_GAIN = 1.3  # how much faster two at a time must be
_REST = 30.0  # seconds until an answer is looked for again


class _Flight(NamedTuple):
    seq: int
    sent: float
    alone: bool  # whether no other was under way when it was sent


class AckWindow:
    """Pictures that a viewer has been sent and has not acknowledged: two at most, `interval` seconds apart.

    Two at a time hide the way there and back, which lets a far viewer see twice as many. At a viewer that is slow to
    paint or to receive the second only waits, and is one period older when it is shown. So where acknowledgements are
    late, one at a time is tried, and kept unless two are clearly faster.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._limit = _MOST
        self._flights: deque[_Flight] = deque()
        self._late: list[float] = []
        self._alone: list[float] = []
        self._rate_of_two = 0.0
        self._ask_again_at = -math.inf

    @property
    def is_open(self) -> bool:
        return len(self._flights) < self._limit

    def send(self, seq: int, now: float) -> None:
        self._flights.append(_Flight(seq, now, not self._flights))

    def acknowledge(self, seq: int, now: float) -> float | None:
        """Seconds that the picture was under way, which acknowledges those before it; None for one that is not."""
        if all(flight.seq != seq for flight in self._flights):
            return None
        was_full = not self.is_open
        while (flight := self._flights.popleft()).seq != seq:
            pass
        latency = now - flight.sent
        if self._limit == _MOST:
            self._look_for_queue(was_full and latency > 1.5 * self.interval, now)
        elif flight.alone:
            self._compare(latency, now)
        return latency

    def _look_for_queue(self, is_late: bool, now: float) -> None:
        """After a row of late acknowledgements, tries one picture at a time."""
        self._late = [*self._late, now] if is_late and now >= self._ask_again_at else []
        if len(self._late) == _LATE:
            self._rate_of_two = (_LATE - 1) / max(self._late[-1] - self._late[0], 1e-9)
            self._late, self._alone = [], []
            self._limit = 1

    def _compare(self, latency: float, now: float) -> None:
        """Goes back to two at a time where they are worth it, where the viewer keeps up again, or to ask again."""
        self._alone.append(latency)
        if len(self._alone) < _ALONE:
            return
        mean = sum(self._alone[-_ALONE:]) / _ALONE
        if len(self._alone) == _ALONE:
            self._ask_again_at = now + _REST
            if self._rate_of_two * mean > _LEAST_GAIN:
                self._limit = _MOST
        elif mean < 0.7 * self.interval or now >= self._ask_again_at:
            self._ask_again_at = now
            self._limit = _MOST
