"""Messages of viewers, whatever their transport."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod

from torchrl_gpu.streaming.broadcast import protocol
from torchrl_gpu.streaming.broadcast.protocol import Pause, Ping, ProtocolError, UnknownStream, Watch
from torchrl_gpu.streaming.broadcast.rate_limits import TokenBucket, stream_time
from torchrl_gpu.streaming.codecs.encoder import STILLS, Codec
from torchrl_gpu.streaming.web.access import AppState

# At the third mistake a viewer is sent away.
MAX_MISTAKES = 3
# Pings and pongs of a WebSocket included.
MESSAGES_PER_SECOND = 300.0
BURST = 600.0


def message_limit() -> TokenBucket:
    """Return a new limit of the messages of one viewer."""
    return TokenBucket(MESSAGES_PER_SECOND, BURST)


class Viewer(ABC):
    """One viewer of a server: the limits of its messages, its stream, its pauses.

    Attributes:
        watched: Its choice of stream and codec; None before the first.
        is_paused: Whether it wants no pictures. Nothing is encoded for it then.
        codec: What a choice that names no codec asks for.
    """

    codec: Codec = STILLS

    def __init__(self, state: AppState) -> None:
        self.watched: Watch | None = None
        self.is_paused = False
        self._state = state
        self._hub = state.hub
        self._awaited: Watch | None = None
        self._bucket = message_limit()
        self._mistakes = 0
        self._is_dismissed = False

    @abstractmethod
    def send_text(self, text: str) -> None:
        """Send a text message."""

    @abstractmethod
    def show(self, watch: Watch) -> None:
        """Send pictures of a stream in place of those before.

        Raises:
            UnknownStream: There is no such stream. The pictures before go on.
        """

    @abstractmethod
    def hide(self) -> None:
        """Send no more pictures."""

    @abstractmethod
    def handle(self, message: protocol.Message) -> None:
        """Do what a message asks for that is no watch, pause or ping.

        Raises:
            ProtocolError: This transport has no such message.
        """

    @abstractmethod
    def dismiss(self, why: str) -> None:
        """Begin to close the connection."""

    def count_message(self) -> bool:
        """Count a message.

        Returns:
            False for one that is too many, which sends the viewer away.
        """
        if not self._is_dismissed and not self._bucket.take(time.monotonic()):
            self._dismiss("too many messages")
        return not self._is_dismissed

    def receive(self, data: object) -> None:
        """Do what a message asks for, or tell the viewer what is wrong with it.

        It must have been counted before.
        """
        try:
            if not isinstance(data, str):
                raise ProtocolError("a message must be text")
            stream = self.watched.stream if self.watched else "main"
            match protocol.parse(data, stream, self.codec):
                case Watch() as watch:
                    self._watch(watch)
                case Pause(on):
                    self._pause(on)
                case Ping(t):
                    self.send_text(protocol.text_message("pong", t=t, now=stream_time()))
                case message:
                    self.handle(message)
        except UnknownStream as error:
            # No mistake of the viewer: the stream may yet come, or has just gone.
            self.send_text(protocol.text_message("error", message=str(error)))
        except ProtocolError as error:
            self.send_text(protocol.text_message("error", message=str(error)))
            self._state.metrics.bad_messages.inc()
            self._mistakes += 1
            if self._mistakes >= MAX_MISTAKES:
                self._dismiss("too many mistakes")

    def retry_awaited(self) -> None:
        """Show the stream that the viewer asked for in vain, if it has come meanwhile."""
        if self._awaited is not None and self._hub.offers(self._awaited.stream):
            # There may be no room for it, still.
            with contextlib.suppress(UnknownStream):
                self._watch(self._awaited)

    def _watch(self, watch: Watch) -> None:
        self._awaited = watch
        if self.is_paused:
            # Whether there is such a stream.
            self._hub.subscribe(watch.stream, watch.codec, watch.fps).close()
        else:
            self.show(watch)
        self._awaited = None
        self.watched = watch

    def _pause(self, on: bool) -> None:
        was_paused, self.is_paused = self.is_paused, on
        if on:
            self.hide()
        elif was_paused and self.watched is not None:
            self._watch(self.watched)

    def _dismiss(self, why: str) -> None:
        self._is_dismissed = True
        self.dismiss(why)
