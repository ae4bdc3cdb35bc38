"""Packets of a stream as a track: times, key frames, and what a viewer may change. No network, no encoder."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiortc", reason="needs the extra webrtc")

from aiortc.mediastreams import MediaStreamError

from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.protocol import ProtocolError
from torchrl_gpu.streaming.web.webrtc import PacketTrack


@pytest.fixture
def hub() -> Hub:
    made = Hub()
    made.declare("main"), made.declare("other")
    return made


def give(hub: Hub, seq: int, *, captured: float = 100.0, key: bool = True, stream: str = "main") -> None:
    encoded = EncodedPicture(stream, "h264", b"\0\0\1" + bytes([seq]), key, seq, captured, 64, 48)
    hub.deliver(hub.streams[stream], encoded)


async def waits(track: PacketTrack) -> asyncio.Task[Any]:
    """A `recv` that has gone as far as it can without a picture."""
    task = asyncio.ensure_future(track.recv())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_packet_carries_the_picture_and_the_time_of_its_capture(hub: Hub) -> None:
    track = PacketTrack(hub, "main")
    give(hub, 1, captured=100.5)
    packet = await track.recv()
    assert bytes(packet) == b"\0\0\1\1"
    assert packet.time_base == Fraction(1, 90_000)
    assert packet.pts == 100.5 * 90_000
    assert track.last is not None
    assert track.last.seq == 1
    track.stop()


async def test_times_rise_even_for_one_picture_sent_again_and_clocks_turned_back(hub: Hub) -> None:
    track, times = PacketTrack(hub, "main"), []
    for seq, captured in enumerate([100.0, 100.0, 99.0, 100.1]):
        give(hub, seq, captured=captured)
        times.append((await track.recv()).pts)
    assert times == [9_000_000, 9_000_001, 9_000_002, 9_009_000]
    track.stop()


async def test_a_paused_track_costs_the_stream_nothing_and_begins_again_at_a_key_frame(hub: Hub) -> None:
    track = PacketTrack(hub, "main")
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
    track = PacketTrack(hub, "main")
    receiving = await waits(track)
    track.watch("other")
    give(hub, 1)
    give(hub, 2, stream="other")
    assert bytes(await receiving)[-1] == 2
    assert hub.streams["main"].subscriptions == ()
    with pytest.raises(ProtocolError, match="want one of the streams main, other"):
        track.watch("none")
    assert len(hub.streams["other"].subscriptions) == 1, "a wrong name changes nothing"
    track.stop()


async def test_a_stream_that_cannot_be_encoded_ends_the_track(hub: Hub) -> None:
    track = PacketTrack(hub, "main")
    receiving = await waits(track)
    hub.end_codec(hub.streams["main"], "h264", "no codec")
    with pytest.raises(MediaStreamError):
        await receiving
    assert track.readyState == "ended"


async def test_a_viewer_that_lost_a_picture_is_given_a_key_frame(hub: Hub) -> None:
    track = PacketTrack(hub, "main")
    hub.streams["main"].key_asked = False
    track.request_key()
    assert hub.streams["main"].key_asked
    track.leave()
    track.request_key()  # of no stream: nothing happens
    track.stop()


async def test_the_origin_is_what_the_sender_adds_to_the_times(hub: Hub) -> None:
    track = PacketTrack(hub, "main")
    track.sender = SimpleNamespace(_RTCRtpSender__rtp_timestamp=0)
    give(hub, 1, captured=100.0)
    packet = await track.recv()
    assert track.origin is None, "nothing has been sent yet"
    track.sender._RTCRtpSender__rtp_timestamp = (packet.pts + 2**32 - 5) % 2**32
    give(hub, 2, captured=101.0)
    await track.recv()
    assert track.origin == 2**32 - 5
    track.stop()
