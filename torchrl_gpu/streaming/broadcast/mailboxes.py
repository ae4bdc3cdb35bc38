"""Mailboxes in which the newest wins, between producer, encoder and viewers."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, Protocol, TypeVar

import numpy as np

from torchrl_gpu.streaming.broadcast.frames import CapturedFrame, EncodedPicture


class Named(Protocol):
    """Anything with a name of its own."""

    @property
    def name(self) -> str:
        """The name."""
        ...


N = TypeVar("N", bound=Named)

# While one buffer waits and one is encoded, no more than these are ever used again.
_MAX_SPARE_BUFFERS = 2


class FrameMailbox:
    """The newest frame that the encoder has not taken, and the one that it took last.

    A queue of frames would let a slow encoder fall behind; here it always takes the newest frame. Buffers are used
    again: while one is being filled, one may wait and one be encoded. Any thread may put, one takes.

    Attributes:
        current: The frame taken last; None before the first.
    """

    def __init__(self) -> None:
        self.current: CapturedFrame | None = None
        self._waiting: CapturedFrame | None = None
        self._spare: list[np.ndarray] = []
        self._lock = threading.Lock()

    def buffer(self) -> np.ndarray | None:
        """Return an unused buffer for the next frame.

        It is None if there is none.
        """
        with self._lock:
            return self._spare.pop() if self._spare else None

    def put(self, frame: CapturedFrame) -> bool:
        """Store a frame.

        It returns True if that replaces one that was not taken.
        """
        with self._lock:
            old, self._waiting = self._waiting, frame
            self._reuse(old)
        return old is not None

    def take(self) -> CapturedFrame | None:
        """Return the newest frame, which becomes the current one.

        It is None if there is no new one.
        """
        with self._lock:
            if self._waiting is None:
                return None
            old = self.current
            self.current = self._waiting
            self._waiting = None
            self._reuse(old)
        return self.current

    def _reuse(self, frame: CapturedFrame | None) -> None:
        if frame is None or not isinstance(frame.pixels, np.ndarray):
            return
        if len(self._spare) < _MAX_SPARE_BUFFERS:
            self._spare.append(frame.pixels)


class EncoderQueue(Generic[N]):
    """Queue of streams that have something to encode.

    Each stream is in it once, however often it is added. Any thread may add, one takes.
    """

    def __init__(self) -> None:
        # A dict keeps the order in which streams came, and each of them once.
        self._streams: dict[str, N] = {}
        self._changed = threading.Condition()
        self._closed = False

    def add(self, stream: N) -> None:
        with self._changed:
            self._streams[stream.name] = stream
            self._changed.notify()

    def take(self) -> N | None:
        """Wait for a stream and return the one that has waited longest.

        After `close` it is None.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._streams or self._closed)
            if self._closed:
                return None
            longest_waiting = next(iter(self._streams))
            return self._streams.pop(longest_waiting)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()


class NewestPicture:
    """The newest picture for one viewer, of a codec whose pictures stand alone.

    Attributes:
        dropped: Pictures that a newer one has replaced.
        needs_key: Always False, as every picture can be shown.
    """

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

    Dropping only the oldest would leave a decoder with pictures whose base is missing. So at one picture beyond
    `limit` all are dropped, and those that follow up to the next key picture.

    Attributes:
        dropped: Pictures that the viewer has missed since its first key picture.
        needs_key: Whether only a key picture is taken now.
    """

    def __init__(self, limit: int = 6) -> None:
        self.dropped = 0
        self.needs_key = True
        self._limit = limit
        self._held: deque[EncodedPicture] = deque()
        self._has_key = False

    def offer(self, encoded: EncodedPicture) -> None:
        if encoded.key:
            # What still waits is older, and a decoder that begins here needs none of it.
            self._drop_all()
            self.needs_key = False
            self._has_key = True
        elif self.needs_key or len(self._held) == self._limit:
            self._drop_all()
            self.needs_key = True
            self.dropped += self._has_key
            return
        self._held.append(encoded)

    def take(self) -> EncodedPicture | None:
        return self._held.popleft() if self._held else None

    def _drop_all(self) -> None:
        self.dropped += len(self._held)
        self._held.clear()
