"""Packing sessions behind the port, the token and the limits of a stream server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from torchrl_gpu.palletizing.sessions import MOST_BYTES, PackingSessions
from torchrl_gpu.serving.asking import Asking
from torchrl_gpu.serving.batching import Busy, release_at_end
from torchrl_gpu.system.policy_messages import BadMessage

# Messages.
_MOST_WAITING = 256


class PalletRoutes:
    """The routes `/pallet` and `/pallet/ws` of packing sessions.

    See `PackingSessions` for the messages: JSON alone, answered in the order in which it came. One thread answers, so
    that an answer on one core takes as long whoever else asks, and nothing else waits for it.
    """

    def __init__(self, sessions: PackingSessions, max_body: int) -> None:
        self._sessions = sessions
        self._waiting = 0
        self._asking = Asking("/pallet", self._answer, "the packing session", min(max_body, MOST_BYTES))

    def add(self, app: web.Application) -> None:
        """Add the routes to an application, and answer while it runs."""
        self._asking.add(app)
        app.cleanup_ctx.append(self._running)

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        with release_at_end(ThreadPoolExecutor(1, "torchrl_gpu pallets")) as self._thread:
            yield

    async def _answer(self, body: bytes | str, is_json: bool) -> bytes:
        if not is_json:
            raise BadMessage("a packing session takes JSON, with the content type application/json")
        if self._waiting >= _MOST_WAITING:
            raise Busy
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            answering = loop.run_in_executor(self._thread, self._sessions.answer, body)
            done, answer = await answering
        finally:
            self._waiting -= 1
        if not done:
            raise BadMessage(answer["message"])
        return json.dumps(answer, allow_nan=False).encode()
