"""How many pictures are under way, and what that is worth to near and far, quick and slow viewers."""

from __future__ import annotations

import heapq
import statistics
from dataclasses import dataclass

import pytest

from torchrl_gpu.streaming.web.ack_window import AckWindow

FPS = 30


@dataclass
class Seen:
    """What a viewer saw of the last seconds: pictures per second, and their age when they were painted, seconds."""

    rate: float
    age: float


def watch(paint: float, way: float, *, duration: float = 20.0, window: AckWindow | None = None) -> Seen:
    """A viewer that takes `paint` seconds for a picture, `way` seconds from the server, in simulated time.

    The server has a new picture 30 times a second, and sends the newest as soon as the window is open.
    """
    window = window or AckWindow(1 / FPS)
    events: list[tuple[float, str, int]] = [(i / FPS, "frame", i) for i in range(int(duration * FPS))]
    newest, sent, free_at = -1, -1, 0.0
    captured, painted = {}, []
    while events:
        now, kind, number = heapq.heappop(events)
        if kind == "frame":
            newest = number
            captured[number] = now
        else:
            window.acknowledge(number, now)
        if window.is_open and newest > sent:
            window.send(newest, now)
            free_at = max(free_at, now + way) + paint
            painted.append((free_at, free_at - captured[newest]))
            heapq.heappush(events, (free_at + way, "ack", newest))
            sent = newest
    last = [age for moment, age in painted if duration / 2 < moment < duration]
    return Seen(len(last) / (duration / 2), statistics.median(last))


@pytest.mark.parametrize("paint", [0.1, 0.2, 0.5])
def test_a_viewer_that_is_slow_to_paint_sees_pictures_one_period_old_and_not_two(paint: float) -> None:
    seen = watch(paint, way=0.002)
    assert seen.rate == pytest.approx(1 / paint, rel=0.1)
    assert seen.age <= 1.3 * paint


@pytest.mark.parametrize("way", [0.05, 0.1, 0.3])
def test_a_far_viewer_sees_two_pictures_in_the_time_there_and_back(way: float) -> None:
    seen = watch(paint=0.005, way=way)
    assert seen.rate == pytest.approx(min(FPS, 2 / (2 * way + 0.005)), rel=0.15)
    assert seen.age <= way + 0.05


@pytest.mark.parametrize(("paint", "way"), [(0.005, 0.001), (0.02, 0.005), (0.002, 0.02)])
def test_who_keeps_up_sees_all_at_once(paint: float, way: float) -> None:
    seen = watch(paint, way)
    assert seen.rate == pytest.approx(FPS, rel=0.01)
    assert seen.age <= paint + way + 1e-6


def test_a_viewer_that_gets_quicker_is_given_all_again() -> None:
    window = AckWindow(1 / FPS)
    assert watch(0.2, 0.002, window=window).rate < 6
    assert watch(0.005, 0.002, window=window).rate == pytest.approx(FPS, rel=0.01)


def test_by_hand() -> None:
    window = AckWindow(1.0)
    window.send(5, 1.0)
    assert window.is_open
    window.send(8, 2.0)
    assert not window.is_open
    assert window.acknowledge(7, 3.0) is None
    assert not window.is_open
    assert window.acknowledge(5, 3.5) == 2.5
    assert window.is_open
    window.send(9, 4.0)
    assert window.acknowledge(9, 4.5) == 0.5  # and 8 with it
    window.send(10, 5.0)
    assert window.is_open
    assert window.acknowledge(5, 6.0) is None
