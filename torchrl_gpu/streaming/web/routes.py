"""Routes of the web server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.protocol import ProtocolError, field_header, read_fps
from torchrl_gpu.streaming.broadcast.rate_limits import stream_time
from torchrl_gpu.streaming.broadcast.streams import Subscription, SubscriptionClosed
from torchrl_gpu.streaming.codecs.encoder import STILLS
from torchrl_gpu.streaming.web import sockets
from torchrl_gpu.streaming.web.access import (
    STATE,
    AppState,
    add_headers,
    admit_viewer,
    error_body,
    guard,
    let_last,
    refuse_options,
    role_of_token,
    set_session,
)
from torchrl_gpu.streaming.web.security import content_security_policy
from torchrl_gpu.streaming.web.settings import MAX_BODY_BYTES

_KINDS = {"js": "text/javascript", "css": "text/css"}
_BODY_TIMEOUT = 5.0
_SNAPSHOT_TIMEOUT = 1.0
_FRESH = 0.25  # seconds: a snapshot may be this much older than its request, and waits so long for a younger frame
_BOUNDARY = b"--frame\r\n"
_PART = b"Content-Type: image/jpeg\r\n\r\n"
_SEND_BUFFER = 65_536  # there are no acknowledgements here, so what lies in buffers is what a slow viewer is late by


def make_app(state: AppState) -> web.Application:
    app = web.Application(middlewares=[guard], client_max_size=state.settings.max_body_bytes)
    app[STATE] = state
    app.on_response_prepare.append(add_headers)
    app.add_routes(
        [
            web.get("/", page),
            web.get("/static/{name}", page_file),
            web.post("/login", login),
            web.get("/ws", sockets.serve, allow_head=False),
            web.get("/stream.mjpg", mjpeg, allow_head=False),
            web.get("/snapshot.jpg", snapshot, allow_head=False),
            web.post("/webrtc/offer", offer),
            web.get("/streams", streams),
            web.get("/curves", curves),
            web.get("/metrics", read_metrics),
            web.get("/healthz", health),
        ]
    )
    return app


async def page(request: web.Request) -> web.StreamResponse:
    """The page; with a token in the query, a session and the same address without the token."""
    state = request.app[STATE]
    if "token" in request.query:
        role = role_of_token(request, request.query["token"])
        rest = {name: value for name, value in request.query.items() if name != "token"}
        # Relative, as only the browser knows the path that a proxy puts before ours.
        location = f".{request.rel_url.with_query(rest)}"
        response = web.Response(status=303, headers={hdrs.LOCATION: location})
        set_session(request, response, role)
        return response
    policy = content_security_policy(request.headers[hdrs.HOST], state.rules.allowed_origins)
    headers = {"Content-Security-Policy": policy}
    return web.Response(text=state.page["index.html"], content_type="text/html", headers=headers)


async def page_file(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    text = request.app[STATE].page.get(name)
    kind = _KINDS.get(name.rpartition(".")[2])
    if text is None or kind is None:
        raise web.HTTPNotFound(**error_body("want a file of the page"))
    return web.Response(text=text, content_type=kind)


async def login(request: web.Request) -> web.StreamResponse:
    """A session for a token: {"token": …} gives {"role": …} and a cookie."""
    token = (await read_object(request)).get("token")
    role = role_of_token(request, token if isinstance(token, str) else None)
    response = web.json_response({"role": role})
    set_session(request, response, role)
    return response


async def snapshot(request: web.Request) -> web.StreamResponse:
    """A JPEG of this moment, or else the newest frame, which is at most a second older; 503 where there is none yet."""
    refuse_options(request, "stream")
    with admit_viewer(request, "snapshot"), _subscribed(request) as subscription:
        encoded = await _newest(subscription, stream_time() - _FRESH)
    if encoded is None:
        raise web.HTTPServiceUnavailable(**error_body("no frame yet"), headers={hdrs.RETRY_AFTER: "1"})
    request.app[STATE].metrics.count_sent(STILLS, "snapshot", len(encoded.data))
    about = {"X-Frame": field_header(encoded, stream_time())}
    return web.Response(body=encoded.data, content_type="image/jpeg", headers=about)


async def mjpeg(request: web.Request) -> web.StreamResponse:
    """`/stream.mjpg?stream=…&fps=…&compat=1`: a picture after the other, for `<img>` and simple readers."""
    refuse_options(request, "stream", "fps", "compat")
    if request.query.get("compat", "1") not in ("", "0", "1"):
        raise web.HTTPBadRequest(**error_body("compat must be 0 or 1"))
    with admit_viewer(request, "mjpeg"):
        try:
            fps = read_fps(request.query["fps"]) if "fps" in request.query else None
        except ProtocolError as error:
            raise web.HTTPBadRequest(**error_body(str(error))) from None
        with _subscribed(request, fps) as subscription:
            return await _stream(request, subscription)


async def offer(request: web.Request) -> web.StreamResponse:
    """The answer to a WebRTC offer: {"sdp", "type", "stream", "fps"} gives {"sdp", "type", "id"}."""
    refuse_options(request)
    fields = await read_object(request)
    try:
        from torchrl_gpu.streaming.web import webrtc
    except ImportError:
        raise web.HTTPNotImplemented(
            **error_body("the server has no aiortc, which its extra webrtc brings; `torchrl-gpu doctor` there says how")
        ) from None
    seat = admit_viewer(request, "webrtc")
    try:
        return web.json_response(await webrtc.answer(request.app[STATE], fields, seat))
    except BaseException as error:
        seat.close()
        if isinstance(error, ValueError):
            raise web.HTTPBadRequest(**error_body(str(error))) from None
        raise


async def streams(request: web.Request) -> web.StreamResponse:
    refuse_options(request)
    return web.json_response(request.app[STATE].hub.describe_streams())


async def curves(request: web.Request) -> web.StreamResponse:
    """Curves of the run behind the point `since`, all of them by default; `newest` is the point to go on from."""
    refuse_options(request, "since")
    held = request.app[STATE].hub.curves
    since = request.query.get("since", "0")
    if not re.fullmatch(r"[0-9]{1,16}", since):
        raise web.HTTPBadRequest(**error_body("curves: want since to be a whole number"))
    newest, found = held.serial, []
    for portion in held.since(int(since)):
        found.append(",".join(map(json.dumps, portion)))
        await asyncio.sleep(0)  # pictures go first
    return web.Response(text=f'{{"newest": {newest}, "curves": [{",".join(found)}]}}', content_type="application/json")


async def read_metrics(request: web.Request) -> web.StreamResponse:
    text = generate_latest(request.app[STATE].metrics.registry)
    return web.Response(body=text, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})


async def health(request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok\n")


async def read_object(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request's body; raises 400 for anything else, and as `read_body`."""
    body = await read_body(request)
    if len(body) > MAX_BODY_BYTES:  # whatever else the server takes: this is read on the loop, for strangers too
        raise web.HTTPBadRequest(**error_body(f"want JSON of at most {MAX_BODY_BYTES} bytes"))
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(**error_body("want JSON")) from None
    if not isinstance(fields, dict):
        raise web.HTTPBadRequest(**error_body("want a JSON object"))
    return fields


