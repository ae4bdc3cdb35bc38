"""Garbage from the network.

Whatever comes, the server goes on, and so do its viewers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

import pytest

from tests.streaming.pictures import scene
from tests.streaming.viewers import Viewer, counted, get, hub_of, until, watching
from tests.streaming.web.test_sockets import HANDSHAKE
from torchrl_gpu.streaming.server import StreamServer

HEAD = b"Host: localhost\r\n"
PIECES = (
    b"GET / HTTP/1.1\r\n",
    b"GET /ws HTTP/1.1\r\n",
    b"POST /login HTTP/1.1\r\n",
    b"POST /webrtc/offer HTTP/1.1\r\n",
    b"GET /snapshot.jpg?stream=%00%ff&fps=\xff HTTP/1.1\r\n",
    b"GET /stream.mjpg?fps=1e400 HTTP/9.9\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"OPTIONS * HTTP/1.0\r\n",
    HEAD,
    b"Content-Length: 18446744073709551616\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: deflate\r\n",
    b"ffffffffffffffff\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n",
    b"Cookie: torchrl_gpu_0=\xff; =;;;\r\n",
    b"Authorization: Bearer \xff\xfe\r\n",
    b"Range: bytes=0-\r\n",
    b"Expect: 100-continue\r\n",
    b"\r\n",
    b"\x00" * 64,
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"A" * 9000,
    b'{"type": "ack"}',
)
FRAMES = (
    # Text that is longer than what comes.
    b"\x81\xfe\xff\xff",
    # Not masked, and of 2^64 bytes.
    b"\x81\x7f" + b"\xff" * 8,
    b"\x88\x80\x00\x00\x00\x00",
    # A ping that is too long.
    b"\x89\xfe\x00\x7e\x00\x00\x00\x00",
    # A continuation of what never began.
    b"\x00\x80\x00\x00\x00\x00",
    # Compressed, though that was not agreed.
    b"\xc1\x80\x00\x00\x00\x00",
    # Text that is no UTF-8.
    b"\x81\x82\x00\x00\x00\x00\xff\xff",
    b'\x81\x8f\x00\x00\x00\x00{"type": "ack"}',
    # An operation that does not exist.
    b"\x8f\x80\x00\x00\x00\x00",
)


async def throw(stream_server: StreamServer, data: bytes, cut: int) -> None:
    """Sends bytes in two parts and leaves, now orderly, now not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stream_server.port)
    with contextlib.suppress(OSError, TimeoutError):
        for part in (data[:cut], data[cut:]):
            writer.write(part)
            await writer.drain()
        if cut % 2:
            writer.write_eof()
            async with asyncio.timeout(0.05):
                await reader.read(65_536)
    writer.transport.abort() if cut % 3 else writer.close()


async def goes_on(stream_server: StreamServer, guest: Viewer, step: int) -> None:
    await until(stream_server.wanted)
    stream_server.publish(scene(), meta={"step": step})
    header, _ = await guest.picture()
    assert header["meta"]["step"] == step


DRAW = random.Random(20261121)


def requests() -> tuple[bytes, int]:
    data = bytearray(b"".join(DRAW.choices(PIECES, k=DRAW.randint(1, 8))))
    for _ in range(DRAW.randint(0, 3)):
        data[DRAW.randrange(len(data))] = DRAW.randrange(256)
    return bytes(data), DRAW.randint(0, len(data))


def messages() -> tuple[bytes, int]:
    data = HANDSHAKE + b"".join(DRAW.choices(FRAMES, k=3)) + DRAW.randbytes(DRAW.randint(0, 40))
    return data, DRAW.randint(len(HANDSHAKE), len(data))


@pytest.mark.parametrize("garbage", [requests, messages])
@pytest.mark.server(max_clients=500)
async def test_garbage_is_survived(
    stream_server: StreamServer, garbage: Callable[[], tuple[bytes, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """In place of requests, or of messages behind a handshake, cut in two somewhere."""
    async with watching(stream_server) as guest:
        for step in range(14):
            await asyncio.gather(*(throw(stream_server, *garbage()) for _ in range(9)))
            await goes_on(stream_server, guest, step)
        await until(
            lambda: counted(hub_of(stream_server), "clients", transport="websocket") == 1, "seats are given back"
        )
    assert (await get(stream_server, "healthz"))[0] == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
