"""What requests share, and the middleware of each.

The middleware checks host, origin and token, bounds the time of a request, and adds headers to the response.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import resources
from typing import TypedDict

from aiohttp import WSCloseCode, hdrs, web

from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.metrics import Metrics
from torchrl_gpu.streaming.web.connection_limit import Connection, ConnectionLimit, connection_of, descriptors_left
from torchrl_gpu.streaming.web.security import AccessRules, FailureLimit, Role
from torchrl_gpu.streaming.web.settings import ServerSettings

_IDLE_TIMEOUT = 10.0  # seconds
# Seconds for answers that are being made when the server stops.
FINISH_S = 5.0
# Connections beyond those of viewers, each of whom may have two.
_SPARE_CONNECTIONS = 64
# The page itself holds no secret; it asks for the token.
_PUBLIC = ("/healthz", "/login", "/", "/static/{name}")
_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
# Characters of what a peer sent that are quoted in an answer.
_MOST_QUOTED = 100
# Names that some path takes in its query.
_OPTIONS = ("stream", "fps", "compat", "since", "transport", "codec", "beside")
_PREFLIGHT = {
    hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST",
    hdrs.ACCESS_CONTROL_ALLOW_HEADERS: "Authorization, Content-Type",
    hdrs.ACCESS_CONTROL_MAX_AGE: "600",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class AppState:
    """State that all requests of a server share.

    Attributes:
        sockets: Open WebSockets.
        finishers: Awaited when the server stops, before anything is closed, such as answers that are being made. Each
            bounds its own time.
        closers: Awaited when the server stops, such as the closing of peer connections.
        num_viewers: Of all transports.
        idle_timeout: Seconds that a connection may be silent, and that a request which is no viewer's may take.
        page: Files of the page by name: `index.html`, and those that it loads.
    """

    settings: ServerSettings
    hub: Hub
    port: int = 0
    sockets: set[web.WebSocketResponse] = field(default_factory=set)
    finishers: set[Callable[[], Awaitable[object]]] = field(default_factory=set)
    closers: set[Callable[[], Awaitable[object]]] = field(default_factory=set)
    num_viewers: int = 0

    def __post_init__(self) -> None:
        settings = self.settings
        self.rules = AccessRules(settings.token, settings.view_token, settings.allowed_origins)
        self.failures = FailureLimit()
        self.idle_timeout = _IDLE_TIMEOUT
        limit = 2 * settings.max_clients + _SPARE_CONNECTIONS
        self.connections = ConnectionLimit(limit, descriptors_left())
        # Read once: a request names a file by this dict alone, so that no path of it reaches the disk.
        folder = resources.files(__package__).joinpath("static")
        files = [file for file in folder.iterdir() if file.is_file()]
        self.page = {file.name: file.read_text(encoding="utf-8") for file in files}

    async def finish(self) -> None:
        """Wait for answers that are being made."""
        await asyncio.gather(*(finish() for finish in self.finishers), return_exceptions=True)

    async def close(self) -> None:
        """Close WebSockets and peer connections."""
        sockets = [socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server stops") for socket in self.sockets]
        peers = [close() for close in self.closers]
        await asyncio.gather(*sockets, *peers, return_exceptions=True)

    @property
    def metrics(self) -> Metrics:
        return self.hub.metrics


STATE: web.AppKey[AppState] = web.AppKey("state", AppState)


# -- the middleware ----------------------------------------------------------------------------------------------------


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Pass a request to its handler if its host, origin and token are valid.

    A request that takes too long is aborted.
    """
    # Many requests may come back to back on one connection: the others have their turn between them.
    await asyncio.sleep(0)
    try:
        connection = connection_of(request.transport)
        async with asyncio.timeout(request.app[STATE].idle_timeout) as connection.deadline:
            try:
                return await _answer(request, handler)
            finally:
                connection.is_kept = False
    except ConnectionError:
        # The peer has left: there is nothing to log or to answer.
        return web.Response(status=400)
    except TimeoutError:
        if not connection.deadline.expired():
            raise
        connection.abort()
        return web.Response(status=408)


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check a request and send its answer.

    Sending is part of it, so that the time limit also holds for a peer that reads nothing.
    """
    response: web.StreamResponse
    try:
        check_host_and_origin(request)
        if _is_preflight(request):
            return web.Response(status=204, headers=_PREFLIGHT)
        if _path(request) not in _PUBLIC:
            role_of(request)
        response = await handler(request)
    except web.HTTPException as refusal:
        response = refusal
    await response.prepare(request)
    await response.write_eof()
    if isinstance(response, web.HTTPException):
        raise response
    return response


def _is_preflight(request: web.Request) -> bool:
    """Return whether a browser asks if a page of an allowed origin may send a request.

    Such a question carries no token.
    """
    headers = request.headers
    if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in headers:
        return False
    return request.app[STATE].rules.lists_origin(headers.get(hdrs.ORIGIN))


def refuse_options(request: web.Request, *taken: str) -> None:
    """Refuse an option that another path has and this one would ignore.

    Unknown ones may stand there: programs add a number to an address to get past caches.

    Raises:
        web.HTTPBadRequest: There is such an option.
    """
    others = [name for name in _OPTIONS if name not in taken]
    ignored = [name for name in others if name in request.query]
    if ignored:
        allowed = ", ".join(taken) or "none here"
        message = f"{ignored[0]} has no effect at {request.path}; options: {allowed}"
        raise web.HTTPBadRequest(**error_body(message))


def lift_time_limit(request: web.Request) -> Connection:
    """Let a request last as long as it takes.

    Its connection makes no room for others.

    Raises:
        ConnectionError: The connection is lost.
    """
    connection = connection_of(request.transport)
    connection.lift_time_limit()
    return connection


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of every response.

    For pages of allowed origins also those of CORS.
    """
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    origin = request.headers.get(hdrs.ORIGIN)
    response.headers["Cross-Origin-Resource-Policy"] = "cross-origin" if _is_listed(request) else "same-site"
    if origin is not None and request.app[STATE].rules.lists_origin(origin):
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = "X-Frame, Retry-After"
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)


