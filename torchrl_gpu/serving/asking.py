"""Messages that are asked by HTTP or over a WebSocket, and answered one after the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import WSCloseCode, WSMsgType, hdrs, web

from torchrl_gpu.serving.batching import Busy
from torchrl_gpu.streaming.broadcast.rate_limits import TokenBucket
from torchrl_gpu.streaming.web.access import error_body, let_last, role_of
from torchrl_gpu.streaming.web.routes import read_body
from torchrl_gpu.streaming.web.sockets import opened
from torchrl_gpu.streaming.web.viewer import message_limit
from torchrl_gpu.system.policy_messages import BadAction, BadMessage

_LOG = logging.getLogger(__name__)
_MISTAKES, _MISTAKE_S = 2, 10.0  # that are let pass on a WebSocket, and seconds after which one is forgotten

Answer = Callable[[bytes | str, bool], Awaitable[bytes]]
"""Gives the answer to a message, which may be JSON, in the same form; BadMessage, BadAction or Busy where it cannot."""


class Asking:
    """`POST /path`, and the WebSocket `/path/ws`, for those who may control.

    Args:
        path: Such as "/act".
        answer: To each message.
        what: Answers, for its errors.
        max_body: Bytes of a message.
    """

    def __init__(self, path: str, answer: Answer, what: str, max_body: int) -> None:
        self._path, self._answer, self._what, self._max_body = path, answer, what, max_body

    def add(self, app: web.Application) -> None:
        app.add_routes([web.post(self._path, self._post), web.get(f"{self._path}/ws", self._socket)])

    async def _post(self, request: web.Request) -> web.StreamResponse:
        _check_role(request)
        is_json = request.content_type == "application/json"
        body = await read_body(request)
        let_last(request)  # an answer may take as long as it takes
        try:
            answer = await self._answer(body, is_json)
        except Exception as error:
            status, message = self._failure(error)
            headers = {hdrs.RETRY_AFTER: "1"} if isinstance(error, Busy) else None
            return web.Response(status=status, headers=headers, **error_body(message))
        return web.Response(body=answer, content_type="application/json" if is_json else "application/octet-stream")

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        _check_role(request)
        async with opened(request, "policy", self._max_body) as socket:
            with suppress(ConnectionError):
                await self._talk(request, socket)
        return socket

    async def _talk(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        connection = let_last(request)
        # Limits of what a peer sends that brings no action, and that nothing else slows down.
        messages, mistakes = message_limit(), TokenBucket(1 / _MISTAKE_S, _MISTAKES)
        async for message in socket:
            is_mistake = False
            if message.type is WSMsgType.PING:
                await socket.pong(message.data)
            elif message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                status = await self._reply(socket, message.data, message.type is WSMsgType.TEXT)
                if status == 200:
                    continue
                is_mistake = status != 503
            now = time.monotonic()
            ends_over_mistakes = is_mistake and not mistakes.take(now)
            if ends_over_mistakes or not messages.take(now):
                connection.stop_reading()
                why = b"too many mistakes" if ends_over_mistakes else b"too many messages"
                await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=why)
            await asyncio.sleep(0)  # messages may lie one behind the other: others have their turn

    async def _reply(self, socket: web.WebSocketResponse, body: bytes | str, is_json: bool) -> int:
        """Answers a message of a WebSocket; the status of a request with it."""
        try:
            answer = await self._answer(body, is_json)
        except Exception as error:
            status, message = self._failure(error)
            await socket.send_json({"message": message})
            return status
        await (socket.send_str(answer.decode()) if is_json else socket.send_bytes(answer))
        return 200

    def _failure(self, error: Exception) -> tuple[int, str]:
        """Status and message of an error of a request."""
        if isinstance(error, BadMessage | BadAction):
            return 400, str(error)
        if isinstance(error, Busy):
            return 503, "too much waits"
        _LOG.error("%s failed", self._what, exc_info=error)
        return 500, f"{self._what} failed: {type(error).__name__}"


def _check_role(request: web.Request) -> None:
    """Raises 403 for those who may only watch."""
    if role_of(request) != "control":
        raise web.HTTPForbidden(**error_body("want the token that controls"))
