"""docs/streaming-protocol.md: complete, true, and enough to write a client from."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import pytest

from tests.streaming import plain_client
from tests.streaming.pictures import decode_h264, decode_jpeg, psnr, scene
from tests.streaming.plain_client import PeerClient, SocketClient, codec_string
from tests.streaming.viewers import address, encoded, only_loopback, producing, until
from tests.test_layering import names_of_imports
from torchrl_gpu.streaming.broadcast import protocol
from torchrl_gpu.streaming.server import StreamServer
from torchrl_gpu.streaming.web import security, viewer, webrtc

PAGE = (Path(__file__).parents[2] / "docs" / "streaming-protocol.md").read_text(encoding="utf-8")
TOKEN = "a token of more than sixteen letters"


def types(who: str) -> list[str]:
    """The first column of a table of messages."""
    table = PAGE.split(f"<!-- messages: {who} -->")[1].split("<!-- end -->")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_the_page_names_every_message_and_no_other() -> None:
    assert types("viewer") == list(protocol.VIEWER_MESSAGES)
    assert types("server") == list(protocol.SERVER_MESSAGES)


def test_the_page_names_every_field_of_a_picture_and_no_other() -> None:
    table = PAGE.split("A picture is one binary message")[1].split("A JPEG is")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(named) == sorted(json.loads(protocol.picture_header(encoded(1), 0.0)))


def test_the_page_names_the_limits() -> None:
    for number in (
        protocol.MAX_MESSAGE_BYTES,
        protocol.MAX_VALUE,
        protocol.MAX_NAME,
        int(viewer.MESSAGES_PER_SECOND),
        int(viewer.BURST),
        webrtc.MAX_OFFER,
        webrtc.MAX_CANDIDATES,
        webrtc.MAX_LINES,
    ):
        assert re.search(rf"\b{number:,}\b", PAGE), number
    assert f"at least {security.MIN_REMOTE_TOKEN} characters" in PAGE


@pytest.mark.parametrize("said", protocol.VIEWER_MESSAGES)
def test_the_page_names_every_field_that_a_message_needs(said: str) -> None:
    """A message of the fields that the page names is understood.

    The values in it are of the kind that the page says.
    """
    examples = {
        "`seq`": {"seq": 7},
        "`stream`": {"stream": "main", "codec": "h264", "fps": 0.1},
        "`on`": {"on": True},
        "`t`": {"t": 2**53 - 1},
        "`name`": {"name": "a" * 64, "value": "b" * 1024},
    }
    row = re.search(rf"^\| `{said}` \| (.*?) \|", PAGE, re.MULTILINE)
    assert row is not None
    fields: dict[str, object] = {}
    for key, values in examples.items():
        if key in row[1]:
            fields |= values
    assert all(f"`{name}`" in row[1] for name in fields)
    assert isinstance(protocol.parse(json.dumps({"type": said, **fields})), protocol.Message)


def test_the_client_imports_nothing_of_ours() -> None:
    source = Path(plain_client.__file__).read_text(encoding="utf-8")
    imported = {name.split(".")[0] for name in names_of_imports(source, ["tests"])}
    assert imported <= {"__future__", "aiohttp", "aiortc", "json", "struct", "types", "typing"}


@pytest.mark.server(token=TOKEN)
async def test_a_client_written_from_the_page_sees_and_commands(stream_server: StreamServer) -> None:
    stream_server.declare("main", "The main one")
    stream_server.state(commands=["reset"], paused=False)
    async with SocketClient(address(stream_server).rstrip("/"), TOKEN) as client:
        assert client.role == "control"
        await client.say("ping", t=2.5)
        while not (client.pongs and client.state and client.streams):
            await client.hear()
        assert client.pongs[0]["t"] == 2.5
        assert client.state == {"commands": ["reset"], "paused": False}
        assert client.streams[0]["title"] == "The main one"

        await client.say("watch", stream="main")
        with producing(stream_server):
            stills = [await client.next_picture() for _ in range(6)]
            await client.say("watch", stream="main", codec="h264", fps=50)
            while (await client.next_picture())[0]["codec"] == "jpeg":
                pass
            films = [client.pictures[-1], *[await client.next_picture() for _ in range(5)]]
        header, jpeg = stills[-1]
        assert psnr(decode_jpeg(jpeg), scene()) > 28
        assert header["captured"] <= header["sent"]
        assert header["meta"]["step"] >= 0
        assert [each["seq"] for each, _ in stills] == sorted({each["seq"] for each, _ in stills})
        assert films[0][0]["key"]
        assert codec_string(films[0][1]).startswith("avc1.42")
        assert psnr(decode_h264([data for _, data in films])[-1], scene()) > 28

        await client.say("pause", on=True)
        await client.say("command", name="reset", value=3)
        await client.say("watch", stream="none")
        while not client.errors:
            await client.hear()
        assert "stream must be one of main" in client.errors[0]
        wishes: list[protocol.Command] = []
        await until(lambda: wishes.extend(stream_server.commands()) or wishes, "the command")
        assert wishes == [protocol.Command("reset", 3, "main")]
        stream_server.state(paused=True)
        while not client.state["paused"]:
            await client.hear()
        for _ in range(3):
            await client.say("nothing of the kind")
        while await client.hear():
            pass
        assert client.close_code == 1008


async def test_a_client_that_acknowledges_nothing_gets_two_pictures(stream_server: StreamServer) -> None:
    stream_server.declare("main")
    async with SocketClient(address(stream_server).rstrip("/")) as client:
        await client.say("watch", stream="main")
        with producing(stream_server):
            bare: list[bytes] = []
            while len(bare) < 2:
                message = await client.socket.receive(20)
                bare += [message.data] if isinstance(message.data, bytes) else []
            await until(lambda: not stream_server.wanted())
            await client.say("ack", seq=plain_client.take_apart(bare[1])[0]["seq"])
            seqs = [(await client.next_picture())[0]["seq"] for _ in range(3)]
        assert seqs[0] > plain_client.take_apart(bare[1])[0]["seq"]


@pytest.mark.skipif(only_loopback(), reason="needs a network: ICE has no candidate for 127.0.0.1")
@pytest.mark.server(token=TOKEN, fps=30.0)
async def test_a_webrtc_client_written_from_the_page_sees(stream_server: StreamServer) -> None:
    pytest.importorskip("aiortc", reason="needs the extra webrtc")

    for name in ("main", "other"):
        stream_server.declare(name)
    client = PeerClient(address(stream_server).rstrip("/"), TOKEN)
    with producing(stream_server), producing(stream_server, "other"):
        answer = await client.connect("main")
        assert answer.keys() == {"sdp", "type", "id"}
        await until(lambda: client.track is not None)
        frame = await client.track.recv()
        assert psnr(frame.to_ndarray(format="rgb24"), scene()) > 25
        await until_told(client, lambda: client.pongs and client.headers and client.headers[-1]["origin"])
        assert client.pongs[0]["t"] == 1.5
        assert abs(client.pongs[0]["now"] - time.time()) < 60
        header = client.headers[-1]
        assert (header["stream"], header["width"], header["height"]) == ("main", 160, 120)
        assert header["meta"]["step"] >= 0
        assert {"sent", "type"}.isdisjoint(header)
        ticks = round(header["origin"] + 90_000 * header["captured"])
        # `captured` is rounded to 0.1 ms.
        near = {(ticks + each) % 2**32 for each in range(-20, 21)}
        await until_told(client, lambda: near & client.timestamps)
        client.say("watch", stream="other")
        await until_told(client, lambda: client.headers[-1]["stream"] == "other")
        client.say("pause", on=True)
        await until_told(client, lambda: stream_server.watchers() == 0)
        client.say("replay")
        await until_told(client, lambda: client.errors)
    await client.connection.close()
    await until(lambda: stream_server.watchers() == 0)


async def until_told(client: PeerClient, condition) -> None:  # type: ignore[no-untyped-def]
    """Waits for a condition, and takes pictures meanwhile as a viewer does."""
    from tests.streaming.web.test_webrtc import drain

    taking = asyncio.create_task(drain(client.track))
    try:
        await until(condition)
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