# -- hosts and origins -------------------------------------------------------------------------------------------------


def check_host_and_origin(request: web.Request) -> None:
    """Refuse names that are not ours, and pages of other origins.

    Such a page may neither connect nor post nor show pictures.

    Raises:
        web.HTTPForbidden: The request is one of them.
    """
    state = request.app[STATE]
    if not state.rules.allows_host(request.headers.get(hdrs.HOST, "")):
        state.metrics.refused.labels("host").inc()
        host = _quote(request.headers.get(hdrs.HOST, ""))
        raise web.HTTPForbidden(
            **error_body(f"the Host must be a name of this machine, or one of allowed_origins, not {host}")
        )
    headers = request.headers
    # A GET without an upgrade changes nothing, and its answer is not shown to scripts of other origins.
    connects = request.method != hdrs.METH_GET or hdrs.UPGRADE in headers
    origin = headers.get(hdrs.ORIGIN)
    is_allowed = state.rules.allows_origin(origin, headers[hdrs.HOST])
    refused = connects and not is_allowed
    # An <img> of a foreign page sends no Origin; but browsers say by themselves what a request is for.
    is_cross_site = headers.get("Sec-Fetch-Site") == "cross-site"
    is_embedded = is_cross_site and headers.get("Sec-Fetch-Dest", "document") != "document"
    # The policy of the page itself says who may show it in a frame.
    if refused or (is_embedded and _path(request) != "/" and not _is_listed(request)):
        state.metrics.refused.labels("origin").inc()
        raise web.HTTPForbidden(**error_body(_foreign_page(request)))


def _foreign_page(request: web.Request) -> str:
    """Return why a foreign page is refused, as far as the server can tell."""
    page = _quote(request.headers.get(hdrs.ORIGIN) or request.headers.get(hdrs.REFERER) or "another site")
    host = _quote(request.headers[hdrs.HOST])
    return (
        f"the page {page} is neither of this server, whose Host is {host}, nor one of allowed_origins. "
        f"Behind a proxy, have it pass Host on, or name the page's origin in allowed_origins"
    )


def _quote(text: str) -> str:
    """Return what a peer sent, short and printable."""
    start = text[:_MOST_QUOTED]
    return "".join(each if each.isprintable() else "?" for each in start)


def _path(request: web.Request) -> str | None:
    """Return the path of the route that answers, however it was spelled.

    It is None if no route answers.
    """
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


def _is_listed(request: web.Request) -> bool:
    """Return whether the requesting page has an allowed origin.

    A picture's request names the page as its referrer only.
    """
    headers = request.headers
    page = headers.get(hdrs.ORIGIN) or headers.get(hdrs.REFERER)
    return request.app[STATE].rules.lists_origin(page)


# -- tokens and sessions -----------------------------------------------------------------------------------------------


