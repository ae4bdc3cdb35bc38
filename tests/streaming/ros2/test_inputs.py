from __future__ import annotations

import threading
import time

import pytest

from torchrl_gpu.streaming.broadcast.rate_limits import FrameSchedule
from torchrl_gpu.streaming.ros2.inputs import Arrival, NewestMessages, pace_of
from torchrl_gpu.system.policy_messages import BadMessage


def held(rate: float, arrivals: list[float]) -> list[float]:
    """How long each message is held up, where none replaces another."""
    pace, times = pace_of(rate), []
    for at in arrivals:
        now = max(at, pace.next_at)
        pace.advance(now)
        times.append(now - at)
    return times


def test_a_sender_of_the_same_rate_is_never_held_up() -> None:
    jitter = [0.006 * (-1) ** (i // 3) for i in range(3000)]
    assert max(held(30, [1.002 * i / 30 + jitter[i] for i in range(3000)])) == 0
    assert max(held(30, [0.998 * i / 30 + jitter[i] for i in range(3000)])) < 0.02


def test_after_a_burst_nothing_stays_held_up() -> None:
    times = held(30, [0.0, 0.001, 0.002, *(i / 30 for i in range(1, 60))])
    assert max(times) > 0.02
    assert max(times[35:]) == 0


def test_the_newest_of_each_once_the_first_is_there() -> None:
    inputs, pace = NewestMessages(["image", "vector"]), FrameSchedule()
    for data in (b"1", b"2"):
        inputs.put("vector", data)
    waiting = threading.Thread(target=lambda: found.append(inputs.next(pace)))
    found: list[dict[str, Arrival] | None] = []
    waiting.start()
    time.sleep(0.02)
    assert waiting.is_alive()  # vectors alone are not decided on
    inputs.put("image", b"3")
    waiting.join(20)
    assert found[0] is not None
    assert {name: arrival.data for name, arrival in found[0].items()} == {"image": b"3", "vector": b"2"}
    assert (inputs.received, inputs.dropped) == ({"image": 1, "vector": 2}, {"image": 0, "vector": 1})
    inputs.put("image", b"4")
    only = inputs.next(pace)
    assert only is not None
    assert set(only) == {"image"}


@pytest.mark.parametrize(
    ("stamp_ns", "same_clock", "taken_at"),
    [(0, True, 50.0), (7 * 10**9, True, 47.0), (10**10 + 10**8, True, 50.0), (1, False, 50.0), (7, True, 40.0)],
)
def test_when_a_message_was_taken(stamp_ns: int, same_clock: bool, taken_at: float) -> None:
    arrival = Arrival(b"", 50.0, 10**10)
    assert arrival.taken_at(stamp_ns, same_clock, 0.2) == pytest.approx(taken_at)


def test_a_stamp_from_the_future_is_of_another_clock() -> None:
    with pytest.raises(BadMessage, match=r"1\.0 s ahead; same_clock=False"):
        Arrival(b"", 50.0, 10**10).taken_at(11 * 10**9, True, 0.2)
