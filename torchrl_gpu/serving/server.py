"""A policy behind the port, the token and the limits of a stream server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web

from torchrl_gpu.policies.export.manifest import manifest_of
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.serving.asking import Asking
from torchrl_gpu.serving.batching import Batching, release_at_end
from torchrl_gpu.serving.messages import Messages
from torchrl_gpu.serving.packing.pallets import PackingSessions, PalletRoutes
from torchrl_gpu.serving.page import PolicyPage
from torchrl_gpu.streaming import StreamServer
from torchrl_gpu.system import arguments

# Passes that may wait.
_MANY = 16
# Bytes of JSON from which on a thread reads it.
LARGE = 16_384
_MAX_ROWS = 1 << 20


def policy_server(
    policy: InferencePolicy | None,
    *,
    pallets: PackingSessions | None = None,
    max_rows: int = 256,
    wait_ms: float = 0.0,
    max_body_mib: float = 4.0,
    page: bool = False,
    **options: Any,
) -> StreamServer:
    """Return a server, not yet started, that answers observations with actions.

    `POST /act` and the WebSocket `/act/ws` take the entries of `policy.in_keys`, (rows, …) each, as safetensors or
    JSON, and give `action` in the same form; `GET /info` says what they mean, see `manifest_of`. A WebSocket is closed
    at the third mistake in ten seconds, and after more pings than a viewer may send. `/pallet` and `/pallet/ws` are the
    same for packing sessions, JSON alone. `stop` lets answers that are being made be given within five seconds, and
    refuses the others. docs/deploy.md lists the errors; all else is as in `StreamServer`.

    Args:
        policy: Decides, on its device; None for packing sessions alone.
        pallets: The packing sessions; None for none.
        max_rows: Observations of one message, and of one forward pass.
        wait_ms: How long a request may wait for others that are decided with it; what comes while one is decided always
            waits for the next pass.
        max_body_mib: Largest message.
        page: Whether the page shows what the policy saw and did at the newest requests, ten a second at most.
        **options: Of `StreamServer`.

    Raises:
        ValueError: An argument is invalid.
    """
    where = "policy_server"
    max_rows = arguments.whole(where, "max_rows", max_rows, 1, _MAX_ROWS)
    wait_s = arguments.number(where, "wait_ms", wait_ms, 0, 1000) / 1000
    max_body = int(arguments.number(where, "max_body_mib", max_body_mib, above=0, high=1024) * 2**20)
    if policy is None and page:
        raise ValueError(f"{where}: page shows a policy, and policy is None")
    if policy is None and pallets is None:
        raise ValueError(f"{where}: policy and pallets are None: there is nothing to serve")
    policy_routes = None if policy is None else PolicyRoutes(policy, max_rows, wait_s, max_body)
    pallet_routes = None if pallets is None else PalletRoutes(pallets, max_body)

    def add(app: web.Application) -> None:
        if policy_routes is not None:
            policy_routes.add(app)
        if pallet_routes is not None:
            pallet_routes.add(app)

    server = StreamServer(add_routes=add, max_body_bytes=max_body, **options)
    if page and policy is not None and policy_routes is not None:
        policy_routes.batching.watch = PolicyPage(server, policy).show
    return server


class PolicyRoutes:
    """The routes that a policy adds to a server.

    See `policy_server`.
    """

    def __init__(self, policy: InferencePolicy, max_rows: int, wait_s: float, max_body: int) -> None:
        self._messages = Messages(policy, max_rows)
        self._asking = Asking("/act", self._answer, "the policy", max_body)
        self.batching = Batching(policy, max_rows, wait_s, _MANY * max_rows)
        self._info = json.dumps(manifest_of(policy) | {"max_rows": max_rows, "max_body_bytes": max_body})

    def add(self, app: web.Application) -> None:
        """Add the routes to an application, and decide while it runs."""
        self._asking.add(app)
        app.router.add_get("/info", self.info)
        app.cleanup_ctx.append(self._running)

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        with release_at_end(ThreadPoolExecutor(1, "torchrl_gpu messages")) as self._reader:
            async with self.batching.running():
                yield

    async def info(self, request: web.Request) -> web.StreamResponse:
        """Answer `/info`."""
        return web.Response(text=self._info, content_type="application/json")

    async def _answer(self, body: bytes | str, is_json: bool) -> bytes:
        # A thread takes turns with the loop, which would else answer nobody while it reads. For a short message the
        # thread costs more than it saves.
        if is_json and len(body) > LARGE:
            loop = asyncio.get_running_loop()
            observations = await loop.run_in_executor(self._reader, self._messages.parse, body, is_json)
        else:
            observations = self._messages.parse(body, is_json)
        return self._messages.pack(await self.batching.act(observations), is_json)
