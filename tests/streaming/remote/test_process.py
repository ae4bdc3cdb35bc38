"""A server in a process of its own: what it loads, and what remains when either process dies."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.streaming.pictures import scene
from tests.streaming.viewers import TIMEOUT, producing, run, server, until, viewer
from torchrl_gpu.streaming.remote import process as process_module
from torchrl_gpu.streaming.remote.ferry import Ferry
from torchrl_gpu.streaming.remote.outlet import Outlet
from torchrl_gpu.streaming.remote.process import ProcessLink
from torchrl_gpu.streaming.remote.shared import DEMAND_AT, INTERVAL, WATCHERS, Board, SharedMemory
from torchrl_gpu.streaming.server import StreamServer


def link_of(stream_server: StreamServer) -> ProcessLink:
    link: Any = stream_server._link
    assert isinstance(link, ProcessLink)
    return link


def files_of(stream_server: StreamServer) -> list[Path]:
    """Files of shared memory."""
    link = link_of(stream_server)
    memories = [link._board.memory] + [each._frames.memory for each in link._outlets.values() if each._frames]
    return [Path(memory.path) for memory in memories]


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears when a child process imports torch."""
    mark = tmp_path / "torch was imported"
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"open({str(mark)!r}, 'w').close()\nraise ImportError('a trap')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return mark


def test_the_child_serves_every_codec_without_torch(trap: Path) -> None:
    async def inner(stream_server: StreamServer) -> None:
        stream_server.declare("main")
        async with viewer(stream_server) as still, viewer(stream_server) as video:
            await still.watch()
            await video.watch(codec="h264")
            with producing(stream_server):
                for _ in range(3):
                    assert (await still.picture())[0]["codec"] == "jpeg"
                    assert (await video.picture())[0]["codec"] == "h264"

    with server(isolation="process") as stream_server:
        run(inner(stream_server))
    assert not trap.exists()


