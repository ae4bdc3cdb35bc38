"""Offers that are answered or refused, and connections from one end to the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiortc", reason="needs the extra webrtc")

from aiohttp import web
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from aiortc.rtcrtpsender import RTCRtpSender

from tests.streaming.pictures import psnr, scene
from tests.streaming.viewers import counted, hub_of, only_loopback, producing, session, until
from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.protocol import ProtocolError, Watch
from torchrl_gpu.streaming.server import StreamServer
from torchrl_gpu.streaming.web import webrtc
from torchrl_gpu.streaming.web.access import AppState
from torchrl_gpu.streaming.web.connection_limit import ConnectionLimit, DescriptorLimit
from torchrl_gpu.streaming.web.settings import ServerSettings

networked = pytest.mark.skipif(only_loopback(), reason="needs a network: ICE has no candidate for 127.0.0.1")
OFFER = "v=0\r\nm=video 9 UDP/TLS/RTP/SAVPF 96\r\n"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "type .*offer"),
        ({"type": "answer", "sdp": OFFER}, "type .*offer"),
        ({"type": "offer", "sdp": 7}, "sdp .*text"),
        ({"type": "offer", "sdp": OFFER + "x" * webrtc.MAX_OFFER}, "sdp .*32768 characters"),
        ({"type": "offer", "sdp": "v=0\r\n"}, "sdp .*nothing"),
        ({"type": "offer", "sdp": OFFER + OFFER}, "sdp .*m=video, m=video"),
        ({"type": "offer", "sdp": OFFER + "m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n"}, "sdp .*m=audio, m=video"),
        ({"type": "offer", "sdp": OFFER + 2000 * "a=rtpmap:96\r\n"}, "sdp .*400 lines.* 2002"),
    ],
)
def test_offer_without_one_video_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        webrtc.read_offer(fields)


def test_candidates_with_names_are_left_out_and_others_beyond_sixteen() -> None:
    candidates = [
        "a=candidate:1 1 udp 2113937151 0b6d6f0a-52a5.local 51472 typ host",
        "a=candidate:2 1 udp 2113937151 192.0.2.7 51473 typ host",
        "a=candidate:3 1 udp 2113937151 2001:db8::7 51474 typ host",
        "a=candidate:4",
    ]
    read = webrtc.read_offer({"type": "offer", "sdp": OFFER + "\n".join(candidates)})
    assert read == OFFER + "\r\n".join(candidates[1:3]) + "\r\n"
    # only so many are tried: the server sends packets there, wherever that is
    candidates = [f"a=candidate:{i} 1 udp 2113937151 192.0.2.{i} 51473 typ host" for i in range(1, 60)]
    read = webrtc.read_offer({"type": "offer", "sdp": OFFER + "\n".join(candidates)})
    assert read == OFFER + "\r\n".join(candidates[:16]) + "\r\n"


class Seat(ExitStack):
    def __init__(self) -> None:
        super().__init__()
        self.given_back = 0
        self.callback(self._give_back)

    def _give_back(self) -> None:
        self.given_back += 1


def state() -> AppState:
    hub = Hub()
    hub.declare("main")
    hub.attach(asyncio.get_running_loop())
    return AppState(ServerSettings(), hub)


async def offer_of(connection: RTCPeerConnection, *codecs: str) -> dict[str, str]:
    """An offer to receive one video in some codecs."""
    transceiver = connection.addTransceiver("video", direction="recvonly")
    known = RTCRtpSender.getCapabilities("video").codecs
    transceiver.setCodecPreferences([each for each in known if each.mimeType in codecs])
    await connection.setLocalDescription(await connection.createOffer())
    return {"type": "offer", "sdp": connection.localDescription.sdp}


def receiver() -> RTCPeerConnection:
    return RTCPeerConnection(RTCConfiguration(iceServers=[]))


async def test_the_answer_is_h264_whatever_the_viewer_prefers() -> None:
    viewer = receiver()
    seat = Seat()
    server = state()
    answer = await webrtc.answer(server, await offer_of(viewer, "video/VP8", "video/H264"), seat)
    assert answer["type"] == "answer"
    assert "H264/90000" in answer["sdp"]
    assert "VP8" not in answer["sdp"]
    assert server.hub.streams["main"].subscriptions[0].codec == "h264"
    for close in list(server.closers):
        await close()
    assert (seat.given_back, server.closers, server.hub.streams["main"].subscriptions) == (1, set(), ())
    await viewer.close()


async def test_an_offer_without_h264_leaves_nothing_behind() -> None:
    viewer = receiver()
    seat = Seat()
    server = state()
    with pytest.raises(ValueError, match=r"sdp .*H\.264"):
        await webrtc.answer(server, await offer_of(viewer, "video/VP8"), seat)
    assert (seat.given_back, server.closers, server.hub.streams["main"].subscriptions) == (1, set(), ())
    await viewer.close()


async def test_the_sockets_of_viewers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    server = state()
    server.connections = ConnectionLimit(8, DescriptorLimit(room=3))
    monkeypatch.setattr(webrtc, "get_host_addresses", lambda use_ipv4, use_ipv6: ["192.0.2.1"])
    for stream, error in (("main", ValueError), ("none", ValueError)):
        with pytest.raises(error), Seat() as seat:
            await webrtc.answer(server, {"type": "offer", "sdp": OFFER, "stream": stream}, seat)
    assert server.connections.reserve(2)
    with pytest.raises(web.HTTPServiceUnavailable):
        await webrtc.answer(server, {"type": "offer", "sdp": OFFER}, Seat())
    server.connections.release(2)
    assert server.connections.reserve(3)


@pytest.mark.parametrize(
    ("stream", "says"),
    [*((each, "stream .*64") for each in (7, None, ["main"])), ("none", "stream .*main")],
)
async def test_a_stream_that_is_none_is_refused(stream: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        await webrtc.answer(state(), {"type": "offer", "sdp": OFFER, "stream": stream}, Seat())


async def test_a_viewer_that_never_connects_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webrtc, "_CONNECT_TIMEOUT", 0.1)
    viewer = receiver()
    seat = Seat()
    server = state()
    offer = await offer_of(viewer, "video/H264")
    await viewer.close()
    await webrtc.answer(server, offer, seat)
    await until(lambda: seat.given_back == 1)
    assert server.closers == set()


@pytest.fixture
def server() -> Iterator[StreamServer]:
    """A server to whose stream main pictures are published."""
    with StreamServer(port=0, heartbeat_s=0.5) as server:
        server.declare("main")
        with producing(server):
            yield server


async def connect(server: StreamServer, viewer: RTCPeerConnection) -> Any:
    """Send a viewer's offer to the server and return its track."""
    tracks: asyncio.Queue[Any] = asyncio.Queue()
    viewer.on("track", tracks.put_nowait)
    offer = await offer_of(viewer, "video/H264")
    async with session() as client, client.post(f"{server.url}webrtc/offer", json=offer) as response:
        answer = await response.json()
    await viewer.setRemoteDescription(RTCSessionDescription(answer["sdp"], answer["type"]))
    return await tracks.get()


