"""What every request of a server shares."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import resources

from aiohttp import WSCloseCode, web

from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.metrics import Metrics
from torchrl_gpu.streaming.web.connection_limit import Doorstep, descriptors_left
from torchrl_gpu.streaming.web.security import FailureLimit, Gate
from torchrl_gpu.streaming.web.settings import Settings

_PATIENCE = 10.0  # seconds that a connection may say nothing, or a request that is no viewer's may take
_SPARE_CONNECTIONS = 64


class Seats:
    """The viewers that there is room for.

    Args:
        limit: How many.
        metrics: Where they are counted, by transport.
    """

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self._limit = limit
        self._metrics = metrics
        self._taken: list[str] = []

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, transport: str) -> Callable[[], None] | None:
        """What gives the seat back, once however often it is called; None if all are taken."""
        if len(self._taken) >= self._limit:
            self._metrics.add("refused_total", reason="full")
            return None
        self._taken.append(transport)
        self._count(transport)
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            if not given_back:
                given_back = True
                self._taken.remove(transport)
                self._count(transport)

        return give_back

    def _count(self, transport: str) -> None:
        self._metrics.set("clients", self._taken.count(transport), transport=transport)


@dataclass
class AppState:
    """What every request of a server shares.

    Attributes:
        hub: Streams and subscriptions.
        gate, failures: Who may come in.
        seats: How many may watch.
        doorstep: Connections.
        port: Where the server listens.
        page: The HTML of the page.
        sockets: Open WebSockets.
        closers: Awaited when the server stops, such as the closing of peer connections.
    """

    settings: Settings
    hub: Hub
    port: int = 0
    sockets: set[web.WebSocketResponse] = field(default_factory=set)
    closers: set[Callable[[], Awaitable[object]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gate = Gate(self.settings.token, self.settings.view_token, self.settings.allowed_origins)
        self.failures = FailureLimit()
        self.seats = Seats(self.settings.max_clients, self.hub.metrics)
        wanted = 2 * self.settings.max_clients + _SPARE_CONNECTIONS
        self.doorstep = Doorstep(wanted, _PATIENCE, descriptors_left())
        self.page = load_page()

    async def close(self) -> None:
        """Says good-bye to all viewers."""
        sockets = [socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server stops") for socket in self.sockets]
        await asyncio.gather(*sockets, *(close() for close in self.closers), return_exceptions=True)

    @property
    def metrics(self) -> Metrics:
        """Where everything is counted."""
        return self.hub.metrics


def load_page() -> str:
    """The HTML of the page."""
    return resources.files("torchrl_gpu.streaming.web").joinpath("static", "index.html").read_text(encoding="utf-8")
