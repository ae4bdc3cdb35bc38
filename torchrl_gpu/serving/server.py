"""A policy behind the port, the token and the limits of a stream server."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, hdrs, web

from torchrl_gpu.policies.export.manifest import manifest_of
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.serving.batching import Batching, Busy
from torchrl_gpu.serving.messages import Messages
from torchrl_gpu.serving.page import PolicyPage
from torchrl_gpu.streaming import StreamServer
from torchrl_gpu.streaming.broadcast.rate_limits import TokenBucket
from torchrl_gpu.streaming.web.access import error_body, let_last, role_of
from torchrl_gpu.streaming.web.routes import read_body
from torchrl_gpu.streaming.web.sockets import opened
from torchrl_gpu.streaming.web.viewer import message_limit
from torchrl_gpu.system import arguments
from torchrl_gpu.system.policy_messages import BadAction, BadMessage

_LOG = logging.getLogger(__name__)
_MANY = 16  # passes that may wait
_LARGE = 16_384  # bytes of JSON from which on a thread reads it
_MISTAKES, _MISTAKE_S = 2, 10.0  # that are let pass on a WebSocket, and seconds after which one is forgotten


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
    `GET /info` says what they mean, see `manifest_of`. A message is safetensors or, where the request says
    `application/json` and on the WebSocket where it is text, JSON: the entries of `policy.in_keys`, (rows, …) each. The
    answer is of the same kind: `action`. Errors are JSON, `{"message": …}`: 400 for a message that is none, or for
    which the policy has no finite action, 401 without the token, 403 where that only lets watch, 413 for one that is
    too large, 500 where the policy fails, 503 where too much waits. A WebSocket is closed at the third mistake in ten
    seconds, and after more pings than a viewer may send. All else is as in `StreamServer`: its page, `/healthz` and
    `/metrics`.

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
    """The routes that a policy adds to a server; see `policy_server`."""

    def __init__(self, policy: InferencePolicy, max_rows: int, wait_s: float, max_body: int) -> None:
        self._messages, self._max_body = Messages(policy, max_rows), max_body
        self.batching = Batching(policy, max_rows, wait_s, _MANY * max_rows)
        self._info = json.dumps(manifest_of(policy) | {"max_rows": max_rows, "max_body_bytes": max_body})

    def add(self, app: web.Application) -> None:
        app.add_routes([web.post("/act", self.act), web.get("/act/ws", self.talk), web.get("/info", self.info)])
        app.cleanup_ctx.append(self._running)

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        with ThreadPoolExecutor(1, "torchrl_gpu messages") as self._reader:
            async with self.batching.running():
                yield

    async def info(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._info, content_type="application/json")

    async def act(self, request: web.Request) -> web.StreamResponse:
        """Actions for the observations of one request."""
        _check_role(request)
        is_json = request.content_type == "application/json"
        body = await read_body(request)
        let_last(request)  # a pass may take as long as it takes
        try:
            answer = await self._answer(body, is_json)
        except Exception as error:
            status, message = _failure(error)
            headers = {hdrs.RETRY_AFTER: "1"} if isinstance(error, Busy) else None
            return web.Response(status=status, headers=headers, **error_body(message))
        return web.Response(body=answer, content_type="application/json" if is_json else "application/octet-stream")

    async def talk(self, request: web.Request) -> web.StreamResponse:
        """Actions for the observations of each message, one after the other."""
        _check_role(request)
        async with opened(request, "policy", self._max_body) as socket:
            with suppress(ConnectionError):
                await self._talk(request, socket)
        return socket

    async def _talk(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        connection, patience = let_last(request), _Patience()
        async for message in socket:
            is_mistake = False
            if message.type is WSMsgType.PING:
                await socket.pong(message.data)
            elif message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                status = await self._reply(socket, message.data, message.type is WSMsgType.TEXT)
                if status == 200:
                    continue
                is_mistake = status != 503
            if (why := patience.end(is_mistake)) is not None:
                connection.stop_reading()
                await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=why)
            await asyncio.sleep(0)  # messages may lie one behind the other: others have their turn

    async def _reply(self, socket: web.WebSocketResponse, body: bytes | str, is_json: bool) -> int:
        """Answers a message of a WebSocket; the status of a request with it."""
        try:
            answer = await self._answer(body, is_json)
        except Exception as error:
            status, message = _failure(error)
            await socket.send_json({"message": message})
            return status
        await (socket.send_str(answer.decode()) if is_json else socket.send_bytes(answer))
        return 200

    async def _answer(self, body: bytes | str, is_json: bool) -> bytes:
        if is_json and len(body) > _LARGE:
            loop = asyncio.get_running_loop()
            observations = await loop.run_in_executor(self._reader, self._messages.parse, body, is_json)
        else:
            observations = self._messages.parse(body, is_json)
        return self._messages.pack(await self.batching.act(observations), is_json)


class _Patience:
    """Limits of what a peer sends that brings no action, and that nothing else slows down."""

    def __init__(self) -> None:
        self._messages, self._mistakes = message_limit(), TokenBucket(1 / _MISTAKE_S, _MISTAKES)

    def end(self, is_mistake: bool) -> bytes | None:
        """Counts a message; why the peer is sent away, if it is."""
        now = time.monotonic()
        if is_mistake and not self._mistakes.take(now):
            return b"too many mistakes"
        return None if self._messages.take(now) else b"too many messages"


def _failure(error: Exception) -> tuple[int, str]:
    """Status and message of an error of a request."""
    if isinstance(error, BadMessage | BadAction):
        return 400, str(error)
    if isinstance(error, Busy):
        return 503, "too much waits"
    _LOG.error("the policy failed", exc_info=error)
    return 500, f"the policy failed: {type(error).__name__}"


def _check_role(request: web.Request) -> None:
    """Raises 403 for those who may only watch."""
    if role_of(request) != "control":
        raise web.HTTPForbidden(**error_body("want the token that controls"))