def test_the_trap_works(trap: Path, child_environment: dict[str, str]) -> None:
    code = "import contextlib\nwith contextlib.suppress(ImportError):\n    import torch"
    environment = os.environ | {"PYTHONPATH": str(trap.parent)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert trap.exists()


def test_nothing_is_left_behind() -> None:
    async def inner(stream_server: StreamServer) -> None:
        stream_server.declare("main")
        async with viewer(stream_server) as guest:
            await guest.watch()
            for size in (20, 200):
                await until(stream_server.wanted)
                stream_server.publish(scene(size, size))
                await guest.picture()

    stream_server = server(isolation="process").start()
    run(inner(stream_server))
    files, child = files_of(stream_server), link_of(stream_server)._process
    assert len(files) == 2
    assert all(file.exists() for file in files)
    stream_server.stop()
    assert not any(file.exists() for file in files)
    assert child.returncode == 0


def test_a_child_that_dies_is_an_error_of_stop_and_not_of_the_program() -> None:
    async def inner(stream_server: StreamServer) -> None:
        stream_server.declare("main")
        async with viewer(stream_server) as guest:
            await guest.watch()
            await until(stream_server.wanted)
            os.kill(link_of(stream_server)._process.pid, signal.SIGKILL)
            await until(lambda: not stream_server.wanted())
            for _ in range(3):
                stream_server.publish(scene())
                stream_server.end_episode()
                stream_server.state(a=1)
            assert stream_server.watchers() == 0

    stream_server = server(isolation="process").start()
    run(inner(stream_server))
    with pytest.raises(RuntimeError, match="its process died"):
        stream_server.stop()
    stream_server.stop()


def test_a_child_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_STOP_TIMEOUT", 0.2)
    stream_server = server(isolation="process").start()
    stream_server.declare("main")
    os.kill(link_of(stream_server)._process.pid, signal.SIGSTOP)
    for step in range(300):  # more than the pipe holds
        stream_server.state(step=step, pad="x" * 1000)
    link_of(stream_server)._board.set(0, DEMAND_AT, 0.0)
    for _ in range(300):
        stream_server.publish(scene(), meta={"pad": "x" * 1000})
    with pytest.raises(RuntimeError, match=r"does not end within 0\.2 s"):
        stream_server.stop()
    assert link_of_stopped(stream_server) is None


def link_of_stopped(stream_server: StreamServer) -> object:
    return stream_server._link


def test_the_child_ends_with_the_program(child_environment: dict[str, str]) -> None:
    code = """
import os, signal
from torchrl_gpu.streaming import StreamServer
server = StreamServer(port=0, isolation="process").start()
print(server._link._process.pid, server._link._board.memory.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=child_environment, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    pid, path = done.stdout.split()

    async def inner() -> None:
        await until(lambda: not alive(int(pid)))
        assert not Path(path).exists()

    run(inner())


def alive(pid: int) -> bool:
    """Whether a process runs, zombies aside."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_what_fails_in_the_child_surfaces_in_stop() -> None:
    async def inner(stream_server: StreamServer) -> None:
        await until(lambda: link_of(stream_server)._process.poll() is not None)

    stream_server = server(isolation="process").start()
    link_of(stream_server)._speaker.say("nonsense")
    run(inner(stream_server))
    with pytest.raises(RuntimeError, match="KeyError: 'nonsense'"):
        stream_server.stop()


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"no JSON\n", "what is no message"),
        (b"[]\n", "what is no message"),
        (b'{"op": "command", "name": "a", "value": [1], "stream": "main"}\n', "want a JSON scalar"),
        (b'{"op": "command", "name": "a\\nb", "stream": "main"}\n', "printable characters"),
        (b'{"op": "command"}\n', "KeyError"),
        (b"a" * 200_000, "what is no message"),
    ],
)
def test_what_the_child_says_is_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: bytes, problem: str
) -> None:
    """It serves strangers: were one to take it over, the program must not follow."""
    (tmp_path / "said").write_bytes(b'{"op": "serves", "port": 7}\n' + said)
    code = f"import sys, time; sys.stdout.write(open({str(tmp_path / 'said')!r}).read()); sys.stdout.flush()"
    command = [sys.executable, "-c", f"{code}; time.sleep(600)"]
    monkeypatch.setattr(process_module, "_spawn", lambda: subprocess.Popen(command, stdin=-1, stdout=-1))
    stream_server = server(isolation="process")

    def listen() -> None:
        link = stream_server.start()._link
        assert isinstance(link, ProcessLink)
        link._reader.join(TIMEOUT)
        assert not link._reader.is_alive()
        assert stream_server.commands() == []
        stream_server.stop()

    with pytest.raises(RuntimeError, match=problem):  # now of `start`, now of `stop`
        listen()


def test_the_numbers_of_the_board_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torchrl_gpu.streaming.broadcast.streams.KEEP_SPACING", 1e9
    )  # one is kept, and none is wanted for nobody
    with server(isolation="process") as stream_server:
        stream_server.declare("main")
        stream_server.publish(scene())
        board = link_of(stream_server)._board
        for number in (math.nan, math.inf, -math.inf, -5.0, 1e300):
            for field in (WATCHERS, INTERVAL):
                board.set(0, field, number)
            assert stream_server.watchers() == 0
            assert not stream_server.wanted()
            stream_server.publish(scene())


def test_the_memory_is_for_this_user_alone() -> None:
    with server(isolation="process") as stream_server:
        for file in files_of(stream_server):
            assert file.stat().st_mode & 0o077 == 0
            assert file.stat().st_uid == os.getuid()


def test_no_list_of_processes_shows_a_token() -> None:
    with server(isolation="process", token="a token of the test") as stream_server:
        about = Path(f"/proc/{link_of(stream_server)._process.pid}")
        if about.exists():
            assert b"a token of the test" not in (about / "cmdline").read_bytes() + (about / "environ").read_bytes()


class FakeTensor:
    """A tensor on a GPU, as far as frames know one; says when it is waited for."""

    is_cuda = True

    def __init__(self, array: np.ndarray, log: list[str]) -> None:
        self.array, self.log = array, log
        self.shape, self.dtype = array.shape, array.dtype

    def cpu(self) -> FakeTensor:
        self.log.append("fetched")
        return self

    def numpy(self) -> np.ndarray:
        return self.array


