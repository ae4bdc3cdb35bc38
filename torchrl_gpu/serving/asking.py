"""Messages that come by HTTP or over a WebSocket, and their answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from aiohttp import WSCloseCode, WSMsgType, hdrs, web

from torchrl_gpu.serving.batching import Busy
from torchrl_gpu.streaming.broadcast.rate_limits import TokenBucket
from torchrl_gpu.streaming.web.access import FINISH_S, STATE, error_body, lift_time_limit, role_of
from torchrl_gpu.streaming.web.routes import read_body
from torchrl_gpu.streaming.web.sockets import open_socket
from torchrl_gpu.streaming.web.viewer import message_limit
from torchrl_gpu.system.policy_messages import BadAction, BadMessage

_LOG = logging.getLogger(__name__)
# Mistakes that are ignored on a WebSocket, and seconds after which one is forgotten.
_MISTAKES = 2
_MISTAKE_S = 10.0

Answer = Callable[[bytes | str, bool], Awaitable[bytes]]
"""Gives the answer to a message, which may be JSON, in the same form.

It raises BadMessage, BadAction or Busy if it cannot.
"""


class Stopping(Exception):
    """The server stops, and has no time for an answer."""


class InProgress:
    """Answers that are being made.

    Once the server stops, each is finished or given up within `FINISH_S`.
    """

    def __init__(self) -> None:
        self.deadlines: set[asyncio.Timeout] = set()
        self.is_stopping = False
        self._idle = asyncio.Event()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Inside this context an answer is made.

        Raises:
            Stopping: None is begun any more, or time is up.
        """
        if self.is_stopping:
            raise Stopping
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self.deadlines.add(deadline)
                yield
        except TimeoutError:
            # Another limit of time may have run out inside.
            if deadline.expired():
                raise Stopping from None
            raise
        finally:
            self.deadlines.discard(deadline)
            if not self.deadlines:
                self._idle.set()

    async def finish(self) -> None:
        """Begin nothing from now on, and wait for all that is in progress."""
        self.is_stopping = True
        end = asyncio.get_running_loop().time() + FINISH_S
        for deadline in self.deadlines:
            deadline.reschedule(end)
        while self.deadlines:
            self._idle.clear()
            await self._idle.wait()


class Asking:
    """`POST /path`, and the WebSocket `/path/ws`, for those who may control.

    Args:
        path: Such as "/act".
        answer: To each message.
        what: Answers, for its errors.
        max_body: Bytes of a message.
    """

    def __init__(self, path: str, answer: Answer, what: str, max_body: int) -> None:
        self._path = path
        self._make_answer = answer
        self._what = what
        self._max_body = max_body
        self._in_progress = InProgress()

    def add(self, app: web.Application) -> None:
        """Add the routes to an application."""
        app[STATE].finishers.add(self._in_progress.finish)
        app.router.add_post(self._path, self._post)
        app.router.add_get(f"{self._path}/ws", self._socket)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        _check_role(request)
        is_json = request.content_type == "application/json"
        body = await read_body(request)
        # An answer may take as long as it takes.
        lift_time_limit(request)
        try:
            async with self._in_progress.one():
                answer = await self._make_answer(body, is_json)
        except Exception as error:
            status, message = self._failure(error)
            headers = {hdrs.RETRY_AFTER: "1"} if status == 503 else None
            return web.Response(status=status, headers=headers, **error_body(message))
        return web.Response(body=answer, content_type="application/json" if is_json else "application/octet-stream")

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        _check_role(request)
        async with open_socket(request, "policy", self._max_body) as socket:
            with suppress(ConnectionError):
                await self._talk(request, socket)
        return socket

    async def _talk(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        """Answer the messages of a WebSocket until it is closed."""
        connection = lift_time_limit(request)
        # Limits of what a peer sends that brings no action, and that nothing else slows down.
        messages = message_limit()
        mistakes = TokenBucket(1 / _MISTAKE_S, _MISTAKES)
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
            # Many messages may come back to back: the others have their turn between them.
            await asyncio.sleep(0)

    async def _reply(self, socket: web.WebSocketResponse, body: bytes | str, is_json: bool) -> int:
        """Answer a message of a WebSocket.

        It returns the status that a request would have.
        """
        try:
            async with self._in_progress.one():
                return await self._reply_now(socket, body, is_json)
        except Stopping as error:
            return await self._reply_failure(socket, error)

    async def _reply_now(self, socket: web.WebSocketResponse, body: bytes | str, is_json: bool) -> int:
        try:
            answer = await self._make_answer(body, is_json)
        except Exception as error:
            return await self._reply_failure(socket, error)
        if is_json:
            await socket.send_str(answer.decode())
        else:
            await socket.send_bytes(answer)
        return 200

    async def _reply_failure(self, socket: web.WebSocketResponse, error: Exception) -> int:
        status, message = self._failure(error)
        await socket.send_json({"message": message})
        return status

    def _failure(self, error: Exception) -> tuple[int, str]:
        """Return status and message of an error of a request."""
        if isinstance(error, BadMessage | BadAction):
            return 400, str(error)
        if isinstance(error, Busy):
            return 503, "too much waits"
        if isinstance(error, Stopping):
            return 503, "the server stops"
        _LOG.error("%s failed", self._what, exc_info=error)
        return 500, f"{self._what} failed: {type(error).__name__}"


def _check_role(request: web.Request) -> None:
    """Refuse those who may only watch.

    Raises:
        web.HTTPForbidden: The token is only for watching.
    """
    if role_of(request) != "control":
        raise web.HTTPForbidden(**error_body("this token is only for watching; use the one that controls"))
