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

from torchrl_gpu.streaming.broadcast.rates import Budget
from torchrl_gpu.streaming.web.security import network

Factory = Callable[[], asyncio.Protocol]
_LOG = logging.getLogger(__name__)
_MOST_BYTES = 131_072  # of a request and what comes behind it, until it has been answered
_BYTES_PER_SECOND, _BYTES_AT_ONCE = 65_536.0, 262_144.0  # from a viewer on a WebSocket
_HANDSHAKE_TIMEOUT = 10.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_PAUSE = 0.25  # seconds until connections are accepted again after that failed
_FEWEST = 4  # connections that a server has room for under any limit of open files


@dataclass(frozen=True)
class Descriptors:
    """What the limit of open files leaves to connections.

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


class Doorstep:
    """Accepts connections, counts them, and drops those that watch nothing: after a while, or to make room.

    One address gets two thirds of the places at most. When its places or all are taken, its connection (or that of the
    address that has the most) that has watched nothing for longest makes room for the newcomer.

    Args:
        limit: Connections at once.
        patience: Seconds that a connection may wait for its first request, take for one that is no viewer's, and stay
            without another.
        descriptors: What they have to make do with.
    """

    def __init__(self, limit: int, patience: float, descriptors: Descriptors | None = None) -> None:
        self.patience = patience
        self._told = False
        self._descriptors = descriptors or Descriptors()
        self._limit = int(min(limit, self._descriptors.room))
        self._limit_per_address = max(1, -(-2 * self._limit // 3))
        if self._limit < limit:
            self._tell(f"there is room for {self._limit} connections, not {limit}: {self._descriptors.why}")
        self._guests: dict[Guest, None] = {}  # in the order in which they came
        self._by_transport: dict[asyncio.BaseTransport, Guest] = {}
        self._reserved = 0

    def __len__(self) -> int:
        return len(self._guests)

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
                        self._tell(f"no connection can be accepted: {error.strerror}")
                    await asyncio.sleep(_ACCEPT_PAUSE)
                    continue
                guest = self._admit(connection, address[0], factory)
                if guest is None:
                    connection.close()
                    continue
                guest.connecting = loop.create_task(_connect(guest, connection, tls))
                connecting.add(guest.connecting)
                guest.connecting.add_done_callback(connecting.discard)
                guest.connecting.add_done_callback(partial(self._look_after, guest, connection))
        finally:
            for task in connecting:
                task.cancel()
            await asyncio.gather(*connecting, return_exceptions=True)

    def reserve(self, number: int) -> bool:
        """Takes descriptors for sockets that are opened elsewhere; false if there is no room for as many."""
        if len(self) + self._reserved + number > self._descriptors.room:
            return False
        self._reserved += number
        return True

    def release(self, number: int) -> None:
        """Gives such descriptors back."""
        self._reserved -= number

    def begin(self, transport: asyncio.BaseTransport | None) -> None:
        """Says that a request of this connection is running."""
        if guest := self._find(transport):
            guest.hurry()

    def stay(self, transport: asyncio.BaseTransport | None) -> None:
        """Says that this connection is a viewer's, which lasts as long as it wants."""
        if guest := self._find(transport):
            guest.rest()

    def end(self, transport: asyncio.BaseTransport | None) -> None:
        """Says that its request has been answered."""
        if guest := self._find(transport):
            guest.hurry()

    def meter(self, transport: asyncio.BaseTransport | None, on_flood: Callable[[], None]) -> None:
        """From now on counts the bytes of this connection by the second; nothing more is heard of it after a flood."""
        if guest := self._find(transport):
            guest.meter(Budget(_BYTES_PER_SECOND, _BYTES_AT_ONCE), on_flood)

    def deafen(self, transport: asyncio.BaseTransport | None) -> None:
        """Hears nothing more of this connection; what is written still goes out."""
        if guest := self._find(transport):
            guest.deafen()

    def leave(self, guest: Guest) -> None:
        """Forgets a connection."""
        self._guests.pop(guest, None)
        if guest.transport is not None:
            self._by_transport.pop(guest.transport, None)

    def know(self, guest: Guest, transport: asyncio.BaseTransport) -> None:
        """Learns by what requests know a connection."""
        self._by_transport[transport] = guest

    def _look_after(self, guest: Guest, connection: socket.socket, _: asyncio.Task[None]) -> None:
        """Closes a connection that has come to nothing."""
        if guest.transport is None:
            self.leave(guest)
            connection.close()

    def _admit(self, connection: socket.socket, address: str, factory: Factory) -> Guest | None:
        """Lets a connection in, for which another may have to go; None if there is no room."""
        place = network(address)
        places = Counter(guest.place for guest in self._guests)
        if connection.fileno() > self._descriptors.highest:
            self._tell(f"connections are refused: {self._descriptors.why}")
            return None
        if places[place] >= self._limit_per_address and not self._make_room(place):
            return None
        is_full = len(self) >= self._limit or len(self) + self._reserved >= self._descriptors.room
        if is_full and not self._make_room(self._busiest()):
            return None
        guest = Guest(self, factory(), place)
        self._guests[guest] = None
        return guest

    def _busiest(self) -> str | None:
        """The address with the most connections that watch nothing."""
        silent = Counter(guest.place for guest in self._guests if guest.is_silent)
        return silent.most_common(1)[0][0] if silent else None

    def _make_room(self, place: str | None) -> bool:
        """Drops the connection of an address that has watched nothing for longest; false if all of them watch."""
        silent = [guest for guest in self._guests if guest.place == place and guest.is_silent]
        if not silent:
            return False
        guest = min(silent, key=lambda each: each.silent_since)
        guest.drop()
        self.leave(guest)
        return True

    def _find(self, transport: asyncio.BaseTransport | None) -> Guest | None:
        return None if transport is None else self._by_transport.get(transport)

    def _tell(self, what: str) -> None:
        """Logs what keeps connections out, once."""
        if not self._told:
            self._told = True
            _LOG.warning("StreamServer: %s", what)


