"""A server in a thread of the program."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.protocol import Command
from torchrl_gpu.streaming.web.service import Service
from torchrl_gpu.streaming.web.settings import Settings

_TIMEOUT = 10.0


class ThreadLink:
    """Starts a server in a thread.

    Args:
        settings: What the server was told.
        pipeline: What makes JPEGs, if not OpenCV.
    """

    def __init__(self, settings: Settings, pipeline: Any = None) -> None:
        self.hub = Hub(settings.fps, settings.replay_seconds)
        self._service = Service(settings, self.hub, pipeline)
        self.port = self._service.port
        self._error: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchrl_gpu stream server", daemon=True)
        self._thread.start()
        self._started.wait(_TIMEOUT)
        if self._error is not None:
            raise RuntimeError(f"StreamServer: it does not start: {self._error}") from self._error

    def publish(
        self,
        frame: Any,
        stream: str,
        meta: Mapping[str, Any] | None,
        *,
        bgr: bool,
        depth_range: tuple[float, float] | None,
    ) -> None:
        """As `StreamServer.publish`."""
        self.hub.publish(frame, stream, meta, bgr=bgr, depth_range=depth_range)

    def wanted(self, stream: str) -> bool:
        """As `StreamServer.wanted`."""
        found = self.hub.find(stream)
        return found is not None and found.is_due(time.monotonic())

    def wanted_streams(self) -> list[str]:
        """As `StreamServer.wanted_streams`."""
        return self.hub.wanted_streams()

    def watchers(self, stream: str | None) -> int:
        """As `StreamServer.watchers`."""
        streams = list(self.hub.streams.values())
        return sum(len(each.subscriptions) for each in streams if stream in (None, each.name))

    def declare(self, stream: str, title: str | None) -> None:
        """As `StreamServer.declare`."""
        self.hub.declare(stream, title)

    def declare_family(self, name: str, count: int, title: str | None) -> None:
        """As `StreamServer.declare_family`."""
        self.hub.declare_family(name, count, title)

    def end_episode(self, stream: str, meta: Mapping[str, Any] | None) -> None:
        """As `StreamServer.end_episode`."""
        self.hub.end_episode(stream, meta)

    def commands(self) -> list[Command]:
        """As `StreamServer.commands`."""
        return self.hub.take_commands()

    def state(self, values: Mapping[str, Any]) -> None:
        """As `StreamServer.state`."""
        self.hub.set_state(values)

    def log(self, step: int, scalars: Mapping[str, Any]) -> None:
        """As `StreamServer.log`."""
        self.hub.curves.log(step, scalars)

    def stop(self) -> RuntimeError | None:
        """Ends the thread; what went wrong in it, if anything did."""
        self._service.stop()
        self._thread.join(_TIMEOUT)
        if self._thread.is_alive():
            return RuntimeError(f"its thread does not end within {_TIMEOUT:g} s")
        error = self._error or self._service.error
        if error is None:
            return None
        failure = RuntimeError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure

    def _run(self) -> None:
        try:
            asyncio.run(self._service.run(self._started.set))
        except BaseException as error:
            self._error = error
        finally:
            self._service.close()
            self._started.set()