@networked
async def test_viewers_share_one_encoding_and_a_late_one_sees_a_picture(server: StreamServer) -> None:
    viewers = [receiver(), receiver()]
    first = await connect(server, viewers[0])
    for _ in range(10):
        await first.recv()
    # The next key frame of its own accord is seconds away.
    late = await connect(server, viewers[1])
    frame = await late.recv()
    picture = frame.to_ndarray(format="rgb24")
    assert picture.shape == (120, 160, 3)
    assert psnr(picture, scene()) > 25
    encoded = counted(hub_of(server), "frames_encoded_total", stream="main", codec="h264")
    sent = counted(hub_of(server), "frames_sent_total", codec="h264", transport="webrtc")
    assert encoded < sent, "two viewers were sent more pictures than were encoded"
    for viewer in viewers:
        await viewer.close()


@networked
@pytest.mark.parametrize(("silence_s", "opens_another"), [(0.5, False), (3600.0, True)])
async def test_silence_on_the_data_channel_and_a_second_one_end_the_connection(
    server: StreamServer, monkeypatch: pytest.MonkeyPatch, silence_s: float, opens_another: bool
) -> None:
    monkeypatch.setattr(webrtc, "_MIN_SILENCE", silence_s)
    viewer, opened = receiver(), asyncio.Event()
    viewer.createDataChannel("meta").on("open", opened.set)
    pictures = asyncio.ensure_future(drain(await connect(server, viewer)))
    await opened.wait()
    assert server.watchers("main") == 1
    if opens_another:
        viewer.createDataChannel("another")
    await until(lambda: server.watchers("main") == 0)
    await viewer.close()
    await pictures


