"""Viewers on a WebSocket: newest wins, at their own rate, and within their role."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import math
import socket
import statistics
import time
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import WSMsgType

from tests.streaming.pictures import decode_h264, psnr, scene
from tests.streaming.viewers import (
    TIMEOUT,
    Viewer,
    address,
    counted,
    hub_of,
    producing,
    session,
    until,
    viewer,
    watching,
)
from torchrl_gpu.streaming.server import StreamServer
from torchrl_gpu.streaming.web.sockets import AckWindow

UPGRADE = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
UPGRADE |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
FIELDS = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
HANDSHAKE = f"GET /ws HTTP/1.1\r\nHost: localhost\r\n{FIELDS}\r\n".encode()


async def shown(stream_server: StreamServer, guest: Viewer, step: int, *, ack: bool = True) -> dict[str, Any]:
    """Publish a frame as soon as it is wanted.

    Returns the header that comes.
    """
    await until(stream_server.wanted)
    stream_server.publish(scene(), meta={"step": step})
    return (await guest.picture(ack=ack))[0]


def keep_nothing(stream_server: StreamServer) -> None:
    """Let a frame be wanted only while somebody waits for it.

    This holds until the next picture.
    """
    hub_of(stream_server).declare("main").schedule.taken_at = math.inf


async def test_greeting_describes_the_server(stream_server: StreamServer) -> None:
    stream_server.declare("main", "The main one")
    async with viewer(stream_server) as guest:
        hello = await guest.text("hello")
        assert hello["role"] == "control"
        assert hello["transports"] == ["h264", "jpeg"]
        assert hello["streams"][0]["title"] == "The main one"
        await guest.say("ping", t=5)
        pong = await guest.text("pong")
        assert (pong["t"], pong["now"] >= hello["now"]) == (5, True)


async def test_two_pictures_are_under_way_and_no_more(stream_server: StreamServer) -> None:
    async with watching(stream_server) as guest:
        first = await shown(stream_server, guest, 0, ack=False)
        second = await shown(stream_server, guest, 1, ack=False)
        assert [first["meta"]["step"], second["meta"]["step"]] == [0, 1]
        await guest.quiet()
        keep_nothing(stream_server)
        assert not stream_server.wanted(), "a viewer that is behind wants nothing"
        stream_server.publish(scene(), meta={"step": 2})
        # There is no such picture.
        await guest.say("ack", seq=10_000)
        await guest.quiet()
        assert not stream_server.wanted()
        await guest.say("ack", seq=first["seq"])
        assert (await shown(stream_server, guest, 3))["meta"]["step"] == 3
        for name, number in (("frames_encoded_total", 3), ("frames_published_total", 4)):
            labels = {"codec": "jpeg"} if name == "frames_encoded_total" else {}
            assert counted(hub_of(stream_server), name, stream="main", **labels) == number


async def test_a_slow_viewer_gets_the_newest_and_slows_nobody(stream_server: StreamServer) -> None:
    async with watching(stream_server) as slow, watching(stream_server) as quick:
        await until(lambda: stream_server.watchers() == 2)
        with producing(stream_server) as steps:
            behind = [(await slow.picture(ack=False))[0] for _ in range(2)]
            seen = [(await quick.picture())[0] for _ in range(40)]
            await slow.quiet()
            await slow.say("ack", seq=behind[0]["seq"])
            fresh, _ = await slow.picture(ack=False)
            assert fresh["meta"]["step"] >= seen[-1]["meta"]["step"] - 2, "it is older than what others saw long ago"
        assert [header["meta"]["step"] for header in seen] == sorted(header["meta"]["step"] for header in seen)
        assert seen[-1]["dropped"] < fresh["dropped"]
        assert fresh["dropped"] >= 30
        assert len(steps) >= 40


async def test_h264_goes_on_with_a_key_frame_after_a_gap(stream_server: StreamServer) -> None:
    async with watching(stream_server, "h264") as slow, watching(stream_server, "h264") as quick:
        await until(lambda: stream_server.watchers() == 2)
        with producing(stream_server):
            before = [await slow.picture(ack=False) for _ in range(2)]
            for _ in range(30):
                await quick.picture()
            # It was a while ago.
            hub_of(stream_server).streams["main"].key_at = 0.0
            for header, _ in before:
                await slow.say("ack", seq=header["seq"])
            quick_on = asyncio.create_task(keep_watching(quick))
            after = [await slow.picture() for _ in range(12)]
            quick_on.cancel()
            await asyncio.gather(quick_on, return_exceptions=True)
        gaps = [i for i, (header, _) in enumerate(after) if header["key"]]
        assert gaps, "no key frame came"
        decoded = decode_h264([payload for _, payload in after[gaps[0] :]])
        assert psnr(decoded[-1], scene()) > 28
        first = after[gaps[0]][0]
        assert first["dropped"] > 0
        assert_no_gap([header for header, _ in before + after])


async def keep_watching(guest: Viewer) -> None:
    while True:
        await guest.picture()


def assert_no_gap(headers: list[dict[str, Any]]) -> None:
    """Whenever pictures were left out, the next one is a key picture."""
    for header, following in itertools.pairwise(headers):
        assert following["key"] or following["dropped"] == header["dropped"]


async def test_a_paused_viewer_counts_as_none(stream_server: StreamServer) -> None:
    async with watching(stream_server) as guest:
        await shown(stream_server, guest, 0)
        await guest.say("pause", on=True)
        await until(lambda: stream_server.watchers() == 0)
        keep_nothing(stream_server)
        assert not stream_server.wanted()
        await guest.say("replay")
        assert "pause" in (await guest.text("error"))["message"]
        await guest.watch()
        await guest.quiet()
        assert counted(hub_of(stream_server), "frames_sent_total", codec="jpeg", transport="websocket") == 1
        assert stream_server.watchers() == 0, "watching another does not end the pause"
        await guest.say("pause", on=False)
        assert (await guest.picture())[0]["meta"]["step"] == 0, "the newest, at once"
        assert (await shown(stream_server, guest, 1))["dropped"] == 0
        await guest.say("pause", on=False)
        await guest.quiet()
        assert stream_server.watchers() == 1


async def test_a_clock_that_is_set_back_takes_nothing_from_the_replay(
    stream_server: StreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = time.time
    async with watching(stream_server) as guest:
        live = [await shown(stream_server, guest, step) for step in range(2)]
        monkeypatch.setattr(time, "time", lambda: right() - 60)
        live += [await shown(stream_server, guest, step) for step in range(2, 4)]
        times = [header["captured"] for header in live]
        assert times == sorted(times)
        clip = hub_of(stream_server).streams["main"].replay.clip()
        assert [picture.meta["step"] for picture in clip] == [0, 1, 2, 3]


async def test_replay_at_the_viewers_own_rate(stream_server: StreamServer) -> None:
    stream_server.declare("main")
    async with viewer(stream_server) as guest:
        await guest.say("replay")
        assert "replay: watch a stream" in (await guest.text("error"))["message"]
        await guest.watch()
        await guest.say("replay")
        assert "nothing has been kept" in (await guest.text("error"))["message"]
        live = [await shown(stream_server, guest, step) for step in range(30)]
        await guest.say("replay")
        behind = [(await guest.picture(ack=False))[0] for _ in range(2)]
        over = time.monotonic() + live[-1]["captured"] - live[0]["captured"]
        await until(lambda: time.monotonic() > over, "the end of the clip")
        await guest.say("ack", seq=behind[1]["seq"])
        last, _ = await guest.picture()
        assert all(header["replay"] for header in (*behind, last))
        assert last["meta"]["step"] == 29, "a slow viewer sees fewer pictures, not a slower world"
        await guest.say("replay")
        steps = [0]
        while steps[-1] < 29:
            steps.append((await guest.picture())[0]["meta"]["step"])
        assert steps == sorted(steps)


@pytest.mark.server(token="drive", view_token="look")
async def test_a_view_may_not_command(stream_server: StreamServer) -> None:
    async with viewer(stream_server, "look") as guest:
        assert (await guest.text("hello"))["role"] == "view"
        for _ in range(5):
            await guest.say("command", name="reset")
            assert "only control" in (await guest.text("error"))["message"]
        assert stream_server.commands() == []
    async with viewer(stream_server, "drive") as guest:
        assert (await guest.text("hello"))["role"] == "control"
        await guest.say("command", name="reset")
        await guest.quiet()
        assert [command.name for command in stream_server.commands()] == ["reset"]


async def test_a_stream_that_is_not_there(stream_server: StreamServer) -> None:
    stream_server.declare("main")
    async with viewer(stream_server) as guest:
        for _ in range(5):
            await guest.watch("other")
            assert "stream must be one of main" in (await guest.text("error"))["message"]
        for _ in range(2):
            await guest.watch("main")
        await shown(stream_server, guest, 0)
        assert stream_server.watchers() == 1


async def test_a_stream_that_is_not_there_yet(stream_server: StreamServer) -> None:
    async with viewer(stream_server) as guest:
        await guest.watch("late")
        await guest.text("error")
        stream_server.declare("late")
        await until(lambda: stream_server.watchers("late") == 1)
        await guest.watch("later")
        await guest.text("error")
        await guest.watch("late")
        stream_server.declare("later")
        while "later" not in {each["name"] for each in (await guest.text("streams"))["streams"]}:
            pass
        await guest.quiet()
        assert stream_server.watchers("late") == 1, "it has chosen another meanwhile"


async def test_three_mistakes_and_the_socket_is_closed(stream_server: StreamServer) -> None:
    async with viewer(stream_server) as guest:
        await guest.socket.send_str("nonsense")
        await guest.socket.send_bytes(b"nonsense")
        await guest.socket.send_str('{"type": "shutdown"}')
        for _ in range(3):
            await guest.text("error")
        assert await guest.end() == 1008
    assert counted(hub_of(stream_server), "bad_messages_total") == 3


@pytest.mark.parametrize("size", [4_097, 5_000_000])
async def test_a_message_that_is_too_large_closes_the_socket(stream_server: StreamServer, size: int) -> None:
    async with viewer(stream_server) as guest:
        try:
            await guest.socket.send_str(json.dumps({"type": "ping", "t": 1, "pad": "a" * size}))
            assert await guest.end() == 1009
        except ConnectionError:
            assert size > 4_097, "the server closed before all of it was sent"
    async with viewer(stream_server) as guest:
        await guest.quiet()


async def test_a_flood_of_messages_closes_the_socket(stream_server: StreamServer) -> None:
    async with viewer(stream_server) as guest:
        try:
            for i in range(5_000):
                await guest.say("ack", seq=i)
        except ConnectionError:
            pass
        else:
            assert await guest.end() == 1008


def control(opcode: int, payload: bytes = b"") -> bytes:
    """A frame of a client, masked with zeros."""
    return bytes([opcode, 0x80 | len(payload), 0, 0, 0, 0]) + payload


FLOODS = {
    "pings": control(0x89),
    "long pings": control(0x89, bytes(125)),
    "pongs": control(0x8A),
    "fragments without an end": control(0x00),
    "empty texts": control(0x81),
    "empty bytes": control(0x82),
}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.server(heartbeat_s=600.0, fps=60.0)
async def test_a_flood_of_frames_ends_its_socket_and_slows_nobody(stream_server: StreamServer, flood: str) -> None:
    """Frames that aiohttp would answer or join are counted too.

    It does so below the messages.
    """

    async def pour(stream_server: StreamServer) -> None:
        """Sends until the server closes, and fails if it does not."""
        reader, writer = await asyncio.open_connection("127.0.0.1", stream_server.port)
        # A text that continues.
        writer.write(HANDSHAKE + control(0x01))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        heard = asyncio.create_task(reader.read(-1))
        # A reset is an end, too.
        with contextlib.suppress(ConnectionError):
            for _ in range(3_000):
                writer.write(100 * FLOODS[flood])
                await writer.drain()
                await asyncio.sleep(0)
            said = await asyncio.wait_for(heard, TIMEOUT)
            closing = said.rfind(b"\x88", 0, -3)
            assert int.from_bytes(said[closing + 2 : closing + 4], "big") in (1002, 1008), "a fault, or a flood"
        heard.cancel()
        await asyncio.gather(heard, return_exceptions=True)
        writer.close()

    async with watching(stream_server) as guest:
        with producing(stream_server):
            floods = [asyncio.create_task(pour(stream_server)) for _ in range(2)]
            seen = 0
            while not all(each.done() for each in floods):
                await guest.picture()
                seen += 1
            for _ in range(5):
                await guest.picture()
            assert seen > 0
            await asyncio.gather(*floods)
    await until(lambda: counted(hub_of(stream_server), "clients", transport="websocket") == 0)


async def test_pings_within_the_limit_are_answered(stream_server: StreamServer) -> None:
    async with session() as client, client.ws_connect(address(stream_server, "ws"), autoping=False) as connection:
        assert (await connection.receive_json())["type"] == "hello"
        await connection.pong(b"that nobody asked for")
        for word in (b"", b"one", bytes(125)):
            await connection.ping(word)
            answer = await connection.receive(TIMEOUT)
            assert (answer.type, answer.data) == (WSMsgType.PONG, word)


@pytest.mark.server(max_clients=2)
async def test_seats_are_limited_and_given_back(stream_server: StreamServer) -> None:
    async with session() as client:
        async with viewer(stream_server), viewer(stream_server):
            async with client.get(address(stream_server, "ws"), headers=UPGRADE) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
            async with client.get(address(stream_server, "stream.mjpg")) as answer:
                assert answer.status == 503
            async with client.get(address(stream_server, "streams")) as answer:
                assert answer.status == 200
        hub = hub_of(stream_server)
        await until(lambda: counted(hub, "clients", transport="websocket") == 0)
        async with viewer(stream_server) as guest:
            await guest.quiet()
        assert counted(hub, "refused_total", reason="full") == 2


@pytest.mark.server(heartbeat_s=0.1)
@pytest.mark.parametrize("reads", [True, False])
async def test_a_dead_socket_is_dropped(stream_server: StreamServer, reads: bool) -> None:
    """One that answers no ping, and one that does not even read what it is sent."""
    stream_server.declare("main")
    frame, hub = scene(800, 1200), hub_of(stream_server)
    with dead_socket(stream_server) as connection, producing(stream_server, frame=frame):
        await until(lambda: counted(hub, "frames_sent_total", codec="jpeg", transport="websocket"))
        if reads:
            connection.setblocking(False)
            await until(lambda: not counted(hub, "clients", transport="websocket") or drain(connection))
        await until(lambda: counted(hub, "clients", transport="websocket") == 0)
        await until(lambda: stream_server.watchers() == 0)
        await until(lambda: not stream_server.wanted())


def drain(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 20):
            pass
    except BlockingIOError:
        return False
    return True


def dead_socket(stream_server: StreamServer) -> socket.socket:
    """A socket that has asked for a stream by hand, and answers nothing from then on."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", stream_server.port))
    connection.sendall(HANDSHAKE)
    assert connection.recv(12) == b"HTTP/1.1 101"
    message = b'{"type": "watch", "stream": "main"}'
    # The mask is zeros.
    connection.sendall(bytes([0x81, 0x80 | len(message), 0, 0, 0, 0]) + message)
    return connection


