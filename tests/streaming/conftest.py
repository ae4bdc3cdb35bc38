"""Coroutine tests, and the server that a test asks for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from tests.streaming.viewers import run, server
from torchrl_gpu.streaming.broadcast import hub as hub_module
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.server import StreamServer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: options of `stream_server`")
    config.addinivalue_line("markers", "patch: arguments of `monkeypatch.setattr` before `stream_server` starts")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine on a loop of its own, to which its `hub` is attached."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def attached() -> None:
        if isinstance(given.get("hub"), Hub):
            given["hub"].attach(asyncio.get_running_loop())
        await pyfuncitem.obj(**given)

    run(attached())
    return True


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers tell of what is new ten times as often, for which tests would wait."""
    monkeypatch.setattr(hub_module, "STILL", hub_module.STILL / 10)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def stream_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamServer]:
    """A started server, with the options of the marker `server`."""
    for patch in request.node.iter_markers("patch"):
        monkeypatch.setattr(*patch.args)
    marker = request.node.get_closest_marker("server")
    with server(**(marker.kwargs if marker else {})) as made:
        yield made
