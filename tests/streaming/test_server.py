"""The contract of a server, over sockets of loopback."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.streaming.pictures import decode_h264, decode_jpeg, psnr, scene
from tests.streaming.viewers import address, get, hub_of, listed, producing, server, session, until, viewer, watching
from torchrl_gpu.streaming.broadcast.policy_view import PolicyView
from torchrl_gpu.streaming.broadcast.protocol import Command
from torchrl_gpu.streaming.codecs.pixels import color_map
from torchrl_gpu.streaming.server import StreamServer


@pytest.fixture
def started() -> Iterator[StreamServer]:
    """A server with one stream."""
    with server() as stream_server:
        stream_server.declare("main")
        yield stream_server


async def test_from_publish_to_picture(started: StreamServer) -> None:
    async with watching(started) as guest:
        await until(started.wanted)
        begin = time.time()
        started.publish(scene(), meta={"step": 7, "return": 0.5, "bad": float("nan")})
        header, payload = await guest.picture()
        assert psnr(decode_jpeg(payload), scene()) > 28
        assert header["meta"] == {"step": 7, "return": 0.5, "bad": None}
        assert (header["stream"], header["width"], header["height"]) == ("main", 160, 120)
        assert begin - 1 <= header["captured"] <= header["sent"] <= time.time() + 1
    await until(lambda: started.watchers() == 0)


async def test_newcomer_sees_the_picture_published_before(started: StreamServer) -> None:
    started.publish(scene(), meta={"step": 7})
    async with watching(started, "h264") as guest:
        header, payload = await guest.picture()
        assert header["meta"] == {"step": 7}
        assert psnr(decode_h264([payload])[0], scene()) > 28
    assert psnr(decode_jpeg((await get(started, "snapshot.jpg"))[2]), scene()) > 28
    async with session() as client, client.get(address(started, "stream.mjpg")) as answer:
        assert (await answer.content.readuntil(b"\xff\xd8\xff")).endswith(b"\xff\xd8\xff")


async def test_streams_are_apart(started: StreamServer) -> None:
    started.declare("worst", "The worst environment")
    assert started.wanted("best"), "asking declares it, and there is no frame yet for whoever comes"
    async with viewer(started) as guest:
        await guest.watch("worst")
        await until(lambda: started.watchers("worst"))
        assert [started.watchers(name) for name in (None, "worst", "best")] == [1, 1, 0]
        started.publish(scene(20, 30), "worst")
        assert (await guest.picture())[0]["stream"] == "worst"
        await guest.watch("best")
        await until(lambda: started.watchers("best"))
        assert started.watchers("worst") == 0
        started.publish(scene(40, 30), "best")
        assert (await guest.picture())[0]["height"] == 40
    found = await listed(started)
    assert found["worst"]["title"] == "The worst environment"
    assert (found["best"]["height"], found["best"]["published"]) == (40, 1)


async def test_any_of_many_streams_can_be_watched(started: StreamServer) -> None:
    started.declare_family("env", 1024, "Environment")
    async with viewer(started) as guest, viewer(started) as other:
        assert set(started.wanted_streams()) <= {"main"}, "of which one picture a second is kept for nobody"
        for name, codec in (("env17", "jpeg"), ("env1023", "h264"), ("env17", "h264")):
            await guest.watch(name, codec)
            await until(lambda name=name: set(started.wanted_streams()) - {"main"} == {name})  # type: ignore[misc]
            assert started.wanted(name)
            assert started.watchers() == started.watchers(name) == 1
            started.publish(scene(), name, {"env": name})
            header, _ = await guest.picture()
            assert (header["stream"], header["meta"]["env"]) == (name, name)
        started.publish(scene(), "env5")
        assert not started.wanted("env5"), "nobody has asked for it"
        await other.watch("env1024")
        assert "env and a number" in (await other.text("error"))["message"]
    found = await listed(started)
    assert found.keys() == {"main", "env17", "env1023", "env"}
    assert found["env17"]["title"] == "Environment 17"
    assert (found["env"]["count"], found["env"]["published"]) == (1024, 3)


async def test_depth_says_what_its_colours_stand_for(started: StreamServer) -> None:
    depth = np.linspace(1, 3, 60 * 80, dtype=np.float32).reshape(60, 80)
    async with watching(started) as guest:
        for depth_range, told in ((None, (1.0, 3.0)), ((0, 4), (0.0, 4.0))):
            await until(started.wanted)
            started.publish(depth, meta={"step": 1}, bgr=True, depth_range=depth_range)
            header, payload = await guest.picture()
            assert header["meta"] == {"step": 1, "depth_near_m": told[0], "depth_far_m": told[1]}
            shades = (depth - told[0]) / (told[1] - told[0]) * 255
            assert psnr(decode_jpeg(payload), color_map()[np.round(shades).astype(int)]) > 28
        await until(started.wanted)
        started.publish(scene())
        assert (await guest.picture())[0]["meta"] == {}


async def test_commands_and_state(started: StreamServer) -> None:
    started.state(paused=False, commands=["pause", "reset"])
    async with watching(started) as guest:
        await guest.say("command", name="pause")
        await guest.say("command", name="speed", value=2.5)
        commands: list[Command] = []
        await until(lambda: len(commands.__iadd__(started.commands())) == 2)
        assert commands == [Command("pause", None, "main"), Command("speed", 2.5, "main")]
        assert started.commands() == []
        started.state(paused=True)
        state = (await guest.text("state"))["state"]
        while state != {"paused": True, "commands": ["pause", "reset"]}:
            assert state["paused"] is False, "the state from before the greeting"
            state = (await guest.text("state"))["state"]
    async with viewer(started) as guest:
        assert (await guest.text("hello"))["state"] == {"paused": True, "commands": ["pause", "reset"]}


async def test_replay_of_what_came_before_the_end_of_the_episode(started: StreamServer) -> None:
    async with watching(started) as guest:
        for step in range(6):
            await until(started.wanted)
            started.publish(scene(), meta={"step": step})
            await guest.picture()
            if step == 3:
                started.end_episode(meta={"return": 0.75})
        await guest.say("replay")
        pictures = []
        while not pictures or pictures[-1]["meta"]["step"] < 3:
            header, payload = await guest.picture()
            assert decode_jpeg(payload).shape == scene().shape
            pictures.append(header)
        assert all(header["replay"] for header in pictures)
        assert pictures[-1]["meta"] == {"step": 3, "return": 0.75}
        header, _ = await guest.picture()
        assert (header["replay"], header["meta"]["step"]) == (False, 5), "the newest, at once"
        await until(started.wanted)
        started.publish(scene(), meta={"step": 6})
        header, _ = await guest.picture()
        assert (header["replay"], header["meta"]["step"]) == (False, 6)


async def test_stop_ends_viewers_and_may_come_again(started: StreamServer) -> None:
    port = started.port
    async with watching(started) as guest:
        await until(started.watchers)
        code, _ = await asyncio.gather(guest.end(), asyncio.to_thread(started.stop))
        assert code == 1001
    started.stop()
    assert (started.wanted(), started.watchers(), started.commands()) == (False, 0, [])
    started.publish(scene())
    started.end_episode()
    started.declare("main")
    started.state(a=1)
    started.log(1, loss=1.0)
    with server(port=port) as again:
        assert again.port == port, "free at once"
    assert started.start() is started
    assert started.start() is started
    status, _, body = await get(started, "healthz")
    assert (status, body) == (200, b"ok\n")


def test_a_port_in_use_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(ValueError, match=rf"port .*{port} to {port}"):
            server(port=port).start()
        with server(port=port, port_tries=20) as second:
            assert port < second.port < port + 20
            assert second.url == f"http://127.0.0.1:{second.port}/"


def test_addresses_to_print() -> None:
    assert server(port=81, token="a b&c").url == "http://127.0.0.1:81/?token=a%20b%26c"
    assert server(port=81, host="::1").url == "http://[::1]:81/"
    long = "sixteen-letters-x"
    assert server(port=81, host="0.0.0.0", token=long).url == f"http://{socket.gethostname()}:81/?token={long}"
    assert server(port=81, tls=("a", "b")).url == "https://127.0.0.1:81/"


def test_hosts_and_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"host '203\.0\.113\.7'"):
        server(host="203.0.113.7", token="a" * 16).start()
    files = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    with pytest.raises(ValueError, match="tls "):
        server(tls=files).start()


def test_an_exception_of_the_server_surfaces_in_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stream_server = server().start()
    thread = stream_server.service.thread  # type: ignore[union-attr]
    monkeypatch.setattr(hub_of(stream_server), "tick", lambda: 1 / 0)
    thread.join(300)
    assert not thread.is_alive()
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError: division by"):
        stream_server.stop()
    stream_server.stop()
    assert not stream_server.wanted()


async def test_error_on_the_loop_surfaces_and_does_not_end_the_server() -> None:
    stream_server = server().start()
    hub_of(stream_server).call_in_loop(lambda: 1 / 0)
    assert (await get(stream_server, "healthz"))[0] == 200
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        stream_server.stop()


def test_the_programs_own_exception_is_the_one_to_be_seen() -> None:
    def program() -> None:
        with server() as stream_server:
            stream_server.service.error = RuntimeError("of the server")  # type: ignore[union-attr]
            raise KeyError("of the program")

    with pytest.raises(KeyError):
        program()


def test_importing_needs_no_extra_and_encoding_no_torch_and_it_stops_with_the_interpreter_and_forks_nothing() -> None:
    code = """
