from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from safetensors.numpy import load, save
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase

from tests.policies import checkpoints
from tests.serving.clients import TOKEN, ask, documented
from tests.streaming.viewers import until
from torchrl_gpu.policies import AgentSpace, InferencePolicy, load_policy
from torchrl_gpu.serving import asking
from torchrl_gpu.serving import ending as module
from torchrl_gpu.serving.ending import Flag, hangups, until_told_to_end
from torchrl_gpu.serving.server import LARGE, policy_server
from torchrl_gpu.streaming import StreamServer
from torchrl_gpu.streaming.web import access

JSON = "application/json"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> InferencePolicy:
    path, _ = checkpoints.saved(tmp_path_factory.mktemp("served"), "DQN navigates")
    return load_policy(path, "cpu")


@pytest.fixture(scope="module")
def server(policy: InferencePolicy) -> Iterator[StreamServer]:
    options: dict[str, Any] = {"port": 0, "token": TOKEN, "view_token": "only-to-watch"}
    with policy_server(policy, max_rows=16, max_body_mib=0.25, **options) as running:
        yield running


@cache
def agent() -> Any:
    return checkpoints.EVERY["DQN navigates"]()[0]


@cache
def seen(rows: int, seed: int = 3) -> dict[str, torch.Tensor]:
    return checkpoints.observations(agent(), rows, seed)


def given(policy: InferencePolicy, rows: int, seed: int = 3) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in seen(rows, seed).items() if name in policy.in_keys}


def wanted(policy: InferencePolicy, rows: int, seed: int = 3) -> list[int]:
    return policy(TensorDict(seen(rows, seed), [rows]))["action"].tolist()


def as_json(observations: dict[str, np.ndarray]) -> str:
    return json.dumps({name: value.tolist() for name, value in observations.items()})


def test_json_is_answered_with_json(server: StreamServer, policy: InferencePolicy) -> None:
    status, answer = ask(server, as_json(given(policy, 3)).encode(), kind=JSON)
    assert (status, json.loads(answer)) == (200, {"action": wanted(policy, 3)})


def test_many_at_once_each_get_their_own(server: StreamServer, policy: InferencePolicy) -> None:
    bodies = [save(given(policy, 1 + seed % 4, seed)) for seed in range(24)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda body: ask(server, body), bodies))
    for seed, (status, body) in enumerate(answers):
        assert status == 200
        assert load(body)["action"].tolist() == wanted(policy, 1 + seed % 4, seed)


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (b"", JSON, 400, "invalid JSON"),
        (b"{}", JSON, 400, "entries must be observation, object_mask, action_mask"),
        (b"\x80\x04\x95", "application/octet-stream", 400, "invalid safetensors"),
        (b"\x80\x04\x95", "application/python-pickle", 400, "invalid safetensors"),
        (bytes(300_000), "application/octet-stream", 413, ""),
    ],
)
def test_another_body_is_refused(server: StreamServer, body: bytes, kind: str, status: int, said: str) -> None:
    found, answer = ask(server, body, kind=kind)
    assert found == status
    assert said in answer.decode()


def test_only_the_token_lets_act_and_any_asks_what_it_takes(server: StreamServer, policy: InferencePolicy) -> None:
    body = save(given(policy, 1))
    assert ask(server, body, token="another-long-token")[0] == 401
    assert ask(server, body, token="only-to-watch")[0] == 403
    assert ask(server, token="", path="/healthz") == (200, b"ok\n")
    assert ask(server, token="", path="/info")[0] == 401
    status, body = ask(server, token="only-to-watch", path="/info")
    told = json.loads(body)
    assert (status, told["max_rows"]) == (200, 16)
    assert [each["name"] for each in told["inputs"]] == policy.in_keys


async def test_a_socket_takes_one_message_after_the_other(server: StreamServer, policy: InferencePolicy) -> None:
    async with talking(server) as socket:
        # All together have more bytes than one message may have.
        for seed in range(40):
            await socket.send_bytes(save(given(policy, 16, seed)))
            assert load(await socket.receive_bytes())["action"].tolist() == wanted(policy, 16, seed)
        await socket.send_bytes(b"\x80\x04")
        assert "invalid safetensors" in (await socket.receive_json())["message"]
        await socket.send_str(as_json(given(policy, 2)))
        assert (await socket.receive_json()) == {"action": wanted(policy, 2)}


def test_the_client_in_the_document_works(server: StreamServer, policy: InferencePolicy) -> None:
    client = documented("PolicyClient", 20)("127.0.0.1", server.port, TOKEN)
    assert client.act(**given(policy, 4)).tolist() == wanted(policy, 4)
    with pytest.raises(RuntimeError, match=r"entries .*observation"):
        client.act(observation=np.zeros((1, 32), np.float32))
    assert client.act(**given(policy, 2)).tolist() == wanted(policy, 2)
    client.connection.close()


