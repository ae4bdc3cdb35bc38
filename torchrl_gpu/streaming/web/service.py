"""The web server, in a thread beside the program: listens, serves, and keeps what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import logging
import os
import socket
import ssl
import stat
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, PayloadEncodingError

from torchrl_gpu.streaming.broadcast.encoder_thread import EncoderThread
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.web.access import FINISH_S, AppState
from torchrl_gpu.streaming.web.connection_limit import Connection
from torchrl_gpu.streaming.web.routes import make_app
from torchrl_gpu.streaming.web.settings import ServerSettings

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

_LOG = logging.getLogger(__name__)
_BACKLOG = 128
_ACCEPTED_AT_ONCE = 8  # connections
_TIMEOUT = 10.0  # seconds that starting may take, and stopping besides what `FINISH_S` allows
_SHUTDOWN_TIMEOUT = 1.0
_PEER_ERRORS = (HttpProcessingError, PayloadEncodingError, OSError)
AddRoutes = Callable[[web.Application], None]
"""Adds routes, and what runs beside them, to an application."""

_PARSERS = ("aiohttp", "aioice", "aiortc", "pylibsrtp", "OpenSSL")  # packages that read what strangers send


class Service:
    """A web server in a thread of its own, from construction to `stop`; the arguments are those of `StreamServer`."""

    def __init__(
        self, settings: ServerSettings, pipeline: GpuFramePipeline | None = None, add_routes: AddRoutes | None = None
    ) -> None:
        self.settings, self._add_routes = settings, add_routes
        self.hub = Hub(settings.fps, settings.instant_replay_s)
        self._tls = tls_context(settings.tls)
        self._encoder = EncoderThread(self.hub, settings.jpeg_quality, pipeline)
        # Here, in the program's thread: the first offer would hold up every viewer while it is loaded.
        with contextlib.suppress(ImportError):
            importlib.import_module("torchrl_gpu.streaming.web.webrtc")
        self._socket = listen(settings.host, settings.port, settings.port_tries)
        self.port: int = self._socket.getsockname()[1]
        self._stopping = asyncio.Event()
        self._error: BaseException | None = None
        self._warned_packages: set[str] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchrl_gpu stream server", daemon=True)
        self._thread.start()
        self._started.wait(_TIMEOUT)
        if self._error is not None:
            raise RuntimeError(f"StreamServer: it does not start: {self._error}") from self._error

    def stop(self) -> BaseException | None:
        """Ends the thread; the first error in it or its encoder, besides those of single requests."""
        self.hub.call_in_loop(self._stopping.set)
        timeout = _TIMEOUT + FINISH_S
        self._thread.join(timeout)
        if self._thread.is_alive():
            return TimeoutError(f"its thread does not end within {timeout:g} s")
        return self._error or self._encoder.error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._socket.close()
            self._started.set()

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._note)
        self.hub.attach(asyncio.get_running_loop())
        state = AppState(self.settings, self.hub, self.port)
        app = make_app(state)
        if self._add_routes is not None:
            self._add_routes(app)
        # Addresses may carry tokens, so that no request is ever logged.
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=_request_log(),
            keepalive_timeout=state.idle_timeout,
            shutdown_timeout=_SHUTDOWN_TIMEOUT,
            auto_decompress=False,  # a few bytes may stand for many, and no client of ours compresses
            lingering_time=1.0,  # seconds that what a refused request still sends is read and thrown away
            handler_cancellation=True,  # who leaves is no viewer any more, even if nothing is sent that would show it
        )
        await runner.setup()
        self._encoder.start()
        try:
            await self._accept(runner, state)
        finally:
            self.hub.attach(None)
            await state.finish()
            await state.close()
            await runner.cleanup()
            state.connections.close()  # those that came meanwhile, or whose peer does not read what is still to be sent
            self._encoder.stop()

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keeps the first error of the loop, but none over a peer that breaks off, or sends no TLS or no STUN."""
        error = context.get("exception")
        if isinstance(error, OSError):
            _LOG.debug("%s: %s", context["message"], error)
            return
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)] if error is not None else []
        package = str(frames[-1].f_globals.get("__name__", "")).partition(".")[0] if frames else ""
        if package in _PARSERS:
            self.hub.metrics.peer_errors.labels(package).inc()
            line = "StreamServer: %s failed over what a peer sent: %r; more of this is counted in /metrics only"
            _LOG.log(logging.DEBUG if package in self._warned_packages else logging.WARNING, line, package, error)
            self._warned_packages.add(package)
            return
        _LOG.error("%s", context["message"], exc_info=error)
        if isinstance(error, Exception) and self._error is None:
            self._error = error

    async def _accept(self, runner: web.AppRunner, state: AppState) -> None:
        assert runner.server is not None
        requests = runner.server
        # asyncio accepts as many as its backlog before it asks about the first, which takes descriptors of the program
        accepting = await asyncio.get_running_loop().create_server(
            lambda: Connection(state.connections, requests(), self._tls), sock=self._socket, backlog=_ACCEPTED_AT_ONCE
        )
        self._socket.listen(_BACKLOG)
        try:
            self._started.set()
            await self.hub.tick_until(self._stopping)
        finally:
            with contextlib.suppress(NotImplementedError):  # on Windows, where asyncio leaves no gap
                asyncio.get_running_loop().remove_reader(self._socket)
            await asyncio.sleep(0)  # asyncio loses what it has accepted and not begun when it is told to close
            with contextlib.suppress(OSError):  # a process that was forked meanwhile may hold it open
                self._socket.shutdown(socket.SHUT_RDWR)
            accepting.close()


def _request_log() -> logging.Logger:
    """The log of failed requests without the peers' faults, which would fill it, and show what they sent."""
    log = logging.getLogger(f"{__name__}.requests")
    if not log.filters:
        log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _PEER_ERRORS)))
    return log


def listen(host: str, port: int, tries: int) -> socket.socket:
    """A socket that listens at the first free port from `port` on; ValueError where there is none, or for the host."""
    ports = [port] if port == 0 else range(port, min(port + tries, 65_536))
    for each in ports:
        try:
            return _bind(host, each)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ValueError(f"StreamServer: want an address of this machine; got {host!r}: {error}") from None
    raise ValueError(f"StreamServer: want a free port from {ports[0]} to {ports[-1]}; got all in use")


def tls_context(files: tuple[str, str] | None) -> ssl.SSLContext | None:
    """The TLS context of a server, from the files of its certificate and key; ValueError where they are none."""
    if files is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(*files, password=_no_password)
        mode = os.stat(files[1]).st_mode
    except (OSError, ssl.SSLError, ValueError, TypeError) as error:
        raise ValueError(f"StreamServer: want the files of a certificate and its key; got {files!r}: {error}") from None
    if mode & (stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH):
        _LOG.warning("StreamServer: want a key that others can neither read nor write; got %r: chmod 600", files[1])
    return context


def _no_password() -> str:
    """Instead of a question on the terminal, for which a run would wait forever."""
    raise ValueError("the key is encrypted, and no password is asked for")


def _bind(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, number, _, address = found[0]
    listener = socket.socket(family, kind, number)
    try:
        if os.name == "posix":  # Windows would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
