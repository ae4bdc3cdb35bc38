"""Where frames come in: what publishing does, and above all what it leaves undone."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
import pytest

from tests.streaming.pictures import scene
from tests.streaming.viewers import encoded, run, until
from torchrl_gpu.streaming import hub as hub_module
from torchrl_gpu.streaming.hub import MOST_COMMANDS, Hub
from torchrl_gpu.streaming.protocol import Command
from torchrl_gpu.streaming.streams import MOST_STREAMS, Stream


def listening(hub: Hub) -> list[dict[str, Any]]:
    """What the hub tells its listeners from now on."""
    heard: list[dict[str, Any]] = []
    hub.listeners.add(lambda text: heard.append(json.loads(text)))
    return heard


def test_with_nobody_watching_one_frame_a_second_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(hub_module.time, "monotonic", lambda: clock[0])
    hub, kept = Hub(), []
    for step in range(24):
        hub.publish(scene(), "main", {"step": step}, bgr=False)
        capture = hub.streams["main"].box.take()
        kept += [] if capture is None else [capture.meta["step"]]
        clock[0] += 0.125
    hub.end_episode("main", {"return": 1.0})
    assert kept == [0, 8, 16]
    assert hub.streams["main"].published == 24
    assert hub.streams["main"].layout.shape == scene().shape


class Distant:
    """A tensor on a GPU of which nothing may be asked but what the host knows."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.dtype = shape, "torch.uint8"

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"the frame was asked for {name}")


def test_with_nobody_watching_a_gpu_is_not_asked_for_what_is_not_kept() -> None:
    hub = Hub()
    hub.stream("main").pace.advance(time.monotonic() + 60.0)  # one has just been kept, however slow this machine is
    for frame in (Distant(480, 640, 3), Distant(16, 480, 640, 3), Distant(480, 640, 3)):
        hub.publish(frame, "main", {"step": 1}, bgr=False)
    assert hub.streams["main"].layout.shape == (480, 640, 3)


def test_a_wanted_frame_is_copied_once() -> None:
    async def inner() -> None:
        hub, woken, frame = Hub(), list[Stream](), scene()
        hub.attach(asyncio.get_running_loop())
        hub.wake_encoder = woken.append
        stream = hub.stream("main")
        task = asyncio.create_task(hub.subscribe("main").get())
        await until(lambda: stream.demand_at < 1e18)
        for step in range(5):
            hub.publish(frame, "main", {"step": step}, bgr=True)
        assert woken == [stream], "one is due, the others are not"
        frame[:] = 0
        capture = stream.box.take()
        assert capture is not None
        np.testing.assert_array_equal(capture.pixels, scene())
        assert (capture.meta, capture.bgr) == ({"step": 0}, True)
        task.cancel()

    run(inner())


@pytest.mark.parametrize("meta", [{"a": object()}, {"a": [1]}])
def test_what_is_wrong_is_said_whether_somebody_watches_or_not(meta: dict[str, Any]) -> None:
    hub = Hub()
    with pytest.raises(ValueError, match="as metadata"):
        hub.publish(scene(), "main", meta, bgr=False)
    with pytest.raises(ValueError, match="want uint8 pixels"):
        hub.publish(scene().astype(float), "main", None, bgr=False)
    with pytest.raises(ValueError, match="characters as a stream"):
        hub.publish(scene(), "", None, bgr=False)
    with pytest.raises(ValueError, match="characters as a stream"):
        hub.publish(scene(), 7, None, bgr=False)  # type: ignore[arg-type]


def test_there_are_at_most_so_many_streams() -> None:
    hub = Hub()
    for i in range(MOST_STREAMS):
        hub.stream(f"stream {i}")
    hub.stream("stream 3", "Another title")
    with pytest.raises(ValueError, match="at most 64 streams"):
        hub.stream("one more")
    assert hub.list_streams()[3]["title"] == "Another title"


def test_commands_are_drained_and_the_newest_kept() -> None:
    hub = Hub()
    for i in range(MOST_COMMANDS + 5):
        hub.add_command(Command("step", i))
    commands = hub.take_commands()
    assert [command.value for command in commands] == list(range(5, MOST_COMMANDS + 5))
    assert hub.take_commands() == []


def test_a_tick_tells_of_new_streams_and_viewers_once() -> None:
    async def inner() -> None:
        hub = Hub()
        hub.attach(asyncio.get_running_loop())
        heard = listening(hub)
        hub.stream("main", "The main one")
        hub.tick()
        hub.tick()
        hub.publish(scene(4, 6), "main", None, bgr=False)
        hub.tick()
        hub.subscribe("main")
        hub.tick()
        hub.publish(scene(4, 6), "main", None, bgr=False)
        hub.tick()
        facts = [message["streams"][0] for message in heard if message["type"] == "streams"]
        assert [(each["width"], each["watchers"], each["published"]) for each in facts] == [
            (0, 0, 0),
            (6, 0, 1),
            (6, 1, 1),
        ]
        assert facts[0]["title"] == "The main one"

    run(inner())


def test_states_that_come_fast_are_told_at_the_tick() -> None:
    async def inner() -> None:
        hub = Hub()
        hub.attach(asyncio.get_running_loop())
        heard = listening(hub)
        for step in range(100):
            hub.set_state({"step": step, "commands": ["pause"]})
        await until(lambda: heard)
        await asyncio.sleep(0)
        assert len(heard) == 1
        hub._state_at = 0.0  # a while ago
        hub.tick()
        hub.set_state({"step": 99})
        hub.tick()
        states = [message["state"] for message in heard if message["type"] == "state"]
        assert [state["step"] for state in states] == [99] or [state["step"] for state in states] == [99, 99]
        assert states[-1] == {"step": 99, "commands": ["pause"]}

    run(inner())


def test_a_still_source_is_shown_to_whoever_has_not_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def inner() -> None:
        hub, woken = Hub(fps=1000), list[Stream]()
        hub.attach(asyncio.get_running_loop())
        hub.wake_encoder = woken.append
        stream = hub.stream("main")
        subscription = hub.subscribe("main")
        task = asyncio.create_task(subscription.get())
        await until(lambda: subscription.is_waiting)
        hub.tick()
        assert woken == [], "there is no frame yet"
        hub.publish(scene(), "main", None, bgr=False)
        capture = stream.box.take()
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
        monkeypatch.setattr("torchrl_gpu.streaming.streams.STILL", 0.0)
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

    run(inner())


def test_calls_after_the_end_do_nothing() -> None:
    hub = Hub()

    async def inner() -> None:
        hub.attach(asyncio.get_running_loop())

    run(inner())
    hub.call(pytest.fail, "the loop is closed")
    hub.set_state({"a": 1})
