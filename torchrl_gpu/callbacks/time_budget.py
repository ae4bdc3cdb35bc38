"""Time that a callback takes of a run: its budget and its timer."""

from __future__ import annotations


class TimeBudget:
    """Budget of wall-clock time: a share of it, saved up to a burst.

    Args:
        share: Of the time, in (0, 1].
        burst_s: Seconds that can be saved up; there from the start.
        silence_s: Seconds after which something may be spent again, however much was spent at once: what overdraws by
            more than so many seconds bring back is forgiven, for it would keep everything else waiting.
    """

    def __init__(self, share: float, burst_s: float = 0.25, silence_s: float = 5.0) -> None:
        self.share, self.burst_s, self.silence_s = share, burst_s, silence_s
        self._left_s = burst_s
        self._at: float | None = None

    def allows(self, now: float) -> bool:
        """True where any time is left at `now`, seconds, which never runs back."""
        if self._at is not None:
            self._left_s = min(self.burst_s, self._left_s + self.share * (now - self._at))
        self._at = now
        return self._left_s > 0.0

    def spend(self, seconds: float) -> None:
        """Deducts time that was spent; it may be more than is left, which then takes its time to come back."""
        self._left_s = max(self._left_s - seconds, -self.share * self.silence_s)


class HookTimer:
    """Timer of the hooks of a callback."""

    def __init__(self, now: float) -> None:
        self.calls, self.seconds, self.since = 0, 0.0, now
        self.all_calls, self.all_seconds, self.begun = 0, 0.0, now

    def add(self, seconds: float) -> None:
        """Counts a hook."""
        self.calls += 1
        self.seconds += seconds

    def metrics(self, now: float) -> dict[str, float]:
        """`hook_us` (mean of a hook) and `share` (of the time, 0 to 1) since the last call; starts anew."""
        found = _cost(self.calls, self.seconds, now - self.since)
        self.all_calls, self.all_seconds = self.all_calls + self.calls, self.all_seconds + self.seconds
        self.calls, self.seconds, self.since = 0, 0.0, now
        return found

    def totals(self, now: float) -> dict[str, float]:
        """`metrics` since the beginning."""
        return _cost(self.all_calls + self.calls, self.all_seconds + self.seconds, now - self.begun)


def _cost(calls: int, seconds: float, wall_s: float) -> dict[str, float]:
    return {"hook_us": 1e6 * seconds / max(calls, 1), "share": seconds / max(wall_s, 1e-9)}