class Guest(asyncio.Protocol):
    """One connection: passes everything on to the protocol within.

    Args:
        doorstep: What counts it.
        within: The protocol of requests.
        place: Whose it is.
    """

    def __init__(self, doorstep: Doorstep, within: asyncio.Protocol, place: str) -> None:
        self.place = place
        self.transport: asyncio.Transport | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.is_silent = True
        self.silent_since = time.monotonic()
        self._doorstep = doorstep
        self._within = within
        self._left = _MOST_BYTES
        self._budget: Budget | None = None
        self._on_flood: Callable[[], None] = self.drop
        self._is_deaf = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for its first request."""
        self.transport = cast(asyncio.Transport, transport)
        self._doorstep.know(self, transport)
        _keep_alive(self.transport, self._doorstep.patience)
        self.hurry()
        self._within.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Passes bytes on, unless there are too many."""
        if self._is_deaf:
            return
        if self._may_send(len(data)):
            self._within.data_received(data)
        else:
            self.deafen()
            self._on_flood()

    def eof_received(self) -> bool | None:
        """Passes the end of input on."""
        return self._within.eof_received()

    def pause_writing(self) -> None:
        """Passes on that the peer reads too slowly."""
        self._within.pause_writing()

    def resume_writing(self) -> None:
        """Passes on that it has caught up."""
        self._within.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Forgets the connection."""
        self.rest()
        self._doorstep.leave(self)
        self._within.connection_lost(error)

    def hurry(self) -> None:
        """Starts the clock, and the count of bytes."""
        self.rest()
        self.is_silent, self.silent_since, self._left = True, time.monotonic(), _MOST_BYTES
        self._deadline = asyncio.get_running_loop().call_later(self._doorstep.patience, self.drop)

    def rest(self) -> None:
        """Stops the clock."""
        self.is_silent = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def meter(self, budget: Budget, on_flood: Callable[[], None]) -> None:
        """From now on counts bytes by the second."""
        self._budget, self._on_flood = budget, on_flood

    def deafen(self) -> None:
        """Passes no more bytes on."""
        self._is_deaf = True
        if self.transport is not None:
            self.transport.pause_reading()

    def drop(self) -> None:
        """Ends the connection at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    def _may_send(self, number: int) -> bool:
        if self._budget is not None:
            return self._budget.spend(time.monotonic(), number)
        self._left -= number
        return self._left >= 0


async def _connect(guest: Guest, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: guest, connection, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT if tls else None
        )
    except OSError as error:  # no TLS, or broken off in the middle of it
        _LOG.debug("a connection failed: %s", error)


def descriptors_left() -> Descriptors:
    """What the limit of open files leaves to connections, as it stands now."""
    limit = _limit_of_open_files()
    if limit is None:
        return Descriptors()
    reserve, opened = max(32, limit // 4), _num_open_files()
    why = f"{limit} files may be open (ulimit -n), {opened} of them are, and {reserve} are left to the program"
    return Descriptors(max(_FEWEST, limit - reserve - opened), max(limit - reserve, opened + _FEWEST), why)


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
    """Has the kernel find peers that vanished without a word."""
    connection: Any = transport.get_extra_info("socket")
    if connection is None:
        return
    seconds = max(1, round(period))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", seconds), ("TCP_KEEPINTVL", seconds), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
