"""Requests of a stream's viewers, and its instant replay.

Without sockets and without an encoder.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streaming.viewers import encoded, until
from torchrl_gpu.streaming.broadcast import streams
from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.protocol import ProtocolError
from torchrl_gpu.streaming.broadcast.rate_limits import FrameSchedule
from torchrl_gpu.streaming.broadcast.streams import (
    MAX_FAMILIES,
    MAX_MEMBERS,
    Families,
    InstantReplay,
    Stream,
    Subscription,
    SubscriptionClosed,
    split_name,
)


@pytest.fixture
def hub() -> Hub:
    return Hub(fps=1000.0)


@pytest.fixture
def stream(hub: Hub) -> Stream:
    return hub.declare("main")


async def waiting(subscription: Subscription) -> asyncio.Task[EncodedPicture]:
    """A task that waits for the next picture."""
    task = asyncio.create_task(subscription.get())
    await until(lambda: subscription.is_waiting)
    return task


async def soon(task: Coroutine[Any, Any, EncodedPicture] | asyncio.Task[EncodedPicture]) -> int:
    """The number of the picture that comes."""
    return (await asyncio.wait_for(task, 5)).seq


async def test_a_frame_is_due_while_somebody_waits_or_none_has_been_kept_for_a_second(hub: Hub, stream: Stream) -> None:
    assert stream.is_due(time.monotonic())
    stream.schedule.advance(time.monotonic() + 60.0)
    assert not stream.is_due(time.monotonic() + 60.9)
    assert stream.is_due(stream.schedule.taken_at + 1.0)
    stream.schedule = FrameSchedule(stream.schedule.interval)
    # Kept pictures are no subject here.
    stream.schedule.taken_at = math.inf
    assert not stream.is_due(time.monotonic())
    subscription = hub.subscribe("main")
    assert not stream.is_due(time.monotonic()), "it has not asked for a picture"
    task = await waiting(subscription)
    assert stream.is_due(time.monotonic())
    hub.deliver(stream, encoded(1))
    assert not stream.is_due(time.monotonic()), "it has been served"
    assert await soon(task) == 1
    task = await waiting(subscription)
    assert stream.is_due(time.monotonic() + 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not stream.is_due(time.monotonic() + 1), "it waits no longer"


async def test_a_frame_that_was_taken_is_not_asked_for_again_at_once(hub: Hub, stream: Stream) -> None:
    subscription = hub.subscribe("main", fps=0.1)
    task = await waiting(subscription)
    now = time.monotonic()
    assert stream.is_due(now)
    stream.schedule.advance(now)
    assert not stream.is_due(now + 1)
    assert stream.is_due(now + 5.1), "half a period is left to whoever comes early"
    task.cancel()


async def test_a_viewer_of_few_frames_gets_few(hub: Hub, stream: Stream) -> None:
    fast, slow = hub.subscribe("main"), hub.subscribe("main", fps=0.1)
    tasks = [await waiting(fast), await waiting(slow)]
    hub.deliver(stream, encoded(1))
    assert [await soon(task) for task in tasks] == [1, 1]
    task, late = await waiting(fast), await waiting(slow)
    # The period of the fast one.
    await asyncio.sleep(0.002)
    hub.deliver(stream, encoded(2))
    assert await soon(task) == 2
    assert not late.done()
    assert slow.dropped == 0, "it did not ask for more"
    late.cancel()


async def test_slow_subscriber_keeps_the_newest_picture(hub: Hub, stream: Stream) -> None:
    quick, slow = hub.subscribe("main"), hub.subscribe("main")
    for seq in range(5):
        task = await waiting(quick)
        await asyncio.sleep(0.002)
        hub.deliver(stream, encoded(seq))
        assert await soon(task) == seq
    assert await soon(slow.get()) == 4
    assert slow.dropped == 4


async def test_joiner_asks_for_a_key_frame_and_gets_nothing_before_it(hub: Hub, stream: Stream) -> None:
    subscription = hub.subscribe("main", "h264")
    assert stream.key_asked
    task = await waiting(subscription)
    hub.deliver(stream, encoded(1, key=False, codec="h264"))
    assert subscription.is_waiting
    hub.deliver(stream, encoded(2, key=True, codec="h264"))
    assert await soon(task) == 2
    assert subscription.dropped == 0


async def test_after_a_gap_a_key_frame_is_asked_for_once_the_viewer_takes_again(hub: Hub, stream: Stream) -> None:
    subscription = hub.subscribe("main", "h264")
    hub.deliver(stream, encoded(1, codec="h264"))
    stream.key_asked = False
    for seq in range(2, 20):
        hub.deliver(stream, encoded(seq, key=False, codec="h264"))
    assert not stream.key_asked, "the viewer takes nothing: the others need not pay"
    task = await waiting(subscription)
    hub.deliver(stream, encoded(20, key=False, codec="h264"))
    assert not task.done()
    assert stream.key_asked
    hub.deliver(stream, encoded(21, key=True, codec="h264"))
    assert await soon(task) == 21


async def test_key_frames_are_not_asked_for_too_often(hub: Hub, stream: Stream) -> None:
    stream.key_at = 100.0
    stream.ask_key(streams.GAP_SPACING, 100.0 + streams.GAP_SPACING / 2)
    assert not stream.key_asked
    stream.ask_key(streams.JOIN_SPACING, 100.0 + streams.GAP_SPACING / 2)
    assert stream.key_asked


async def test_joiner_just_after_a_key_frame_waits_for_the_next(hub: Hub, stream: Stream) -> None:
    stream.key_at = time.monotonic()
    task = await waiting(hub.subscribe("main", "h264"))
    assert not stream.key_asked
    stream.key_at -= (streams.JOIN_SPACING + streams.GAP_SPACING) / 2
    hub.deliver(stream, encoded(1, key=False, codec="h264"))
    assert stream.key_asked
    hub.deliver(stream, encoded(2, codec="h264"))
    await task


async def test_closing_wakes_who_waits(hub: Hub, stream: Stream) -> None:
    subscription = hub.subscribe("main")
    task = await waiting(subscription)
    subscription.close("enough")
    subscription.close("again")
    with pytest.raises(SubscriptionClosed, match="enough"):
        await task
    with pytest.raises(SubscriptionClosed, match="enough"):
        await subscription.get()
    assert stream.subscriptions == ()
    assert stream.demand_at == math.inf


async def test_the_rate_is_that_of_the_fastest_viewer(hub: Hub, stream: Stream) -> None:
    slow = hub.subscribe("main", fps=2)
    fast = hub.subscribe("main", fps=10)
    beyond = hub.subscribe("main", fps=1000)
    hub.fps = 50.0
    assert stream.schedule.interval == pytest.approx(1 / 1000)
    beyond.close()
    assert stream.schedule.interval == pytest.approx(1 / 10)
    fast.close()
    assert stream.schedule.interval == pytest.approx(1 / 2)
    slow.close()
    assert hub.subscribe("main", fps=900).schedule.interval == pytest.approx(1 / 50), "not beyond the server's"


async def test_unknown_stream_is_refused(hub: Hub, stream: Stream) -> None:
    with pytest.raises(ProtocolError, match=r"stream .*main"):
        hub.subscribe("other")
    hub.attach(None)
    with pytest.raises(ProtocolError, match=r"server stops"):
        hub.subscribe("main")


def seqs(clip: list[EncodedPicture]) -> list[int]:
    return [picture.seq for picture in clip]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(1, 400), st.booleans()), max_size=60))
def test_the_clip_is_what_lay_in_the_last_seconds_before_the_mark(events: list[tuple[float, int, bool]]) -> None:
    ring = InstantReplay(seconds=2.0, max_bytes=1000)
    kept = []
    clip = []
    now = 0.0
    for seq, (gap, size, is_mark) in enumerate(events):
        now += gap
        if is_mark:
            ring.mark(now, {})
            clip = list(kept)
        else:
            kept.append(encoded(seq, size, captured=now))
            ring.add(kept[-1])
            while kept[0].captured < now - 2.0 or sum(len(each.data) for each in kept) > 1000:
                kept.pop(0)
    assert seqs(ring.clip()) == seqs(clip or kept)


def test_frames_that_were_still_being_encoded_at_the_mark_belong_to_the_episode() -> None:
    ring = InstantReplay(seconds=10.0)
    ring.add(encoded(1, captured=1.0))
    ring.mark(2.0, {"return": 0.5})
    ring.add(encoded(2, captured=1.9))
    ring.add(encoded(3, captured=2.1))
    clip = ring.clip()
    assert seqs(clip) == [1, 2]
    assert all(picture.replay for picture in clip)
    assert [dict(picture.meta) for picture in clip] == [{}, {"return": 0.5}]


def test_without_a_mark_it_is_the_newest_and_without_seconds_nothing() -> None:
    ring, off = InstantReplay(seconds=1.0), InstantReplay(seconds=0.0)
    for captured in (0.0, 0.5, 1.2):
        ring.add(encoded(int(10 * captured), captured=captured))
        off.add(encoded(int(10 * captured), captured=captured))
    assert seqs(ring.clip()) == [5, 12]
    assert (off.clip(), off.is_on, ring.is_on) == ([], False, True)


@pytest.fixture
def families() -> Families:
    made = Families()
    made.declare("env", 1024, "Environment")
    made.declare("env:q", 8, "Environment: Q map")
    return made


@pytest.mark.parametrize(
    ("name", "family"),
    [("env0", "env"), ("env17", "env"), ("env1023", "env"), ("env0:q", "env:q"), ("env7:q", "env:q")],
)
def test_stream_is_found_in_its_family(families: Families, name: str, family: str) -> None:
    found = families.find(name)
    assert found is not None
    assert found.name == family


@pytest.mark.parametrize(
    "name",
    [
        *("env", "env1024", "env-1", "env+1", "env01", "env1.0", "env1e2", "env1_0", "env 1", "env1 ", "env1\n"),
        *("env8:q", "env1:", "env1:mask", "env1:q:q", "env1:Q", "other1", "17", "env" + "9" * 60, "", None, 17),
        # A digit, but not an ASCII one.
        "env٣",
    ],
)
def test_names_that_are_no_members_are_refused(families: Families, name: object) -> None:
    assert families.find(name) is None


def test_titles_and_labels(families: Families) -> None:
    env, q = families.by_name.values()
    assert (env.title_of("env17"), q.title_of("env3:q")) == ("Environment 17", "Environment 3: Q map")
    assert (env.label, q.label) == ("env*", "env*:q")
    assert families.declare("world", 3, None).title_of("world2") == "world 2"


def test_a_family_may_grow_and_shrink(families: Families) -> None:
    families.declare("env", 5, None)
    assert families.find("env4")
    assert not families.find("env5")


@pytest.mark.parametrize("name", ["", "env1", "env 1", "1", "env:", "env:q1", "env:Q", "a:b:c", "x" * 33, "ä", None, 3])
def test_names_that_no_stream_can_have_are_refused(families: Families, name: object) -> None:
    with pytest.raises(ValueError, match=r"^StreamServer.declare_family: name .*, not .+$"):
        families.declare(name, 3, None)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "3", None, MAX_MEMBERS + 1])
def test_counts_that_are_none(families: Families, count: object) -> None:
    with pytest.raises(ValueError, match=r"^StreamServer.declare_family: count .*1,000,000,000, not .+$"):
        families.declare("env", count, None)


def test_number_of_streams_has_a_limit() -> None:
    families = Families()
    for i in range(MAX_FAMILIES):
        families.declare(f"{chr(97 + i // 26)}{chr(97 + i % 26)}", 3, None)
    families.declare("aa", 4, None)
    with pytest.raises(ValueError, match=r"'zz'.* 64$"):
        families.declare("zz", 3, None)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("env0", ("env0", None)),
        ("env0:q", ("env0", "q")),
        ("worst:mask", ("worst", "mask")),
        ("a:b:c", ("a:b", "c")),
        ("camera:Left", ("camera:Left", None)),
        (":q", (":q", None)),
    ],
)
def test_name_of_a_stream_has_base_and_overlay(name: str, parts: tuple[str, str | None]) -> None:
    assert split_name(name) == parts
