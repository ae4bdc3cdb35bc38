"""Viewers over WebSocket, and how many pictures are under way to each."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from torchrl_gpu.streaming.broadcast import protocol
from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.protocol import Ack, Command, ProtocolError, Replay, UnknownStream, Watch
from torchrl_gpu.streaming.broadcast.rate_limits import stream_time
from torchrl_gpu.streaming.broadcast.streams import Subscription, SubscriptionClosed
from torchrl_gpu.streaming.codecs.encoder import CODECS, STILLS
from torchrl_gpu.streaming.web.access import STATE, AppState, admit_viewer, lift_time_limit, refuse_options, role_of
from torchrl_gpu.streaming.web.connection_limit import Connection
from torchrl_gpu.streaming.web.security import Role
from torchrl_gpu.streaming.web.viewer import Viewer

# Pictures under way at once.
_MOST = 2
# Acknowledgements in a row that show a queue: this late, in intervals.
_LATE = 6
_LATE_INTERVALS = 1.5
# Pictures sent alone that show what one at a time is worth.
_ALONE = 3
# A viewer keeps up if a picture sent alone comes back within this share of the interval.
_KEEPS_UP = 0.7
# How much faster two at a time must be.
_LEAST_GAIN = 1.3
# Seconds until an answer is looked for again.
_REST = 30.0

# Texts that wait for one viewer; the oldest go.
_OUTBOX = 32
# Most pictures a second of the stream beside.
_BESIDE_FPS = 10.0
# Seconds that a viewer who is sent away has to read the last messages.
_CLOSE_TIMEOUT = 1.0


class _Flight(NamedTuple):
    """A picture under way.

    Attributes:
        sent: When, by the monotonic clock.
        alone: Whether no other was under way when it was sent.
    """

    seq: int
    sent: float
    alone: bool


class AckWindow:
    """Pictures that a viewer has been sent and has not acknowledged: two at most.

    Sending whatever the socket takes would fill the buffers on the way, and a slow viewer would see older and older
    pictures. One picture at a time avoids that, but leaves the connection idle for the way there and back; two hide
    that time, which lets a far viewer see twice as many. At a viewer that is slow to paint or to receive, however, the
    second only waits, and is one period older when it is shown. Neither bandwidth nor time of flight tells the two
    apart, so it is tried: when acknowledgements are late in a row, one picture at a time is sent for a while, and that
    is kept unless two were clearly faster.

    Attributes:
        interval: Seconds between two pictures.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.limit = _MOST
        self._flights: deque[_Flight] = deque()
        self._late: list[float] = []
        self._alone: list[float] = []
        self._rate_of_two = 0.0
        self._ask_again_at = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether another picture may be sent."""
        return len(self._flights) < self.limit

    def send(self, seq: int, now: float) -> None:
        self._flights.append(_Flight(seq, now, not self._flights))

    def acknowledge(self, seq: int, now: float) -> float | None:
        """Acknowledge a picture, and those sent before it.

        Returns:
            Seconds that it was under way; None for a picture that is not.
        """
        if all(flight.seq != seq for flight in self._flights):
            return None
        was_full = not self.is_open
        flight = self._flights.popleft()
        while flight.seq != seq:
            flight = self._flights.popleft()
        latency = now - flight.sent
        if self.limit == _MOST:
            self._look_for_queue(was_full and latency > _LATE_INTERVALS * self.interval, now)
        elif flight.alone:
            self._compare(latency, now)
        return latency

    def _look_for_queue(self, is_late: bool, now: float) -> None:
        """Try one picture at a time after a row of late acknowledgements."""
        self._late = [*self._late, now] if is_late and now >= self._ask_again_at else []
        if len(self._late) == _LATE:
            # All of them may have come in one packet, at the same moment.
            self._rate_of_two = (_LATE - 1) / max(self._late[-1] - self._late[0], 1e-9)
            self._late = []
            self._alone = []
            self.limit = 1

    def _compare(self, latency: float, now: float) -> None:
        """Return to two pictures at a time if there is reason to.

        They may be worth it, the viewer may keep up again, or it may be time to ask again.
        """
        self._alone.append(latency)
        if len(self._alone) < _ALONE:
            return
        mean = sum(self._alone[-_ALONE:]) / _ALONE
        if len(self._alone) == _ALONE:
            self._ask_again_at = now + _REST
            if self._rate_of_two * mean > _LEAST_GAIN:
                self.limit = _MOST
        elif mean < _KEEPS_UP * self.interval or now >= self._ask_again_at:
            self._ask_again_at = now
            self.limit = _MOST


@contextlib.asynccontextmanager
async def open_socket(request: web.Request, transport: str, max_bytes: int) -> AsyncIterator[web.WebSocketResponse]:
    """Open a WebSocket that counts as a viewer.

    It is closed when the server stops.

    The handler answers pings itself, so that they count as messages.
    """
    state = request.app[STATE]
    with admit_viewer(request, transport):
        socket = web.WebSocketResponse(
            heartbeat=state.settings.heartbeat_s,
            timeout=_CLOSE_TIMEOUT,
            max_msg_size=max_bytes,
            compress=False,
            autoping=False,
        )
        try:
            await socket.prepare(request)
            state.sockets.add(socket)
            yield socket
        finally:
            state.sockets.discard(socket)
            # A peer that reads nothing would keep what lies in its buffers.
            if socket.close_code == WSCloseCode.ABNORMAL_CLOSURE and request.transport is not None:
                request.transport.abort()


async def serve(request: web.Request) -> web.StreamResponse:
    """Answer `/ws`."""
    refuse_options(request)
    role = role_of(request)
    async with open_socket(request, "websocket", protocol.MAX_MESSAGE_BYTES) as socket:
        connection = lift_time_limit(request)
        viewer = SocketViewer(request.app[STATE], socket, role, connection)
        connection.limit_rate(lambda: viewer.dismiss("too many bytes"))
        await viewer.run()
    return socket


class SocketViewer(Viewer):
    """One viewer on an open WebSocket.

    Pictures are sent as fast as they are acknowledged.
    """

    def __init__(self, state: AppState, socket: web.WebSocketResponse, role: Role, connection: Connection) -> None:
        super().__init__(state)
        self._socket = socket
        self._role = role
        self._connection = connection
        self.window = AckWindow(1 / state.settings.fps)
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._outbox: deque[str] = deque(maxlen=_OUTBOX)
        self._has_text = asyncio.Event()
        # Number of the newest point of a curve that was sent.
        self._point_sent = 0
        # Tasks of the live pictures or a clip, and of a second stream.
        self._sending: list[asyncio.Task[None]] = []
        self._subscription: Subscription | None = None
        # The second stream, with its one picture that is not acknowledged.
        self._beside: Subscription | None = None
        self._beside_seq = -1
        self._beside_acked = asyncio.Event()
        self._dropped = 0
        self._disconnecting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Greet the viewer, and handle its messages until the socket is closed."""
        self.send_text(
            protocol.text_message(
                "hello",
                role=self._role,
                streams=self._hub.describe_streams(),
                transports=list(CODECS),
                now=stream_time(),
                state=self._hub.state,
            )
        )
        texts = asyncio.create_task(self._send_texts())
        self._hub.listeners.add(self._on_broadcast)
        self._hub.curve_listeners.add(self._has_text.set)
        try:
            async for message in self._socket:
                await self._on_message(message)
        finally:
            self._hub.listeners.discard(self._on_broadcast)
            self._hub.curve_listeners.discard(self._has_text.set)
            self.hide()
            texts.cancel()
            await asyncio.gather(*filter(None, (texts, self._disconnecting)), return_exceptions=True)

    # -- what the viewer sends -----------------------------------------------------------------------------------------

    async def _on_message(self, message: WSMessage) -> None:
        # After an error, or as one message too many, the socket is closed by now, or will be.
        if message.type is WSMsgType.ERROR or not self.count_message():
            return
        if message.type is WSMsgType.PING:
            with contextlib.suppress(ConnectionError):
                await self._socket.pong(message.data)
        elif message.type is not WSMsgType.PONG:
            self.receive(message.data if message.type is WSMsgType.TEXT else None)

    def dismiss(self, why: str) -> None:
        self._disconnecting = asyncio.create_task(self._disconnect(why.encode()))

    async def _disconnect(self, why: bytes) -> None:
        self._connection.stop_reading()
        self.hide()
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._send_outbox()
        await self._socket.close(code=WSCloseCode.POLICY_VIOLATION, message=why)

    def handle(self, message: protocol.Message) -> None:
        match message:
            case Ack(seq):
                self._acknowledge(seq)
            case Replay():
                self._send_clip()
            case Command() if self._role == "control":
                self._hub.add_command(message)
            case Command():
                self._send_error("command: your role is view; only control may send commands")

    def _acknowledge(self, seq: int) -> None:
        # One picture may be under way in both roles: a viewer who turns to the stream beside, or replays it, is sent it
        # again.
        if seq == self._beside_seq:
            self._beside_acked.set()
        latency = self.window.acknowledge(seq, time.monotonic())
        if latency is not None:
            self._state.metrics.ack_seconds.observe(latency)
            if self.window.is_open:
                self._may_send.set()

    # -- what the viewer is sent: texts by one task, pictures by another, of which there is one at a time -------------

    def send_text(self, text: str) -> None:
        self._outbox.append(text)
        self._has_text.set()

    def _send_error(self, message: str) -> None:
        self.send_text(protocol.text_message("error", message=message))

    def _on_broadcast(self, text: str) -> None:
        self.send_text(text)
        self.retry_awaited()

    async def _send_texts(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await self._has_text.wait()
                self._has_text.clear()
                await self._send_outbox()
                await self._send_curves()

    async def _send_curves(self) -> None:
        """Send the points of curves that have come since the last call.

        They wait with the hub, which thins them, and not here.
        """
        newest = self._hub.curves.serial
        for curves in self._hub.curves.since(self._point_sent):
            await self._socket.send_str(protocol.text_message("curves", curves=curves))
            await self._send_outbox()
        self._point_sent = newest

    async def _send_outbox(self) -> None:
        while self._outbox:
            await self._socket.send_str(self._outbox.popleft())

    def show(self, watch: Watch) -> None:
        # Subscribed before the stream until now is given up: if there is no such stream, that one goes on.
        subscription = self._hub.subscribe(watch.stream, watch.codec, watch.fps)
        self.hide()
        self._subscription = subscription
        self.window.interval = subscription.schedule.interval
        self._sending.append(asyncio.create_task(self._send_live(subscription)))
        if watch.beside is not None and watch.beside != watch.stream and self._hub.offers(watch.beside):
            # There may be no room for a second stream.
            with contextlib.suppress(UnknownStream):
                self._beside = self._hub.subscribe(watch.beside, fps=min(watch.fps or _BESIDE_FPS, _BESIDE_FPS))
                self._sending.append(asyncio.create_task(self._send_beside(self._beside)))

    def _send_clip(self) -> None:
        """Send the last seconds of the last episode, and then what happens."""
        if self.watched is None:
            raise ProtocolError("replay: watch a stream before")
        # A paused viewer may have left a member of a family for too long, which is gone then.
        stream = self._hub.streams.get(self.watched.stream)
        clip = [] if stream is None else stream.replay.clip()
        if not clip:
            self._send_error("replay: nothing has been kept yet")
        elif self.is_paused:
            self._send_error("replay: end the pause before")
        else:
            self.hide()
            self._sending.append(asyncio.create_task(self._send_pictures(clip, self.watched)))

    def hide(self) -> None:
        """End the tasks of pictures and their subscriptions."""
        for task in self._sending:
            # A task may begin another in its own place.
            if task is not asyncio.current_task():
                task.cancel()
        self._sending = []
        if self._beside is not None:
            self._state.metrics.count_dropped(self._beside.codec, self._beside.dropped)
            self._beside.close()
            self._beside = None
            self._beside_seq = -1
        if self._subscription is not None:
            self._dropped += self._subscription.dropped
            self._state.metrics.count_dropped(self._subscription.codec, self._subscription.dropped)
            self._subscription.close()
            self._subscription = None

    async def _send_live(self, subscription: Subscription) -> None:
        try:
            while True:
                await self._may_send.wait()
                encoded = await subscription.get()
                await self._send_in_window(encoded)
        except ConnectionError:
            pass
        except SubscriptionClosed as closed:
            self._send_error(str(closed))
            # Stills replace a codec that has failed.
            if self.watched is not None and subscription.codec != STILLS:
                with contextlib.suppress(UnknownStream):
                    self._watch(replace(self.watched, codec=STILLS))

    async def _send_beside(self, subscription: Subscription) -> None:
        """Send one picture at a time, the newest once the one before is acknowledged."""
        with contextlib.suppress(ConnectionError, SubscriptionClosed):
            while True:
                encoded = await subscription.get()
                self._beside_seq = encoded.seq
                self._beside_acked.clear()
                await self._send_picture(encoded, subscription.dropped)
                await self._beside_acked.wait()

    async def _send_pictures(self, clip: Sequence[EncodedPicture], watch: Watch) -> None:
        """Send a clip at the rate at which it was captured, then watch again.

        A slow viewer sees fewer pictures, not a slower world.
        """
        offset = time.monotonic() - clip[0].captured
        try:
            followers = [*clip[1:], None]
            for encoded, following in zip(clip, followers, strict=True):
                await asyncio.sleep(offset + encoded.captured - time.monotonic())
                await self._may_send.wait()
                # The last picture is never left out, as it shows how the episode ended.
                if following is None or time.monotonic() < offset + following.captured:
                    await self._send_in_window(encoded)
        except ConnectionError:
            return
        with contextlib.suppress(UnknownStream):
            self.show(watch)

    async def _send_in_window(self, encoded: EncodedPicture) -> None:
        """Send a picture that counts as under way until it is acknowledged."""
        self.window.send(encoded.seq, time.monotonic())
        if not self.window.is_open:
            self._may_send.clear()
        dropped = self._dropped + (self._subscription.dropped if self._subscription else 0)
        await self._send_picture(encoded, dropped)

    async def _send_picture(self, encoded: EncodedPicture, dropped: int) -> None:
        message = protocol.picture_message(encoded, stream_time(), dropped)
        self._state.metrics.count_sent(encoded.codec, "websocket", len(message))
        await self._socket.send_bytes(message)
