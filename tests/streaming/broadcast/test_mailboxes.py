"""Newest-wins places, against what they are defined to hold."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import torchrl_gpu.streaming
from tests.streaming.viewers import encoded
from torchrl_gpu.streaming.broadcast.frames import CapturedFrame, EncodedPicture
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.mailboxes import FrameMailbox, GopQueue, NewestPicture
from torchrl_gpu.streaming.broadcast.metrics import PREFIX
from torchrl_gpu.streaming.broadcast.rate_limits import FrameSchedule, TokenBucket, stream_time


def capture(seq: int, pixels: np.ndarray | None = None) -> CapturedFrame:
    return CapturedFrame(np.zeros((1, 1, 3), np.uint8) if pixels is None else pixels, False, 0.0, seq, {})


def test_the_box_holds_the_newest_and_says_what_was_lost() -> None:
    box = FrameMailbox()
    assert box.take() is None
    assert [box.put(capture(1)), box.put(capture(2))] == [False, True]
    taken = box.take()
    assert taken is box.current
    assert taken is not None
    assert taken.seq == 2
    assert box.take() is None
    assert box.current is taken


def test_three_buffers_do_and_none_is_written_while_it_is_read() -> None:
    box, made = FrameMailbox(), 0
    for seq in range(30):
        buffer = box.buffer()
        made += buffer is None
        pixels = np.zeros((1, 1, 3), np.uint8) if buffer is None else buffer
        assert box.current is None or pixels is not box.current.pixels
        box.put(capture(seq, pixels))
        if seq % 3:
            box.take()
    assert made == 3


@settings(deadline=None)
@given(st.lists(st.sampled_from(["offer", "take"]), max_size=40))
def test_newest_gives_the_last_offer_and_counts_the_others(operations: list[str]) -> None:
    slot = NewestPicture()
    naive = []
    dropped = 0
    for seq, operation in enumerate(operations):
        if operation == "offer":
            dropped += len(naive)
            naive = [seq]
            slot.offer(encoded(seq))
        else:
            taken = slot.take()
            assert ([] if taken is None else [taken.seq]) == naive
            naive = []
    assert slot.dropped == dropped


@settings(deadline=None)
@given(st.lists(st.sampled_from(["key", "delta", "take"]), max_size=60), st.integers(1, 4))
def test_a_chain_gives_no_picture_whose_forerunner_it_left_out(operations: list[str], limit: int) -> None:
    slot = GopQueue(limit)
    given: list[EncodedPicture] = []
    for seq, operation in enumerate(operations):
        if operation == "take":
            taken = slot.take()
            given += [] if taken is None else [taken]
        else:
            slot.offer(encoded(seq, key=operation == "key", codec="h264"))
    offers = [seq for seq, operation in enumerate(operations) if operation != "take"]
    for i, picture in enumerate(given):
        assert picture.key or (i > 0 and offers.index(picture.seq) == offers.index(given[i - 1].seq) + 1)
    assert [picture.seq for picture in given] == sorted({picture.seq for picture in given})


def test_a_full_chain_drops_all_and_goes_on_at_the_next_key_picture() -> None:
    slot = GopQueue(limit=2)
    for seq, key in enumerate([False, True, False, False, False, True, False]):
        slot.offer(encoded(seq, key=key, codec="h264"))
        if seq == 3:
            assert slot.needs_key
    assert not slot.needs_key
    taken = [slot.take(), slot.take(), slot.take()]
    assert [picture and picture.seq for picture in taken] == [5, 6, None]
    # 1 and 2 waited, 3 did not fit, and 4 built on it, while 0 came before the first key.
    assert slot.dropped == 4


def test_a_key_picture_makes_what_waits_superfluous() -> None:
    slot = GopQueue(limit=6)
    for seq, key in enumerate([True, False, False, True]):
        slot.offer(encoded(seq, key=key, codec="h264"))
    first = slot.take()
    assert first is not None
    assert (first.seq, slot.take(), slot.dropped) == (3, None, 3)


def taken(schedule: FrameSchedule, moments: list[float]) -> list[float]:
    """Of these moments, those at which a slot was free.

    Each takes it.
    """
    found = []
    for moment in moments:
        if moment >= schedule.next_at:
            schedule.advance(moment)
            found.append(moment)
    return found


def test_a_producer_of_the_same_period_loses_nothing_by_jitter() -> None:
    draw = random.Random(0)
    moments = [100 + i / 30 + draw.uniform(-0.008, 0.008) for i in range(300)]
    assert taken(FrameSchedule(1 / 30), moments) == moments


@pytest.mark.parametrize("producer_fps", [60, 90, 1000])
def test_a_faster_producer_is_held_to_the_rate(producer_fps: int) -> None:
    moments = [5 + i / producer_fps for i in range(10 * producer_fps)]
    assert len(taken(FrameSchedule(1 / 30), moments)) == pytest.approx(300, abs=2)


@settings(deadline=None)
@given(st.lists(st.floats(0, 2), min_size=1, max_size=200), st.floats(0.01, 1))
def test_no_window_holds_more_than_the_rate_and_one(gaps: list[float], interval: float) -> None:
    moments = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    found = taken(FrameSchedule(interval), moments)
    for i, begin in enumerate(found):
        for number, end in enumerate(found[i:], start=1):
            assert number <= (end - begin) / interval + 2


def test_the_first_is_never_too_early_and_a_late_one_begins_anew() -> None:
    schedule = FrameSchedule(1.0)
    assert taken(schedule, [-7.0, 100.0, 100.4, 100.5]) == [-7.0, 100.0, 100.5]


def test_a_fast_viewer_does_not_wait_for_the_slots_of_a_slow_one() -> None:
    schedule = FrameSchedule(10.0)
    # It comes half a slot early, so the grid is at 110.
    assert taken(schedule, [100.0, 105.0]) == [100.0, 105.0]
    schedule.interval = 0.1
    moments = [105.05, 105.1, 105.2, 105.3, 105.4]
    assert taken(schedule, moments) == moments[1:]


def test_a_token_bucket_by_hand() -> None:
    bucket = TokenBucket(rate=2.0, burst=3.0)
    assert [bucket.take(10.0) for _ in range(4)] == [True, True, True, False]
    # 1.2 have come, and one is spent.
    assert [bucket.take(10.6), bucket.take(10.7)] == [True, False]
    assert [bucket.take(99.0) for _ in range(4)] == [True, True, True, False]


def test_stream_clock_does_not_follow_a_changed_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    before = stream_time()
    assert abs(before - time.time()) < 60
    monkeypatch.setattr(time, "time", lambda: before - 3600)
    assert before <= stream_time() < before + 60


@pytest.mark.parametrize(("folder", "asking"), [("broadcast", ["rate_limits.py"]), ("web", [])])
def test_only_rate_limits_ask_for_the_time_of_day(folder: str, asking: list[str]) -> None:
    package = Path(torchrl_gpu.streaming.__file__).parent / folder
    assert [path.name for path in package.rglob("*.py") if "time.time" in path.read_text()] == asking


# The names and labels that dashboards rely on.
NAMES = {
    "clients": {"transport"},
    "watchers": {"stream", "codec"},
    "frames_published": {"stream"},
    "frames_overwritten": {"stream"},
    "frames_encoded": {"stream", "codec"},
    "key_frames": {"stream"},
    "encode_seconds": {"stream", "codec"},
    "encode_errors": {"stream", "codec"},
    "encoded_bytes": {"stream", "codec"},
    "frames_sent": {"codec", "transport"},
    "sent_bytes": {"codec", "transport"},
    "frames_dropped": {"codec"},
    "ack_seconds": {"le"},
    "commands": set(),
    "failed_tokens": set(),
    "refused": {"reason"},
    "peer_errors": {"package"},
    "bad_messages": set(),
}


def test_names_and_labels_are_those_that_dashboards_know() -> None:
    hub = Hub()
    hub.declare('odd "name" \\ of a stream')
    metrics = hub.metrics
    for name, labels in NAMES.items():
        if name not in ("watchers", "frames_published", "ack_seconds") and labels:
            metric = getattr(metrics, name).labels(**dict.fromkeys(labels, 'a "b" \\ c\nd'))
            (metric.set if name == "clients" else metric.inc)(3)
    metrics.ack_seconds.observe(0.03)
    families = list(text_string_to_metric_families(generate_latest(metrics.registry).decode()))
    assert {family.name.removeprefix(PREFIX) for family in families} == NAMES.keys(), "and no times of creation"
    for family in families:
        labels = NAMES[family.name.removeprefix(PREFIX)]
        assert family.samples, family.name
        for sample in family.samples:
            assert set(sample.labels) == (labels if sample.name.endswith("_bucket") or labels != {"le"} else set())
        assert family.samples[0].name.endswith("_total") == (family.type == "counter")
    by_name = {family.name.removeprefix(PREFIX): family for family in families}
    assert by_name["frames_encoded"].samples[0].labels["codec"] == 'a "b" \\ c\nd'
    assert by_name["frames_published"].samples[0].labels["stream"] == 'odd "name" \\ of a stream'


def test_each_server_counts_for_itself_and_none_in_the_registry_of_the_program() -> None:
    one, other = Hub(), Hub()
    one.metrics.commands.inc()
    assert other.metrics.registry.get_sample_value(f"{PREFIX}commands_total") == 0
    assert PREFIX not in generate_latest(REGISTRY).decode()
