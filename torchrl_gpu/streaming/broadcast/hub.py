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

from torchrl_gpu.streaming.broadcast import protocol
from torchrl_gpu.streaming.broadcast.curves import Curves
from torchrl_gpu.streaming.broadcast.families import Families, split
from torchrl_gpu.streaming.broadcast.frames import (
    Capture,
    Codec,
    Encoded,
    Scalar,
    check_state,
    clean_meta,
    copy_pixels,
    depth_meta,
    event_behind,
    to_host_soon,
)
from torchrl_gpu.streaming.broadcast.instant_replay import ReplayRing
from torchrl_gpu.streaming.broadcast.metrics import Metrics
from torchrl_gpu.streaming.broadcast.protocol import Command, UnknownStream
from torchrl_gpu.streaming.broadcast.streams import MOST_STREAMS, STILL, Stream, Subscription, check_name

MOST_COMMANDS = 256
LINGER = 10.0  # seconds for which a member of a family stays that nobody watches
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
        self.families = Families()
        self.state: dict[str, Any] = {}
        self.curves = Curves()
        self.listeners: set[Callable[[str], None]] = set()
        self.curve_listeners: set[Callable[[], None]] = set()
        self.wake_encoder: Callable[[Stream], None] = lambda stream: None
        self.learn_counts: Callable[[], None] = lambda: None
        self.on_open: Callable[[Stream], None] = lambda stream: None
        self.on_drop: Callable[[Stream], None] = lambda stream: None
        self.on_command: Callable[[Command], object] | None = None
        self._replay_seconds = replay_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._seq = itertools.count(1)
        self._commands: deque[Command] = deque(maxlen=MOST_COMMANDS)
        self._announced: list[dict[str, Any]] = []
        self._dropped_published: dict[str, int] = {}
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

    def declare(self, name: str, title: str | None = None) -> Stream:
        """The stream of a name, which is there from now on whether somebody watches it or not."""
        return self._declare(name, title)

    def find(self, name: str) -> Stream | None:
        """As `stream`; but members of a family are there only while viewers want them."""
        return self.streams.get(name) or (None if self.families.of(name) else self.stream(name))

    def declare_family(self, name: str, count: int, title: str | None = None) -> None:
        """Names streams that are made when viewers ask for them; see `Families.declare`.

        Raises:
            ValueError: Besides, a stream has this name.
        """
        if name in self.streams:
            raise ValueError(f"StreamServer.declare_family: want a name that no stream has; got {name!r}")
        self.families.declare(name, count, title)

    def wanted_streams(self) -> list[str]:
        """The streams that want a frame now: see `Stream.is_due`."""
        now = time.monotonic()
        return [stream.name for stream in list(self.streams.values()) if stream.is_due(now)]

    def publish(
        self,
        frame: Any,
        name: str,
        meta: Mapping[str, Any] | None,
        *,
        bgr: bool,
        depth_range: tuple[float, float] | None = None,
    ) -> None:
        """Counts a frame, and takes a copy of it if somebody waits for one, or none was taken for a second."""
        stream = self.find(name)
        if stream is None:
            return
        layout = stream.layout
        frame = layout.see(frame, depth_range)
        clean = clean_meta(meta)
        stream.published += 1
        now = time.monotonic()
        if stream.is_due(now):
            stream.pace.advance(now)
            buffer = None if getattr(frame, "is_cuda", False) else stream.box.buffer()
            depth = layout.depth_of(frame, depth_range)
            pixels = copy_pixels(frame, layout.shape, buffer, depth, layout.format)
            self.accept(stream, pixels, clean, bgr=bgr and depth is None, captured=time.time(), depth=depth)

    def accept(
        self,
        stream: Stream,
        pixels: Any,
        meta: dict[str, Scalar],
        *,
        bgr: bool,
        captured: float,
        depth: Any = None,
    ) -> None:
        """Takes pixels that nobody else will write, in place of those that the encoder has not come to.

        Args:
            stream: Where they belong.
            pixels: (H, W, 3) uint8, a NumPy array or a CUDA tensor.
            meta: As `clean_meta` gives it.
            bgr: Whether the channels are blue, green, red.
            captured: Seconds since 1970.
            depth: What `Layout.depth_of` gave.
        """
        if isinstance(depth, tuple):
            meta, depth = meta | depth_meta(depth), None
        depth = to_host_soon(depth)
        capture = Capture(pixels, bgr, captured, next(self._seq), meta, event_behind(pixels), depth)
        if stream.box.put(capture):
            self.metrics.add("frames_overwritten_total", stream=stream.label)
        self.wake_encoder(stream)

    def end_episode(self, name: str, meta: Mapping[str, Any] | None, captured: float | None = None) -> None:
        """Marks what instant replay shows; `captured` is when the episode ended, now if it is None."""
        stream, clean = self.find(name), clean_meta(meta)
        if stream is not None and stream.subscriptions:
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
            UnknownStream: There is no such stream, no room for it, or the server stops.
        """
        if self._loop is None:
            raise UnknownStream("watch: the server stops")
        stream = self.streams.get(name) or self._open(name)
        return Subscription(stream, codec, min(fps or self.fps, self.fps))

    def offers(self, name: str) -> bool:
        """Whether there is a stream of this name, or a family of which it would be a member."""
        return name in self.streams or self.families.of(name) is not None

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
        """Name, title, size, viewers and published frames of each stream, and what it is an overlay of; then families,
        with the number of their members as `count`."""
        self.learn_counts()
        streams = list(self.streams.values())
        listed = [
            {
                "name": stream.name,
                "title": stream.title,
                "width": stream.layout.shape[1],
                "height": stream.layout.shape[0],
                "watchers": len(stream.subscriptions),
                "published": stream.published,
                **self._parts(stream.name),
            }
            for stream in streams
        ]
        for family in self.families.by_name.values():
            members = [stream for stream in streams if stream.label == family.label]
            about = {"name": family.name, "title": family.title, "width": 0, "height": 0}
            about["watchers"] = sum(len(stream.subscriptions) for stream in members)
            about["published"] = self._dropped_published.get(family.label, 0) + sum(s.published for s in members)
            listed.append(about | {"count": family.count} | self._parts(family.name))
        return listed

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
            if stream.is_on_demand and not stream.subscriptions and now - stream.idle_since >= LINGER:
                self._drop(stream)
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
                check_name(name, sum(not stream.is_on_demand for stream in self.streams.values()))
                if name in self.families.by_name:
                    raise ValueError(f"StreamServer: want a stream whose name no family has; got {name!r}")
                self.streams[name] = self._new_stream(name, name)
            stream = self.streams[name]
            stream.title = title if title is not None else stream.title
            stream.label = name
        if len(self.streams) > MOST_STREAMS:  # those that the program names go before those that viewers asked for
            self.call(self._make_room)
        return stream

    def _new_stream(self, name: str, title: str) -> Stream:
        stream = Stream(name, title, self.fps, ReplayRing(self._replay_seconds))
        stream.wake_encoder = lambda which: self.wake_encoder(which)  # which may be set later
        return stream

    def _open(self, name: str) -> Stream:
        """Makes the member of a family, in place of another that nobody watches where there are too many streams."""
        family = self.families.of(name)
        if family is None:
            names = [*self.streams, *(f"{each.name} and a number" for each in self.families.by_name.values())]
            raise UnknownStream(f"watch: want one of the streams {', '.join(names) or '(none yet)'}")
        unwatched = [each for each in self.streams.values() if each.is_on_demand and not each.subscriptions]
        if len(self.streams) >= MOST_STREAMS and not unwatched:
            raise UnknownStream(f"watch: want at most {MOST_STREAMS} streams at a time; all of them are watched")
        if len(self.streams) >= MOST_STREAMS:
            self._drop(min(unwatched, key=lambda each: each.idle_since))
        stream = self._new_stream(name, family.title_of(name))
        stream.label = family.label
        with self._lock:
            stream = self.streams.setdefault(name, stream)
        if stream.is_on_demand:  # and was not declared meanwhile
            self.on_open(stream)
        return stream

    def _make_room(self) -> None:
        """Drops members of families until there are no more streams than there may be: first those nobody watches."""
        members = [stream for stream in list(self.streams.values()) if stream.is_on_demand]
        members.sort(key=lambda each: (len(each.subscriptions), each.idle_since))
        for stream in members[: max(0, len(self.streams) - MOST_STREAMS)]:
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        """Forgets the member of a family."""
        with self._lock:
            if not stream.is_on_demand or self.streams.get(stream.name) is not stream:
                return  # the program has declared it meanwhile
            del self.streams[stream.name]
            self._dropped_published[stream.label] = self._dropped_published.get(stream.label, 0) + stream.published
        for subscription in stream.subscriptions:
            subscription.close("it gave way to another stream")
        stream.tell_demand = lambda _: None
        self.on_drop(stream)
        stream.is_dropped = True
        self.wake_encoder(stream)

    def _parts(self, name: str) -> dict[str, str]:
        """What a stream is an overlay of, if its name says so and there is such a stream or family."""
        base, overlay = split(name)
        if overlay is None or not (self.offers(base) or base in self.families.by_name):
            return {"base": name}
        return {"base": base, "overlay": overlay}

    def _subscriptions(self) -> list[Subscription]:
        return [each for stream in list(self.streams.values()) for each in stream.subscriptions]

    def _measure(self) -> None:
        self.learn_counts()
        streams = list(self.streams.values())
        for label in {stream.label for stream in streams} | self._dropped_published.keys():
            members = [stream for stream in streams if stream.label == label]
            published = self._dropped_published.get(label, 0) + sum(stream.published for stream in members)
            self.metrics.set("frames_published_total", published, stream=label)
            for codec in ("jpeg", "h264"):
                number = sum(each.codec == codec for stream in members for each in stream.subscriptions)
                self.metrics.set("watchers", number, stream=label, codec=codec)
