"""All streams of a server: where frames come in, and where their pictures go out to viewers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from torchrl_gpu.streaming import protocol
from torchrl_gpu.streaming.curves import Curves
from torchrl_gpu.streaming.frames import (
    Capture,
    Codec,
    Encoded,
    Scalar,
    check_state,
    clean_meta,
    copy_pixels,
    event_behind,
)
from torchrl_gpu.streaming.metrics import Metrics
from torchrl_gpu.streaming.protocol import Command, UnknownStream
from torchrl_gpu.streaming.replay import ReplayRing
from torchrl_gpu.streaming.streams import STILL, Stream, Subscription, check_name

MOST_COMMANDS = 256
_STATE_SPACING = 0.1  # seconds between two messages of the state


class Hub:
    """Streams, their viewers, the state that the page shows, and what viewers ask for.

    Args:
        fps: The largest rate of a stream.
        replay_seconds: How far instant replay reaches back.
        metrics: Where everything is counted.
    """

    def __init__(self, fps: float = 30.0, replay_seconds: float = 10.0, metrics: Metrics | None = None) -> None:
        self.fps = fps
        self.metrics = metrics or Metrics()
        self.streams: dict[str, Stream] = {}
        self.state: dict[str, Any] = {}
        self.curves = Curves()
        self.listeners: set[Callable[[str], None]] = set()
        self.curve_listeners: set[Callable[[], None]] = set()
        self.wake_encoder: Callable[[Stream], None] = lambda stream: None
        self.learn_counts: Callable[[], None] = lambda: None
        self.on_command: Callable[[Command], object] | None = None
        self._replay_seconds = replay_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._seq = itertools.count(1)
        self._commands: deque[Command] = deque(maxlen=MOST_COMMANDS)
        self._announced: list[dict[str, Any]] = []
        self._announced_state = self.state
        self._announced_point = 0
        self._state_at = -math.inf
        self.metrics.before_reading(self._measure)

    # What the producer calls, in any thread.

    def stream(self, name: str, title: str | None = None) -> Stream:
        """The stream of a name; declares it if there is none.

        Raises:
            ValueError: The name is not 1 to 64 characters, or there are 64 streams already.
        """
        stream = self.streams.get(name)
        if stream is None or title is not None:
            stream = self._declare(name, title)
        return stream

    def publish(self, frame: Any, name: str, meta: Mapping[str, Any] | None, *, bgr: bool) -> None:
        """Counts a frame, and takes a copy of it if somebody waits for one, or none was taken for a second."""
        stream = self.stream(name)
        stream.layout.see(frame)
        clean = clean_meta(meta)
        stream.published += 1
        now = time.monotonic()
        if stream.is_due(now):
            stream.pace.advance(now)
            buffer = None if getattr(frame, "is_cuda", False) else stream.box.buffer()
            self.accept(stream, copy_pixels(frame, stream.layout.shape, buffer), clean, bgr=bgr, captured=time.time())

    def accept(self, stream: Stream, pixels: Any, meta: dict[str, Scalar], *, bgr: bool, captured: float) -> None:
        """Takes pixels that nobody else will write, in place of those that the encoder has not come to.

        Args:
            stream: Where they belong.
            pixels: (H, W, 3) uint8, a NumPy array or a CUDA tensor.
            meta: As `clean_meta` gives it.
            bgr: Whether the channels are blue, green, red.
            captured: Seconds since 1970.
        """
        capture = Capture(pixels, bgr, captured, next(self._seq), meta, event_behind(pixels))
        if stream.box.put(capture):
            self.metrics.add("frames_overwritten_total", stream=stream.name)
        self.wake_encoder(stream)

    def end_episode(self, name: str, meta: Mapping[str, Any] | None, captured: float | None = None) -> None:
        """Marks what instant replay shows; `captured` is when the episode ended, now if it is None."""
        stream, clean = self.stream(name), clean_meta(meta)
        if stream.subscriptions:
            self.call(stream.replay.mark, time.time() if captured is None else captured, clean)

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Joins values to the state, and tells the viewers."""
        state = {**self.state, **check_state(values)}
        if state != self.state:
            self.state = state
            self.call(self._announce_state)

    def take_commands(self) -> list[Command]:
        """What viewers have asked for since the last call, oldest first."""
        commands = []
        while self._commands:
            commands.append(self._commands.popleft())
        return commands

    # What the encoder calls, in its thread.

    def next_seq(self) -> int:
        """A number for a picture that is shown again."""
        return next(self._seq)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Has a function called in the event loop's thread; nothing happens once that has ended."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:  # it was closed in between
                self._loop = None

    # What the event loop calls.

    def attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Names the event loop that viewers live in; None when it ends, which closes all subscriptions."""
        self._loop = loop
        if loop is None:
            for subscription in self._subscriptions():
                subscription.close("the server stops")

    def subscribe(self, name: str, codec: Codec = "jpeg", fps: float | None = None) -> Subscription:
        """The pictures of a stream for one viewer.

        Args:
            name: The stream.
            codec: "jpeg" or "h264".
            fps: A ceiling; None for the server's own.

        Raises:
            UnknownStream: There is no such stream, or the server stops.
        """
        stream = self.streams.get(name)
        if self._loop is None:
            raise UnknownStream("watch: the server stops")
        if stream is None:
            raise UnknownStream(f"watch: want one of the streams {', '.join(self.streams) or '(none yet)'}")
        return Subscription(stream, codec, min(fps or self.fps, self.fps))

    def deliver(self, stream: Stream, encoded: Encoded) -> None:
        """Hands a picture to the viewers of its codec, and a JPEG to instant replay too."""
        now = time.monotonic()
        if encoded.codec == "jpeg":
            stream.replay.add(encoded)
        for subscription in stream.subscriptions:
            if subscription.codec == encoded.codec:
                subscription.offer(encoded, now)
        stream.refresh()

    def refuse(self, stream: Stream, codec: Codec, why: str) -> None:
        """Ends the subscriptions of a codec that cannot be encoded."""
        for subscription in stream.subscriptions:
            if subscription.codec == codec:
                subscription.close(f"{codec}: {why}")

    def add_command(self, command: Command) -> None:
        """Leaves a command for the program; the oldest is lost when there are too many."""
        self.metrics.add("commands_total")
        if self.on_command is None:
            self._commands.append(command)
        else:
            self.on_command(command)

    def list_streams(self) -> list[dict[str, Any]]:
        """Name, title, size, viewers and published frames of each stream."""
        self.learn_counts()
        return [
            {
                "name": stream.name,
                "title": stream.title,
                "width": stream.layout.shape[1],
                "height": stream.layout.shape[0],
                "watchers": len(stream.subscriptions),
                "published": stream.published,
            }
            for stream in list(self.streams.values())
        ]

    def broadcast(self, message: str) -> None:
        """Sends a text message to all listeners."""
        for listener in list(self.listeners):
            listener(message)

    async def tick_until(self, end: asyncio.Event) -> None:
        """Looks after what no event announces: sources that stand still, and lists that changed."""
        while not end.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STILL):
                    await end.wait()
            self.tick()

    def tick(self) -> None:
        """Has the last frame of sources that stand still encoded again for whoever has not seen it."""
        now = time.monotonic()
        for stream in list(self.streams.values()):
            if stream.stands_still(now):
                stream.again_asked = stream.key_asked = True
                self.wake_encoder(stream)
        self._announce_state()
        self._announce_points()
        listed = [{**facts, "published": 0} for facts in self.list_streams()]
        if listed != self._announced:
            self._announced = listed
            self.broadcast(protocol.text("streams", streams=self.list_streams()))

    def _announce_state(self) -> None:
        """Tells the viewers of a new state; one that comes at once after another waits for the tick."""
        now = time.monotonic()
        if self.state is not self._announced_state and now - self._state_at >= _STATE_SPACING:
            self._announced_state, self._state_at = self.state, now
            self.broadcast(protocol.text("state", state=self.state))

    def _announce_points(self) -> None:
        """Tells the viewers that there are new points of curves, which each reads when it can take them."""
        if self.curves.serial != self._announced_point:
            self._announced_point = self.curves.serial
            for listener in list(self.curve_listeners):
                listener()

    def _declare(self, name: str, title: str | None) -> Stream:
        with self._lock:
            if name not in self.streams:
                check_name(name, len(self.streams))
                stream = Stream(name, name, self.fps, ReplayRing(self._replay_seconds))
                stream.wake_encoder = self._wake_encoder
                self.streams[name] = stream
            stream = self.streams[name]
            stream.title = title if title is not None else stream.title
        return stream

    def _wake_encoder(self, stream: Stream) -> None:
        self.wake_encoder(stream)

    def _subscriptions(self) -> list[Subscription]:
        return [each for stream in list(self.streams.values()) for each in stream.subscriptions]

    def _measure(self) -> None:
        self.learn_counts()
        for stream in list(self.streams.values()):
            self.metrics.set("frames_published_total", stream.published, stream=stream.name)
            for codec in ("jpeg", "h264"):
                number = sum(each.codec == codec for each in stream.subscriptions)
                self.metrics.set("watchers", number, stream=stream.name, codec=codec)