async def read_body(request: web.Request) -> bytes:
    """A request's body; raises 408 where it does not come, 413 where it is large."""
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(**error_body("want the body within 5 s")) from None


async def _newest(subscription: Subscription, since: float) -> EncodedPicture | None:
    """The first picture captured since a time, or, where none comes at once, the newest there is."""
    encoded = None
    try:
        async with asyncio.timeout(_SNAPSHOT_TIMEOUT):
            encoded = await subscription.get()
        async with asyncio.timeout(_FRESH):
            while encoded.captured < since:
                encoded = await subscription.get()
    except (TimeoutError, SubscriptionClosed):
        pass
    return encoded


@contextlib.contextmanager
def _subscribed(request: web.Request, fps: float | None = None) -> Iterator[Subscription]:
    """JPEGs of the stream that a request names, or else of the first; raises 404 where there is none."""
    hub = request.app[STATE].hub
    try:
        subscription = hub.subscribe(hub.stream_for(request.query.get("stream")), fps=fps)
    except ProtocolError as error:
        raise web.HTTPNotFound(**error_body(str(error))) from None
    try:
        yield subscription
    finally:
        request.app[STATE].metrics.count_dropped(subscription.codec, subscription.dropped)
        subscription.close()


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
    compat = request.query.get("compat", "0") != "0"
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
    about = f"Content-Length: {len(encoded.data)}\r\nX-Frame: {field_header(encoded, stream_time())}\r\n".encode()
    return _BOUNDARY + about + _PART + encoded.data + b"\r\n"
