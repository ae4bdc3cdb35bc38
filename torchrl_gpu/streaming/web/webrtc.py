"""WebRTC: the H.264 that viewers on WebSockets get, sent as RTP.

Nothing is encoded for one viewer alone. It needs the extra `webrtc`; only the path that answers offers imports this
module.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack
from fractions import Fraction

import av
from aiohttp import web
from aioice.ice import get_host_addresses
from aiortc import MediaStreamTrack, RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from aiortc.rtcrtpsender import RTCRtpSender

from torchrl_gpu.streaming.broadcast import protocol
from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.protocol import ProtocolError, Watch
from torchrl_gpu.streaming.broadcast.streams import Subscription, SubscriptionClosed
from torchrl_gpu.streaming.web.access import AppState, error_body
from torchrl_gpu.streaming.web.viewer import Viewer

_LOG = logging.getLogger(__name__)
# The one of `encoder.CODECS` that aiortc packs and browsers take.
CODEC = "h264"
# RTP ticks a second, for video.
CLOCK_RATE = 90_000
# RTP timestamps have 32 bits.
_WRAP = 2**32
# Characters of an offer.
MAX_OFFER = 32_768
_CONNECT_TIMEOUT = 10.0  # seconds
# Seconds between two headers on the data channel.
_HEADER_PERIOD = 0.2
# Seconds that a page, which pings every two, may be silent at least.
_MIN_SILENCE = 5.0
_CODECS = ("video/H264", "video/rtx")
# Addresses of a viewer that are tried.
MAX_CANDIDATES = 16
MAX_LINES = 400
# Bytes of a header: all browsers exchange messages of 16 KiB over SCTP.
_MAX_HEADER = 16_000
# Bytes on the data channel that a viewer has not taken.
_MAX_BUFFERED = 65_536


# -- offers ------------------------------------------------------------------------------------------------------------


async def answer(state: AppState, fields: Mapping[str, object], seat: ExitStack) -> dict[str, str]:
    """Connect a viewer by its offer.

    Args:
        state: Of the server.
        fields: Of the offer: {"sdp", "type", "stream", "fps"}.
        seat: Closed once the viewer has gone; by the caller if this raises.

    Returns:
        {"sdp", "type", "id"} of the answer.

    Raises:
        ValueError: The offer cannot be answered.
        web.HTTPServiceUnavailable: There is no room for its sockets.
    """
    sdp = read_offer(fields)
    watch = read_choice(fields, state.hub.stream_for(None))
    # One socket for each address of this machine, for the video and for a data channel that does not share it.
    sockets = 2 * len(get_host_addresses(use_ipv4=True, use_ipv6=True))
    if not state.connections.reserve(sockets):
        raise web.HTTPServiceUnavailable(**error_body("too many viewers: no more files may be opened"))
    seat.callback(state.connections.release, sockets)
    peer = Peer(state, watch, seat)
    try:
        return await peer.answer(sdp)
    except BaseException:
        await peer.close()
        raise


def read_offer(fields: Mapping[str, object]) -> str:
    """Return the session description of an offer.

    It must offer one video and at most a data channel. Candidates that carry a name in place of an address are left
    out: browsers hide addresses behind names under .local, and looking one up takes a second. They connect without,
    for a viewer's first packet shows where it comes from.

    Raises:
        ValueError: It is another offer, or none.
    """
    sdp = fields.get("sdp")
    if fields.get("type") != "offer" or not isinstance(sdp, str) or not 0 < len(sdp) <= MAX_OFFER:
        raise ValueError(f"webrtc: the type must be offer, and sdp a text of at most {MAX_OFFER} characters")
    candidates = [line for line in sdp.splitlines() if line.startswith("a=candidate:")]
    tried = [line for line in candidates if _has_address(line)][:MAX_CANDIDATES]
    lines = [line for line in sdp.splitlines() if not line.startswith("a=candidate:") or line in tried]
    if len(lines) > MAX_LINES:
        raise ValueError(f"webrtc: sdp may have at most {MAX_LINES} lines, not {len(lines)}")
    media_lines = [line for line in lines if line.startswith("m=")]
    media = sorted(line.split()[0] for line in media_lines)
    if media not in (["m=video"], ["m=application", "m=video"]):
        offered = ", ".join(media)[:100] or "nothing"
        raise ValueError(f"webrtc: sdp must offer one video and at most a data channel, not {offered}")
    return "\r\n".join(lines) + "\r\n"


def _has_address(candidate: str) -> bool:
    """Return whether a candidate has an address.

    In the words of RFC 8839 it is the fifth.
    """
    words = candidate.split()
    try:
        ipaddress.ip_address(words[4] if len(words) > 4 else "")
    except ValueError:
        return False
    return True


def read_choice(fields: Mapping[str, object], stream: str) -> Watch:
    """Return what an offer asks to watch.

    Args:
        fields: Of the offer.
        stream: What is watched if the offer names none.

    Raises:
        ProtocolError: WebRTC does not send that.
    """
    options = ("stream", "codec", "fps", "beside")
    asked = {name: fields[name] for name in options if name in fields}
    watch = protocol.read_watch({"type": "webrtc", "stream": stream, "codec": CODEC, **asked})
    _check_choice(watch)
    return watch


def _check_choice(watch: Watch) -> None:
    if watch.codec != CODEC:
        raise ProtocolError(f"watch: codec must be {CODEC} over WebRTC, or left out, not {watch.codec}")
    if watch.beside is not None:
        raise ProtocolError("watch: beside must be left out over WebRTC, which sends one stream; use the WebSocket")


# -- pictures ----------------------------------------------------------------------------------------------------------


class PacketTrack(MediaStreamTrack):
    """The packets of a stream of a hub, as a track that needs no encoder.

    Attributes:
        last: The picture of the newest packet.
        sender: Of aiortc.
        origin: The offset that the sender adds to RTP timestamps.

    Raises:
        UnknownStream: There is no such stream.
    """

    kind = "video"

    def __init__(self, hub: Hub, stream: str, fps: float | None = None) -> None:
        super().__init__()
        self.last: EncodedPicture | None = None
        self.sender: RTCRtpSender | None = None
        self.origin: int | None = None
        self._hub = hub
        self._ticks = -1
        self._dropped = 0
        self._changed = asyncio.Event()
        self._subscription: Subscription | None = hub.subscribe(stream, CODEC, fps)

    @property
    def dropped(self) -> int:
        return self._dropped + (self._subscription.dropped if self._subscription else 0)

    async def recv(self) -> av.Packet:
        """Return the next packet.

        Its time is that of the capture, so that a viewer can tell how old the picture is.
        """
        # The last time that was sent, with aiortc's random offset.
        sent = getattr(self.sender, "_RTCRtpSender__rtp_timestamp", None)
        if sent is not None and self._ticks >= 0:
            self.origin = (sent - self._ticks) % _WRAP
        encoded = await self._next()
        packet = av.Packet(encoded.data)
        captured = round(encoded.captured * CLOCK_RATE)
        # Two pictures must not share a time: a source that stands still has its last one encoded again.
        self._ticks = max(self._ticks + 1, captured)
        packet.pts = self._ticks
        packet.time_base = Fraction(1, CLOCK_RATE)
        self.last = encoded
        self._hub.metrics.count_sent(CODEC, "webrtc", len(encoded.data))
        return packet

    def watch(self, stream: str, fps: float | None = None) -> None:
        """Go on with another stream, or at another rate, from a key frame."""
        # Before the stream until now is given up: if there is no such stream, that one goes on.
        subscription = self._hub.subscribe(stream, CODEC, fps)
        self.leave()
        self._subscription = subscription
        self._changed.set()

    def request_key(self) -> None:
        """Ask for a key frame, as the viewer has lost one or has just come."""
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
                # Another stream may have been chosen meanwhile, which closes the one before.
                if subscription is self._subscription:
                    self.stop()
        raise MediaStreamError

    def leave(self) -> None:
        """Take no more pictures until another stream is watched."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self._dropped += subscription.dropped
            subscription.close()
        self._changed.set()


