"""Connections that say nothing, say half, say too much, or are too many."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.streaming.viewers import address, get, hub_of, server, session, until, viewer
from torchrl_gpu.streaming.server import StreamServer
from torchrl_gpu.streaming.web import access, connection_limit, routes
from torchrl_gpu.streaming.web.connection_limit import Connection, ConnectionLimit, DescriptorLimit


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamServer]:
    """A server that waits for a tenth of a second."""
    monkeypatch.setattr(access, "_IDLE_TIMEOUT", 0.1)
    with server() as stream_server:
        yield stream_server


async def ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Bytes that come until the server closes."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65_536):
            said += piece
    writer.close()
    return said


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        *((said, b"") for said in (b"", b"GET", b"GET / HTTP/1.1\r\nHost: localhost\r\n")),
        *((b"GET / HTTP/1.1\r\nX: " + b"a" * 8000, b""), (b"\x16\x03\x01", b"")),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 200"),
    ],
)
async def test_half_a_request_and_the_next_one_are_not_waited_for(
    impatient: StreamServer, said: bytes, answer: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", impatient.port)
    writer.write(said)
    assert (await ended(reader, writer)).startswith(answer)


async def test_a_viewer_is_no_connection_without_a_request(impatient: StreamServer) -> None:
    impatient.declare("main")
    async with viewer(impatient) as guest:
        reader, writer = await asyncio.open_connection("127.0.0.1", impatient.port)
        # More than the patience has passed.
        assert await ended(reader, writer) == b""
        await guest.quiet()


@pytest.mark.server(max_clients=2)
@pytest.mark.patch(access, "_SPARE_CONNECTIONS", -1)
@pytest.mark.patch(access, "_IDLE_TIMEOUT", 3600.0)
async def test_the_oldest_silent_connection_makes_room_and_no_viewer_does(stream_server: StreamServer) -> None:
    async with viewer(stream_server) as guest:
        reader, oldest = await asyncio.open_connection("127.0.0.1", stream_server.port)
        assert await is_healthy(stream_server)
        assert await ended(reader, oldest) == b""
        async with viewer(stream_server) as other:
            assert not await is_healthy(stream_server), "where all are viewers there is no room"
            await other.quiet()
        await guest.quiet()


async def is_healthy(stream_server: StreamServer) -> bool:
    with contextlib.suppress(OSError, aiohttp.ClientError):
        return (await get(stream_server, "healthz"))[0] == 200
    return False


@pytest.mark.server(max_clients=3)
@pytest.mark.patch(access, "_SPARE_CONNECTIONS", 0)
@pytest.mark.patch(access, "_IDLE_TIMEOUT", 3600.0)
async def test_no_address_has_all_places(stream_server: StreamServer) -> None:
    """Others come in however many connections one address opens.

    Silent ones, and even viewers.
    """
    silent = [await asyncio.open_connection("127.0.0.1", stream_server.port) for _ in range(20)]
    async with session(connector=from_address("127.0.0.2")) as client:
        async with client.get(address(stream_server, "healthz")) as answer:
            assert answer.status == 200
        async with client.ws_connect(address(stream_server, "ws")) as connection:
            assert (await connection.receive_json())["type"] == "hello"
            more = [await asyncio.open_connection("127.0.0.1", stream_server.port) for _ in range(20)]
            await connection.send_json({"type": "ping", "t": 1})
            assert (await connection.receive_json())["type"] == "pong"
    for _, writer in silent + more:
        writer.close()


def from_address(host: str) -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(local_addr=(host, 0))


@pytest.mark.parametrize("path", ["", "healthz", "login"])
async def test_who_watches_nothing_is_dropped_however_slowly_it_reads_or_writes(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Requests that follow each other without an end.

    Either nothing of the answers is read, or a body trickles in.
    """
    made: list[ConnectionLimit] = []

    def make(*arguments: Any) -> ConnectionLimit:
        made.append(ConnectionLimit(*arguments))
        return made[-1]

    monkeypatch.setattr(access, "ConnectionLimit", make)
    monkeypatch.setattr(routes, "_BODY_TIMEOUT", 3600.0)
    monkeypatch.setattr(access, "_IDLE_TIMEOUT", 0.1)
    with server() as stream_server:
        _, writer = await asyncio.open_connection("127.0.0.1", stream_server.port)
        method, fields = ("POST", b"Content-Length: 9\r\n") if path == "login" else ("GET", b"")
        request = f"{method} /{path} HTTP/1.1\r\nHost: localhost\r\n".encode() + fields + b"\r\n"
        with contextlib.suppress(ConnectionError):
            writer.write(request * (1 if path == "login" else 1000))
            if path == "":
                writer.transport.pause_reading()
            await until(lambda: sum(map(len, made)), "it is let in")
            await until(lambda: sum(map(len, made)) == 0, "it is dropped")
        writer.close()


async def test_a_request_may_not_go_on_forever(stream_server: StreamServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stream_server.port)
    writer.write(b"GET / HTTP/1.1\r\n")
    with contextlib.suppress(ConnectionError):
        for i in range(200):
            writer.write(f"X-{i}: {'a' * 8000}\r\n".encode())
            await writer.drain()
    await ended(reader, writer)


