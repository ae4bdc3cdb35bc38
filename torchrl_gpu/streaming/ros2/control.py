"""Decisions on fresh inputs, and the safe action in place of all others."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from torchrl_gpu.streaming.ros2.decider import Decider
from torchrl_gpu.streaming.ros2.images import RosImage
from torchrl_gpu.streaming.ros2.inputs import Arrival, NewestMessages, Statistics, pace_of
from torchrl_gpu.streaming.ros2.messages import RosVector
from torchrl_gpu.system.policy_messages import BadMessage

Read: TypeAlias = Callable[[bytes], RosImage | RosVector]
"""Reads the value of a message."""

# Seconds that a policy may take to come to an end.
END_S = 5.0


class Action(NamedTuple):
    """An action sent to the robot.

    Attributes:
        values: (D,) float64.
        confidence: From 0 to 1, NaN if it is not known.
        is_safe: Whether it is the safe action, not the policy's.
        age: Of the oldest input that was decided on, seconds; NaN for the safe action.
    """

    values: np.ndarray
    confidence: float
    is_safe: bool
    age: float


class _Input(NamedTuple):
    """The value of an input, and when it was taken, seconds of the monotonic clock."""

    value: RosImage | RosVector
    taken_at: float


class Control:
    """A thread that decides, and one that watches it.

    An action is sent if every input is younger than `max_age` at that moment. Once an input of the last action is
    older, the safe action is sent at the rate, whatever the policy is doing: so `max_age` bounds its time, too. A
    single thread could not do that while it waits for the policy. One thread at a time calls `send`.

    Attributes:
        decider: The policy. It may be replaced at any time.
        safe_action: (D,) float64.
        last: The action that was sent last.
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
        self.decider = decider
        self.safe_action = safe_action
        self.last: Action | None = None
        self._inputs = inputs
        self._readers = readers
        self._send = send
        self._max_age = max_age
        self._period = 1 / rate
        self._same_clock = same_clock
        self._statistics = statistics
        self._safe = Action(safe_action, 0.0, True, math.nan)
        self._values: dict[str, _Input] = {}
        # Held by whoever sends, so that no action of the policy follows the one that closes.
        self._turn = threading.Condition(threading.RLock())
        self._valid_until = 0.0
        self._closing = False
        self._threads = [
            threading.Thread(target=self._decide, name="torchrl_gpu ros policy", daemon=True),
            threading.Thread(target=self._watch, name="torchrl_gpu ros watchdog", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both threads, and send the safe action as the last one.

        Raises:
            RuntimeError: The policy does not come to an end.
        """
        with self._turn:
            if self._closing:
                return
            self._closing = True
            # At once and not behind the threads: the policy may take seconds to come to an end.
            self._publish(self._safe)
            self._turn.notify_all()
        self._inputs.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(END_S)
        if any(thread.is_alive() for thread in self._threads):
            raise RuntimeError(f"RosBridge: the policy takes longer than {END_S:g} s to decide")

    def ages(self) -> dict[str, float]:
        """Return the present ages of the inputs of the last decision, seconds, by name."""
        now = time.monotonic()
        # A copy, since the policy's thread may take an input out meanwhile.
        values = list(self._values.items())
        return {name: now - each.taken_at for name, each in values}

    def _decide(self) -> None:
        """Decide whenever the first input comes.

        This is the thread of the policy.
        """
        pace = pace_of(1 / self._period)
        while True:
            arrivals = self._inputs.next(pace)
            if arrivals is None:
                return
            try:
                self._step(arrivals)
            except BadMessage as error:
                self._statistics.error("bad_messages", error)
                self._be_safe()
            except Exception as error:
                # A policy may raise anything.
                self._statistics.error("policy_errors", error)
                self._be_safe()

    def _step(self, arrivals: dict[str, Arrival]) -> None:
        decider = self.decider
        self._read(arrivals)
        # Some input has not come yet: the watchdog answers.
        if len(self._values) < len(self._inputs.received):
            return
        oldest = min(each.taken_at for each in self._values.values())
        if time.monotonic() - oldest > self._max_age:
            self._statistics.count("stale")
            decider.forget()
            self._be_safe()
            return
        decision = decider.decide(self._image(decider), self._vectors(decider))
        self._statistics.time("inference", decision.seconds)
        with self._turn:
            # The policy took its time: inputs that were young enough before it may be too old now.
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

    def _read(self, arrivals: dict[str, Arrival]) -> None:
        """Read new messages. An input whose message cannot be read has no value."""
        for name, arrival in arrivals.items():
            self._values.pop(name, None)
            value = self._readers[name](arrival.data)
            taken_at = arrival.taken_at(value.stamp_ns, self._same_clock, self._max_age)
            self._values[name] = _Input(value, taken_at)

    def _image(self, decider: Decider) -> RosImage | None:
        if decider.image is None:
            return None
        image = self._values[decider.image.name].value
        assert isinstance(image, RosImage)
        return image

    def _vectors(self, decider: Decider) -> dict[str, np.ndarray]:
        vectors: dict[str, np.ndarray] = {}
        for name in decider.vectors:
            vector = self._values[name].value
            assert isinstance(vector, RosVector)
            vectors[name] = vector.values
        return vectors

    def _watch(self) -> None:
        """Send the safe action once the last one is no longer valid.

        This is the thread of the watchdog.
        """
        with self._turn:
            while not self._closing:
                left = self._valid_until - time.monotonic()
                if left > 0:
                    self._turn.wait(left)
                else:
                    self._be_safe()

    def _be_safe(self) -> None:
        """Send the safe action, unless it was sent within the last period.

        Bad messages may come at any rate.
        """
        with self._turn:
            is_last = self.last is self._safe
            was_sent = is_last and time.monotonic() < self._valid_until
            if not self._closing and not was_sent:
                self._publish(self._safe)
                self._valid_until = time.monotonic() + self._period

    def _publish(self, action: Action) -> None:
        try:
            self._send(action)
        except Exception as error:
            # A network may fail in any way.
            self._statistics.error("send_errors", error)
        else:
            self._statistics.count("safe_actions" if action.is_safe else "actions")
            self.last = action