class Peer(Viewer):
    """One viewer's connection, which closes its seat when it ends.

    On a data channel, if the viewer opens one, it gets headers and may send `watch`, `pause` and `ping`. From then on
    it must send something within two heartbeats, or five seconds if those are shorter.
    """

    codec = CODEC

    def __init__(self, state: AppState, watch: Watch, seat: ExitStack) -> None:
        super().__init__(state)
        self.id = secrets.token_urlsafe(8)
        self.watched = watch
        self._seat = seat
        self._track = PacketTrack(state.hub, watch.stream, watch.fps)
        # An empty list: without one, aiortc would ask a public server for this machine's address.
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._connection.on("connectionstatechange", self._on_state_change)
        self._connection.on("datachannel", self._open_channel)
        self._track.on("ended", self._close_soon)
        self.channel: RTCDataChannel | None = None
        self._headers: asyncio.Task[None] | None = None
        self._last_heard = time.monotonic()
        self._closed = False
        self.closing: asyncio.Future[None] | None = None
        self._deadline = asyncio.get_running_loop().call_later(_CONNECT_TIMEOUT, self._close_soon)
        state.closers.add(self.close)
        state.hub.listeners.add(self._on_broadcast)

    async def answer(self, sdp: str) -> dict[str, str]:
        """Return the answer to an offer.

        Raises:
            ValueError: aiortc finds no sense in it, or no H.264.
        """
        sender = self._connection.addTrack(self._track)
        # Before the offer is looked at: afterwards aiortc has settled on a codec, and would send H.264 under its name.
        known = RTCRtpSender.getCapabilities("video").codecs
        codecs = [each for each in known if each.mimeType in _CODECS]
        self._connection.getTransceivers()[0].setCodecPreferences(codecs)
        # aiortc calls this when a viewer has lost a picture; with packets of our own it would do nothing.
        sender._send_keyframe = self._track.request_key  # type: ignore[method-assign]
        self._track.sender = sender
        try:
            await self._connection.setRemoteDescription(RTCSessionDescription(sdp=sdp, type="offer"))
            await self._connection.setLocalDescription(await self._connection.createAnswer())
        except Exception as error:
            # A parser stumbles over what a stranger wrote in many ways.
            words = f"{type(error).__name__}: {error}".split()
            reason = " ".join(words)[:200]
            raise ValueError(f"webrtc: the sdp cannot be answered with H.264: {reason}") from error
        local = self._connection.localDescription
        return {"sdp": local.sdp, "type": local.type, "id": self.id}

    async def close(self) -> None:
        """Close the connection and its seat."""
        if self._closed:
            return
        self._closed = True
        self._state.hub.listeners.discard(self._on_broadcast)
        self._deadline.cancel()
        if self._headers is not None:
            self._headers.cancel()
        self._state.metrics.count_dropped(CODEC, self._track.dropped)
        self._track.stop()
        try:
            await self._connection.close()
        except Exception:
            # An odd offer may leave a connection half made, which aiortc cannot close.
            _LOG.debug("webrtc: a connection was left half closed", exc_info=True)
        finally:
            self._state.closers.discard(self.close)
            self._seat.close()

    async def _on_state_change(self) -> None:
        match self._connection.connectionState:
            case "connected":
                self._deadline.cancel()
            case "failed" | "closed":
                await self.close()

    def _close_soon(self) -> None:
        if not self._closed:
            self.closing = asyncio.ensure_future(self.close())

    # -- the data channel ----------------------------------------------------------------------------------------------

    def _open_channel(self, channel: RTCDataChannel) -> None:
        if self._headers is not None:
            # The messages of a second channel would be neither heard nor counted.
            self._close_soon()
        elif not self._closed:
            self.channel = channel
            channel.on("message", self.on_message)
            self._last_heard = time.monotonic()
            self._headers = asyncio.ensure_future(self._send_headers(channel))

    async def _send_headers(self, channel: RTCDataChannel) -> None:
        """Send the newest picture's header at intervals, since RTP carries only its time."""
        described: EncodedPicture | None = None
        with contextlib.suppress(ConnectionError):
            while channel.readyState in ("connecting", "open"):
                encoded = self._track.last
                if encoded is not None and encoded is not described and channel.readyState == "open":
                    self.send_text(self._header(encoded))
                    described = encoded
                await asyncio.sleep(_HEADER_PERIOD)
                silence = time.monotonic() - self._last_heard
                if silence > max(2 * self._state.settings.heartbeat_s, _MIN_SILENCE):
                    self._close_soon()

    def _header(self, encoded: EncodedPicture) -> str:
        head = protocol.bounded_head(encoded, _MAX_HEADER)
        origin = "null" if self._track.origin is None else self._track.origin
        return f'{head}, "dropped": {self._track.dropped}, "origin": {origin}}}'

    def send_text(self, text: str) -> None:
        """Send text.

        It is left out if the viewer has no data channel, or has not received what was sent before.
        """
        channel = self.channel
        if channel is not None and channel.readyState == "open" and channel.bufferedAmount < _MAX_BUFFERED:
            channel.send(text)

    def on_message(self, message: str | bytes) -> None:
        self._last_heard = time.monotonic()
        if self.count_message():
            self.receive(message)

    def _on_broadcast(self, text: str) -> None:
        # The text itself goes to the WebSocket that a page has as well.
        self.retry_awaited()

    def _watch(self, watch: Watch) -> None:
        _check_choice(watch)
        super()._watch(watch)

    def show(self, watch: Watch) -> None:
        self._track.watch(watch.stream, watch.fps)

    def hide(self) -> None:
        self._track.leave()

    def handle(self, message: protocol.Message) -> None:
        raise ProtocolError("a data channel takes watch, pause and ping only")

    def dismiss(self, why: str) -> None:
        """Begin to close the connection, which has no place for the reason."""
        self._close_soon()
