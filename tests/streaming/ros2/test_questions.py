"""Requests that are answered on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from torchrl_gpu.streaming.ros2 import questions
from torchrl_gpu.streaming.ros2.inputs import Statistics
from torchrl_gpu.streaming.ros2.messages import Messages
from torchrl_gpu.streaming.ros2.questions import Questions


class HangingRespondent:
    """Answers nothing until it is released."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.is_released = threading.Event()

    def answer(self, message: str | bytes) -> tuple[bool, Mapping[str, object]]:
        self.is_asked.set()
        self.is_released.wait()
        return True, {}


def test_close_says_that_an_answer_hangs_while_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "END_S", 0.05)
    respondent = HangingRespondent()
    asked = Questions(respondent, lambda data: None, Statistics())
    request = Messages().string("{}")
    asked.start()
    asked.put(request)
    assert respondent.is_asked.wait(60)
    for _ in range(questions._MOST_WAITING):
        asked.put(request)
    with pytest.raises(RuntimeError, match="answer"):
        asked.close()
    respondent.is_released.set()