@pytest.mark.parametrize("late", [False, True])
def test_no_connection_outlives_the_server(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """A connection that comes while the server stops is closed.

    It begins while or after the server closes the others.
    """
    begin: list[Callable[[], None]] = []
    transports: list[asyncio.BaseTransport] = []

    def begin_later(connection: Connection, transport: asyncio.BaseTransport) -> None:
        transports.append(transport)
        begin.append(lambda: connection_made(connection, transport))

    async def begin_all(app: web.Application) -> None:
        if late:
            asyncio.get_running_loop().call_soon(lambda: [each() for each in begin])
        else:
            [each() for each in begin]

    connection_made = Connection.connection_made
    monkeypatch.setattr(Connection, "connection_made", begin_later)
    stream_server = server(add_routes=lambda app: app.on_cleanup.append(begin_all)).start()
    with socket.create_connection(("127.0.0.1", stream_server.port)):
        deadline = time.monotonic() + 30
        while not begin:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        stream_server.stop()
    assert [each.is_closing() for each in transports] == [True]


@pytest.mark.parametrize("turns", range(4))
def test_none_is_lost_that_is_accepted_in_the_turn_in_which_the_server_stops(turns: int) -> None:
    """Collected garbage that is a socket is an error of this test."""
    with server() as stream_server, socket.socket() as client:
        hub, service = hub_of(stream_server), stream_server.service
        assert service is not None

        def stop(turns: int) -> None:
            if turns == 0:
                service.stopping.set()
            else:
                asyncio.get_running_loop().call_soon(stop, turns - 1)

        def connect() -> None:
            client.connect(("127.0.0.1", stream_server.port))
            stop(turns)

        hub.call_in_loop(connect)
        service.thread.join(30)
    gc.collect()


async def test_a_flood_of_bytes_by_hand() -> None:
    """A viewer may send 256 KiB at once and 64 KiB a second.

    Afterwards nothing is heard of it.
    """
    heard: list[int] = []
    floods: list[bool] = []

    class Within(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            heard.append(len(data))

    guest = Connection(ConnectionLimit(1), Within(), None)
    guest.limit_rate(lambda: floods.append(True))
    for _ in range(5):
        guest.data_received(bytes(100_000))
    assert (heard, floods) == ([100_000, 100_000], [True])


DESCRIPTORS = """
import contextlib, logging, resource, sys
from torchrl_gpu.streaming import StreamServer

logging.basicConfig(format="%(message)s", stream=sys.stdout)
server = StreamServer(port=0)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
server.start()
print("port", server.port, flush=True)
for line in sys.stdin:
    files = []
    with contextlib.suppress(OSError):
        while len(files) < 20 or line == "all\\n":
            files.append(open("/dev/null"))
    print("opened", len(files), flush=True)
    if line == "all\\n":
        sys.stdin.readline()
    for file in files:
        file.close()
server.stop()
"""


def test_the_program_can_open_files_however_many_connections_there_are() -> None:
    command = [sys.executable, "-W", "error", "-c", DESCRIPTORS]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.STDOUT, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        said = []
        while not (said and said[-1].startswith("port")):
            said.append(program.stdout.readline())
            assert said[-1], said
        port = int(said[-1].split()[1])
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        deadline = time.monotonic() + 30
        # A busy server takes a while.
        while sum(map(is_closed, connections)) <= 40:
            assert time.monotonic() < deadline, sum(map(is_closed, connections))
            time.sleep(0.01)
        for _ in range(3):
            program.stdin.write("open\n")
            program.stdin.flush()
            said.append(program.stdout.readline())
            assert said[-1] == "opened 20\n"
        program.stdin.write("all\n")
        program.stdin.flush()
        assert program.stdout.readline().startswith("opened")
        newcomer = socket.create_connection(("127.0.0.1", port))
        program.stdin.write("enough\n")
        program.stdin.flush()
        newcomer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert newcomer.recv(12) == b"HTTP/1.1 200"
        for connection in (*connections, newcomer):
            connection.close()
        program.stdin.close()
        said += program.stdout.readlines()
        assert program.wait(30) == 0
    lines = [line for line in said if not line.startswith(("port", "opened"))]
    assert len(lines) == 1
    assert "64 files may be open" in lines[0]


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_places_for_other_sockets_are_counted() -> None:
    entrance = ConnectionLimit(100, DescriptorLimit(room=10))
    assert entrance.reserve(6)
    assert not entrance.reserve(5)
    entrance.release(6)
    assert entrance.reserve(10)


def test_limit_of_open_files_leaves_room_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, opened, room in ((1024, 24, 744), (64, 20, 12), (64, 60, 4), (40_000, 100, 29_900)):
        monkeypatch.setattr("resource.getrlimit", lambda _, limit=limit: (limit, 65_536))
        monkeypatch.setattr("os.listdir", lambda _, opened=opened: range(opened + 1))
        assert connection_limit.descriptors_left().room == room
    monkeypatch.setattr("resource.getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert connection_limit.descriptors_left() == DescriptorLimit()