@networked
async def test_a_strangers_packet_is_no_failure_of_the_server(
    server: StreamServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger's packet fails nothing.

    aioice stumbles over one whose priority is empty: `stop` must not raise, nor the log fill with tracebacks.
    """
    viewer = receiver()
    await connect(server, viewer)
    hosts = re.findall(r"a=candidate:\S+ 1 udp \d+ (\S+) (\d+) ", viewer.remoteDescription.sdp)
    host, port = next((host, int(port)) for host, port in hosts if ":" not in host)
    packet = struct.pack(">HHI12sHH", 1, 4, 0x2112A442, bytes(12), 0x24, 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for number in range(1, 4):
            stranger.sendto(packet, (host, port))
            await until(lambda number=number: counted(hub_of(server), "peer_errors_total", package="aioice") >= number)
    await viewer.close()
    lines = [record for record in caplog.records if "over what a peer sent" in record.getMessage()]
    assert [record.exc_info for record in lines if record.levelno >= logging.WARNING] == [None]
    server.stop()


async def test_messages_of_a_data_channel_have_the_rules_of_a_websocket() -> None:
    """The rules of a WebSocket hold.

    The stream of a page's address may yet come, watching another does not end a pause, and the third mistake ends it.
    """
    server = state()
    peer = webrtc.Peer(server, Watch("main", "h264"), Seat())
    said: list[str] = []
    peer.channel = SimpleNamespace(readyState="open", bufferedAmount=0, send=said.append)  # type: ignore[assignment]

    def hear(**message: Any) -> int:
        peer.on_message(json.dumps(message))
        return server.hub.watchers(None)

    for _ in range(4):
        hear(type="watch", stream="late")
    assert ["stream must be one of main" in text for text in said] == [True] * 4
    server.hub.declare("late")
    server.hub.tick()
    assert (server.hub.watchers("main"), server.hub.watchers("late")) == (0, 1)
    assert (hear(type="pause", on=True), hear(type="watch", stream="main")) == (0, 0)
    hear(type="pause", on=False)
    assert server.hub.watchers("main") == 1
    for _ in range(2):
        hear()
    assert peer.closing is None
    hear()
    assert peer.closing is not None
    await peer.closing


@pytest.mark.parametrize(("fps", "interval"), [(2, 0.5), (None, 1 / 30), (60, 1 / 30)])
async def test_an_offer_and_a_watch_set_the_rate_of_pictures(fps: float | None, interval: float) -> None:
    server, seat = state(), Seat()
    viewer = receiver()
    await webrtc.answer(server, await offer_of(viewer, "video/H264") | {"fps": fps}, seat)
    (subscription,) = server.hub.streams["main"].subscriptions
    assert subscription.schedule.interval == interval
    peer = next(iter(server.closers)).__self__  # type: ignore[attr-defined]
    peer.on_message(json.dumps({"type": "watch", "stream": "main", "fps": 4}))
    (subscription,) = server.hub.streams["main"].subscriptions
    assert subscription.schedule.interval == 0.25
    await peer.close()
    await viewer.close()


@pytest.mark.parametrize("fields", [{"fps": 0}, {"fps": "many"}, {"codec": "jpeg"}, {"beside": "main"}])
async def test_options_that_webrtc_lacks_are_refused_in_an_offer_and_in_a_watch(fields: dict[str, Any]) -> None:
    server = state()
    server.hub.declare("main:seen")
    wanted = "frames per second" if "fps" in fields else next(iter(fields))
    with pytest.raises(ProtocolError, match=wanted):
        await webrtc.answer(server, {"type": "offer", "sdp": OFFER} | fields, Seat())
    peer, said = webrtc.Peer(server, Watch("main", "h264"), Seat()), []
    peer.send_text = said.append  # type: ignore[method-assign]
    peer.on_message(json.dumps({"type": "watch", "stream": "main"} | fields))
    assert [wanted in text for text in said] == [True]
    await peer.close()


async def test_viewer_that_takes_nothing_is_sent_nothing() -> None:
    peer = webrtc.Peer(state(), Watch("main", "h264"), Seat())
    said: list[str] = []
    channel = SimpleNamespace(readyState="open", bufferedAmount=0, send=said.append)
    peer.send_text("none to say it on")
    peer.channel = channel  # type: ignore[assignment]
    peer.send_text("one")
    channel.bufferedAmount = 1 << 20
    peer.send_text("two")
    channel.bufferedAmount, channel.readyState = 0, "closing"
    peer.send_text("three")
    assert said == ["one"]
    await peer.close()


async def drain(track: Any) -> None:
    with contextlib.suppress(MediaStreamError):
        while True:
            await track.recv()


@pytest.fixture
def hub() -> Hub:
    made = Hub()
    made.declare("main"), made.declare("other")
    return made


def give(hub: Hub, seq: int, *, captured: float = 100.0, key: bool = True, stream: str = "main") -> None:
    encoded = EncodedPicture(stream, "h264", b"\0\0\1" + bytes([seq]), key, seq, captured, 64, 48)
    hub.deliver(hub.streams[stream], encoded)


async def waits(track: webrtc.PacketTrack) -> asyncio.Task[Any]:
    """A `recv` that has gone as far as it can without a picture."""
    task = asyncio.ensure_future(track.recv())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_packet_carries_the_picture_and_the_time_of_its_capture(hub: Hub) -> None:
    track = webrtc.PacketTrack(hub, "main")
    give(hub, 1, captured=100.5)
    packet = await track.recv()
    assert bytes(packet) == b"\0\0\1\1"
    assert packet.time_base == Fraction(1, 90_000)
    assert packet.pts == 100.5 * 90_000
    assert track.last is not None
    assert track.last.seq == 1
    track.stop()


async def test_times_rise_even_for_one_picture_sent_again_and_clocks_turned_back(hub: Hub) -> None:
    track, times = webrtc.PacketTrack(hub, "main"), []
    for seq, captured in enumerate([100.0, 100.0, 99.0, 100.1]):
        give(hub, seq, captured=captured)
        times.append((await track.recv()).pts)
    assert times == [9_000_000, 9_000_001, 9_000_002, 9_009_000]
    track.stop()


async def test_a_paused_track_costs_the_stream_nothing_and_begins_again_at_a_key_frame(hub: Hub) -> None:
    track = webrtc.PacketTrack(hub, "main")
    give(hub, 1)
    await track.recv()
    track.leave()
    assert hub.streams["main"].subscriptions == ()
    receiving = await waits(track)
    track.watch("main")
    give(hub, 2, key=False)
    give(hub, 3)
    assert bytes(await receiving)[-1] == 3
    track.stop()


async def test_another_stream_takes_the_place_of_the_first(hub: Hub) -> None:
    track = webrtc.PacketTrack(hub, "main")
    receiving = await waits(track)
    track.watch("other")
    give(hub, 1)
    give(hub, 2, stream="other")
    assert bytes(await receiving)[-1] == 2
    assert hub.streams["main"].subscriptions == ()
    with pytest.raises(ProtocolError, match=r"stream .*main, other"):
        track.watch("none")
    assert len(hub.streams["other"].subscriptions) == 1, "a wrong name changes nothing"
    track.stop()


async def test_a_stream_that_cannot_be_encoded_ends_the_track(hub: Hub) -> None:
    track = webrtc.PacketTrack(hub, "main")
    receiving = await waits(track)
    hub.end_codec(hub.streams["main"], "h264", "no codec")
    with pytest.raises(MediaStreamError):
        await receiving
    assert track.readyState == "ended"


async def test_a_viewer_that_lost_a_picture_is_given_a_key_frame(hub: Hub) -> None:
    track = webrtc.PacketTrack(hub, "main")
    hub.streams["main"].key_asked = False
    track.request_key()
    assert hub.streams["main"].key_asked
    track.leave()
    # Without a stream nothing happens.
    track.request_key()
    track.stop()


async def test_the_origin_is_what_the_sender_adds_to_the_times(hub: Hub) -> None:
    track = webrtc.PacketTrack(hub, "main")
    track.sender = SimpleNamespace(_RTCRtpSender__rtp_timestamp=0)
    give(hub, 1, captured=100.0)
    packet = await track.recv()
    assert track.origin is None, "nothing has been sent yet"
    track.sender._RTCRtpSender__rtp_timestamp = (packet.pts + 2**32 - 5) % 2**32
    give(hub, 2, captured=101.0)
    await track.recv()
    assert track.origin == 2**32 - 5
    track.stop()
