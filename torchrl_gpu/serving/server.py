"""A policy behind the port, the token and the limits of a stream server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType, hdrs, web

from torchrl_gpu import arguments
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.sidecar import sidecar
from torchrl_gpu.serving.batching import Batching, Busy
from torchrl_gpu.serving.messages import BadMessage, Messages
from torchrl_gpu.serving.page import PolicyPage
from torchrl_gpu.streaming import StreamServer
from torchrl_gpu.streaming.web.access import STATE, admit_viewer, error_body, role_of
from torchrl_gpu.streaming.web.routes import read_body

_MANY = 16  # passes that may wait


def policy_server(
    policy: InferencePolicy,
    *,
    max_rows: int = 256,
    wait_ms: float = 0.0,
    max_body_mib: float = 4.0,
    page: bool = False,
    **options: Any,
) -> StreamServer:
    """A server, not yet started, that answers observations with actions.

    `POST /act` takes one message and gives one; `GET /act/ws` is a WebSocket that takes them one after the other;
    `GET /info` says what they mean, see `sidecar`. A message is safetensors or, where the request says
    `application/json` and on the WebSocket where it is text, JSON: the entries of `policy.in_keys`, (rows, …) each. The
    answer is of the same kind: `action`. Errors are JSON, `{"message": …}`: 400 for a message that is none, 401 without
    the token, 403 where that only lets watch, 413 for one that is too large, 503 where too much waits. All else is as
    in `StreamServer`: its page, `/healthz` and `/metrics`.

    Args:
        policy: Decides, on its device.
        max_rows: Observations of one message, and of one forward pass.
        wait_ms: How long a request may wait for others that are decided with it; what comes while one is decided always
            waits for the next pass.
        max_body_mib: Largest message.
        page: Whether the page shows what the policy saw and did at the newest requests, ten a second at most.
        **options: Of `StreamServer`.

    Raises:
        ValueError: An argument is something else.
    """
    where = "policy_server"
    max_rows = arguments.whole(where, "max_rows", max_rows, 1, 1 << 20)
    wait_s = arguments.number(where, "wait_ms", wait_ms, 0, 1000) / 1000
    max_body = int(arguments.number(where, "max_body_mib", max_body_mib, above=0, high=1024) * 2**20)
    routes = PolicyRoutes(policy, max_rows, wait_s, max_body)
    server = StreamServer(add_routes=routes.add, max_body_bytes=max_body, **options)
    if page:
        routes.batching.watch = PolicyPage(server, policy).show
    return server


class PolicyRoutes:
    """What a policy adds to a server.

    Args:
        policy, max_rows: As in `policy_server`.
        wait_s: Seconds.
        max_body: Bytes of a message on a WebSocket.
    """

    def __init__(self, policy: InferencePolicy, max_rows: int, wait_s: float, max_body: int) -> None:
        self._messages, self._max_body = Messages(policy, max_rows), max_body
        self.batching = Batching(policy, max_rows, wait_s, _MANY * max_rows)
        self._info = json.dumps(sidecar(policy) | {"max_rows": max_rows, "max_body_bytes": max_body})

    def add(self, app: web.Application) -> None:
        """Adds the routes, and the passes beside them, to an application."""
        app.add_routes([web.post("/act", self.act), web.get("/act/ws", self.talk), web.get("/info", self.info)])
        app.cleanup_ctx.append(self._running)

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        async with self.batching.running():
            yield

    async def info(self, request: web.Request) -> web.StreamResponse:
        """What the policy takes and gives."""
        return web.Response(text=self._info, content_type="application/json")

    async def act(self, request: web.Request) -> web.StreamResponse:
        """Actions for the observations of one request."""
        _check_role(request)
        is_json = request.content_type == "application/json"
        try:
            answer = await self._answer(await read_body(request), is_json)
        except BadMessage as error:
            raise web.HTTPBadRequest(**error_body(str(error))) from None
        except Busy:
            raise web.HTTPServiceUnavailable(**error_body("too much waits"), headers={hdrs.RETRY_AFTER: "1"}) from None
        return web.Response(body=answer, content_type="application/json" if is_json else "application/octet-stream")

    async def talk(self, request: web.Request) -> web.StreamResponse:
        """Actions for the observations of each message, one after the other."""
        _check_role(request)
        state = request.app[STATE]
        release = admit_viewer(request, "policy")
        socket = web.WebSocketResponse(
            heartbeat=state.settings.heartbeat_s, max_msg_size=self._max_body, compress=False
        )
        try:
            await socket.prepare(request)
            state.sockets.add(socket)
            with suppress(ConnectionError):
                await self._talk(request, socket)
        finally:
            state.sockets.discard(socket)
            release()
        return socket

    async def _talk(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        connections = request.app[STATE].connections
        connections.stop_timer(request.transport)
        async for message in socket:
            connections.start_timer(request.transport)  # the bytes of each message are counted anew
            connections.stop_timer(request.transport)
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                continue
            is_json = message.type is WSMsgType.TEXT
            try:
                answer = await self._answer(message.data, is_json)
            except (BadMessage, Busy) as error:
                await socket.send_json({"message": str(error) or "too much waits"})
            else:
                await (socket.send_str(answer.decode()) if is_json else socket.send_bytes(answer))

    async def _answer(self, body: bytes | str, is_json: bool) -> bytes:
        action = await self.batching.act(self._messages.parse(body, is_json))
        return self._messages.pack(action, is_json)


def _check_role(request: web.Request) -> None:
    """Raises 403 for those who may only watch."""
    if role_of(request) != "control":
        raise web.HTTPForbidden(**error_body("want the token that controls"))
