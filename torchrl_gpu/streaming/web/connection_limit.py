"""Connections: how many there may be, how long one that watches nothing may last, and how much it may send."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torchrl_gpu.streaming.broadcast.rates import TokenBucket
from torchrl_gpu.streaming.web.security import network

Factory = Callable[[], asyncio.Protocol]
_LOG = logging.getLogger(__name__)
_MAX_REQUEST_BYTES = 131_072
_BYTES_PER_SECOND, _BYTES_AT_ONCE = 65_536.0, 262_144.0  # from a viewer on a WebSocket
_HANDSHAKE_TIMEOUT = 10.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_PAUSE = 0.25  # seconds until connections are accepted again after that failed
_MIN_CONNECTIONS = 4  # connections that a server has room for under any limit of open files


@dataclass(frozen=True)
class DescriptorLimit:
    """How many connections the limit of open files allows.

    A quarter of the limit, at least 32 files, is the program's, so that its own `open` does not fail because of
    viewers.

    Args:
        room: How many sockets there may be.
        highest: The largest descriptor that one may have.
        why: What these come from.
    """

    room: float = math.inf
    highest: float = math.inf
    why: str = ""


class ConnectionLimit:
    """Accepts connections, counts them, and drops those that watch nothing: after a while, or to make room.

    One address gets two thirds of them at most. When its share or all are taken, its connection (or that of the
    address that has the most) that has watched nothing for longest makes room for the newcomer.

    Args:
        limit: Connections at once.
        idle_timeout: Seconds that a connection may wait for its first request, take for one that is no viewer's, and
            stay without another.
        descriptors: What they have to make do with.
        max_request_bytes: Of a request and what comes behind it, until it has been answered.
    """

    def __init__(
        self,
        limit: int,
        idle_timeout: float,
        descriptors: DescriptorLimit | None = None,
        max_request_bytes: int = _MAX_REQUEST_BYTES,
    ) -> None:
        self.idle_timeout, self.max_request_bytes = idle_timeout, max_request_bytes
        self._has_warned = False
        self._descriptors = descriptors or DescriptorLimit()
        self._limit = int(min(limit, self._descriptors.room))
        self._limit_per_address = max(1, -(-2 * self._limit // 3))
        if self._limit < limit:
            self._warn_once(f"there is room for {self._limit} connections, not {limit}: {self._descriptors.why}")
        self._connections: dict[GuardedConnection, None] = {}  # in the order in which they came
        self._reserved = 0

    def __len__(self) -> int:
        return len(self._connections)

    async def accept(self, listener: socket.socket, factory: Factory, tls: ssl.SSLContext | None) -> None:
        """Accepts connections until it is cancelled."""
        loop = asyncio.get_running_loop()
        connecting: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as error:  # of this connection, or of the machine: neither ends the server
                    if error.errno in _EXHAUSTED:
                        self._warn_once(f"no connection can be accepted: {error.strerror}")
                    await asyncio.sleep(_ACCEPT_PAUSE)
                    continue
                guarded = self._admit(connection, address[0], factory)
                if guarded is None:
                    connection.close()
                    continue
                guarded.connecting = loop.create_task(_connect(guarded, connection, tls))
                connecting.add(guarded.connecting)
                guarded.connecting.add_done_callback(connecting.discard)
                guarded.connecting.add_done_callback(partial(self._close_failed, guarded, connection))
        finally:
            for task in connecting:
                task.cancel()
            await asyncio.gather(*connecting, return_exceptions=True)

    def reserve(self, number: int) -> bool:
        """Reserves descriptors for sockets that are opened elsewhere; false if there are not as many."""
        if len(self) + self._reserved + number > self._descriptors.room:
            return False
        self._reserved += number
        return True

    def release(self, number: int) -> None:
        """Frees reserved descriptors."""
        self._reserved -= number

    def start_timer(self, transport: asyncio.BaseTransport | None) -> None:
        """(Re)starts the idle timeout of a connection: at the begin of a request, and after its answer."""
        if guarded := _guarded(transport):
            guarded.start_timer()

    def stop_timer(self, transport: asyncio.BaseTransport | None) -> None:
        """Stops the idle timeout of a connection: that of a viewer may last."""
        if guarded := _guarded(transport):
            guarded.stop_timer()

    def limit_rate(self, transport: asyncio.BaseTransport | None, on_flood: Callable[[], None]) -> None:
        """Limits the bytes per second of a connection from now on; after a flood it is no longer read."""
        if guarded := _guarded(transport):
            guarded.limit_rate(TokenBucket(_BYTES_PER_SECOND, _BYTES_AT_ONCE), on_flood)

    def stop_reading(self, transport: asyncio.BaseTransport | None) -> None:
        """Reads nothing more from a connection; what is written is still sent."""
        if guarded := _guarded(transport):
            guarded.stop_reading()

    async def give_way(self, transport: asyncio.BaseTransport | None) -> None:
        """Lets all others have their turn before a connection is read on: so many messages may lie in it already that
        nobody else would have one."""
        guarded = _guarded(transport)
        if guarded is None or guarded.transport is None or not guarded.transport.is_reading():
            await asyncio.sleep(0)
            return
        guarded.transport.pause_reading()
        try:
            await asyncio.sleep(0)
        finally:
            guarded.transport.resume_reading()

    def forget(self, guarded: GuardedConnection) -> None:
        """Forgets a connection."""
        self._connections.pop(guarded, None)

    def _close_failed(self, guarded: GuardedConnection, connection: socket.socket, _: asyncio.Task[None]) -> None:
        """Closes a connection that has come to nothing."""
        if guarded.transport is None:
            self.forget(guarded)
            connection.close()

    def _admit(self, connection: socket.socket, address: str, factory: Factory) -> GuardedConnection | None:
        """Accepts a connection, for which an idle one may be closed; None if there is no room."""
        source = network(address)
        counts = Counter(guarded.source for guarded in self._connections)
        if connection.fileno() > self._descriptors.highest:
            self._warn_once(f"connections are refused: {self._descriptors.why}")
            return None
        if counts[source] >= self._limit_per_address and not self._make_room(source):
            return None
        is_full = len(self) >= self._limit or len(self) + self._reserved >= self._descriptors.room
        if is_full and not self._make_room(self._busiest()):
            return None
        guarded = GuardedConnection(self, factory(), source)
        self._connections[guarded] = None
        return guarded

    def _busiest(self) -> str | None:
        """The address with the most connections that watch nothing."""
        idle = Counter(guarded.source for guarded in self._connections if guarded.is_idle)
        return idle.most_common(1)[0][0] if idle else None

    def _make_room(self, source: str | None) -> bool:
        """Drops the connection of an address that has watched nothing for longest; false if all of them watch."""
        idle = [guarded for guarded in self._connections if guarded.source == source and guarded.is_idle]
        if not idle:
            return False
        guarded = min(idle, key=lambda each: each.idle_since)
        guarded.drop()
        self.forget(guarded)
        return True

    def _warn_once(self, what: str) -> None:
        """Logs what keeps connections out, once."""
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("StreamServer: %s", what)


class GuardedConnection(asyncio.Protocol):
    """One connection: passes everything on to the protocol within.

    Args:
        connections: What counts it.
        protocol: The protocol of requests.
        source: Whose it is, as `security.network` gives it.
    """

    def __init__(self, connections: ConnectionLimit, protocol: asyncio.Protocol, source: str) -> None:
        self.source = source
        self.transport: asyncio.Transport | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.is_idle = True
        self.idle_since = time.monotonic()
        self._connections = connections
        self._protocol = protocol
        self._bytes_left = connections.max_request_bytes
        self._bucket: TokenBucket | None = None
        self._on_flood: Callable[[], None] = self.drop
        self._is_paused = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for its first request."""
        self.transport = cast(asyncio.Transport, transport)
        _keep_alive(self.transport, self._connections.idle_timeout)
        self.start_timer()
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Passes bytes on, unless there are too many."""
        if self._is_paused:
            return
        self._bytes_left -= len(data)
        if self._bytes_left >= 0 if self._bucket is None else self._bucket.take(time.monotonic(), len(data)):
            self._protocol.data_received(data)
        else:
            self.stop_reading()
            self._on_flood()

    def eof_received(self) -> bool | None:
        """Passes the end of input on."""
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        """Passes on that the peer reads too slowly."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Passes on that it has caught up."""
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Forgets the connection."""
        self.stop_timer()
        self._connections.forget(self)
        self._protocol.connection_lost(error)

    def start_timer(self) -> None:
        """Starts the clock, and the count of bytes."""
        self.stop_timer()
        self.is_idle, self.idle_since = True, time.monotonic()
        self._bytes_left = self._connections.max_request_bytes
        self._deadline = asyncio.get_running_loop().call_later(self._connections.idle_timeout, self.drop)

    def stop_timer(self) -> None:
        """Stops the clock."""
        self.is_idle = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def limit_rate(self, bucket: TokenBucket, on_flood: Callable[[], None]) -> None:
        """From now on counts bytes by the second."""
        self._bucket, self._on_flood = bucket, on_flood

    def stop_reading(self) -> None:
        """Passes no more bytes on."""
        self._is_paused = True
        if self.transport is not None:
            self.transport.pause_reading()

    def drop(self) -> None:
        """Ends the connection at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.connecting is not None:
            self.connecting.cancel()


