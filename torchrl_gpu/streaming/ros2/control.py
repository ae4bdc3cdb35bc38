"""Decisions on fresh inputs, and the safe action in place of all others."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from torchrl_gpu.streaming.ros2.decider import Decider
from torchrl_gpu.streaming.ros2.inputs import Arrival, NewestMessages, Statistics, pace_of
from torchrl_gpu.system.policy_messages import BadMessage

Read = Callable[[bytes], Any]
"""Gives the value of a message: `RosImage` or `RosVector`."""
END_S = 5.0  # that a policy may take to come to an end


class Action(NamedTuple):
    """An action sent to the robot."""

    values: np.ndarray  # (D,) float64
    confidence: float  # from 0 to 1, NaN where it is not known
    is_safe: bool  # whether it is the safe action, not the policy's
    age: float  # of the oldest input that was decided on, seconds; NaN for the safe action


class Control:
    """A thread that decides, and one that watches it.

    An action is sent if every input is younger than `max_age` at that moment. Once an input of the last action is
    older, the safe action is sent at the rate, whatever the policy is doing: so `max_age` bounds its time, too. One
    thread at a time calls `send`.
    """

    def __init__(
        self,
        decider: Decider,
        inputs: NewestMessages,
        *,
        readers: Mapping[str, Read],
        send: Callable[[Action], None],
        safe_action: np.ndarray,
        max_age: float,
        rate: float,
        same_clock: bool,
        statistics: Statistics,
    ) -> None:
        self.decider, self._inputs, self._readers, self._send = decider, inputs, readers, send
        self._max_age, self._period, self._same_clock = max_age, 1 / rate, same_clock
        self.safe_action = safe_action
        self._safe = Action(safe_action, 0.0, True, math.nan)
        self._statistics = statistics
        self._values: dict[str, tuple[Any, float]] = {}  # of each input: its value, and when it was taken
        self._turn = threading.Condition(threading.RLock())
        self._valid_until = 0.0
        self._closing = False
        self.last: Action | None = None
        self._threads = [
            threading.Thread(target=self._decide, name="torchrl_gpu ros policy", daemon=True),
            threading.Thread(target=self._watch, name="torchrl_gpu ros watchdog", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends both, and sends the safe action as the last one; RuntimeError if the policy does not come to an end."""
        with self._turn:
            if self._closing:
                return
            self._closing = True
            self._publish(self._safe)
            self._turn.notify_all()
        self._inputs.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(END_S)
        if any(thread.is_alive() for thread in self._threads):
            raise RuntimeError(f"RosBridge: want a policy that decides within {END_S:g} s; got one that has not")

    def ages(self) -> dict[str, float]:
        """Present age of the inputs of the last decision, seconds, by name."""
        now = time.monotonic()
        return {name: now - taken_at for name, (_, taken_at) in list(self._values.items())}

    def _decide(self) -> None:
        pace = pace_of(1 / self._period)
        while (arrivals := self._inputs.next(pace)) is not None:
            try:
                self._step(arrivals)
            except BadMessage as error:
                self._statistics.error("bad_messages", error)
                self._be_safe()
            except Exception as error:  # of a policy: whatever it raises
                self._statistics.error("policy_errors", error)
                self._be_safe()

    def _step(self, arrivals: dict[str, Arrival]) -> None:
        decider = self.decider
        for name, arrival in arrivals.items():
            self._values.pop(name, None)
            value = self._readers[name](arrival.data)
            self._values[name] = value, arrival.taken_at(value.stamp_ns, self._same_clock, self._max_age)
        if len(self._values) < len(self._inputs.received):
            return  # some input has not come yet; the watchdog answers
        oldest = min(taken_at for _, taken_at in self._values.values())
        if time.monotonic() - oldest > self._max_age:
            self._statistics.count("stale")
            decider.forget()
            self._be_safe()
            return
        image = self._values[decider.image.name][0] if decider.image is not None else None
        vectors = {name: self._values[name][0].values for name in decider.vectors}
        decision = decider.decide(image, vectors)
        self._statistics.time("inference", decision.seconds)
        with self._turn:
            age = time.monotonic() - oldest
            if self._closing:
                return
            if age > self._max_age:
                self._statistics.count("late")
                self._be_safe()
                return
            self._publish(Action(decision.action, decision.confidence, False, age))
            self._valid_until = oldest + self._max_age
            self._turn.notify_all()
        first = next(iter(self._inputs.received))
        if first in arrivals:
            latency = time.monotonic() - arrivals[first].at
            self._statistics.time("latency", latency)
            self._statistics.time("overhead", latency - decision.seconds)

    def _watch(self) -> None:
        with self._turn:
            while not self._closing:
                left = self._valid_until - time.monotonic()
                if left > 0:
                    self._turn.wait(left)
                else:
                    self._be_safe()

    def _be_safe(self) -> None:
        """Sends the safe action, unless it was sent within the last period: bad messages may come at any rate."""
        with self._turn:
            was_sent = self.last is self._safe and time.monotonic() < self._valid_until
            if not self._closing and not was_sent:
                self._publish(self._safe)
                self._valid_until = time.monotonic() + self._period

    def _publish(self, action: Action) -> None:
        try:
            self._send(action)
        except Exception as error:  # of a network
            self._statistics.error("send_errors", error)
        else:
            self._statistics.count("safe_actions" if action.is_safe else "actions")
            self.last = action