@pytest.mark.parametrize("changes", [{"max_rows": 0}, {"wait_ms": -1}, {"max_body_mib": 0}, {"host": "0.0.0.0"}])
def test_a_server_that_should_not_be_is_not_made(policy: InferencePolicy, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs a"):
        policy_server(policy, **changes)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
async def test_numbers_that_are_not_finite_are_refused_in_every_form(
    server: StreamServer, policy: InferencePolicy, bad: float
) -> None:
    """Five agents answered 200 and NaN to an infinite observation."""
    poison = given(policy, 2)
    poison["observation"] = poison["observation"].copy()
    poison["observation"][1, 0] = bad
    text = as_json(poison)
    says = re.compile(rf"observation .*NaN or infinity.* {bad}$")
    for body, kind in ((save(poison), "application/octet-stream"), (text.encode(), JSON)):
        status, answer = ask(server, body, kind=kind)
        assert status == 400
        assert says.match(json.loads(answer)["message"])
    async with talking(server) as socket:
        await socket.send_str(text)
        assert says.match((await socket.receive_json())["message"])
        await socket.send_bytes(save(poison))
        assert says.match((await socket.receive_json())["message"])
        await socket.send_bytes(save(given(policy, 2)))
        assert load(await socket.receive_bytes())["action"].tolist() == wanted(policy, 2)


def test_large_json_is_read_beside_the_loop(server: StreamServer, policy: InferencePolicy) -> None:
    text = as_json(given(policy, 16)).replace(", ", ",    ")
    assert len(text) > LARGE
    status, answer = ask(server, text.encode(), kind=JSON)
    assert (status, json.loads(answer)) == (200, {"action": wanted(policy, 16)})
    assert ask(server, text.replace("false", "maybe").encode(), kind=JSON)[0] == 400


@asynccontextmanager
async def talking(server: StreamServer, **options: Any) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    address = f"http://127.0.0.1:{server.port}/act/ws"
    async with aiohttp.ClientSession(headers=headers) as session, session.ws_connect(address, **options) as socket:
        yield socket


async def sent_away(socket: aiohttp.ClientWebSocketResponse) -> tuple[int, int | None, str]:
    number = 0
    message = await socket.receive()
    while message.type not in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED):
        number += 1
        message = await socket.receive()
    return number, message.data, str(message.extra)


@pytest.mark.parametrize("bad", [b"", b"\x80\x04", "", "{}", "[" * 2000])
async def test_the_third_mistake_in_a_row_closes_a_socket(server: StreamServer, bad: bytes | str) -> None:
    """A client that sent nothing else held all others up for 1.7 s."""
    async with talking(server) as socket:
        for _ in range(10):
            await (socket.send_str(bad) if isinstance(bad, str) else socket.send_bytes(bad))
        assert await sent_away(socket) == (3, 1008, "too many mistakes")


async def test_pings_are_answered_and_a_flood_of_them_is_not(server: StreamServer) -> None:
    async with talking(server, autoping=False) as socket:
        await socket.ping(b"there")
        answer = await socket.receive()
        assert (answer.type, bytes(answer.data)) == (aiohttp.WSMsgType.PONG, b"there")
        for _ in range(3000):
            await socket.ping()
        number, code, why = await sent_away(socket)
        assert (number < 2000, code, why) == (True, 1008, "too many messages")


class Waits(TensorDictModuleBase):
    """Takes its time, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.in_keys = ["x"]
        self.out_keys = ["action"]
        self.seconds = 0.0

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self.seconds:
            raise RuntimeError("no time")
        time.sleep(self.seconds)
        return tensordict.set("action", tensordict["x"])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Waits, StreamServer]]:
    monkeypatch.setattr(access, "_IDLE_TIMEOUT", 0.1)
    module = Waits()
    space = AgentSpace("test", (), {"x": ((1,), "float32")}, low=(-9.0,), high=(9.0,))
    with policy_server(InferencePolicy(module, space, "Waits"), port=0, heartbeat_s=0.1) as running:
        yield module, running


async def test_a_pass_that_outlasts_the_limit_of_idle_connections_is_answered(slow: tuple[Waits, StreamServer]) -> None:
    module, running = slow
    module.seconds = 0.2
    body = save({"x": np.ones((1, 1), np.float32)})
    status, answer = ask(running, body)
    assert (status, load(answer)["action"].tolist()) == (200, [[1.0]])
    async with talking(running) as socket:
        await socket.send_bytes(body)
        assert load(await socket.receive_bytes())["action"].tolist() == [[1.0]]


class Held(TensorDictModuleBase):
    """Decides once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.in_keys, self.out_keys = ["x"], ["action"]
        self.began, self.may_end = threading.Event(), threading.Event()

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.began.set()
        assert self.may_end.wait(20)
        return tensordict.set("action", tensordict["x"])


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Held, StreamServer, asking.InProgress]]:
    """A policy that decides once it may, its server, and its open requests."""
    in_progress = asking.InProgress()
    monkeypatch.setattr(asking, "InProgress", lambda: in_progress)
    module = Held()
    space = AgentSpace("test", (), {"x": ((1,), "float32")}, low=(-9.0,), high=(9.0,))
    try:
        with policy_server(InferencePolicy(module, space, "Held"), port=0) as running:
            yield module, running, in_progress
    finally:
        module.may_end.set()


