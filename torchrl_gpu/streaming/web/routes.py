"""Routes of the web server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Iterator

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
    lift_time_limit,
    refuse_options,
    role_of_token,
    set_session,
)
from torchrl_gpu.streaming.web.security import content_security_policy
from torchrl_gpu.streaming.web.settings import MAX_BODY_BYTES

_KINDS = {"js": "text/javascript", "css": "text/css"}
_BODY_TIMEOUT = 5.0  # seconds
_SNAPSHOT_TIMEOUT = 1.0  # seconds
# Seconds: a snapshot may be this much older than its request, and waits as long for a younger frame.
_FRESH = 0.25
_BOUNDARY = b"--frame\r\n"
_PART = b"Content-Type: image/jpeg\r\n\r\n"
# Bytes. Nothing is acknowledged over multipart, so a slow viewer is late by what lies in buffers.
_SEND_BUFFER = 65_536


def make_app(state: AppState) -> web.Application:
    """Return the application of a server, with its routes and middleware."""
    app = web.Application(middlewares=[guard], client_max_size=state.settings.max_body_bytes)
    app[STATE] = state
    app.on_response_prepare.append(add_headers)
    router = app.router
    router.add_get("/", page)
    router.add_get("/static/{name}", page_file)
    router.add_post("/login", login)
    router.add_get("/ws", sockets.serve, allow_head=False)
    router.add_get("/stream.mjpg", mjpeg, allow_head=False)
    router.add_get("/snapshot.jpg", snapshot, allow_head=False)
    router.add_post("/webrtc/offer", offer)
    router.add_get("/streams", streams)
    router.add_get("/curves", curves)
    router.add_get("/metrics", read_metrics)
    router.add_get("/healthz", health)
    return app


# -- the page ----------------------------------------------------------------------------------------------------------


async def page(request: web.Request) -> web.StreamResponse:
    """Answer `/` with the page.

    With a token in the query the answer is a session, and the same address without the token.
    """
    state = request.app[STATE]
    if "token" in request.query:
        role = role_of_token(request, request.query["token"])
        options = request.query.items()
        rest = {name: value for name, value in options if name != "token"}
        # Relative, as only the browser knows the path that a proxy puts before ours.
        location = f".{request.rel_url.with_query(rest)}"
        response = web.Response(status=303, headers={hdrs.LOCATION: location})
        set_session(request, response, role)
        return response
    policy = content_security_policy(request.headers[hdrs.HOST], state.rules.allowed_origins)
    headers = {"Content-Security-Policy": policy}
    return web.Response(text=state.page["index.html"], content_type="text/html", headers=headers)


async def page_file(request: web.Request) -> web.StreamResponse:
    """Answer `/static/NAME` with a file that the page loads."""
    name = request.match_info["name"]
    text = request.app[STATE].page.get(name)
    kind = _KINDS.get(name.rpartition(".")[2])
    if text is None or kind is None:
        raise web.HTTPNotFound(**error_body("the page has no such file"))
    return web.Response(text=text, content_type=kind)


async def login(request: web.Request) -> web.StreamResponse:
    """Answer `/login`: {"token": …} gives {"role": …} and the cookie of a session."""
    token = (await read_object(request)).get("token")
    role = role_of_token(request, token if isinstance(token, str) else None)
    response = web.json_response({"role": role})
    set_session(request, response, role)
    return response


# -- pictures ----------------------------------------------------------------------------------------------------------


async def snapshot(request: web.Request) -> web.StreamResponse:
    """Answer `/snapshot.jpg` with a JPEG of this moment.

    If no frame comes in time, it is the newest one, at most a second older; 503 if there is none yet.
    """
    refuse_options(request, "stream")
    with admit_viewer(request, "snapshot"), _subscribe(request) as subscription:
        # Outside of the block the seat is free again, while the answer is still being sent.
        encoded = await _wait_for_newest(subscription, stream_time() - _FRESH)
    if encoded is None:
        raise web.HTTPServiceUnavailable(**error_body("no frame yet"), headers={hdrs.RETRY_AFTER: "1"})
    request.app[STATE].metrics.count_sent(STILLS, "snapshot", len(encoded.data))
    headers = {"X-Frame": field_header(encoded, stream_time())}
    return web.Response(body=encoded.data, content_type="image/jpeg", headers=headers)


async def mjpeg(request: web.Request) -> web.StreamResponse:
    """Answer `/stream.mjpg?stream=…&fps=…&compat=1` with one picture after the other.

    It is for `<img>` and simple readers.
    """
    refuse_options(request, "stream", "fps", "compat")
    if request.query.get("compat", "1") not in ("", "0", "1"):
        raise web.HTTPBadRequest(**error_body("compat must be 0 or 1"))
    with admit_viewer(request, "mjpeg"):
        try:
            fps = read_fps(request.query["fps"]) if "fps" in request.query else None
        except ProtocolError as error:
            raise web.HTTPBadRequest(**error_body(str(error))) from None
        with _subscribe(request, fps) as subscription:
            return await _stream(request, subscription)


async def offer(request: web.Request) -> web.StreamResponse:
    """Answer the WebRTC offer of `/webrtc/offer`.

    {"sdp", "type", "stream", "fps"} gives {"sdp", "type", "id"}.
    """
    refuse_options(request)
    fields = await read_object(request)
    try:
        from torchrl_gpu.streaming.web import webrtc
    except ImportError:
        raise web.HTTPNotImplemented(
            **error_body("the server has no aiortc, which its extra webrtc brings; `torchrl-gpu doctor` there says how")
        ) from None
    # The seat outlasts this request: the peer closes it.
    seat = admit_viewer(request, "webrtc")
    try:
        return web.json_response(await webrtc.answer(request.app[STATE], fields, seat))
    except BaseException as error:
        seat.close()
        if isinstance(error, ValueError):
            raise web.HTTPBadRequest(**error_body(str(error))) from None
        raise


# -- data --------------------------------------------------------------------------------------------------------------


async def streams(request: web.Request) -> web.StreamResponse:
    """Answer `/streams` with the facts of all streams."""
    refuse_options(request)
    return web.json_response(request.app[STATE].hub.describe_streams())


async def curves(request: web.Request) -> web.StreamResponse:
    """Answer `/curves` with the curves of the run.

    They begin behind the point `since`, or with the first. `newest` is the point to go on from.
    """
    refuse_options(request, "since")
    kept = request.app[STATE].hub.curves
    since = request.query.get("since", "0")
    if not re.fullmatch(r"[0-9]{1,16}", since):
        raise web.HTTPBadRequest(**error_body("curves: since must be an integer from 0 on, of at most 16 digits"))
    newest = kept.serial
    found: list[str] = []
    for portion in kept.since(int(since)):
        found.append(",".join(map(json.dumps, portion)))
        # Pictures go first.
        await asyncio.sleep(0)
    return web.Response(text=f'{{"newest": {newest}, "curves": [{",".join(found)}]}}', content_type="application/json")


async def read_metrics(request: web.Request) -> web.StreamResponse:
    """Answer `/metrics` for Prometheus."""
    text = generate_latest(request.app[STATE].metrics.registry)
    return web.Response(body=text, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})


async def health(request: web.Request) -> web.StreamResponse:
    """Answer `/healthz`."""
    return web.Response(text="ok\n")


async def read_object(request: web.Request) -> dict[str, object]:
    """Return the JSON object of a request's body.

    Raises:
        web.HTTPException: 400 for anything else, and as `read_body`.
    """
    body = await read_body(request)
    # However large the bodies are that the server takes elsewhere: this is parsed on the loop, for strangers too.
    if len(body) > MAX_BODY_BYTES:
        raise web.HTTPBadRequest(**error_body(f"JSON may have at most {MAX_BODY_BYTES} bytes"))
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(**error_body("invalid JSON")) from None
    if not isinstance(fields, dict):
        raise web.HTTPBadRequest(**error_body("the JSON must be an object"))
    return fields


async def read_body(request: web.Request) -> bytes:
    """Return a request's body.

    Raises:
        web.HTTPException: 408 if it does not come, 413 if it is large.
    """
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(**error_body("the body did not come within 5 s")) from None


# -- subscriptions -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _subscribe(request: web.Request, fps: float | None = None) -> Iterator[Subscription]:
    """Give JPEGs of the stream that a request names, or else of the first.

    Raises:
        web.HTTPNotFound: There is no such stream.
    """
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


async def _wait_for_newest(subscription: Subscription, since: float) -> EncodedPicture | None:
    """Return the first picture captured since a time.

    If none comes at once, it is the newest there is; None if there is none.
    """
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


async def _stream(request: web.Request, subscription: Subscription) -> web.StreamResponse:
    """Send pictures until the viewer goes, or takes none for two heartbeats."""
    state = request.app[STATE]
    heartbeat = state.settings.heartbeat_s
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "multipart/x-mixed-replace; boundary=frame"})
    writer = await response.prepare(request)
    assert writer is not None
    lift_time_limit(request)
    _keep_buffers_small(request)
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
            # A still source has its last picture sent again, which finds dead viewers.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(heartbeat):
                    encoded = await subscription.get()
            chunk = b"" if encoded is None else _part(encoded, compat)
            if encoded is not counted:
                counted = encoded
                state.metrics.count_sent(STILLS, "mjpeg", len(chunk))
    # Closing would first send what lies in the buffers, which a viewer that reads nothing never takes.
    if request.transport is not None:
        request.transport.abort()
    return response


def _keep_buffers_small(request: web.Request) -> None:
    """Keep few bytes under way to a viewer, by whose number it is late."""
    if request.transport is None:
        return
    request.transport.set_write_buffer_limits(high=0)
    connection = request.transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)


def _part(encoded: EncodedPicture, compat: bool) -> bytes:
    """Return a picture and the head of the next part.

    Browsers show a picture only once they have read the next head: without it each would be shown one frame late. In
    the usual framing, which some readers insist on, the head stands first and gives the length, and all that a
    WebSocket's header holds.
    """
    if not compat:
        return encoded.data + b"\r\n" + _BOUNDARY + _PART
    header = field_header(encoded, stream_time())
    fields = f"Content-Length: {len(encoded.data)}\r\nX-Frame: {header}\r\n".encode()
    return _BOUNDARY + fields + _PART + encoded.data + b"\r\n"
