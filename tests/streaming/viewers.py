"""Producers and viewers for tests of the server, over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import numpy as np

from tests.streaming.pictures import scene
from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.metrics import PREFIX
from torchrl_gpu.streaming.broadcast.protocol import read_picture
from torchrl_gpu.streaming.codecs.encoder import Codec
from torchrl_gpu.streaming.server import StreamServer

TIMEOUT = 20.0
Result = TypeVar("Result")


def server(**arguments: Any) -> StreamServer:
    """A server at a free port of loopback, not started."""
    return StreamServer(**{"port": 0, "fps": 1000.0, **arguments})


def hub_of(stream_server: StreamServer) -> Hub:
    hub: Hub = stream_server.service.hub  # type: ignore[union-attr]
    return hub


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine.

    Fails if it takes too long.
    """
    return asyncio.run(asyncio.wait_for(coroutine, 3 * TIMEOUT))


async def until(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what or condition}"
        await asyncio.sleep(0.001)


def encoded(
    seq: int, size: int = 8, *, key: bool = True, codec: Codec = "jpeg", captured: float = 0.0
) -> EncodedPicture:
    return EncodedPicture("main", codec, bytes(size), key, seq, captured, 4, 2)


def counted(hub: Hub, name: str, **labels: str) -> float:
    """Return the value of a metric as Prometheus reads it.

    0 where nothing has been counted.
    """
    return hub.metrics.registry.get_sample_value(f"{PREFIX}{name}", labels) or 0.0


def address(server: StreamServer, path: str = "", query: str = "") -> str:
    """An address of a server, without its token."""
    scheme, host, *_ = urlsplit(server.url)
    return f"{scheme}://{host}/{path}{query}"


@contextlib.contextmanager
def producing(server: StreamServer, stream: str = "main", frame: np.ndarray | None = None) -> Iterator[list[int]]:
    """Publish from a thread whenever somebody waits.

    Step by step, and the list holds the steps so far.
    """
    steps: list[int] = []
    errors: list[Exception] = []
    stop = threading.Event()
    picture = scene() if frame is None else frame

    def produce() -> None:
        while not stop.wait(0.001) and not errors:
            try:
                if server.wanted(stream):
                    server.publish(picture, stream, {"step": len(steps)})
                    steps.append(len(steps))
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield steps
    finally:
        stop.set()
        thread.join()
        assert not errors, errors


@contextlib.asynccontextmanager
async def session(token: str | None = None, **arguments: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """A client without cookies of others, with a token as its bearer if one is given."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # aiohttp calls a jar unsafe that takes cookies of addresses.
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(headers=headers, cookie_jar=jar, **arguments) as client:
        yield client


async def get(
    server: StreamServer, path: str, token: str | None = None, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Return status, header and body of the answer to a request.

    A GET, or a POST of a body, and redirections are not followed.
    """
    given: dict[str, Any] = {"data": body, "headers": headers, "allow_redirects": False}
    async with (
        session(token) as client,
        client.request("GET" if body is None else "POST", address(server, path), **given) as answer,
    ):
        return answer.status, dict(answer.headers), await answer.read()


async def listed(server: StreamServer) -> dict[str, dict[str, Any]]:
    """The streams of a server by their names, as it tells them."""
    return {each["name"]: each for each in json.loads((await get(server, "streams"))[2])}


class Viewer:
    """A viewer on a WebSocket that does only what it is told to."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.texts: list[dict[str, Any]] = []
        self.closed_with: int | None = None

    async def say(self, kind: str, **fields: Any) -> None:
        await self.socket.send_json({"type": kind, **fields})

    async def watch(self, stream: str = "main", codec: Codec = "jpeg", fps: float | None = None) -> None:
        await self.say("watch", stream=stream, codec=codec, fps=fps)

    async def picture(self, *, ack: bool = True) -> tuple[dict[str, Any], bytes]:
        """Return the next picture.

        Texts that come before are kept.
        """
        header, payload = await self.next_message(lambda message: isinstance(message, tuple))
        if ack:
            await self.say("ack", seq=header["seq"])
        return header, payload

    async def text(self, kind: str) -> dict[str, Any]:
        """Return the next text of a type.

        Pictures that come before are acknowledged and lost.
        """
        for i, text in enumerate(self.texts):
            if text["type"] == kind:
                return self.texts.pop(i)
        message = await self.next_message(lambda message: isinstance(message, dict) and message["type"] == kind)
        self.texts.remove(message)
        return message

    async def quiet(self) -> None:
        """Wait until the server has heard all that was sent.

        Pictures that are on their way stay there.
        """
        marker = float(np.random.default_rng().integers(1 << 40))
        await self.say("ping", t=marker)
        while (await self.text("pong"))["t"] != marker:
            pass

    async def end(self) -> int:
        with contextlib.suppress(EOFError):
            await self.next_message(lambda message: False)
        assert self.closed_with is not None
        return self.closed_with

    async def next_message(self, fits: Callable[[Any], bool]) -> Any:
        while True:
            message = await self.socket.receive(TIMEOUT)
            if message.type is aiohttp.WSMsgType.BINARY:
                found: Any = read_picture(message.data)
            elif message.type is aiohttp.WSMsgType.TEXT:
                found = message.json()
                self.texts.append(found)
            else:
                self.closed_with = self.socket.close_code
                raise EOFError(f"the server closed: {message}")
            if fits(found):
                return found
            if isinstance(found, tuple):
                await self.say("ack", seq=found[0]["seq"])


@contextlib.asynccontextmanager
async def viewer(server: StreamServer, token: str | None = None, **arguments: Any) -> AsyncIterator[Viewer]:
    """A connected viewer that has been greeted.

    Its greeting is the first of its texts.
    """
    async with session(token) as client, client.ws_connect(address(server, "ws"), **arguments) as socket:
        guest = Viewer(socket)
        await guest.next_message(lambda message: isinstance(message, dict) and message["type"] == "hello")
        yield guest


@contextlib.asynccontextmanager
async def watching(server: StreamServer, codec: Codec = "jpeg") -> AsyncIterator[Viewer]:
    """A viewer of the stream main, which is there from now on."""
    server.declare("main")
    async with viewer(server) as guest:
        await guest.watch(codec=codec)
        yield guest


def only_loopback() -> bool:
    """Tell whether this machine has no address but loopback.

    ICE finds no way then: 127.0.0.1 is never a candidate.
    """
    import aioice.ice

    return not aioice.ice.get_host_addresses(use_ipv4=True, use_ipv6=True)