ROW = {"x": np.ones((1, 1), np.float32)}


async def test_stop_of_a_server_delivers_open_answers(
    held: tuple[Held, StreamServer, asking.InProgress],
) -> None:
    module, running, in_progress = held
    async with talking(running) as socket, talking(running) as late:
        posts = [asyncio.create_task(asyncio.to_thread(ask, running, save(ROW))) for _ in range(3)]
        await socket.send_bytes(save(ROW))
        await until(lambda: len(in_progress.deadlines) == 4 and module.began.is_set())
        stopping = asyncio.create_task(asyncio.to_thread(running.stop))
        await until(lambda: in_progress.is_stopping)
        await late.send_bytes(save(ROW))
        said = json.loads((await late.receive()).data)
        assert said == {"message": "the server stops"}, "nothing new is begun"
        module.may_end.set()
        assert load(await socket.receive_bytes())["action"].tolist() == [[1.0]]
        answers = await asyncio.gather(*posts)
        assert [(status, load(body)["action"].tolist()) for status, body in answers] == [(200, [[1.0]])] * 3
        await stopping


async def test_stop_of_a_server_gives_up_slow_answers(
    held: tuple[Held, StreamServer, asking.InProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "FINISH_S", 0.05)
    module, running, in_progress = held
    async with talking(running) as socket:
        post = asyncio.create_task(asyncio.to_thread(ask, running, save(ROW)))
        await socket.send_bytes(save(ROW))
        await until(lambda: len(in_progress.deadlines) == 2 and module.began.is_set())
        await asyncio.to_thread(running.stop)
        assert not module.may_end.is_set(), "the pass still runs, and nothing waits for it"
        assert json.loads((await socket.receive()).data) == {"message": "the server stops"}
        status, body = await post
        assert (status, json.loads(body)) == (503, {"message": "the server stops"})


def test_a_policy_that_fails_is_told_as_json(
    slow: tuple[Waits, StreamServer], caplog: pytest.LogCaptureFixture
) -> None:
    _, running = slow
    body = save({"x": np.ones((1, 1), np.float32)})
    status, answer = ask(running, body)
    assert (status, json.loads(answer)) == (500, {"message": "the policy failed: RuntimeError"})
    assert "no time" in caplog.text


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_sets_the_flag_and_nothing_else(name: str) -> None:
    before = signal.getsignal(getattr(signal, name))
    with until_told_to_end() as ending:
        assert not ending.event.wait(0.0)
        signal.raise_signal(getattr(signal, name))
        signal.raise_signal(getattr(signal, name))
        assert ending.event.wait()
    assert signal.getsignal(getattr(signal, name)) is before


def test_a_signal_breaks_off_what_is_to_be_broken_off_even_if_it_came_before() -> None:
    for early in (True, False):
        ran = []
        with until_told_to_end() as ending:
            if early:
                signal.raise_signal(signal.SIGTERM)
            with ending.at_once():
                ran.append("begun")
                signal.raise_signal(signal.SIGTERM)
                ran.append("went on")
        assert ending.event.is_set()
        assert ran == ([] if early else ["begun"])


def test_a_hangup_is_taken_once() -> None:
    with hangups() as again:
        assert not again.take()
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert (again.take(), again.take()) == (True, False)


def test_a_flag_is_waited_for_while_a_handler_sets_it() -> None:
    """A wait does not block the handler that sets the flag.

    Whoever begins to wait holds an event's lock, and the handler would wait for it: here at any moment.
    """
    flag, end = Flag(), time.monotonic() + 0.05
    assert not flag.wait(0.05)
    assert time.monotonic() >= end
    threading.Timer(0.01, flag.set).start()
    assert flag.wait(20)


def test_signals_that_a_system_has_not_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIGALRM", "SIGHUP", "setitimer"):
        monkeypatch.delattr(module.signal, name)
    with until_told_to_end() as ending, hangups() as again, ending.at_once():
        pass
    assert not again.is_set()


def test_on_another_thread_nothing_is_taken() -> None:
    found: list[Any] = []

    def run() -> None:
        with until_told_to_end() as ending, hangups():
            found.append((ending.event.is_set(), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(False, signal.getsignal(signal.SIGTERM))]
