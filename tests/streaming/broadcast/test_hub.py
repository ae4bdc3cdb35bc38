"""Entry of frames: what publishing does, and above all what it leaves undone."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.no_host_reads import NoHostReads
from tests.streaming.pictures import scene
from tests.streaming.viewers import counted, encoded, until
from torchrl_gpu.streaming.broadcast import hub as hub_module
from torchrl_gpu.streaming.broadcast.hub import MAX_COMMANDS, MEMBER_LINGER_S, Hub
from torchrl_gpu.streaming.broadcast.protocol import Command, UnknownStream
from torchrl_gpu.streaming.broadcast.streams import MAX_STREAMS, Stream, SubscriptionClosed


def listening(hub: Hub) -> list[dict[str, Any]]:
    """Later messages of the hub to its listeners."""
    heard: list[dict[str, Any]] = []
    hub.listeners.add(lambda text: heard.append(json.loads(text)))
    return heard


def test_with_nobody_watching_one_frame_a_second_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(hub_module.time, "monotonic", lambda: clock[0])
    hub, kept = Hub(), []
    for step in range(24):
        hub.publish(scene(), "main", {"step": step}, bgr=False)
        capture = hub.streams["main"].mailbox.take()
        kept += [] if capture is None else [capture.meta["step"]]
        clock[0] += 0.125
    hub.end_episode("main", {"return": 1.0})
    assert kept == [0, 8, 16]
    assert hub.streams["main"].published == 24
    assert hub.streams["main"].layout.shape == scene().shape


class Nothing(TorchDispatchMode):
    """Under it no operator may run: only what the host knows of a tensor may be asked."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was run")


def test_with_nobody_watching_a_gpu_is_not_asked_for_what_is_not_kept() -> None:
    hub = Hub()
    shapes = [(480, 640, 3), (16, 48, 64, 3), (480, 640, 4), (480, 640)]
    frames = [torch.zeros(shape, dtype=torch.uint8) for shape in shapes] + [torch.zeros(480, 640)]
    # one has just been kept, however slow this machine is
    hub.declare("main").schedule.advance(time.monotonic() + 60.0)
    with NoHostReads(), Nothing():
        for frame in frames:
            hub.publish(frame, "main", {"step": 1}, bgr=False)
    assert hub.streams["main"].layout.format.kind == "depth"


def test_a_tensor_without_pixels_is_refused_though_one_like_it_came_before() -> None:
    hub, frame = Hub(), torch.zeros(4, 6, 3, dtype=torch.uint8)
    hub.publish(frame, "main", None, bgr=False)
    for other in (frame.to_sparse(), frame.to("meta")):
        with pytest.raises(ValueError, match=r"StreamServer.publish: .*a (sparse_coo|meta) tensor"):
            hub.publish(other, "main", None, bgr=False)


async def test_a_wanted_frame_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    woken = list[Stream]()
    frame = scene()
    hub.attach(asyncio.get_running_loop())
    monkeypatch.setattr(hub.pending, "add", woken.append)
    stream = hub.declare("main")
    task = asyncio.create_task(hub.subscribe("main").get())
    await until(lambda: stream.demand_at < 1e18)
    for step in range(5):
        hub.publish(frame, "main", {"step": step}, bgr=True)
    assert woken == [stream], "one is due, the others are not"
    frame[:] = 0
    capture = stream.mailbox.take()
    assert capture is not None
    np.testing.assert_array_equal(capture.pixels, scene())
    assert (capture.meta, capture.bgr) == ({"step": 0}, True)
    task.cancel()


