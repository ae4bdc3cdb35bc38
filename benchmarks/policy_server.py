"""How long a policy server takes to answer: one client alone, then many at once, over WebSocket and HTTP on loopback.

python -m benchmarks.policy_server --clients 50 --output benchmarks/results/policy_server.json

The server is a process of its own. "even" and "random": every client asks at a rate, as robots do, all in turn or each
at random within its periods. "saturated": every client asks again as soon as it has its answer. The bar is the 99th
percentile of many clients over twice the median of one.

Robots have computers of their own, so that theirs costs as little here as can be: bytes made before, plain sockets, a
clock read before the request is written and after the last byte of its answer. How late requests were sent, which is
the client's own doing and not in the times, stands beside them.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import random
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import torch
from safetensors.numpy import save

from torchrl_gpu import machine, policies
from torchrl_gpu.archives import ENTRY
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import AgentSpace

_SEEN: dict[str, Any] = {"observation": ((32,), "float32"), "object_mask": ((5,), "bool")}
_SPACE = AgentSpace("MarineNavEnv", (), _SEEN, low=(-1.0, -1.0), high=(1.0, 1.0))
_WARM_S = 2.0


class Load(NamedTuple):
    """What clients do.

    Attributes:
        address: Host and port of the server.
        transport: "websocket" or "http".
        clients: How many there are in all processes.
        rate: Requests a second of each; None asks again at once.
        is_random: Whether each asks at random within its periods.
        seconds: How long.
        start: Second of the monotonic clock, one for all processes.
    """

    address: tuple[str, int]
    transport: str
    clients: int
    rate: float | None
    is_random: bool
    seconds: float
    start: float = 0.0


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second of a client that is paced")
    parser.add_argument("--processes", type=int, default=1, help="that the clients are spread over")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = _checkpoint(Path(folder))
        command = [
            sys.executable,
            "-m",
            "torchrl_gpu.cli",
            "serve-policy",
            str(checkpoint),
            "--port",
            "0",
            "--threads",
            "1",
        ]
        with subprocess.Popen([*command, "--device", "cpu"], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                found = re.search(r"at (http://\S+)", server.stdout.readline())
                assert found is not None
                url = urlsplit(found[1])
                assert url.hostname is not None
                assert url.port is not None
                rows = _measure((url.hostname, url.port), args)
            finally:
                server.terminate()
    result = {
        "benchmark": "policy_server",
        "machine": machine.describe(torch.device("cpu")),
        "policy": "DDPG of navigation v3, one row a request",
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "rows": rows,
    }
    for row in rows:
        print(f"{row['transport']:<10}{row['load']:<12}{row['clients']:>4} clients  " + _shown(row))
    if args.output:
        write_json(args.output, result)


def _shown(row: dict[str, Any]) -> str:
    ratio = "" if row["p99_over_alone"] is None else f", p99 is {row['p99_over_alone']:.2f} times that of one"
    return f"median {row['median_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms, {row['per_s']:.0f}/s{ratio}"


def _checkpoint(folder: Path) -> Path:
    """A policy of the size that the shipped navigation agents have."""
    torch.manual_seed(0)
    agent = policies.DDPG(_SPACE, actor=policies.NavigationActor, critic=policies.NavigationCritic)
    named = {name: {"class_path": f"torchrl_gpu.policies.Navigation{name.title()}"} for name in ("actor", "critic")}
    settings = {"agent": {"class_path": "torchrl_gpu.policies.DDPG", "init_args": named}}
    content = {
        "state_dict": {f"agent.{name}": value for name, value in agent.state_dict().items()},
        "agent_space": _SPACE.to_dict(),
        ENTRY: {"config": {"model": {"init_args": settings}}},
    }
    torch.save(content, folder / "policy.ckpt")
    return folder / "policy.ckpt"


def _measure(address: tuple[str, int], args: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for transport in ("websocket", "http"):
        alone = Load(address, transport, 1, None, False, args.seconds)
        even = Load(address, transport, args.clients, args.rate, False, args.seconds)
        loads = {"alone": alone, "even": even, "random": even._replace(is_random=True)}
        loads["saturated"] = even._replace(rate=None)
        _answers(alone._replace(seconds=_WARM_S), 1)
        alone_ms = None
        for name, load in loads.items():
            took, late = _answers(load, min(args.processes, load.clients))
            rows.append(_row(name, load, took, late, alone_ms))
            alone_ms = alone_ms or rows[-1]["median_ms"]
    return rows


def _row(name: str, load: Load, took: np.ndarray, late: np.ndarray, alone_ms: float | None) -> dict[str, Any]:
    median, p99 = (1000 * float(np.percentile(took, share)) for share in (50, 99))
    return {
        "transport": load.transport,
        "load": name,
        "clients": load.clients,
        "requests": len(took),
        "per_s": len(took) / load.seconds,
        "median_ms": median,
        "p99_ms": p99,
        "p99_over_alone": None if alone_ms is None else p99 / alone_ms,
        "sent_late_p99_ms": None if load.rate is None else 1000 * float(np.percentile(late, 99)),
    }


def _answers(load: Load, processes: int) -> np.ndarray:
    """Seconds that each answer took, and by which its request was sent late: (2, answers)."""
    load = load._replace(start=time.monotonic() + 0.5)
    shares = [range(i, load.clients, processes) for i in range(processes)]
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        return np.concatenate(list(pool.map(ask, [load] * processes, shares)), 1)


class Client:
    """One connection that asks the same again and again.

    Args:
        load: Says where, when and how.
        number: Of the client.

    Attributes:
        number: Its own.
        due: When the next request is to be sent, seconds of the monotonic clock.
        sent: When the last one was.
    """

    def __init__(self, load: Load, number: int) -> None:
        self.socket = socket.create_connection(load.address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number, self.due, self.sent = number, load.start, 0.0
        self._load, self._chance, self._asked = load, random.Random(number), 0
        self._came = b""
        body = save({"observation": np.zeros((1, 32), np.float32), "object_mask": np.ones((1, 5), bool)})
        host = f"Host: {load.address[0]}:{load.address[1]}\r\n"
        if load.transport == "http":
            head = f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n"
            self._request = f"POST /act HTTP/1.1\r\n{host}{head}\r\n".encode() + body
        else:
            upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            key = f"Sec-WebSocket-Key: {'A' * 22}==\r\n"
            self.socket.sendall(f"GET /act/ws HTTP/1.1\r\n{host}{upgrade}{key}\r\n".encode())
            assert self.socket.recv(4096).startswith(b"HTTP/1.1 101 ")
            self._request = struct.pack(">BBHI", 0x82, 0x80 | 126, len(body), 0) + body  # its mask is zeros
        self.plan()

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    def send(self) -> None:
        """Asks."""
        self.sent = time.monotonic()
        self.socket.sendall(self._request)

    def read(self) -> bool:
        """Reads what has come; whether the answer is whole."""
        self._came += self.socket.recv(65_536)
        is_whole = self._is_whole_http() if self._load.transport == "http" else self._is_whole_frame()
        if is_whole:
            self._came = b""
        return is_whole

    def plan(self) -> None:
        """Says when the next request is due."""
        if self._load.rate is None:
            self.due = max(self._load.start, time.monotonic())
        else:
            share = self._chance.random() if self._load.is_random else self.number / self._load.clients
            self.due = self._load.start + (self._asked + share) / self._load.rate
            self._asked += 1

    def _is_whole_http(self) -> bool:
        head, _, body = self._came.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "[: len(head)]), head
        found = re.search(rb"(?i)content-length: (\d+)", head)
        return found is not None and len(body) >= int(found[1])

    def _is_whole_frame(self) -> bool:
        assert b"\x82\x7d" > self._came[:2] >= b"\x82"[: len(self._came)], self._came  # binary, below 126 bytes
        return len(self._came) >= 2 and len(self._came) == 2 + self._came[1]


def ask(load: Load, numbers: range) -> np.ndarray:
    """What some of the clients of a load find, as `_answers`."""
    gc.disable()
    with ExitStack() as open_clients:
        clients = [open_clients.enter_context(closing(Client(load, number))) for number in numbers]
        return np.array(_ask(load, clients)).T


def _ask(load: Load, clients: list[Client]) -> list[tuple[float, float]]:
    waiting = [(client.due, client.number, client) for client in clients]
    heapq.heapify(waiting)
    asked: dict[socket.socket, Client] = {}
    found: list[tuple[float, float]] = []
    end = load.start + load.seconds
    while asked or (waiting and waiting[0][0] < end):
        is_due = bool(waiting) and waiting[0][0] < end
        pause = max(0.0, waiting[0][0] - time.monotonic()) if is_due else None
        for each in select.select(list(asked), [], [], pause)[0]:
            client = asked[each]
            if client.read():
                now = time.monotonic()
                found.append((now - client.sent, client.sent - client.due))
                client.plan()
                heapq.heappush(waiting, (client.due, client.number, asked.pop(each)))
        while waiting and waiting[0][0] <= min(end, time.monotonic()):
            client = heapq.heappop(waiting)[2]
            client.send()
            asked[client.socket] = client
    return found


if __name__ == "__main__":
    main()
