"""Limits that aiohttp does not have.

They bound the connections of one address and of all, and the bytes that a viewer may send.
"""

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
# From a viewer on a WebSocket.
_BYTES_PER_SECOND = 65_536.0
_BYTES_AT_ONCE = 262_144.0
_HANDSHAKE_TIMEOUT = 10.0  # seconds
# Connections that a server has room for under any limit of open files.
_MIN_CONNECTIONS = 4
# Files that are left to the program at least.
_MIN_RESERVED_FILES = 32
# Open files where the system does not tell how many there are.
_ASSUMED_OPEN_FILES = 16


class DescriptorLimit(NamedTuple):
    """The limit of open files.

    Attributes:
        room: Sockets that it allows.
        why: The reason in words, for the log.
    """

    room: float = math.inf
    why: str = ""


class ConnectionLimit:
    """Counts connections, and aborts those that watch nothing to make room for others.

    One address gets two thirds of them at most. When its share is taken, the one of its connections that watches
    nothing and has been silent for longest makes room for the newcomer. When all are taken, it is such a connection of
    the address that has the most.
    """

    def __init__(self, limit: int, descriptors: DescriptorLimit | None = None) -> None:
        self._descriptors = descriptors or DescriptorLimit()
        self._limit = int(min(limit, self._descriptors.room))
        # Two thirds, rounded up: one address that takes all it can still leaves room for others.
        self._limit_per_address = max(1, -(-2 * self._limit // 3))
        if self._limit < limit:
            why = self._descriptors.why
            _LOG.warning("StreamServer: there is room for %d connections, not %d: %s", self._limit, limit, why)
        self._connections: set[Connection] = set()
        self._reserved = 0

    def __len__(self) -> int:
        return len(self._connections)

    def reserve(self, number: int) -> bool:
        """Reserve descriptors for sockets that are opened elsewhere.

        Returns:
            False if there are not as many, in which case none is reserved.
        """
        if len(self) + self._reserved + number > self._descriptors.room:
            return False
        self._reserved += number
        return True

    def release(self, number: int) -> None:
        self._reserved -= number

    def admit(self, connection: Connection) -> bool:
        """Count a connection, for which a silent one may be aborted.

        Returns:
            False if there is no room.
        """
        source = connection.source
        counts = Counter(each.source for each in self._connections)
        if counts[source] >= self._limit_per_address and not self._make_room(source):
            return False
        is_full = len(self) >= self._limit or len(self) + self._reserved >= self._descriptors.room
        if is_full:
            idle = Counter(each.source for each in self._connections if not each.is_kept)
            if not idle:
                return False
            # By silence alone, an address that floods the server would push out the quiet connections of all others.
            busiest, _ = idle.most_common(1)[0]
            if not self._make_room(busiest):
                return False
        self._connections.add(connection)
        return True

    def discard(self, connection: Connection) -> None:
        """Count a connection no more."""
        self._connections.discard(connection)

    def close(self) -> None:
        """Abort all connections, and those that are still to come."""
        self._limit = 0
        for connection in self._connections:
            connection.abort()

    def _make_room(self, source: str) -> bool:
        """Abort the idle connection of an address that has been silent for longest.

        Returns:
            False if all of them watch.
        """
        of_source = [each for each in self._connections if each.source == source]
        idle = [each for each in of_source if not each.is_kept]
        if not idle:
            return False
        silent = min(idle, key=lambda each: each.heard_at)
        silent.abort()
        self.discard(silent)
        return True


class Connection(asyncio.Protocol):
    """One connection, from before its TLS handshake on.

    It passes everything to aiohttp's protocol of requests.

    Attributes:
        source: Address of the peer, as `network` gives it.
        heard_at: When it last sent something, by the monotonic clock.
        is_kept: Whether its request may last, as that of a viewer; then it makes no room for others.
        deadline: Time limit of its request.
    """

    def __init__(self, connections: ConnectionLimit, protocol: asyncio.Protocol, tls: ssl.SSLContext | None) -> None:
        self.source = "?"
        self.heard_at = time.monotonic()
        self.is_kept = False
        self.deadline = asyncio.timeout(None)
        self._connections = connections
        self._protocol = protocol
        self._tls = tls
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._bucket: TokenBucket | None = None
        self._on_flood: Callable[[], None] = self.abort
        self._is_deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake or the requests, unless there is no room."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is not None:
            self.source = network(peer[0])
        # Before a byte is read, so that a handshake that never ends counts as well.
        is_admitted = self._connections.admit(self)
        if self._tls is None:
            self._protocol.connection_made(transport)
        else:
            # Until TLS reads.
            self._transport.pause_reading()
            self._handshake = asyncio.create_task(self._start_tls(self._tls))
        if not is_admitted:
            self.abort()

    async def _start_tls(self, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        transport = self._transport
        assert transport is not None
        secured: asyncio.Transport | None = None
        try:
            secured = await loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT
            )
        except OSError as error:
            # The peer speaks no TLS.
            _LOG.debug("a connection failed: %s", error)
        if secured is None:
            # Without an error, the peer broke off in the middle of it.
            self._connections.discard(self)
            return
        self._transport = secured
        self._protocol.connection_made(secured)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, unless a viewer sends too many."""
        if self._is_deaf:
            return
        self.heard_at = time.monotonic()
        bucket = self._bucket
        is_allowed = bucket is None or bucket.take(self.heard_at, len(data))
        if is_allowed:
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
        self._connections.discard(self)
        self._protocol.connection_lost(error)

    def lift_time_limit(self) -> None:
        """Let the present request last, and its connection make no room for others."""
        self.is_kept = True
        self.deadline.reschedule(None)

    def limit_rate(self, on_flood: Callable[[], None]) -> None:
        """Limit the bytes per second from now on.

        After a flood nothing is read any more.
        """
        self._bucket = TokenBucket(_BYTES_PER_SECOND, _BYTES_AT_ONCE)
        self._on_flood = on_flood

    def stop_reading(self) -> None:
        """Read nothing more.

        What is written is still sent.
        """
        self._is_deaf = True
        if self._transport is not None:
            self._transport.pause_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def connection_of(transport: asyncio.BaseTransport | None) -> Connection:
    """Return the connection that a request came by.

    Raises:
        ConnectionError: It has been lost.
    """
    if transport is None:
        raise ConnectionResetError("the peer has left")
    return cast(Connection, transport.get_protocol())


def descriptors_left() -> DescriptorLimit:
    """Return the room for connections under the limit of open files.

    The files that are open now need none of it. A quarter of the limit, at least 32 files, is left to the program, so
    that its own `open` does not fail.
    """
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return DescriptorLimit()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return DescriptorLimit()
    num_open = _num_open_files()
    reserve = max(_MIN_RESERVED_FILES, limit // 4)
    why = f"{limit} files may be open (ulimit -n), {num_open} of them are, and {reserve} are left to the program"
    return DescriptorLimit(max(_MIN_CONNECTIONS, limit - reserve - num_open), why)


def _num_open_files() -> int:
    """Return the number of open files, without the one that lists them."""
    folder = next(filter(os.path.isdir, ("/proc/self/fd", "/dev/fd")), None)
    return _ASSUMED_OPEN_FILES if folder is None else len(os.listdir(folder)) - 1