import os, sys
import numpy as np
extras = ("aiohttp", "av", "cv2")
sys.modules.update(dict.fromkeys(extras))
from torchrl_gpu.streaming import StreamServer
try:
    StreamServer()
except ModuleNotFoundError as error:
    print(error)
for name in extras:
    del sys.modules[name]

from torchrl_gpu.streaming.codecs import h264, images, mp4
frame = np.zeros((16, 16, 3), np.uint8)
assert images.encode_jpeg(frame) and h264.H264Encoder(16, 16, codec="x264").encode(frame).key

os.register_at_fork(before=lambda: print("forked"))
with StreamServer(port=0) as server:
    server.stop()
    server.start()
server.start().publish(frame)
print(server.port, *(name for name in ("torch", "lightning") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    lacking, port = done.stdout.splitlines()
    assert "aiohttp is not installed" in lacking
    assert "[stream]" in lacking
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port))).close()


_FIRST_VIEWERS = """
import asyncio, importlib.abc, importlib.util, sys, threading
from tests.streaming import viewers
from tests.streaming.plain_client import PeerClient
from torchrl_gpu.streaming.codecs.encoder import CODECS

late = set()

class Imports(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread().name.startswith("torchrl_gpu"):
            late.add(name)

async def watch(server):
    for codec in CODECS:
        async with viewers.watching(server, codec) as guest:
            assert (await guest.picture())[0]["codec"] == codec
    for path in ("", "streams", "curves", "metrics", "healthz", "snapshot.jpg"):
        assert (await viewers.get(server, path))[0] == 200, path
    async with viewers.session() as client, client.get(viewers.address(server, "stream.mjpg")) as answer:
        await answer.content.readuntil(b"--frame")
    if importlib.util.find_spec("aiortc"):
        peer = PeerClient(viewers.address(server))
        await peer.connect("main")
        await peer.connection.close()

with viewers.server() as server:
    sys.meta_path.insert(0, Imports())
    server.log(1, reward=1.0)
    with viewers.producing(server):
        asyncio.run(watch(server))
print(sorted(late), "torch" in sys.modules)
"""


