"""Mailboxes in which the newest wins: from the producer to the encoder, and from the encoder to each viewer."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, Protocol, TypeVar

import numpy as np

from torchrl_gpu.streaming.broadcast.frames import CapturedFrame, EncodedPicture


class Named(Protocol):
    """What has a name of its own."""

    @property
    def name(self) -> str:
        """The name."""
        ...


N = TypeVar("N", bound=Named)


class FrameMailbox:
    """Holds the newest frame that the encoder has not taken, and the one that it took last.

    Buffers are used again: while one is being filled, one may wait and one be encoded. Any thread may put; one takes.
    """

    def __init__(self) -> None:
        self.current: CapturedFrame | None = None
        self._waiting: CapturedFrame | None = None
        self._spare: list[np.ndarray] = []
        self._lock = threading.Lock()

    def buffer(self) -> np.ndarray | None:
        """An unused buffer for the next frame; None if there is none."""
        with self._lock:
            return self._spare.pop() if self._spare else None

    def put(self, frame: CapturedFrame) -> bool:
        """Stores a frame; true if it replaces one that was not taken."""
        with self._lock:
            old, self._waiting = self._waiting, frame
            self._reuse(old)
        return old is not None

    def take(self) -> CapturedFrame | None:
        """The newest frame, which is the current one from now on; None if there is no new one."""
        with self._lock:
            if self._waiting is None:
                return None
            old, self.current, self._waiting = self.current, self._waiting, None
            self._reuse(old)
        return self.current

    def _reuse(self, frame: CapturedFrame | None) -> None:
        if frame is not None and isinstance(frame.pixels, np.ndarray) and len(self._spare) < 2:
            self._spare.append(frame.pixels)


class EncoderQueue(Generic[N]):
    """Queue of streams that have something to encode.

    Each stream is in it once, however often it is added. Any thread may add, one takes.
    """

    def __init__(self) -> None:
        self._streams: dict[str, N] = {}
        self._changed = threading.Condition()
        self._closed = False

    def add(self, stream: N) -> None:
        with self._changed:
            self._streams[stream.name] = stream
            self._changed.notify()

    def take(self) -> N | None:
        """The stream that has waited longest, as soon as there is one; None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._streams or self._closed)
            return None if self._closed else self._streams.pop(next(iter(self._streams)))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()


class NewestPicture:
    """The newest picture for one viewer. For codecs whose pictures stand alone."""

    def __init__(self) -> None:
        self.dropped = 0
        self.needs_key = False
        self._held: EncodedPicture | None = None

    def offer(self, encoded: EncodedPicture) -> None:
        self.dropped += self._held is not None
        self._held = encoded

    def take(self) -> EncodedPicture | None:
        held, self._held = self._held, None
        return held


class GopQueue:
    """A few pictures for one viewer, each of which builds on the one before.

    `limit` of them may wait; at one more all are dropped, and those that follow up to the next key picture.
    """

    def __init__(self, limit: int = 6) -> None:
        self.dropped = 0
        self.needs_key = True
        self._limit = limit
        self._held: deque[EncodedPicture] = deque()
        self._begun = False

    def offer(self, encoded: EncodedPicture) -> None:
        if encoded.key:
            self._forget()
            self.needs_key, self._begun = False, True
        elif self.needs_key or len(self._held) == self._limit:
            self._forget()
            self.needs_key = True
            self.dropped += self._begun
            return
        self._held.append(encoded)

    def take(self) -> EncodedPicture | None:
        return self._held.popleft() if self._held else None

    def _forget(self) -> None:
        self.dropped += len(self._held)
        self._held.clear()
