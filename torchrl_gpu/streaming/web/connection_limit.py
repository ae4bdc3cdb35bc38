"""Limits that aiohttp does not have: connections of one address and of all, and bytes that a viewer may send."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import ssl
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, cast

from torchrl_gpu.streaming.broadcast.rate_limits import TokenBucket
from torchrl_gpu.streaming.web.security import network

_LOG = logging.getLogger(__name__)
_BYTES_PER_SECOND, _BYTES_AT_ONCE = 65_536.0, 262_144.0  # from a viewer on a WebSocket
_HANDSHAKE_TIMEOUT = 10.0
_MIN_CONNECTIONS = 4  # connections that a server has room for under any limit of open files


class DescriptorLimit(NamedTuple):
    """The limit of open files."""

    room: float = math.inf  # sockets that it allows
    why: str = ""  # in words, for the log


class ConnectionLimit:
    """Counts connections, and aborts those that watch nothing to make room for others.

    One address gets two thirds of them at most. When its share or all are taken, its connection (or that of the
    address that has the most) that has been silent for longest and watches nothing makes room for the newcomer.
    """

    def __init__(self, limit: int, descriptors: DescriptorLimit | None = None) -> None:
        self._descriptors = descriptors or DescriptorLimit()
        self._limit = int(min(limit, self._descriptors.room))
        self._limit_per_address = max(1, -(-2 * self._limit // 3))
        if self._limit < limit:
            why = self._descriptors.why
            _LOG.warning("StreamServer: there is room for %d connections, not %d: %s", self._limit, limit, why)
        self._connections: set[Connection] = set()
        self._reserved = 0

    def __len__(self) -> int:
        return len(self._connections)

    def reserve(self, number: int) -> bool:
        """Reserves descriptors for sockets that are opened elsewhere; false if there are not as many."""
        if len(self) + self._reserved + number > self._descriptors.room:
            return False
        self._reserved += number
        return True

    def release(self, number: int) -> None:
        self._reserved -= number

    def admit(self, connection: Connection) -> bool:
        """Counts a connection, for which a silent one may be aborted; false if there is no room."""
        counts = Counter(each.source for each in self._connections)
        if counts[connection.source] >= self._limit_per_address and not self._make_room(connection.source):
            return False
        is_full = len(self) >= self._limit or len(self) + self._reserved >= self._descriptors.room
        if is_full:
            idle = Counter(each.source for each in self._connections if not each.lasts)
            if not idle or not self._make_room(idle.most_common(1)[0][0]):
                return False
        self._connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def close(self) -> None:
        """Aborts all connections, and those that are still to come."""
        self._limit = 0
        for connection in self._connections:
            connection.abort()

    def _make_room(self, source: str) -> bool:
        """Aborts the connection of an address that has been silent for longest; false if all of them watch."""
        idle = [each for each in self._connections if each.source == source and not each.lasts]
        if not idle:
            return False
        silent = min(idle, key=lambda each: each.heard_at)
        silent.abort()
        self.forget(silent)
        return True


class Connection(asyncio.Protocol):
    """One connection, from before its TLS handshake on: passes everything to aiohttp's protocol of requests."""

    def __init__(self, connections: ConnectionLimit, protocol: asyncio.Protocol, tls: ssl.SSLContext | None) -> None:
        self.source = "?"
        self.heard_at = time.monotonic()
        self.lasts = False  # whether its request may last, as that of a viewer
        self.deadline = asyncio.timeout(None)  # of its request
        self._connections, self._protocol, self._tls = connections, protocol, tls
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._bucket: TokenBucket | None = None
        self._on_flood: Callable[[], None] = self.abort
        self._is_deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins the handshake or the requests, unless there is no room for the connection."""
        self._transport = cast(asyncio.Transport, transport)
        if (peer := transport.get_extra_info("peername")) is not None:
            self.source = network(peer[0])
        is_admitted = self._connections.admit(self)
        if self._tls is None:
            self._protocol.connection_made(transport)
        else:
            self._transport.pause_reading()  # until TLS reads
            self._handshake = asyncio.create_task(self._start_tls(self._tls))
        if not is_admitted:
            self.abort()

    async def _start_tls(self, tls: ssl.SSLContext) -> None:
        loop, transport = asyncio.get_running_loop(), self._transport
        assert transport is not None
        secured: asyncio.Transport | None = None
        try:
            secured = await loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT
            )
        except OSError as error:  # no TLS
            _LOG.debug("a connection failed: %s", error)
        if secured is None:  # broken off in the middle of it
            self._connections.forget(self)
            return
        self._transport = secured
        self._protocol.connection_made(secured)

    def data_received(self, data: bytes) -> None:
        """Passes bytes on, unless a viewer sends too many."""
        if self._is_deaf:
            return
        self.heard_at = time.monotonic()
        if self._bucket is None or self._bucket.take(self.heard_at, len(data)):
            self._protocol.data_received(data)
        else:
            self.stop_reading()
            self._on_flood()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.forget(self)
        self._protocol.connection_lost(error)

    def last(self) -> None:
        """Lifts the time limit of the present request, and keeps the connection from making room for others."""
        self.lasts = True
        self.deadline.reschedule(None)

    def limit_rate(self, on_flood: Callable[[], None]) -> None:
        """Limits the bytes per second from now on; after a flood nothing is read any more."""
        self._bucket, self._on_flood = TokenBucket(_BYTES_PER_SECOND, _BYTES_AT_ONCE), on_flood

    def stop_reading(self) -> None:
        """Reads nothing more; what is written is still sent."""
        self._is_deaf = True
        if self._transport is not None:
            self._transport.pause_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def connection_of(transport: asyncio.BaseTransport | None) -> Connection:
    """The connection that a request came by; ConnectionError where it has been lost."""
    if transport is None:
        raise ConnectionResetError("the peer has left")
    return cast(Connection, transport.get_protocol())


def descriptors_left() -> DescriptorLimit:
    """Room for connections under the limit of open files, beside the files that are open now.

    A quarter of the limit, at least 32 files, is left to the program, so that its own `open` does not fail.
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return DescriptorLimit()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return DescriptorLimit()
    folder = next(filter(os.path.isdir, ("/proc/self/fd", "/dev/fd")), None)
    opened = 16 if folder is None else len(os.listdir(folder)) - 1  # but for the one that lists them
    reserve = max(32, limit // 4)
    why = f"{limit} files may be open (ulimit -n), {opened} of them are, and {reserve} are left to the program"
    return DescriptorLimit(max(_MIN_CONNECTIONS, limit - reserve - opened), why)