async def test_a_viewer_waits_for_a_family_that_is_declared_later(stream_server: StreamServer) -> None:
    async with viewer(stream_server) as guest:
        await guest.watch("env3")
        assert "stream must be one of" in (await guest.text("error"))["message"]
        stream_server.declare_family("env", 8)
        await until(lambda: stream_server.wanted("env3"))
        stream_server.publish(scene(), "env3")
        assert (await guest.picture())[0]["stream"] == "env3"


async def test_a_paused_viewer_whose_stream_is_gone(stream_server: StreamServer) -> None:
    hub = hub_of(stream_server)
    stream_server.declare_family("env", 8)
    async with viewer(stream_server) as guest:
        await guest.watch("env3")
        await until(lambda: stream_server.wanted("env3"))
        await guest.say("pause", on=True)
        await guest.quiet()
        hub.streams["env3"].idle_since = -1e9
        hub.tick()
        assert "env3" not in hub.streams
        await guest.say("replay")
        assert "nothing has been kept" in (await guest.text("error"))["message"]
        await guest.say("pause", on=False)
        await until(lambda: stream_server.wanted("env3"))
        stream_server.publish(scene(), "env3")
        assert (await guest.picture())[0]["stream"] == "env3"


async def test_replay_of_a_stream_that_came_beside_reaches_a_slow_viewer(stream_server: StreamServer) -> None:
    """The replay holds the picture that came beside and was not acknowledged then."""
    seen = "main:seen"
    for name in ("main", seen):
        stream_server.declare(name)
    async with viewer(stream_server) as guest:
        await guest.say("watch", stream="main", beside=seen)
        await until(lambda: seen in stream_server.wanted_streams())
        stream_server.publish(scene(), seen)
        beside, _ = await guest.picture(ack=False)
        (listener,) = hub_of(stream_server).listeners
        listener.__self__.window.limit = 1  # type: ignore[attr-defined]
        await guest.watch(seen)
        live, _ = await guest.picture()
        assert live["stream"] == seen
        await guest.say("replay")
        again, _ = await guest.picture()
        assert (again["seq"], again["replay"]) == (beside["seq"], True)
        await until(lambda: seen in stream_server.wanted_streams())
        stream_server.publish(scene(shift=3), seen)
        assert (await guest.picture())[0]["replay"] is False, "the live stream goes on"