class FakeRange:
    """What the colours of depth stand for, on a GPU; says when it is asked for and when it is read."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def to(self, device: str, non_blocking: bool) -> FakeRange:
        assert (device, non_blocking) == ("cpu", True)
        self.log.append("asked")
        return self

    def tolist(self) -> list[float]:
        self.log.append("read")
        return [1.0, float("inf")]


class FakeEvent:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def synchronize(self) -> None:
        self.log.append("waited")


@pytest.mark.parametrize("has_depth", [False, True])
def test_frames_of_a_gpu_are_fetched_by_a_thread(monkeypatch: pytest.MonkeyPatch, has_depth: bool) -> None:
    log: list[str] = []
    said: list[dict[str, Any]] = []
    monkeypatch.setattr("torchrl_gpu.streaming.remote.ferry.copy_pixels", lambda frame, *_: frame)
    monkeypatch.setattr("torchrl_gpu.streaming.remote.ferry.event_behind", lambda pixels: FakeEvent(log))

    class Speaker:
        def say(self, op: str, **fields: Any) -> None:
            log.append("said")
            said.append(fields)

    board = Board(SharedMemory(size=Board.SIZE))
    outlet, ferry = Outlet("main", 0, board), Ferry(Speaker())  # type: ignore[arg-type]
    outlet.layout.see(scene(4, 6))
    monkeypatch.setattr(outlet.layout, "depth_of", lambda *_: FakeRange(log) if has_depth else None)
    ferry.carry(outlet, FakeTensor(scene(4, 6), log), {"step": 1}, bgr=True)
    deadline = time.monotonic() + TIMEOUT
    while len(log) < (5 if has_depth else 3):
        assert time.monotonic() < deadline
    ferry.stop()
    assert log == (["asked", "waited", "read", "fetched", "said"] if has_depth else ["waited", "fetched", "said"])
    assert outlet._frames is not None
    np.testing.assert_array_equal(outlet._frames.pixels(said[0]["version"], (4, 6, 3)), scene(4, 6))
    told = {"depth_near_m": 1.0, "depth_far_m": None} if has_depth else {}
    assert (said[0]["meta"], said[0]["shape"]) == ({"step": 1} | told, (4, 6, 3))
    assert said[0]["bgr"] is not has_depth, "its colours are ours"
    outlet.close()
    board.memory.unlink()
    board.close()


def test_an_outlet_asks_the_board() -> None:
    board = Board(SharedMemory(size=Board.SIZE))
    board.forget_demand()
    outlet = Outlet("main", 3, board)
    assert outlet.is_due(99.5), "there is none to be kept yet"
    outlet.pace.advance(99.5)
    assert not outlet.is_due(100.0)
    assert outlet.is_due(100.5), "it is a second old"
    board.set(3, DEMAND_AT, 99.0)
    assert outlet.is_due(100.0)
    board.set(3, 1, 0.5)
    outlet.pace.advance(100.0)
    assert not outlet.is_due(100.2)
    assert outlet.is_due(100.3)
    board.memory.unlink()
    board.close()


def test_two_programs_threads_may_ask_at_once() -> None:
    async def inner(stream_server: StreamServer) -> None:
        names = [f"stream {i}" for i in range(20)]
        await asyncio.gather(*(asyncio.to_thread(stream_server.wanted, name) for name in names * 3))
        indices = sorted(outlet.index for outlet in link_of(stream_server)._outlets.values())
        assert indices == list(range(20))

    with server(isolation="process") as stream_server:
        run(inner(stream_server))


def test_a_program_that_says_more_than_goes_through_the_pipe_ends_well() -> None:
    with server(isolation="process") as stream_server:
        link = link_of(stream_server)
        os.kill(link._process.pid, signal.SIGSTOP)
        for step in range(3000):
            stream_server.log(step, **{f"curve {i}": 1.0 for i in range(20)})
        assert link._speaker._waiting, "it is full"
        os.kill(link._process.pid, signal.SIGCONT)
