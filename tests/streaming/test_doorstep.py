"""Connections that say nothing, say half, or are too many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from tests.streaming.viewers import address, run, server, session, until, viewer
from torchrl_gpu.streaming import app_state
from torchrl_gpu.streaming.server import StreamServer


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamServer]:
    """A server that waits for a tenth of a second."""
    monkeypatch.setattr(app_state, "_PATIENCE", 0.1)
    with server(heartbeat=0.1) as stream_server:
        yield stream_server


@pytest.mark.parametrize(
    "said",
    [b"", b"GET", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 8000, b"\x16\x03\x01"],
)
def test_half_a_request_is_not_waited_for(impatient: StreamServer, said: bytes) -> None:
    async def inner() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", impatient.port)
        writer.write(said)
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass
        writer.close()

    run(inner())


def test_an_answered_connection_is_closed_after_a_while(impatient: StreamServer) -> None:
    async def inner() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", impatient.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass
        writer.close()

    run(inner())


def test_a_viewer_is_no_connection_without_a_request(impatient: StreamServer) -> None:
    async def inner() -> None:
        impatient.declare("main")
        async with viewer(impatient) as guest:
            reader, writer = await asyncio.open_connection("127.0.0.1", impatient.port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()  # which says that more than the patience has passed
            await guest.quiet()

    run(inner())


def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def inner(stream_server: StreamServer) -> None:
        connections = [await asyncio.open_connection("127.0.0.1", stream_server.port) for _ in range(3)]
        refused, _ = connections[-1]
        with contextlib.suppress(ConnectionError):
            assert await refused.read() == b""
        connections[0][1].close()

        async def healthy() -> bool:
            with contextlib.suppress(OSError):
                async with session() as client, client.get(address(stream_server, "healthz")) as answer:
                    return answer.status == 200
            return False

        answers: list[bool] = []
        while not any(answers):
            answers.append(await healthy())
        for _, writer in connections:
            writer.close()

    monkeypatch.setattr(app_state, "_SPARE_CONNECTIONS", 0)
    with server(max_clients=1) as stream_server:
        run(inner(stream_server))
        run(until_empty(stream_server))


async def until_empty(stream_server: StreamServer) -> None:
    async with viewer(stream_server) as guest:
        await guest.quiet()
    await until(lambda: stream_server.watchers() == 0)