async def test_second_stream_comes_between_pictures_of_the_first(stream_server: StreamServer) -> None:
    for name in ("main", "main:seen"):
        stream_server.declare(name)
    with producing(stream_server), producing(stream_server, "main:seen"):
        async with viewer(stream_server) as guest:
            await guest.say("watch", stream="main", codec="h264", beside="main:seen")
            found: dict[str, list[dict[str, Any]]] = {"main": [], "main:seen": []}
            while len(found["main"]) < 20 or len(found["main:seen"]) < 2:
                header, _ = await guest.picture(ack=False)
                found[header["stream"]].append(header)
                if header["stream"] == "main" or len(found["main:seen"]) == 1:
                    await guest.say("ack", seq=header["seq"])
            assert {each["codec"] for each in found["main"]} == {"h264"}
            assert {each["codec"] for each in found["main:seen"]} == {"jpeg"}
            (seen,) = hub_of(stream_server).streams["main:seen"].subscriptions
            assert seen.schedule.interval == 0.1, "at most ten a second"
            for _ in range(40):
                header, _ = await guest.picture()
                assert header["stream"] == "main", "one at a time, which holds nothing else up"
            await guest.say("pause", on=True)
            await until(lambda: stream_server.watchers() == 0)
            await guest.say("pause", on=False)
            await until(lambda: stream_server.watchers("main:seen") == 1)
            await guest.watch()
            await until(lambda: (stream_server.watchers("main"), stream_server.watchers("main:seen")) == (1, 0))
            for nothing in ("main", "nobody", None):
                await guest.say("watch", stream="main", beside=nothing)
                await guest.picture()
                assert stream_server.watchers() == 1
            assert not [text for text in guest.texts if text["type"] == "error"]
        await until(lambda: stream_server.watchers() == 0)


