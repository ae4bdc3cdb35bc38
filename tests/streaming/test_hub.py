"""Where frames come in: what publishing does, and above all what it leaves undone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.no_host_reads import NoHostReads
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


def test_with_nobody_watching_nothing_is_copied_and_nothing_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("somebody worked")

    monkeypatch.setattr(hub_module, "copy_pixels", fail)
    hub = Hub()
    hub.wake_encoder = fail
    for _ in range(3):
        hub.publish(scene(), "main", {"step": 1}, bgr=False)
    hub.end_episode("main", {"return": 1.0})
    assert hub.streams["main"].published == 3
    assert hub.streams["main"].layout.shape == scene().shape
    assert hub.streams["main"].box.take() is None


class Nothing(TorchDispatchMode):
    """Under it no operator may run: only what the host knows of a tensor may be asked."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was run")


def test_with_nobody_watching_a_gpu_is_not_asked() -> None:
    hub = Hub()
    shapes = [(480, 640, 3), (16, 48, 64, 3), (480, 640, 4), (480, 640)]
    frames = [torch.zeros(shape, dtype=torch.uint8) for shape in shapes] + [torch.zeros(480, 640)]
    with NoHostReads(), Nothing():
        for frame in frames:
            hub.publish(frame, "main", {"step": 1}, bgr=False)
    assert hub.streams["main"].layout.format.kind == "depth"


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
    with pytest.raises(ValueError, match="want a frame of uint8"):
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
        tasks = [asyncio.create_task(each.get()) for each in (subscription, late)]
        await until(lambda: subscription.is_waiting and late.is_waiting)
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
