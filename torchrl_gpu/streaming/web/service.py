"""The web server, in a thread next to the program."""

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
from typing import TYPE_CHECKING

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
# Connections that wait to be accepted, and those that asyncio accepts at once.
_BACKLOG = 128
_ACCEPTED_AT_ONCE = 8
# Seconds that starting may take; and stopping, beyond what `FINISH_S` allows.
_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 1.0  # seconds
# Seconds that what a refused request still sends is read and thrown away.
_LINGERING_TIME = 1.0
# Errors of requests over what a peer sent.
_PEER_ERRORS = (HttpProcessingError, PayloadEncodingError, OSError)
# Packages that read what strangers send.
_PARSERS = ("aiohttp", "aioice", "aiortc", "pylibsrtp", "OpenSSL")

AddRoutes = Callable[[web.Application], None]
"""Adds routes, and what runs next to them, to an application."""


class Service:
    """A web server in a thread of its own, from construction to `stop`.

    The arguments are those of `StreamServer`.

    Raises:
        ValueError: No port that may be tried is free, or the host or the certificate cannot be used.
        RuntimeError: The thread does not start.
    """

    def __init__(
        self, settings: ServerSettings, pipeline: GpuFramePipeline | None = None, add_routes: AddRoutes | None = None
    ) -> None:
        self.settings = settings
        self._add_routes = add_routes
        self.hub = Hub(settings.fps, settings.instant_replay_s)
        self._tls = tls_context(settings.tls)
        self._encoder = EncoderThread(self.hub, settings.jpeg_quality, pipeline)
        # Here, in the program's thread: the first offer would hold up every viewer while it is loaded.
        with contextlib.suppress(ImportError):
            importlib.import_module("torchrl_gpu.streaming.web.webrtc")
        self._socket = listen(settings.host, settings.port, settings.port_tries)
        self.port: int = self._socket.getsockname()[1]
        self.stopping = asyncio.Event()
        self.error: BaseException | None = None
        self._warned_packages: set[str] = set()
        self._started = threading.Event()
        self.thread = threading.Thread(target=self._run, name="torchrl_gpu stream server", daemon=True)
        self.thread.start()
        self._started.wait(_TIMEOUT)
        if self.error is not None:
            raise RuntimeError(f"StreamServer: it does not start: {self.error}") from self.error

    def stop(self) -> BaseException | None:
        """End the thread.

        Returns:
            The first error in it or its encoder, except those of single requests.
        """
        self.hub.call_in_loop(self.stopping.set)
        timeout = _TIMEOUT + FINISH_S
        self.thread.join(timeout)
        if self.thread.is_alive():
            return TimeoutError(f"its thread does not end within {timeout:g} s")
        return self.error or self._encoder.error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.error = error
        finally:
            self._socket.close()
            # The constructor waits for this, and would wait in vain for a server that fails before it accepts.
            self._started.set()

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handle_exception)
        self.hub.attach(asyncio.get_running_loop())
        state = AppState(self.settings, self.hub, self.port)
        app = make_app(state)
        if self._add_routes is not None:
            self._add_routes(app)
        runner = web.AppRunner(
            app,
            # Addresses may carry tokens, so that no request is ever logged.
            access_log=None,
            logger=_request_log(),
            keepalive_timeout=state.idle_timeout,
            shutdown_timeout=_SHUTDOWN_TIMEOUT,
            # A few bytes may stand for many, and no client of ours compresses.
            auto_decompress=False,
            lingering_time=_LINGERING_TIME,
            # A viewer who leaves ends its handler, even if nothing is being sent that would show it.
            handler_cancellation=True,
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
            # Connections that came meanwhile, or whose peer does not read what is still to be sent.
            state.connections.close()
            self._encoder.stop()

    async def _accept(self, runner: web.AppRunner, state: AppState) -> None:
        """Accept connections until the server stops."""
        assert runner.server is not None
        requests = runner.server
        # asyncio accepts as many as its backlog before it asks about the first, which takes descriptors of the program.
        # So it gets a small backlog, and the socket the large one.
        accepting = await asyncio.get_running_loop().create_server(
            lambda: Connection(state.connections, requests(), self._tls), sock=self._socket, backlog=_ACCEPTED_AT_ONCE
        )
        self._socket.listen(_BACKLOG)
        try:
            self._started.set()
            await self.hub.tick_until(self.stopping)
        finally:
            # asyncio loses what it has accepted and not begun when it is told to close. So it stops to accept first,
            # and begins what it has accepted. On Windows it leaves no such gap, and has no readers.
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().remove_reader(self._socket)
            await asyncio.sleep(0)
            # A process that was forked meanwhile may hold the socket open.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            accepting.close()

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Keep the first error of the loop.

        An error over a peer that breaks off, or sends no TLS or no STUN, is none of the program's.
        """
        found = context.get("exception")
        error = found if isinstance(found, BaseException) else None
        if isinstance(error, OSError):
            _LOG.debug("%s: %s", context["message"], error)
            return
        package = _package_of(error)
        if package in _PARSERS:
            self.hub.metrics.peer_errors.labels(package).inc()
            line = "StreamServer: %s failed over what a peer sent: %r; more of this is counted in /metrics only"
            level = logging.DEBUG if package in self._warned_packages else logging.WARNING
            _LOG.log(level, line, package, error)
            self._warned_packages.add(package)
            return
        _LOG.error("%s", context["message"], exc_info=error)
        if isinstance(error, Exception) and self.error is None:
            self.error = error


def _package_of(error: BaseException | None) -> str:
    """Return the package whose code raised an error, "" if that is unknown."""
    if error is None:
        return ""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames:
        return ""
    module = str(frames[-1].f_globals.get("__name__", ""))
    return module.partition(".")[0]


def _request_log() -> logging.Logger:
    """Return the log of failed requests, without those that a peer made fail.

    They would fill the log, and show what the peers sent.
    """
    log = logging.getLogger(f"{__name__}.requests")
    if not log.filters:
        log.addFilter(_is_own_error)
    return log


def _is_own_error(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, _PEER_ERRORS)


# -- sockets and certificates ------------------------------------------------------------------------------------------


def listen(host: str, port: int, tries: int) -> socket.socket:
    """Return a socket that listens at the first free port from `port` on.

    Raises:
        ValueError: There is none, or the host is no address of this machine.
    """
    end = min(port + tries, 65_536)
    ports = [port] if port == 0 else range(port, end)
    for each in ports:
        try:
            return _bind(host, each)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ValueError(f"StreamServer: host {host!r} is no address of this machine: {error}") from None
    raise ValueError(
        f"StreamServer: no port is free from {ports[0]} to {ports[-1]}; choose another port, or raise port_tries"
    )


def _bind(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, number, _, address = found[0]
    listener = socket.socket(family, kind, number)
    try:
        # On Windows the option would let two servers share a port.
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def tls_context(files: tuple[str, str] | None) -> ssl.SSLContext | None:
    """Return the TLS context of a server, from the files of its certificate and key.

    Raises:
        ValueError: The files are no such pair.
    """
    if files is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(*files, password=_refuse_password)
        mode = os.stat(files[1]).st_mode
    except (OSError, ssl.SSLError, ValueError, TypeError) as error:
        raise ValueError(f"StreamServer: tls {files!r} is no certificate with its key: {error}") from None
    if mode & (stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH):
        _LOG.warning("StreamServer: others can read or write the key %r; run chmod 600 on it", files[1])
    return context


def _refuse_password() -> str:
    """Refuse an encrypted key.

    Without this, OpenSSL asks for the password on the terminal, and a run would wait forever.
    """
    raise ValueError("the key is encrypted, and no password is asked for")