def _guarded(transport: asyncio.BaseTransport | None) -> GuardedConnection | None:
    """The connection that a request came by; None where it has been lost."""
    protocol = None if transport is None else transport.get_protocol()
    return protocol if isinstance(protocol, GuardedConnection) else None


async def _connect(guarded: GuardedConnection, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: guarded, connection, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT if tls else None
        )
    except OSError as error:  # no TLS, or broken off in the middle of it
        _LOG.debug("a connection failed: %s", error)


def descriptors_left() -> DescriptorLimit:
    """The present limit of connections, by the limit of open files and the files open now."""
    limit = _limit_of_open_files()
    if limit is None:
        return DescriptorLimit()
    reserve, opened = max(32, limit // 4), _num_open_files()
    why = f"{limit} files may be open (ulimit -n), {opened} of them are, and {reserve} are left to the program"
    return DescriptorLimit(
        max(_MIN_CONNECTIONS, limit - reserve - opened), max(limit - reserve, opened + _MIN_CONNECTIONS), why
    )


def _limit_of_open_files() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _num_open_files() -> int:
    for folder in filter(os.path.isdir, ("/proc/self/fd", "/dev/fd")):
        return len(os.listdir(folder)) - 1  # but for the one that lists them
    return 16


def _keep_alive(transport: asyncio.Transport, period: float) -> None:
    """Turns on TCP keep-alive, by which the kernel finds peers that are gone."""
    connection: Any = transport.get_extra_info("socket")
    if connection is None:
        return
    seconds = max(1, round(period))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", seconds), ("TCP_KEEPINTVL", seconds), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
