"""Encoded pictures as a WebRTC track: packets that need no encoder, so that all viewers of a stream share one."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import Any

import av
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError

from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.streams import Subscription, SubscriptionClosed

CODEC = "h264"  # the one of `encoder.CODECS` that aiortc packs and browsers take
CLOCK_RATE = 90_000  # RTP ticks a second, for video
_WRAP = 2**32


class PacketTrack(MediaStreamTrack):
    """The packets of a stream of a hub, as a track that needs no encoder; `UnknownStream` where there is none.

    Attributes:
        last: The picture of the newest packet.
        sender: aiortc's, which sends the packets.
        origin: Offset that it adds to RTP timestamps; None until it is known.
    """

    kind = "video"

    def __init__(self, hub: Hub, stream: str) -> None:
        super().__init__()
        self.last: EncodedPicture | None = None
        self.sender: Any = None
        self.origin: int | None = None
        self._hub = hub
        self._ticks = -1
        self._dropped = 0
        self._changed = asyncio.Event()
        self._subscription: Subscription | None = hub.subscribe(stream, CODEC)

    @property
    def dropped(self) -> int:
        return self._dropped + (self._subscription.dropped if self._subscription else 0)

    async def recv(self) -> av.Packet:
        """The next packet. Its time is that of the capture, so that a viewer can tell how old the picture is."""
        sent = getattr(self.sender, "_RTCRtpSender__rtp_timestamp", None)  # the last time and a random offset
        if sent is not None and self._ticks >= 0:
            self.origin = (sent - self._ticks) % _WRAP
        encoded = await self._next()
        packet = av.Packet(encoded.data)
        # Two pictures must not share a time: a source that stands still has its last one encoded again.
        self._ticks = max(self._ticks + 1, round(encoded.captured * CLOCK_RATE))
        packet.pts, packet.time_base = self._ticks, Fraction(1, CLOCK_RATE)
        self.last = encoded
        self._hub.metrics.count_sent(CODEC, "webrtc", len(encoded.data))
        return packet

    def watch(self, stream: str) -> None:
        """Goes on with another stream, from a key frame."""
        subscription = self._hub.subscribe(stream, CODEC)
        self.leave()
        self._subscription = subscription
        self._changed.set()

    def request_key(self) -> None:
        """Asks for a key frame: the viewer has lost one, or has just come."""
        if self._subscription is not None:
            self._subscription.request_key()

    def stop(self) -> None:
        self.leave()
        super().stop()

    async def _next(self) -> EncodedPicture:
        while self.readyState == "live":
            subscription = self._subscription
            if subscription is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                return await subscription.get()
            except SubscriptionClosed:
                if subscription is self._subscription:
                    self.stop()
        raise MediaStreamError

    def leave(self) -> None:
        """Takes no more pictures until it watches again."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self._dropped += subscription.dropped
            subscription.close()
        self._changed.set()
