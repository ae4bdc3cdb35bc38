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

MAX_MISTAKES = 3  # at the third a viewer is sent away
MESSAGES_PER_SECOND, BURST = 300.0, 600.0  # pings and pongs of a WebSocket included


def message_limit() -> TokenBucket:
    return TokenBucket(MESSAGES_PER_SECOND, BURST)


class Viewer(ABC):
    """One viewer of a server: the limits of its messages, its stream, its pauses.

    Attributes:
        watched: Its choice of stream and codec; None before the first.
        is_paused: True while it wants no pictures. Nothing is encoded for it then.
        codec: What a choice that names no codec asks for.
    """

    codec: Codec = STILLS

    def __init__(self, state: AppState) -> None:
        self.watched: Watch | None = None
        self.is_paused = False
        self._state, self._hub = state, state.hub
        self._awaited: Watch | None = None
        self._bucket, self._mistakes, self._is_dismissed = message_limit(), 0, False

    @abstractmethod
    def say(self, text: str) -> None:
        """Sends a text message."""

    @abstractmethod
    def show(self, watch: Watch) -> None:
        """Sends pictures of a stream in place of those before; raises `UnknownStream` and goes on where it cannot."""

    @abstractmethod
    def hide(self) -> None:
        """Sends no more pictures."""

    @abstractmethod
    def act(self, message: protocol.Message) -> None:
        """Does what any other message asks for, or raises `ProtocolError`."""

    @abstractmethod
    def dismiss(self, why: str) -> None:
        """Begins to close the connection."""

    def is_heard(self) -> bool:
        """Counts a message; false for one that is too many, which sends the viewer away."""
        if not self._is_dismissed and not self._bucket.take(time.monotonic()):
            self._dismiss("too many messages")
        return not self._is_dismissed

    def hear(self, data: object) -> None:
        """Takes a message that was counted: does what it asks for, or says what is wrong with it."""
        try:
            if not isinstance(data, str):
                raise ProtocolError("want text")
            match protocol.parse(data, self.watched.stream if self.watched else "main", self.codec):
                case Watch() as watch:
                    self._watch(watch)
                case Pause(on):
                    self._pause(on)
                case Ping(t):
                    self.say(protocol.text_message("pong", t=t, now=stream_time()))
                case message:
                    self.act(message)
        except UnknownStream as error:  # it may yet come, or has just gone
            self.say(protocol.text_message("error", message=str(error)))
        except ProtocolError as error:
            self.say(protocol.text_message("error", message=str(error)))
            self._state.metrics.bad_messages.inc()
            self._mistakes += 1
            if self._mistakes >= MAX_MISTAKES:
                self._dismiss("too many mistakes")

    def look_again(self) -> None:
        """Shows the stream that was asked for, if it has come meanwhile."""
        if self._awaited is not None and self._hub.offers(self._awaited.stream):
            with contextlib.suppress(UnknownStream):  # there may be no room for it, still
                self._watch(self._awaited)

    def _watch(self, watch: Watch) -> None:
        self._awaited = watch
        if self.is_paused:
            self._hub.subscribe(watch.stream, watch.codec, watch.fps).close()  # whether there is one
        else:
            self.show(watch)
        self._awaited, self.watched = None, watch

    def _pause(self, on: bool) -> None:
        was_paused, self.is_paused = self.is_paused, on
        if on:
            self.hide()
        elif was_paused and self.watched is not None:
            self._watch(self.watched)

    def _dismiss(self, why: str) -> None:
        self._is_dismissed = True
        self.dismiss(why)
