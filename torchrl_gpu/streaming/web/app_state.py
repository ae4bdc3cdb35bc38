"""State that all requests of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import resources

from aiohttp import WSCloseCode, web

from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.metrics import Metrics
from torchrl_gpu.streaming.web.connection_limit import ConnectionLimit, descriptors_left
from torchrl_gpu.streaming.web.security import AccessRules, FailureLimit
from torchrl_gpu.streaming.web.settings import ServerSettings

_IDLE_TIMEOUT = 10.0
_SPARE_CONNECTIONS = 64


class ViewerLimit:
    """Limit of the number of viewers, counted by transport in metrics."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self._limit = limit
        self._metrics = metrics
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def admit(self, transport: str) -> ExitStack | None:
        """Counts a viewer until the stack is closed; None at the limit."""
        if self._number >= self._limit:
            self._metrics.refused.labels("full").inc()
            return None
        seat = ExitStack()
        seat.enter_context(self._metrics.clients.labels(transport).track_inprogress())
        seat.callback(self._leave)
        self._number += 1
        return seat

    def _leave(self) -> None:
        self._number -= 1


@dataclass
class AppState:
    """State that all requests of a server share.

    Attributes:
        idle_timeout: Seconds that a connection may be silent, and a request that is no viewer's may take.
        page: Files of the page by name: `index.html`, and those that it loads.
        sockets: Open WebSockets.
        closers: Awaited when the server stops, such as the closing of peer connections.
    """

    settings: ServerSettings
    hub: Hub
    port: int = 0
    sockets: set[web.WebSocketResponse] = field(default_factory=set)
    closers: set[Callable[[], Awaitable[object]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rules = AccessRules(self.settings.token, self.settings.view_token, self.settings.allowed_origins)
        self.failures = FailureLimit()
        self.viewers = ViewerLimit(self.settings.max_clients, self.hub.metrics)
        wanted = 2 * self.settings.max_clients + _SPARE_CONNECTIONS
        self.connections = ConnectionLimit(wanted, descriptors_left())
        self.idle_timeout = _IDLE_TIMEOUT
        files = resources.files(__package__).joinpath("static").iterdir()
        self.page = {file.name: file.read_text(encoding="utf-8") for file in files if file.is_file()}

    async def close(self) -> None:
        sockets = [socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server stops") for socket in self.sockets]
        await asyncio.gather(*sockets, *(close() for close in self.closers), return_exceptions=True)

    @property
    def metrics(self) -> Metrics:
        return self.hub.metrics
