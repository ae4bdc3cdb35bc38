"""How long a policy server takes to answer: one client alone, then many at once, over WebSocket and HTTP on loopback.

python -m benchmarks.policy_server --clients 50 --output benchmarks/results/policy_server.json

The server is a process of its own. "saturated": every client asks again as soon as it has its answer. "paced": every
client asks at a rate, as robots do. The bar is the 99th percentile of many clients over twice the median of one.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import torch
from safetensors.numpy import save

from torchrl_gpu import machine, policies
from torchrl_gpu.archives import ENTRY
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import AgentSpace

_SEEN: dict[str, Any] = {"observation": ((32,), "float32"), "object_mask": ((5,), "bool")}
_SPACE = AgentSpace("MarineNavEnv", (), _SEEN, low=(-1.0, -1.0), high=(1.0, 1.0))
Ask = Any


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second of a client that is paced")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = _checkpoint(Path(folder))
        command = [sys.executable, "-m", "torchrl_gpu.cli", "serve-policy", str(checkpoint), "--port", "0"]
        with subprocess.Popen([*command, "--device", "cpu"], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                found = re.search(r"at (http://\S+)", server.stdout.readline())
                assert found is not None
                rows = asyncio.run(_measure(found[1], args))
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


async def _measure(url: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for transport in ("websocket", "http"):
        await _load(url, transport, 1, min(2.0, args.seconds), None)  # warm
        alone = await _load(url, transport, 1, args.seconds, None)
        rows.append(_row(transport, "alone", 1, alone, args.seconds, None))
        for load, rate in (("paced", args.rate), ("saturated", None)):
            times = await _load(url, transport, args.clients, args.seconds, rate)
            rows.append(_row(transport, load, args.clients, times, args.seconds, float(np.median(alone))))
    return rows


def _row(
    transport: str, load: str, clients: int, times: list[float], seconds: float, alone: float | None
) -> dict[str, Any]:
    median, p99 = (1000 * float(np.percentile(times, share)) for share in (50, 99))
    return {
        "transport": transport,
        "load": load,
        "clients": clients,
        "requests": len(times),
        "per_s": len(times) / seconds,
        "median_ms": median,
        "p99_ms": p99,
        "p99_over_alone": None if alone is None else p99 / (1000 * alone),
    }


async def _load(url: str, transport: str, clients: int, seconds: float, rate: float | None) -> list[float]:
    """Seconds of every answer of so many clients."""
    observations = {"observation": np.zeros((1, 32), np.float32), "object_mask": np.ones((1, 5), bool)}
    body, times = save(observations), []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        asked = [_client(session, url, transport, body, seconds, rate, i / clients) for i in range(clients)]
        for found in await asyncio.gather(*asked):
            times.extend(found)
    return times


async def _client(
    session: aiohttp.ClientSession,
    url: str,
    transport: str,
    body: bytes,
    seconds: float,
    rate: float | None,
    phase: float,
) -> list[float]:
    if transport == "http":
        return await _asked(partial(_post, session, f"{url}act", body), seconds, rate, phase)
    async with session.ws_connect(f"{url}act/ws", compress=0) as socket:
        return await _asked(partial(_send, socket, body), seconds, rate, phase)


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> None:
    async with session.post(url, data=body, headers={"Content-Type": "application/octet-stream"}) as answer:
        answer.raise_for_status()
        await answer.read()


async def _send(socket: aiohttp.ClientWebSocketResponse, body: bytes) -> None:
    await socket.send_bytes(body)
    await socket.receive_bytes()


async def _asked(ask: Ask, seconds: float, rate: float | None, phase: float) -> list[float]:
    times: list[float] = []
    begun = time.perf_counter()
    due = begun + (phase / rate if rate else 0.0)
    while (now := time.perf_counter()) - begun < seconds:
        if rate is not None and now < due:
            await asyncio.sleep(due - now)
        started = time.perf_counter()
        await ask()
        times.append(time.perf_counter() - started)
        due += 1 / rate if rate else 0.0
    return times


if __name__ == "__main__":
    main()
