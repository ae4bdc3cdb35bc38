"""The paths of the server, and who may walk them."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import socket
import sys
from collections.abc import Callable, Coroutine
from http.cookies import SimpleCookie
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
import numpy as np
import pytest
from aiohttp import WSServerHandshakeError

import torchrl_gpu.streaming.web
from tests.streaming.pictures import decode_jpeg, psnr, scene
from tests.streaming.viewers import (
    address,
    counted,
    get,
    hub_of,
    producing,
    server,
    session,
    until,
    viewer,
    watching,
)
from tests.streaming.web.test_sockets import UPGRADE
from torchrl_gpu.streaming.server import StreamServer
from torchrl_gpu.streaming.web import access, routes

PAGE = Path(torchrl_gpu.streaming.web.__file__).parent / "static"
GUARDED = ("ws", "stream.mjpg", "snapshot.jpg", "metrics", "streams", "curves", "nothing/here")


async def post(
    stream_server: StreamServer, path: str, body: bytes, token: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    return await get(stream_server, path, token, body, **headers)


def session_cookie(stream_server: StreamServer) -> str:
    """Name of the cookie of a browser that asks the server itself."""
    return f"torchrl_gpu_{stream_server.port}_{stream_server.port}"


async def test_the_page_runs_nothing_but_its_own_scripts(stream_server: StreamServer) -> None:
    status, headers, body = await get(stream_server, "")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"<style" not in body
    assert b" style=" not in body
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert f"ws://127.0.0.1:{stream_server.port}" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    files = re.findall(r'"(static/[^"]+)"', body.decode())
    for path in files:
        status, headers, body = await get(stream_server, path)
        kind = {"js": "text/javascript", "css": "text/css"}[path.rpartition(".")[2]]
        assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        imported = [f"static/{name}" for name in re.findall(r'^import .*"\./(.+?)";$', body.decode(), re.MULTILINE)]
        files += [name for name in imported if name not in files]
    assert sorted(files) == sorted(f"static/{path.name}" for path in PAGE.iterdir() if path.name != "index.html")
    for path in ("static/index.html", "static/other.js", "static/..%2fservice.py", "static/", "static"):
        assert (await get(stream_server, path))[0] == 404, path


@pytest.mark.server(token="drive")
async def test_without_a_token_there_is_only_the_page(stream_server: StreamServer) -> None:
    for path in GUARDED:
        status, headers, body = await get(stream_server, path)
        assert (status, json.loads(body)["message"]) == (401, "this server needs a token"), path
        assert headers["WWW-Authenticate"].startswith("Bearer")
    assert (await post(stream_server, "webrtc/offer", b"{}"))[0] == 401
    for path in ("", "healthz", "static/main.js"):
        assert (await get(stream_server, path))[0] == 200


@pytest.mark.server(token="drive", view_token="look")
@pytest.mark.parametrize(("token", "role"), [("drive", "control"), ("look", "view")])
async def test_a_token_in_the_address_becomes_a_session(stream_server: StreamServer, token: str, role: str) -> None:
    status, headers, _ = await get(stream_server, f"?token={token}&stream=best")
    assert (status, headers["Location"]) == (303, "./?stream=best")
    cookie = SimpleCookie(headers["Set-Cookie"])[session_cookie(stream_server)]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    assert not cookie["secure"]
    assert token not in headers["Set-Cookie"]
    async with session() as client:
        async with client.get(address(stream_server, f"?token={token}")) as answer:
            assert (answer.status, answer.url.query_string) == (200, "")
        async with client.get(address(stream_server, "streams")) as answer:
            assert answer.status == 200
        async with client.ws_connect(address(stream_server, "ws")) as connection:
            assert (await connection.receive_json())["role"] == role


@pytest.mark.server(token="drive", view_token="look")
async def test_the_page_logs_in(stream_server: StreamServer) -> None:
    async with session() as client:
        async with client.post(address(stream_server, "login"), json={"token": "look"}) as answer:
            assert (answer.status, await answer.json()) == (200, {"role": "view"})
        async with client.get(address(stream_server, "streams")) as answer:
            assert answer.status == 200
    for body, status in (
        (b'{"token": "other"}', 401),
        (b'{"token": 7}', 401),
        (b"{}", 401),
        (b"[]", 400),
        (b"nonsense", 400),
        (b"\xff\xfe", 400),
        (b"[" * 60_000, 400),
        (b" " * 70_000, 413),
    ):
        assert (await post(stream_server, "login", body))[0] == status, body[:20]


@pytest.mark.server(token="drive")
async def test_a_bearer_and_a_query_open_every_path(stream_server: StreamServer) -> None:
    assert (await get(stream_server, "streams", "drive"))[0] == 200
    assert (await get(stream_server, "metrics?token=drive"))[0] == 200
    assert (await get(stream_server, "nothing/here", "drive"))[0] == 404
    assert (await get(stream_server, "streams", Authorization="Basic drive"))[0] == 401


@pytest.mark.server(token="drive")
async def test_wrong_tokens_end_in_a_wait_which_a_session_passes(stream_server: StreamServer) -> None:
    async with session() as known:
        async with known.get(address(stream_server, "?token=drive")):
            pass
        for i in range(5):
            assert (await get(stream_server, "streams", f"guess {i}"))[0] == 401
        status, headers, _ = await get(stream_server, "streams", "drive")
        assert status == 429
        assert 0 < int(headers["Retry-After"]) <= 60
        assert (await post(stream_server, "login", b'{"token": "drive"}'))[0] == 429
        assert (await get(stream_server, "?token=drive"))[0] == 429
        assert (await get(stream_server, "streams"))[0] == 401, "no token is no wrong token"
        async with known.get(address(stream_server, "metrics")) as answer:
            assert answer.status == 200
            text = await answer.text()
        assert "torchrl_gpu_stream_failed_tokens_total 5.0\n" in text
        assert 'refused_total{reason="failures"} 3.0\n' in text


LONG = "a token of more than sixteen letters"


@pytest.mark.server(token=LONG, view_token=f"{LONG}, view")
async def test_a_long_token_opens_at_any_time(stream_server: StreamServer) -> None:
    for i in range(7):
        assert (await get(stream_server, "streams", f"guess {i}"))[0] == (401 if i < 5 else 429)
    assert (await get(stream_server, "streams", LONG))[0] == 200
    assert (await get(stream_server, "streams", f"{LONG}, view"))[0] == 200
    assert (await post(stream_server, "login", json.dumps({"token": LONG}).encode()))[0] == 200
    assert (await get(stream_server, f"?token={LONG}"))[0] == 303
    async with viewer(stream_server, LONG) as guest:
        await guest.quiet()
    assert (await get(stream_server, "streams", "guess 8"))[0] == 429


@pytest.mark.server(token="4711")
@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(
            lambda server, guess: get(server, "streams", Cookie=f"{session_cookie(server)}={guess}"), id="cookie"
        ),
        pytest.param(lambda server, guess: get(server, "streams", guess), id="bearer"),
        pytest.param(lambda server, guess: get(server, f"stream.mjpg?token={guess}"), id="query"),
        pytest.param(lambda server, guess: get(server, f"?token={guess}"), id="page"),
        pytest.param(lambda server, guess: post(server, "login", json.dumps({"token": guess}).encode()), id="login"),
        pytest.param(lambda server, guess: get(server, f"ws?token={guess}", **UPGRADE), id="websocket"),
        pytest.param(lambda server, guess: post(server, "webrtc/offer", b"{}", guess), id="offer"),
    ],
)
async def test_wrong_ones_are_counted_whatever_carries_them(
    stream_server: StreamServer,
    ask: Callable[[StreamServer, str], Coroutine[Any, Any, tuple[int, dict[str, str], bytes]]],
) -> None:
    """At most five wrong tokens are compared, whatever carries them.

    A token has four digits, and the same one again does not count.
    """
    for guess in ("1000", "1000", "1001", "1002", "1003", "1004"):
        assert (await ask(stream_server, guess))[0] == 401
    assert (await ask(stream_server, "1005"))[0] == 429
    for guess in ("1005", "4711"):
        assert (await get(stream_server, "streams", guess))[0] == 429, "nor is the right one told from them"


@pytest.mark.server(token="4711")
async def test_a_page_that_was_left_open_shuts_nobody_out(stream_server: StreamServer) -> None:
    """A page that was left open goes on trying.

    The session ended with the server, and its reader gives the page the token anew.
    """
    name = session_cookie(stream_server)
    with server(token="4711") as before:
        _, headers, _ = await get(before, "?token=4711")
        cookie = SimpleCookie(headers["Set-Cookie"])[session_cookie(before)].value
    for _ in range(20):
        status, headers, _ = await get(stream_server, "streams", Cookie=f"{name}={cookie}")
        assert status == 401
        assert SimpleCookie(headers["Set-Cookie"])[name].value == "", "the browser forgets it"
    assert (await post(stream_server, "login", b'{"token": "4711"}'))[0] == 200


@pytest.mark.server(token="4711")
async def test_servers_behind_one_host_have_sessions_of_their_own(stream_server: StreamServer) -> None:
    """Tunnels to several ports of localhost are servers of their own.

    Cookies know neither ports nor servers.
    """
    jar: dict[str, str] = {}
    with server(token="4711") as other:
        places = list(product((stream_server, other), ("localhost:9090", "localhost")))
        for each, host in places:
            _, headers, _ = await get(each, "?token=4711", Host=host)
            assert "path" not in headers["Set-Cookie"].lower(), "it would hold for what else a proxy has at this host"
            jar |= {name: morsel.value for name, morsel in SimpleCookie(headers["Set-Cookie"]).items()}
        cookies = "; ".join(f"{name}={value}" for name, value in jar.items())
        for each, host in places:
            status, headers, _ = await get(each, "streams", Host=host, Cookie=cookies)
            assert (status, headers.get("Set-Cookie")) == (200, None)


@pytest.mark.server(token="4711", allowed_origins=["https://lab.example"])
async def test_pages_of_allowed_origins_may_ask_before_they_send_a_token(stream_server: StreamServer) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with session() as client:
        for path in ("streams", "login", "curves"):
            for origin, status in (("https://lab.example", 204), ("https://evil.example", 403)):
                there = address(stream_server, path)
                async with client.options(there, headers={**asks, "Origin": origin}) as answer:
                    assert answer.status == status
                    allowed = answer.headers.get("Access-Control-Allow-Headers", "")
                    assert ("Authorization" in allowed) == (status == 204)
        async with client.options(address(stream_server, "streams"), headers=asks) as answer:
            assert answer.status == 401, "no page asks"


@pytest.mark.server(max_body_bytes=1 << 20)
async def test_a_connection_that_was_to_become_a_socket_still_takes_requests(stream_server: StreamServer) -> None:
    """More than a viewer may send: its limits began with the handshake that was none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stream_server.port)
    writer.write(b"GET /ws HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1] == b"400"
    size, piece = 600_000, bytes(60_000)
    writer.write(f"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode())
    for _ in range(size // len(piece)):
        writer.write(piece)
        await writer.drain()
    said = await reader.readuntil(b"JSON")
    assert b" 400 " in said.rpartition(b"HTTP/1.1")[2]
    writer.close()


@pytest.mark.server(token="drive")
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_pages_of_other_origins_may_not_connect(stream_server: StreamServer, origin: str) -> None:
    for token in (None, "drive"):
        with pytest.raises(WSServerHandshakeError) as error:
            async with viewer(stream_server, token, origin=origin):
                pass
        assert error.value.status == 403
    assert (await post(stream_server, "login", b'{"token": "drive"}', Origin=origin))[0] == 403
    assert (await post(stream_server, "webrtc/offer", b"{}", "drive", Origin=origin))[0] == 403


@pytest.mark.server(allowed_origins=["https://lab.example"])
async def test_our_own_page_and_allowed_ones_may(stream_server: StreamServer) -> None:
    for origin in (address(stream_server).rstrip("/"), "https://lab.example"):
        async with viewer(stream_server, origin=origin) as guest:
            await guest.quiet()


@pytest.mark.server(allowed_origins=["https://lab.example"])
async def test_who_may_show_a_picture_within_a_page(stream_server: StreamServer) -> None:
    """The answer names the pages that may show a picture.

    A picture's request names its page as the referrer only.
    """
    stream_server.declare("main")
    with producing(stream_server):
        for referrer, policy in (
            ("https://lab.example/wiki/robots", "cross-origin"),
            ("https://lab.example", "cross-origin"),
            ("https://evil.example/https://lab.example/", "same-site"),
            ("https://lab.example.evil.example/", "same-site"),
            ("http://[", "same-site"),
        ):
            status, headers, _ = await get(stream_server, "snapshot.jpg", Referer=referrer)
            assert (status, headers["Cross-Origin-Resource-Policy"]) == (200, policy), referrer
            assert "Access-Control-Allow-Origin" not in headers
        _, headers, _ = await get(stream_server, "snapshot.jpg", Origin="https://lab.example")
        assert headers["Access-Control-Allow-Origin"] == "https://lab.example"
        assert (headers["Vary"], headers["Cross-Origin-Resource-Policy"]) == ("Origin", "cross-origin")
        _, headers, _ = await get(stream_server, "snapshot.jpg", Origin="https://evil.example")
        assert "Access-Control-Allow-Origin" not in headers
        _, headers, _ = await get(stream_server, "")
        assert headers["Cross-Origin-Resource-Policy"] == "same-site"


@pytest.mark.server(allowed_origins=["https://lab.example"])
async def test_pages_of_other_sites_take_no_places(stream_server: StreamServer) -> None:
    """Their pictures would not be shown, but each would be a viewer."""
    stream_server.declare("main")
    other = {"Sec-Fetch-Site": "cross-site"}
    with producing(stream_server):
        for destination in ("image", "iframe", "video", "empty", "embed"):
            fetch = other | {"Sec-Fetch-Dest": destination}
            assert (await get(stream_server, "snapshot.jpg", **fetch))[0] == 403, destination
            fetch |= {"Referer": "https://lab.example/"}
            assert (await get(stream_server, "snapshot.jpg", **fetch))[0] == 200, destination
        assert (await get(stream_server, "snapshot.jpg", **other, **{"Sec-Fetch-Dest": "document"}))[0] == 200
        assert (await get(stream_server, "", **other, **{"Sec-Fetch-Dest": "iframe"}))[0] == 200
        own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "image"}
        assert (await get(stream_server, "snapshot.jpg", **own))[0] == 200


async def raw(stream_server: StreamServer, data: bytes) -> bytes:
    """All that comes back for bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stream_server.port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_line", "fields", "status"),
    [
        ("GET /ws", "Host: localhost\r\nOrigin: http://[\r\nUpgrade: websocket\r\n", b"403"),
        ("POST /login", "Host: localhost\r\nOrigin: http://[::1\r\nContent-Length: 0\r\n", b"403"),
        ("GET /streams", "", b"400"),
        ("GET /streams", "Host: localhost\r\nHost: evil.example\r\n", b"400"),
        ("POST /login", "Host: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"400"),
        ("POST /login", "Host: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n", b"400"),
        ("HEAD /streams", "Host: localhost\r\n", b"401"),
        ("GET //streams", "Host: localhost\r\n", b"401"),
        ("GET /./streams", "Host: localhost\r\n", b"401"),
        ("GET /login/../streams", "Host: localhost\r\n", b"401"),
        ("GET /%2e%2e/etc/passwd", "Host: localhost\r\n", b"401"),
        ("GET http://localhost/streams", "Host: localhost\r\n", b"401"),
        ("OPTIONS *", "Host: localhost\r\n", b"401"),
        ("GET //evil.example/?token=drive", "Host: localhost\r\n", b"40"),
        *(
            ("GET /streams", f"Host: {host}\r\n", b"40")
            for host in ("[:::::]", "[12345]:80", "[::1", "localhost:99999999")
        ),
        ("GET /" + "a" * 9000, "Host: localhost\r\n", b"400"),
        ("GET /", "Host: localhost\r\nCookie: " + "a" * 9000 + "\r\n", b"400"),
        ("GET /", "Host: localhost\r\n" + "".join(f"A{i}: b\r\n" for i in range(500)), b"400"),
    ],
)
@pytest.mark.server(token="drive")
async def test_odd_requests_are_refused(
    stream_server: StreamServer, request_line: str, fields: str, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    said = await raw(stream_server, f"{request_line} HTTP/1.1\r\n{fields}Connection: close\r\n\r\n".encode())
    assert said.split(b" ", 2)[1].startswith(status), said[:200]
    assert b"Location" not in said
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.server(token="drive")
async def test_a_body_of_few_bytes_does_not_become_many(stream_server: StreamServer) -> None:
    """A request is not decompressed: 64 KiB would make 64 MiB."""
    bomb, small = gzip.compress(bytes(8 << 20)), gzip.compress(json.dumps({"token": "drive"}).encode())
    assert len(bomb) < 65_536
    for body in (bomb, small):
        fields = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        status, _, said = await post(stream_server, "login", body, **fields)
        assert (status, json.loads(said)["message"]) == (400, "invalid JSON")


async def test_a_name_that_was_turned_to_this_machine_is_refused(stream_server: StreamServer) -> None:
    for path in ("", "healthz", "streams"):
        assert (await get(stream_server, path, Host=f"evil.example:{stream_server.port}"))[0] == 403
        assert (await get(stream_server, path, Host="localhost:9999"))[0] == 200, "as through a tunnel"


@pytest.mark.patch(routes, "_SNAPSHOT_TIMEOUT", 0.3)
async def test_snapshot_is_the_newest_picture(stream_server: StreamServer) -> None:
    assert (await get(stream_server, "snapshot.jpg"))[0] == 404
    stream_server.declare("main")
    status, headers, _ = await get(stream_server, "snapshot.jpg")
    assert (status, headers["Retry-After"]) == (503, "1")
    with producing(stream_server):
        status, headers, body = await get(stream_server, "snapshot.jpg?stream=main")
    assert (status, headers["Content-Type"]) == (200, "image/jpeg")
    assert psnr(decode_jpeg(body), scene()) > 28
    about = json.loads(headers["X-Frame"])
    assert about["meta"]["step"] >= 0
    assert about["captured"] <= about["sent"]
    status, headers, again = await get(stream_server, "snapshot.jpg")
    assert (status, again) == (200, body), "the source stands still: its last frame"
    assert json.loads(headers["X-Frame"])["meta"]["step"] >= about["meta"]["step"]
    assert stream_server.watchers() == 0


async def test_metrics_count_what_happens(stream_server: StreamServer) -> None:
    async with watching(stream_server) as guest:
        with producing(stream_server):
            for _ in range(4):
                await guest.picture()
        await guest.quiet()
        _, _, body = await get(stream_server, "metrics")
    lines = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    value = {name.removeprefix("torchrl_gpu_stream_"): float(value) for name, value in lines.items()}
    assert value['clients{transport="websocket"}'] == 1
    assert value['watchers{codec="jpeg",stream="main"}'] == 1
    assert value['frames_published_total{stream="main"}'] >= 4
    assert value['frames_encoded_total{codec="jpeg",stream="main"}'] >= 4
    assert value['frames_sent_total{codec="jpeg",transport="websocket"}'] >= 4
    sent = value['sent_bytes_total{codec="jpeg",transport="websocket"}']
    assert sent > 4 * 1000 < value['encoded_bytes_total{codec="jpeg",stream="main"}']
    assert value['encode_seconds_total{codec="jpeg",stream="main"}'] > 0
    assert value["ack_seconds_count"] >= 4


async def test_an_offer_without_the_extra(stream_server: StreamServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiortc", None)
    monkeypatch.delitem(sys.modules, "torchrl_gpu.streaming.web.webrtc", raising=False)
    monkeypatch.delattr(torchrl_gpu.streaming.web, "webrtc", raising=False)
    status, _, body = await post(stream_server, "webrtc/offer", b'{"sdp": "", "type": "offer"}')
    assert (status, "extra webrtc" in json.loads(body)["message"]) == (501, True)


@pytest.mark.server(max_clients=2)
async def test_an_offer_is_answered_within_the_limit_of_viewers(
    stream_server: StreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = []

    class Webrtc:
        @staticmethod
        async def answer(state: Any, fields: dict[str, Any], seat: Any) -> dict[str, Any]:
            if fields.get("sdp") is None:
                raise ValueError("webrtc: there is no sdp")
            given_back.append(seat)
            return {"sdp": fields["sdp"], "type": "answer", "id": "1"}

    monkeypatch.setitem(sys.modules, "torchrl_gpu.streaming.web.webrtc", Webrtc)
    monkeypatch.setattr(torchrl_gpu.streaming.web, "webrtc", Webrtc, raising=False)
    for _ in range(3):
        status, _, body = await post(stream_server, "webrtc/offer", b"{}")
        assert (status, json.loads(body)["message"]) == (400, "webrtc: there is no sdp")
    for status in (200, 200, 503):
        assert (await post(stream_server, "webrtc/offer", b'{"sdp": "v=0"}'))[0] == status
    given_back[0].close()
    given_back[0].close()
    for status in (200, 503):
        assert (await post(stream_server, "webrtc/offer", b'{"sdp": "v=0"}'))[0] == status


@pytest.mark.patch(routes, "_BODY_TIMEOUT", 0.05)
async def test_a_body_that_does_not_come_is_not_waited_for(stream_server: StreamServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stream_server.port)
    writer.write(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf")
    assert (await reader.readline()).split()[1] == b"408"
    writer.close()


def certificate(folder: Path) -> tuple[str, str]:
    """Files of a certificate that this machine has signed for itself, and of its key."""
    x509 = pytest.importorskip("cryptography.x509")
    import datetime
    import ipaddress

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "torchrl_gpu test")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
    signed = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    files[1].chmod(0o600)
    return str(files[0]), str(files[1])


async def test_server_speaks_tls(tmp_path: Path) -> None:
    import ssl

    files = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=files[0])
    with server(tls=files, token="drive") as stream_server:
        assert stream_server.url.startswith("https://")
        async with session(connector=aiohttp.TCPConnector(ssl=trusting)) as client:
            async with client.get(address(stream_server, "?token=drive"), allow_redirects=False) as answer:
                assert answer.status == 303
                assert SimpleCookie(answer.headers["Set-Cookie"])[session_cookie(stream_server)]["secure"]
            async with client.ws_connect(address(stream_server, "ws?token=drive")) as connection:
                assert (await connection.receive_json())["role"] == "control"
        with socket.create_connection(("127.0.0.1", stream_server.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            plain.settimeout(10)
            assert not plain.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_key_that_is_encrypted_is_refused_without_a_question(tmp_path: Path) -> None:
    """OpenSSL would ask for its password on the terminal, and the run would wait."""
    certificate_file, key_file = certificate(tmp_path)
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(key_file).read_bytes(), None)
    Path(key_file).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(ValueError, match=r"tls .*encrypted"):
        server(tls=(certificate_file, key_file)).start()


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True), (0o660, True)])
def test_a_key_that_others_can_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    files = certificate(tmp_path)
    Path(files[1]).chmod(mode)
    with server(tls=files):
        pass
    lines = [record.getMessage() for record in caplog.records if "chmod 600" in record.getMessage()]
    assert len(lines) == warned


async def test_connections_without_a_handshake_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost a descriptor each, though no request ever comes of them."""
    monkeypatch.setattr(access, "_SPARE_CONNECTIONS", 0)
    with server(tls=certificate(tmp_path), max_clients=3) as stream_server:
        silent = [await asyncio.open_connection("127.0.0.1", stream_server.port) for _ in range(12)]
        ended = [asyncio.create_task(reader.read(1)) for reader, _ in silent]
        await until(lambda: sum(each.done() for each in ended) >= 8)
        await asyncio.wait(ended, timeout=0.05)
        assert sum(each.done() for each in ended) == 8, "four are left: two thirds of six"
        for _, writer in silent:
            writer.transport.abort()
        await asyncio.gather(*ended, return_exceptions=True)


async def test_head_asks_for_no_stream(stream_server: StreamServer) -> None:
    stream_server.declare("main")
    async with session() as client:
        for path, status in (("", 200), ("healthz", 200), ("stream.mjpg", 405), ("snapshot.jpg", 405), ("ws", 405)):
            async with client.head(address(stream_server, path)) as answer:
                assert answer.status == status, path
    await until(lambda: stream_server.watchers() == 0)


async def test_without_a_name_the_first_stream_is_meant(stream_server: StreamServer) -> None:
    """They were 404 where the only stream had another name than main."""
    assert (await get(stream_server, "snapshot.jpg"))[0] == 404, "there is none yet"
    stream_server.publish(np.full((8, 8, 3), 200, np.uint8), "camera")
    stream_server.declare("camera:seen")
    status, headers, _ = await get(stream_server, "snapshot.jpg")
    assert (status, json.loads(headers["X-Frame"])["stream"]) == (200, "camera")
    async with session() as client, client.get(address(stream_server, "stream.mjpg")) as answer:
        assert answer.status == 200
    assert (await get(stream_server, "snapshot.jpg?stream=main"))[0] == 404, "one that is named is meant"
    stream_server.publish(np.full((8, 8, 3), 200, np.uint8), "main")
    _, headers, _ = await get(stream_server, "snapshot.jpg")
    assert json.loads(headers["X-Frame"])["stream"] == "main"


async def test_requests_one_behind_the_other_leave_others_their_turn() -> None:
    """A long row of requests on one connection lets others in.

    Thousands of them were answered to the last before anybody else.
    """
    order: list[str] = []

    def add(app: aiohttp.web.Application) -> None:
        begun = asyncio.Event()

        async def note(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
            who = request.match_info["who"]
            if who == "first":
                await begun.wait()
            begun.set()
            order.append(who)
            return aiohttp.web.Response(text="ok")

        app.add_routes([aiohttp.web.get("/note/{who}", note)])

    def asked(who: str, number: int) -> bytes:
        return number * f"GET /note/{who} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    with server(add_routes=add) as stream_server:
        links = [await asyncio.open_connection("127.0.0.1", stream_server.port) for _ in range(2)]
        links[0][1].write(asked("first", 1) + asked("a", 50))
        await asyncio.sleep(0)
        links[1][1].write(asked("b", 50))
        await until(lambda: len(order) == 101)
        for _, writer in links:
            writer.close()
            await writer.wait_closed()
    assert max(order.index("a"), order.index("b")) < 40, "they take turns"


@pytest.mark.server(token="drive", max_body_bytes=4 << 20)
async def test_json_for_strangers_is_short_whatever_else_a_server_takes(stream_server: StreamServer) -> None:
    body = b'{"token": [' + b"[]," * 40_000 + b"[]]}"
    status, _, said = await post(stream_server, "login", body)
    assert (status, json.loads(said)["message"]) == (400, "JSON may have at most 65536 bytes")
    assert (await post(stream_server, "login", b'{"token": "drive"}'))[0] == 200


OPTIONS = {
    "stream": "main",
    "fps": "2",
    "compat": "1",
    "since": "0",
    "transport": "jpeg",
    "codec": "h264",
    "beside": "x",
}
TAKEN = {"stream.mjpg": ("stream", "fps", "compat"), "snapshot.jpg": ("stream",), "curves": ("since",)}


@pytest.mark.parametrize("path", ["ws", "stream.mjpg", "snapshot.jpg", "webrtc/offer", "streams", "curves"])
@pytest.mark.server(heartbeat_s=0.05)
async def test_an_option_takes_effect_or_is_refused(stream_server: StreamServer, path: str) -> None:
    stream_server.publish(scene())
    for option, value in OPTIONS.items():
        body = b"{}" if path == "webrtc/offer" else None
        headers = UPGRADE if path == "ws" else {}
        async with session() as client:
            method = "GET" if body is None else "POST"
            target = address(stream_server, path, f"?{option}={value}&t=77")
            async with client.request(method, target, data=body, headers=headers) as answer:
                taken = option in TAKEN.get(path, ())
                assert answer.status == (200 if taken else 400), option
                if not taken:
                    assert f"{option} has no effect at /{path}" in (await answer.json())["message"]


@pytest.mark.server(token="a token of a few letters")
async def test_a_proxy_without_host_is_told_from_a_wrong_token(stream_server: StreamServer) -> None:
    token = json.dumps({"token": "a token of a few letters"}).encode()
    page = {"Origin": "https://lab.example", "Referer": "https://lab.example/run/"}
    status, _, body = await get(stream_server, "login", body=token, **page)
    message = json.loads(body)["message"]
    assert (status, "token" in message) == (403, False)
    for said in ("https://lab.example", f"127.0.0.1:{stream_server.port}", "pass Host on", "allowed_origins"):
        assert said in message
    assert counted(hub_of(stream_server), "failed_tokens_total") == 0
    status, _, body = await get(stream_server, "login", body=token, Origin="https://" + "x" * 4000)
    assert (status, len(body) < 500) == (403, True)


async def test_pictures_of_every_transport_are_counted(stream_server: StreamServer) -> None:
    stream_server.publish(scene())
    hub = hub_of(stream_server)
    assert (await get(stream_server, "snapshot.jpg"))[0] == 200
    async with session() as client, client.get(address(stream_server, "stream.mjpg")) as answer:
        await answer.content.readuntil(b"\xff\xd9")
    async with watching(stream_server) as guest:
        await guest.picture()
    for transport in ("snapshot", "mjpeg", "websocket"):
        assert counted(hub, "frames_sent_total", codec="jpeg", transport=transport) == 1, transport
        assert counted(hub, "sent_bytes_total", codec="jpeg", transport=transport) > 1000, transport


async def test_pictures_that_a_reader_of_multipart_missed_are_counted(stream_server: StreamServer) -> None:
    hub = hub_of(stream_server)
    stream_server.declare("main")
    async with session() as client, client.get(address(stream_server, "stream.mjpg")):
        await until(lambda: stream_server.watchers() == 1)
        (subscription,) = hub.streams["main"].subscriptions
        subscription.queue.dropped = 3
    await until(lambda: stream_server.watchers() == 0)
    await until(lambda: counted(hub, "frames_dropped_total", codec="jpeg") == 3)


LONG_META = {f"{i:02d} " + "ü" * 60: "ü" * 1_000 for i in range(60)} | {"step": 7, "return": 0.5}


async def test_metadata_beyond_a_field_of_http_is_left_out_with_a_word(stream_server: StreamServer) -> None:
    stream_server.publish(scene(), meta=LONG_META)
    status, headers, _ = await get(stream_server, "snapshot.jpg")
    header = json.loads(headers["X-Frame"])
    assert (status, header["meta"], header["left_out"]) == (200, {"step": 7, "return": 0.5}, 60)
    assert len(headers["X-Frame"]) <= 3_600
    async with session() as client, client.get(address(stream_server, "stream.mjpg?compat=1")) as answer:
        fields = (await answer.content.readuntil(b"\r\n\r\n")).split(b"\r\n")
    matching = [line for line in fields if b"X-Frame" in line]
    (field,) = matching
    assert json.loads(field.partition(b":")[2])["left_out"] == 60
    async with watching(stream_server) as guest:
        header, _ = await guest.picture()
        assert (header["meta"], "left_out" in header) == (LONG_META, False), "all of it, over a WebSocket"
    stream_server.publish(scene(), meta={"step": 8})