def role_of(request: web.Request) -> Role:
    """Return the role of a request by its session, bearer token or query token.

    Raises:
        web.HTTPUnauthorized: There is none.
        web.HTTPTooManyRequests: Its address has tried too many wrong ones.
    """
    state = request.app[STATE]
    if state.rules.is_open:
        return "control"
    name = cookie_name(request)
    cookie = request.cookies.get(name)
    token = _token(request)
    role = state.rules.sessions.role(cookie) if cookie else None
    if role is not None:
        return role
    if cookie and token is None:
        refused: web.HTTPException | None = _too_many(request)
        if refused is None:
            _note_failure(request, cookie)
            refused = _unauthorized("this session has ended; log in with the token")
        # Without the cookie the page asks for a token.
        refused.del_cookie(name, path="", httponly=True, samesite="Strict")
        raise refused
    return role_of_token(request, token)


def role_of_token(request: web.Request, token: str | None) -> Role:
    """Return the role of a token.

    A long token opens at any time, for its guesses are hopeless however many there are. A short one, which only
    loopback may have, opens only while its address has guesses left: the limit is its only protection.

    Raises:
        web.HTTPException: As `role_of`.
    """
    state = request.app[STATE]
    if state.rules.is_open:
        return "control"
    if token is None:
        raise _unauthorized("this server needs a token")
    role = state.rules.role_of_token(token)
    if role is not None and state.rules.is_out_of_reach(role):
        return role
    refused = _too_many(request)
    if refused is not None:
        raise refused
    if role is None:
        _note_failure(request, token)
        raise _unauthorized("this token is wrong")
    return role


def set_session(request: web.Request, response: web.StreamResponse, role: Role) -> None:
    """Open a session, and set its cookie in a response."""
    rules = request.app[STATE].rules
    if not rules.is_open:
        cookie = rules.sessions.open(role)
        # Without a path of its own it holds for the folder of this address: behind a proxy, that of this server alone.
        response.set_cookie(
            cookie_name(request), cookie, path="", httponly=True, samesite="Strict", secure=request.secure
        )


def cookie_name(request: web.Request) -> str:
    """Return the name of the session's cookie.

    It has the port as the browser knows it, since a browser keeps one set of cookies for all ports of a host, and the
    server's own, for several servers behind one port of a proxy.
    """
    port = request.headers.get(hdrs.HOST, "").rpartition(":")[2]
    default = "443" if request.secure else "80"
    known = port if port.isdecimal() else default
    return f"torchrl_gpu_{known}_{request.app[STATE].port}"


def _too_many(request: web.Request) -> web.HTTPTooManyRequests | None:
    """Return the refusal of an address that has tried too many wrong tokens.

    Wrong cookies count too. For all other addresses it is None.
    """
    state = request.app[STATE]
    wait = state.failures.wait(request.remote or "?")
    if wait <= 0:
        return None
    state.metrics.refused.labels("failures").inc()
    headers = {hdrs.RETRY_AFTER: str(math.ceil(wait))}
    return web.HTTPTooManyRequests(**error_body("too many wrong tokens; wait"), headers=headers)


def _note_failure(request: web.Request, guess: str) -> None:
    state = request.app[STATE]
    state.failures.fail(request.remote or "?", guess)
    state.metrics.failed_tokens.inc()


def _token(request: web.Request) -> str | None:
    authorization = request.headers.get(hdrs.AUTHORIZATION, "")
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    return request.query.get("token")


def _unauthorized(message: str) -> web.HTTPUnauthorized:
    return web.HTTPUnauthorized(**error_body(message), headers={hdrs.WWW_AUTHENTICATE: 'Bearer realm="torchrl_gpu"'})


# -- viewers and errors ------------------------------------------------------------------------------------------------


def admit_viewer(request: web.Request, transport: str) -> ExitStack:
    """Count a viewer, in metrics by its transport, until the returned stack is closed.

    Raises:
        web.HTTPServiceUnavailable: There are as many viewers as there may be.
    """
    state = request.app[STATE]
    if state.num_viewers >= state.settings.max_clients:
        state.metrics.refused.labels("full").inc()
        raise web.HTTPServiceUnavailable(**error_body("all seats are taken"), headers={hdrs.RETRY_AFTER: "5"})
    seat = ExitStack()
    seat.enter_context(state.metrics.clients.labels(transport).track_inprogress())
    state.num_viewers += 1

    @seat.callback
    def leave() -> None:
        state.num_viewers -= 1

    return seat


class ErrorBody(TypedDict):
    """Arguments of a response or exception of aiohttp."""

    text: str
    content_type: str


def error_body(message: str) -> ErrorBody:
    """Return an error message as JSON, for a response or exception of aiohttp."""
    return {"text": json.dumps({"message": message}), "content_type": "application/json"}