@pytest.mark.parametrize(
    ("frame", "stream", "meta", "said"),
    [
        (scene(), "main", {"a": object()}, "'a' of metadata .*object"),
        (scene().astype(float), "main", None, "a frame of uint8.* of float64"),
        *((scene(), name, None, "stream .*characters") for name in ("", 7)),
    ],
)
def test_wrong_frame_is_refused_though_nobody_watches(frame: Any, stream: Any, meta: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Hub().publish(frame, stream, meta, bgr=False)


def test_commands_are_drained_and_the_newest_kept() -> None:
    hub = Hub()
    for i in range(MAX_COMMANDS + 5):
        hub.add_command(Command("step", i))
    commands = hub.take_commands()
    assert [command.value for command in commands] == list(range(5, MAX_COMMANDS + 5))
    assert hub.take_commands() == []
    hub.call_in_loop(pytest.fail, "there is no loop")
    hub.set_state({"a": 1})


async def test_a_tick_tells_of_new_streams_and_viewers_once(hub: Hub) -> None:
    heard = listening(hub)
    hub.declare("main", "The main one")
    hub.tick()
    hub.tick()
    hub.publish(scene(4, 6), "main", None, bgr=False)
    hub.tick()
    hub.subscribe("main")
    hub.tick()
    hub.publish(scene(4, 6), "main", None, bgr=False)
    hub.tick()
    facts = [message["streams"][0] for message in heard if message["type"] == "streams"]
    assert [(each["width"], each["watchers"], each["published"]) for each in facts] == [(0, 0, 0), (6, 0, 1), (6, 1, 1)]
    assert facts[0]["title"] == "The main one"


async def test_states_that_come_fast_are_told_at_the_tick(hub: Hub) -> None:
    heard = listening(hub)
    for step in range(100):
        hub.set_state({"step": step, "commands": ["pause"]})
    await until(lambda: heard)
    await asyncio.sleep(0)
    assert len(heard) == 1
    # It was a while ago.
    hub.state_at = 0.0
    hub.tick()
    hub.set_state({"step": 99})
    hub.tick()
    states = [message["state"] for message in heard if message["type"] == "state"]
    assert [state["step"] for state in states] == [99] or [state["step"] for state in states] == [99, 99]
    assert states[-1] == {"step": 99, "commands": ["pause"]}


async def test_a_still_source_is_shown_to_whoever_has_not_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, woken = Hub(fps=1000), list[Stream]()
    hub.attach(asyncio.get_running_loop())
    monkeypatch.setattr(hub.pending, "add", woken.append)
    stream = hub.declare("main")
    subscription = hub.subscribe("main")
    task = asyncio.create_task(subscription.get())
    await until(lambda: subscription.is_waiting)
    hub.tick()
    assert woken == [], "there is no frame yet"
    hub.publish(scene(), "main", None, bgr=False)
    capture = stream.mailbox.take()
    assert capture is not None
    hub.deliver(stream, encoded(capture.seq))
    await task
    late = hub.subscribe("main")
    woken.clear()
    tasks = [asyncio.create_task(each.get()) for each in (subscription, late)]
    await until(lambda: subscription.is_waiting and late.is_waiting)
    assert woken == [stream], "who comes sees it at once"
    woken.clear()
    hub.tick()
    assert woken == [], "it has not waited for long"
    monkeypatch.setattr("torchrl_gpu.streaming.broadcast.streams.STILL", 0.0)
    hub.tick()
    assert woken == [stream]
    assert stream.again_asked
    late.close()
    woken.clear()
    hub.tick()
    assert woken == [], "who has seen it waits for another"
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_member_is_there_while_somebody_wants_it(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    hub.declare_family("env", 1024, "Environment")
    hub.publish(scene(), "env17", None, bgr=False)
    hub.end_episode("env17", {})
    assert list(hub.streams) == []
    subscription = hub.subscribe("env17")
    assert hub.streams["env17"].title == "Environment 17"
    task = asyncio.create_task(subscription.get())
    await until(hub.wanted_streams)
    assert hub.wanted_streams() == ["env17"]
    hub.publish(scene(), "env17", None, bgr=False)
    assert hub.streams["env17"].published == 1
    monkeypatch.setattr(hub_module.time, "monotonic", lambda: now + 1000)
    hub.tick()
    assert "env17" in hub.streams, "it is watched"
    task.cancel()
    subscription.close()
    hub.tick()
    assert "env17" in hub.streams, "it may be asked for again"
    monkeypatch.setattr(hub_module.time, "monotonic", lambda: now + 1000 + MEMBER_LINGER_S)
    hub.tick()
    assert list(hub.streams) == []


async def test_a_family_is_listed_with_its_number(hub: Hub) -> None:
    hub.declare_family("env", 1024, "Environment")
    hub.declare_family("env:q", 1024, "Environment: Q map")
    hub.declare("env0")
    hub.declare("env0:q", "Environment 0: Q map")
    hub.declare("camera:left")
    hub.subscribe("env3:q")
    facts = {"width": 0, "height": 0, "watchers": 0, "published": 0}
    names = [each["name"] for each in hub.describe_streams()]
    assert names == ["env0", "env0:q", "camera:left", "env3:q", "env", "env:q"]
    listed = {each["name"]: each for each in hub.describe_streams()}
    q = {"base": "env0", "overlay": "q"}
    assert listed["env0"] == {"name": "env0", "title": "env0", "base": "env0", **facts}
    assert listed["env0:q"] == {"name": "env0:q", "title": "Environment 0: Q map", **q, **facts}
    assert listed["camera:left"]["base"] == "camera:left", "there is no camera that it could lie over"
    assert listed["env3:q"]["base"] == "env3"
    assert listed["env"] == {"name": "env", "title": "Environment", "base": "env", "count": 1024, **facts}
    assert (listed["env:q"]["base"], listed["env:q"]["overlay"], listed["env:q"]["count"]) == ("env", "q", 1024)
    assert listed["env:q"]["watchers"] == 1


async def test_number_of_streams_has_a_limit_whatever_is_asked_for(hub: Hub) -> None:
    hub.declare_family("env", 10**9, "Environment")
    hub.declare("main")
    for i in range(500):
        hub.subscribe(f"env{i}").close()
    assert len(hub.streams) == MAX_STREAMS
    assert list(hub.streams) == ["main", *(f"env{i}" for i in range(437, 500))], "those not watched the longest go"
    samples = chain.from_iterable(family.samples for family in hub.collect())
    assert {sample.labels["stream"] for sample in samples} == {"main", "env*"}
    watched = [hub.subscribe(f"env{i}") for i in range(600, 663)]
    with pytest.raises(UnknownStream, match="64 streams"):
        hub.subscribe("env3")
    for name in ("env01", "env1e3", "env" + "9" * 50, "env\n1", "nobody", "env0:q"):
        with pytest.raises(UnknownStream, match=r"watch: stream .*main, .* env "):
            hub.subscribe(name)
    # The program's own streams come first.
    hub.declare("worst")
    await until(lambda: len(hub.streams) == MAX_STREAMS)
    with pytest.raises(SubscriptionClosed, match="gave way"):
        await watched[0].get()
    assert len(hub.streams) == MAX_STREAMS
    for i in range(MAX_STREAMS - 2):
        hub.declare(f"stream {i}")
    with pytest.raises(ValueError, match=r"stream .*64"):
        hub.declare("one more")
    assert hub.declare("main", "Another title").title == "Another title", "which makes none"
    await until(lambda: not any(stream.is_on_demand for stream in hub.streams.values()))


async def test_a_member_that_the_program_declares_stays(hub: Hub) -> None:
    hub.declare_family("env", 1024, "Environment")
    hub.subscribe("env3").close()
    stream = hub.declare("env3", "The third")
    stream.idle_since = -1e9
    hub.tick()
    assert hub.streams["env3"] is stream
    assert stream.title == "The third"


def test_a_stream_and_a_family_cannot_share_a_name() -> None:
    hub = Hub()
    hub.declare("world")
    hub.declare_family("env", 3)
    with pytest.raises(ValueError, match="name 'world'"):
        hub.declare_family("world", 3)
    with pytest.raises(ValueError, match="stream 'env'"):
        hub.publish(scene(), "env", None, bgr=False)


async def test_frames_of_members_that_are_gone_are_still_counted(hub: Hub) -> None:
    hub.declare_family("env", 1024, "Environment")
    for i in range(100):
        subscription = hub.subscribe(f"env{i}")
        hub.publish(scene(), f"env{i}", None, bgr=False)
        subscription.close()
    assert counted(hub, "frames_published_total", stream="env*") == 100
    assert hub.describe_streams()[-1]["published"] == 100


@pytest.mark.parametrize("title", [7, b"Main", ["Main"], "x" * 1025])
def test_a_title_is_text(title: Any) -> None:
    """One that was not made a 500 of every later list of streams."""
    hub = Hub()
    for declare in (lambda: hub.declare("main", title), lambda: hub.declare_family("env", 3, title)):
        with pytest.raises(ValueError, match=r"title .*1024 characters"):
            declare()
    assert hub.describe_streams() == []