def test_first_viewers_of_every_codec_and_transport_load_nothing_and_no_torch() -> None:
    command = [sys.executable, "-c", _FIRST_VIEWERS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[2])
    assert (done.stdout, done.returncode) == ("[] False\n", 0), done.stderr


async def test_publishing_threads_do_not_disturb_each_other(started: StreamServer) -> None:
    async with watching(started) as guest:
        dark = np.full((60, 80, 3), 40, np.uint8)
        bright = np.full((60, 80, 3), 200, np.uint8)
        with producing(started, frame=dark), producing(started, frame=bright):
            shades = [decode_jpeg((await guest.picture())[1]) for _ in range(30)]
        assert all(int(np.ptp(shade)) <= 4 for shade in shades), "a picture of two frames"


async def test_a_program_may_publish_while_it_stops(started: StreamServer) -> None:
    async with watching(started) as guest:
        with producing(started), producing(started):
            await guest.picture()
            await asyncio.gather(guest.end(), asyncio.to_thread(started.stop))


TOKENS = ("drive-secret", "look-secret", "wrong-secret")


@pytest.mark.server(token=TOKENS[0], view_token=TOKENS[1])
async def test_tokens_are_nowhere_in_the_log(
    stream_server: StreamServer, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    for token in TOKENS:
        await get(stream_server, f"?token={token}")
        await get(stream_server, "streams", token)
        await get(stream_server, "login", body=json.dumps({"token": token}).encode())
        await get(stream_server, f"%00{token}")
        with socket.create_connection(("127.0.0.1", stream_server.port), 10) as connection:
            connection.sendall(f"GET /?token={token}\xff\x00 HTTP/1.1\r\n\r\n".encode("latin-1"))
            await asyncio.to_thread(connection.recv, 100)
    stream_server.stop()
    out, error = capfd.readouterr()
    said = out + error + caplog.text + repr(stream_server)
    assert [token for token in TOKENS if token in said] == []


async def test_a_policy_is_shown_with_what_it_saw(started: StreamServer) -> None:
    view = PolicyView(scene(), scene(24, 32), [0.25, -1], inference_ms=4.5, message_age_s=0.02, stale=True)
    started.declare("main")
    # This makes the stream of what it saw.
    started.show_policy(view, meta={"step": 7})
    for name, size in (("main", scene().shape[:2]), ("main:seen", (24, 32))):
        async with viewer(started) as guest:
            await guest.watch(name)
            await until(lambda name=name: started.wanted(name))  # type: ignore[misc]
            started.show_policy(view, meta={"step": 7})
            header, _ = await guest.picture()
            assert (header["height"], header["width"]) == size
            assert header["meta"] == {"step": 7, **view.facts()}
    async with viewer(started) as guest:
        await guest.text("hello")
        started.show_policy(PolicyView(None, None, [0.25, -1], inference_ms=4.5, message_age_s=0.02, stale=True))
        assert (await guest.text("state"))["state"]["inference_ms"] == 4.5
