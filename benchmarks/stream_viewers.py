"""Viewers of a stream, for `benchmarks/streaming.py`.

Some paint at once, some take long, and some are dead.

With `--seconds` prints one JSON line with what each saw; without, watches while its input says `on`, and says `off`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp

LARGEST = 1 << 24


async def watch(
    session: aiohttp.ClientSession, url: str, stream: str, paint_s: float, seen: list[tuple[float, float]]
) -> None:
    """A viewer that takes `paint_s` for each picture, and acknowledges it then.

    Args:
        seen: Gets, for every picture, when it was taken and how old it was then, seconds.
    """
    async with session.ws_connect(f"{url}ws", max_msg_size=LARGEST, compress=0) as socket_:
        await socket_.send_json({"type": "watch", "stream": stream, "codec": "jpeg", "fps": None})
        async for message in socket_:
            if message.type != aiohttp.WSMsgType.BINARY:
                continue
            (length,) = struct.unpack_from(">I", message.data)
            header = json.loads(message.data[4 : 4 + length])
            now = time.time()
            seen.append((now, now - header["captured"]))
            if paint_s:
                await asyncio.sleep(paint_s)
            await socket_.send_json({"type": "ack", "seq": header["seq"]})


def join_and_never_read(url: str, stream: str) -> socket.socket:
    """Open a connection that asks for pictures and then does nothing.

    A machine that went to sleep does so.
    """
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    joined = socket.create_connection((address.hostname, address.port), timeout=10)
    key = base64.b64encode(os.urandom(16)).decode()
    joined.sendall(
        f"GET /ws HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    # The first bytes of the answer say that the connection has been accepted.
    joined.recv(4)
    text = json.dumps({"type": "watch", "stream": stream, "codec": "jpeg", "fps": None}).encode()
    mask = os.urandom(4)
    joined.sendall(bytes([0x81, 0x80 | len(text)]) + mask + bytes(c ^ mask[i % 4] for i, c in enumerate(text)))
    return joined


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All viewers at once: what the living saw while it was measured."""
    seen: list[list[tuple[float, float]]] = [[] for _ in range(args.live)]
    dead: list[socket.socket] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(watch(session, args.url, args.stream, args.paint_s, each)) for each in seen]
        await asyncio.sleep(args.settle_s)
        begin, joined = time.time(), []
        while args.dead and time.time() < begin + args.seconds:
            dead += await asyncio.to_thread(_join, args)
            joined.append(time.time())
            await asyncio.sleep(min(args.wave_s, max(0.0, begin + args.seconds - time.time())))
        await asyncio.sleep(max(0.0, begin + args.seconds - time.time()))
        end = time.time()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for each in dead:
        each.close()

    def counted_ages(pictures: list[tuple[float, float]]) -> list[float]:
        return [age for at, age in pictures if begin <= at < end]

    counted = [counted_ages(pictures) for pictures in seen]
    ages = sorted(1e3 * age for age in itertools.chain.from_iterable(counted))
    fps = [len(each) / (end - begin) for each in counted]
    return {"begin": begin, "end": end, "joined": joined, "fps": fps, "ages_ms": ages}


def _join(args: argparse.Namespace) -> list[socket.socket]:
    return [join_and_never_read(args.url, args.stream) for _ in range(args.dead)]


async def take_turns(args: argparse.Namespace) -> None:
    """Let one viewer come and go as the lines of the input say.

    Each time it prints how many pictures it saw.
    """
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    task, seen = None, []
    async with aiohttp.ClientSession() as session:
        while line := (await reader.readline()).decode().strip():
            if line == "on":
                seen = []
                task = asyncio.create_task(watch(session, args.url, args.stream, args.paint_s, seen))
            elif task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                task = None
            print(json.dumps({line: len(seen), "ages_ms": [1e3 * age for _, age in seen]}), flush=True)


def main() -> None:
    """One of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--stream", default="main")
    parser.add_argument("--live", type=int, default=1)
    parser.add_argument("--dead", type=int, default=0, help="that join at the beginning of each wave, and never read")
    parser.add_argument("--wave_s", type=float, default=11.0)
    parser.add_argument("--paint_s", type=float, default=0.0)
    parser.add_argument("--settle_s", type=float, default=2.0)
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    if args.seconds is None:
        asyncio.run(take_turns(args))
    else:
        print(json.dumps(asyncio.run(measure(args))), flush=True)


if __name__ == "__main__":
    main()
