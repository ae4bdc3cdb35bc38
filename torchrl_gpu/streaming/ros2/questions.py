"""Requests in JSON on one topic, and their answers on another."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from torchrl_gpu.streaming.ros2.inputs import Statistics
from torchrl_gpu.streaming.ros2.messages import Messages
from torchrl_gpu.system.policy_messages import BadMessage

# Seconds that an answer may take to come to an end.
END_S = 5.0
_MOST_WAITING = 64


class Answering(Protocol):
    """Respondent to requests: `PackingSessions`, or an object with the same method."""

    def answer(self, message: str | bytes) -> tuple[bool, Mapping[str, object]]:
        """Carry out a message.

        Returns:
            Whether that was possible, and the answer, whose `message` says why it was not.
        """


class Questions:
    """A thread that answers requests in the order in which they came.

    If too many wait, the last ones are not answered.
    """

    def __init__(self, answering: Answering, send: Callable[[bytes], None], statistics: Statistics) -> None:
        self._answering = answering
        self._send = send
        self._statistics = statistics
        self._messages = Messages()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="torchrl_gpu ros questions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Take the bytes of a request."""
        try:
            self._waiting.put_nowait(data)
        except queue.Full:
            self._statistics.error("unanswered", BadMessage(f"more than {_MOST_WAITING} requests wait"))

    def close(self) -> None:
        """Answer what waits, and end.

        Raises:
            RuntimeError: An answer does not come to an end.
        """
        if self._thread.ident is None:
            return
        # Where an answer hangs and the queue is full, nothing ever makes room for the word to end.
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=END_S)
        self._thread.join(END_S)
        if self._thread.is_alive():
            raise RuntimeError(f"RosBridge: an answer takes longer than {END_S:g} s")

    def _run(self) -> None:
        while True:
            data = self._waiting.get()
            if data is None:
                return
            try:
                done, answer = self._answering.answer(self._messages.text(data))
                self._send(self._messages.string(json.dumps(answer, allow_nan=False)))
                self._statistics.count("answers" if done else "refusals")
            except BadMessage as error:
                self._statistics.error("bad_messages", error)
            except Exception as error:
                # What answers, or the network, may fail in any way.
                self._statistics.error("unanswered", error)
