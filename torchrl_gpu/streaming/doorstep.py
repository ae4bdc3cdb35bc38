"""Connections before and between requests: how many there may be, and for how long they may say nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

Factory = Callable[[], asyncio.Protocol]


class Doorstep:
    """Counts connections, and drops those that have no request running for too long: idle and half-open ones.

    Args:
        limit: Connections at once; more are dropped as they come.
        patience: Seconds without a request.
    """

    def __init__(self, limit: int, patience: float) -> None:
        self.patience = patience
        self._limit = limit
        self._guests: dict[asyncio.BaseTransport, Guest] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def protect(self, factory: Factory) -> Factory:
        """A protocol factory whose connections are looked after."""
        return lambda: Guest(self, factory())

    def begin(self, transport: asyncio.BaseTransport | None) -> None:
        """Says that a request of this connection is running."""
        if guest := self._find(transport):
            guest.rest()

    def end(self, transport: asyncio.BaseTransport | None) -> None:
        """Says that it has been answered."""
        if guest := self._find(transport):
            guest.hurry()

    def enter(self, guest: Guest, transport: asyncio.Transport) -> bool:
        """Lets a connection in; false if there are too many."""
        if len(self._guests) >= self._limit:
            return False
        self._guests[transport] = guest
        return True

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """Forgets a connection."""
        self._guests.pop(transport, None)

    def _find(self, transport: asyncio.BaseTransport | None) -> Guest | None:
        return None if transport is None else self._guests.get(transport)


class Guest(asyncio.Protocol):
    """One connection: passes everything on to the protocol within."""

    def __init__(self, doorstep: Doorstep, within: asyncio.Protocol) -> None:
        self._doorstep = doorstep
        self._within = within
        self._inside = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuses it, or begins to wait for its first request."""
        self._transport = cast(asyncio.Transport, transport)
        self._inside = self._doorstep.enter(self, self._transport)
        if not self._inside:
            self._transport.abort()
            return
        _keep_alive(self._transport, self._doorstep.patience)
        self.hurry()
        self._within.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Passes bytes on."""
        if self._inside:
            self._within.data_received(data)

    def eof_received(self) -> bool | None:
        """Passes the end of input on."""
        return self._within.eof_received() if self._inside else None

    def pause_writing(self) -> None:
        """Passes on that the peer reads too slowly."""
        if self._inside:
            self._within.pause_writing()

    def resume_writing(self) -> None:
        """Passes on that it has caught up."""
        if self._inside:
            self._within.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Forgets the connection."""
        self.rest()
        if self._inside and self._transport is not None:
            self._doorstep.leave(self._transport)
            self._within.connection_lost(error)

    def hurry(self) -> None:
        """Starts the clock."""
        self.rest()
        if self._transport is not None:
            self._deadline = asyncio.get_running_loop().call_later(self._doorstep.patience, self._transport.abort)

    def rest(self) -> None:
        """Stops the clock."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _keep_alive(transport: asyncio.Transport, period: float) -> None:
    """Has the kernel find peers that vanished without a word."""
    connection: Any = transport.get_extra_info("socket")
    if connection is None:
        return
    seconds = max(1, round(period))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", seconds), ("TCP_KEEPINTVL", seconds), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