FPS = 30


@dataclass
class Seen:
    """Pictures per second in a viewer's last seconds.

    And their age when they were painted, seconds.
    """

    rate: float
    age: float


def watch(paint: float, way: float, *, duration: float = 20.0, window: AckWindow | None = None) -> Seen:
    """Simulate a viewer that takes `paint` seconds for a picture.

    It is `way` seconds from the server.

    The server has a new picture 30 times a second, and sends the newest as soon as the window is open.
    """
    window = window or AckWindow(1 / FPS)
    events: list[tuple[float, str, int]] = [(i / FPS, "frame", i) for i in range(int(duration * FPS))]
    newest = -1
    sent = -1
    free_at = 0.0
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
def test_fast_viewer_sees_every_picture_at_once(paint: float, way: float) -> None:
    seen = watch(paint, way)
    assert seen.rate == pytest.approx(FPS, rel=0.01)
    assert seen.age <= paint + way + 1e-6


def test_a_viewer_that_gets_quicker_is_given_all_again() -> None:
    window = AckWindow(1 / FPS)
    assert watch(0.2, 0.002, window=window).rate < 6
    assert watch(0.005, 0.002, window=window).rate == pytest.approx(FPS, rel=0.01)


def test_acknowledgement_window_by_hand() -> None:
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
    # 8 is acknowledged with it.
    assert window.acknowledge(9, 4.5) == 0.5
    window.send(10, 5.0)
    assert window.is_open
    assert window.acknowledge(5, 6.0) is None
