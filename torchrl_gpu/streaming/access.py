"""Requests before they are answered: host, token, origin, and the headers of every response."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import hdrs, web

from torchrl_gpu.streaming.app_state import AppState
from torchrl_gpu.streaming.security import Role

STATE: web.AppKey[AppState] = web.AppKey("state", AppState)
_PUBLIC = ("/healthz", "/login", "/")  # the page itself holds no secret; it asks for the token
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-site",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets a request pass to its handler if its host, origin and token are in order."""
    state = request.app[STATE]
    transport = request.transport
    state.doorstep.begin(transport)
    try:
        check_host_and_origin(request)
        if request.path not in _PUBLIC:
            role_of(request)
        return await handler(request)
    except ConnectionError:  # the peer has left: nothing to log, and nobody to answer
        return web.Response(status=400)
    finally:
        state.doorstep.end(transport)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds what every response carries."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


def check_host_and_origin(request: web.Request) -> None:
    """Raises 403 for names that are not ours, and for pages of other origins that connect or post."""
    state = request.app[STATE]
    if not state.gate.allows_host(request.headers.get(hdrs.HOST, "")):
        state.metrics.add("refused_total", reason="host")
        raise web.HTTPForbidden(**said("want a Host of this machine, or one of allowed_origins"))
    connects = request.method != hdrs.METH_GET or hdrs.UPGRADE in request.headers
    if connects and not state.gate.allows_origin(request.headers.get(hdrs.ORIGIN), request.headers[hdrs.HOST]):
        state.metrics.add("refused_total", reason="origin")
        raise web.HTTPForbidden(**said("want a page of this server, or one of allowed_origins"))


def role_of(request: web.Request) -> Role:
    """The role that a request's session, bearer token or query token gives.

    Raises 401 where there is none, and 429 for an address that has tried too many wrong ones.
    """
    state = request.app[STATE]
    if state.gate.is_open:
        return "control"
    cookie = request.cookies.get(cookie_name(state))
    role = state.gate.role_of_session(cookie) if cookie else None
    return role or role_of_token(request, _token(request))


def role_of_token(request: web.Request, token: str | None) -> Role:
    """The role that a token gives to whoever sent it; raises as `role_of` does."""
    state = request.app[STATE]
    if state.gate.is_open:
        return "control"
    if token is None:
        raise _unauthorized("want a token")
    address = request.remote or "?"
    if (wait := state.failures.wait(address)) > 0:
        state.metrics.add("refused_total", reason="failures")
        raise web.HTTPTooManyRequests(
            **said("too many wrong tokens; wait"), headers={hdrs.RETRY_AFTER: str(math.ceil(wait))}
        )
    role = state.gate.role_of_token(token)
    if role is None:
        state.failures.fail(address)
        state.metrics.add("failed_tokens_total")
        raise _unauthorized("want another token")
    return role


def set_session(request: web.Request, response: web.StreamResponse, role: Role) -> None:
    """Gives the browser a cookie that stands for a role."""
    state = request.app[STATE]
    if not state.gate.is_open:
        response.set_cookie(
            cookie_name(state), state.gate.session(role), httponly=True, samesite="Strict", secure=request.secure
        )


def cookie_name(state: AppState) -> str:
    """Name of the session's cookie; with the port, for browsers keep one jar for all ports of a host."""
    return f"torchrl_gpu_{state.port}"


def _token(request: web.Request) -> str | None:
    scheme, _, credentials = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    return request.query.get("token")


def _unauthorized(message: str) -> web.HTTPUnauthorized:
    return web.HTTPUnauthorized(**said(message), headers={hdrs.WWW_AUTHENTICATE: 'Bearer realm="torchrl_gpu"'})


def take_seat(request: web.Request, transport: str) -> Callable[[], None]:
    """What gives a viewer's seat back; raises 503 if all are taken."""
    give_back = request.app[STATE].seats.take(transport)
    if give_back is None:
        raise web.HTTPServiceUnavailable(**said("all seats are taken"), headers={hdrs.RETRY_AFTER: "5"})
    return give_back


def said(message: str) -> dict[str, Any]:
    """The body of an answer that says what is wrong, for its constructor."""
    return {"text": json.dumps({"message": message}), "content_type": "application/json"}


def fields_of(body: Any) -> dict[str, Any]:
    """A JSON object; raises 400 for anything else."""
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(**said("want a JSON object"))
    return body
