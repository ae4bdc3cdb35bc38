"""MJPEG: a picture after the other in one HTTP response, for `<img>` and for readers that know nothing better."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from aiohttp import hdrs, web

from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.protocol import ProtocolError, picture_header, read_fps
from torchrl_gpu.streaming.broadcast.rate_limits import stream_time
from torchrl_gpu.streaming.broadcast.streams import Subscription, SubscriptionClosed
from torchrl_gpu.streaming.codecs.encoder import STILLS
from torchrl_gpu.streaming.web.access import STATE, admit_viewer, error_body, let_last

_BOUNDARY = b"--frame\r\n"
_PART = b"Content-Type: image/jpeg\r\n\r\n"
_SEND_BUFFER = 65_536  # there are no acknowledgements here, so what lies in buffers is what a slow viewer is late by


async def serve(request: web.Request) -> web.StreamResponse:
    """`/stream.mjpg?stream=…&fps=…&compat=1`."""
    with admit_viewer(request, "mjpeg"):
        try:
            fps = read_fps(request.query["fps"]) if "fps" in request.query else None
        except ProtocolError as error:
            raise web.HTTPBadRequest(**error_body(str(error))) from None
        with subscribed(request, fps) as subscription:
            return await _stream(request, subscription)


@contextlib.contextmanager
def subscribed(request: web.Request, fps: float | None = None) -> Iterator[Subscription]:
    """JPEGs of the stream that a request names, or else of the first; raises 404 where there is none."""
    hub = request.app[STATE].hub
    try:
        subscription = hub.subscribe(hub.stream_for(request.query.get("stream")), fps=fps)
    except ProtocolError as error:
        raise web.HTTPNotFound(**error_body(str(error))) from None
    with contextlib.closing(subscription):
        yield subscription


async def _stream(request: web.Request, subscription: Subscription) -> web.StreamResponse:
    """Sends pictures until the viewer goes, or takes none for two heartbeats."""
    state = request.app[STATE]
    heartbeat = state.settings.heartbeat_s
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "multipart/x-mixed-replace; boundary=frame"})
    writer = await response.prepare(request)
    assert writer is not None
    let_last(request)
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=0)
        connection = request.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    compat = "compat" in request.query
    chunk = b"" if compat else _BOUNDARY + _PART
    encoded: EncodedPicture | None = None
    counted: EncodedPicture | None = None
    with contextlib.suppress(TimeoutError, SubscriptionClosed, ConnectionError):
        while True:
            if chunk:
                async with asyncio.timeout(2 * heartbeat):
                    await writer.write(chunk)
                    await writer.drain()
            with contextlib.suppress(TimeoutError):  # a still source: the same again, which finds dead viewers
                async with asyncio.timeout(heartbeat):
                    encoded = await subscription.get()
            chunk = b"" if encoded is None else _part(encoded, compat)
            if encoded is not counted:
                counted = encoded
                state.metrics.count_sent(STILLS, "mjpeg", len(chunk))
    if request.transport is not None:
        request.transport.abort()
    return response


def _part(encoded: EncodedPicture, compat: bool) -> bytes:
    """A picture and the head of the next part, without which browsers show it one frame late.

    In the usual framing, which some readers insist on, the head stands first and gives the length, and all that a
    WebSocket's header holds.
    """
    if not compat:
        return encoded.data + b"\r\n" + _BOUNDARY + _PART
    about = f"Content-Length: {len(encoded.data)}\r\nX-Frame: {picture_header(encoded, stream_time())}\r\n".encode()
    return _BOUNDARY + about + _PART + encoded.data + b"\r\n"
