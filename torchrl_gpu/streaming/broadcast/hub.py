"""All streams of a server: where frames come in, and where their pictures go out to viewers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from torchrl_gpu.streaming.broadcast import protocol
from torchrl_gpu.streaming.broadcast.curves import Curves
from torchrl_gpu.streaming.broadcast.frames import (
    CapturedFrame,
    EncodedPicture,
    Meta,
    Scalar,
    check_state,
    check_title,
    clean_meta,
    record_event,
)
from torchrl_gpu.streaming.broadcast.mailboxes import EncoderQueue
from torchrl_gpu.streaming.broadcast.metrics import PREFIX, Metrics
from torchrl_gpu.streaming.broadcast.protocol import Command, UnknownStream
from torchrl_gpu.streaming.broadcast.rate_limits import stream_time
from torchrl_gpu.streaming.broadcast.streams import (
    MAX_STREAMS,
    STILL,
    Families,
    InstantReplay,
    Stream,
    Subscription,
    check_name,
    split_name,
)
from torchrl_gpu.streaming.codecs.encoder import CODECS, STILLS, Codec
from torchrl_gpu.streaming.codecs.images import Frame, Range
from torchrl_gpu.streaming.codecs.pixels import picture_of

MAX_COMMANDS = 256
MEMBER_LINGER_S = 10.0  # seconds for which a member of a family stays without viewers
_STATE_SPACING = 0.1  # seconds between two messages of the state


class Hub:
    """Streams, their viewers, the state that the page shows, and the commands of viewers.

    Attributes:
        pending: Streams that the encoder has to look at.
        listeners: Are called with every text message to all viewers.
        curve_listeners: Are called when there are new points of curves.
    """

    def __init__(self, fps: float = 30.0, instant_replay_s: float = 10.0) -> None:
        self.fps = fps
        self.metrics = Metrics()
        self.pending: EncoderQueue[Stream] = EncoderQueue()
        self.streams: dict[str, Stream] = {}
        self.families = Families()
        self.state: dict[str, Scalar | list[Scalar]] = {}
        self.curves = Curves()
        self.listeners: set[Callable[[str], None]] = set()
        self.curve_listeners: set[Callable[[], None]] = set()
        self._instant_replay_s = instant_replay_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._seq = itertools.count(1)
        self._commands: deque[Command] = deque(maxlen=MAX_COMMANDS)
        self._announced: list[dict[str, Any]] = []
        self._dropped_published: dict[str, int] = {}
        self._announced_state = self.state
        self._announced_point = 0
        self._state_at = -math.inf
        self.metrics.registry.register(self)

    # What the producer calls, in any thread.

    def declare(self, name: str, title: str | None = None) -> Stream:
        """The stream of a name, which exists from now on, with or without viewers; see `StreamServer.declare`."""
        check_title("StreamServer", title)
        with self._lock:
            if name not in self.streams:
                check_name(name, sum(not stream.is_on_demand for stream in self.streams.values()))
                if name in self.families.by_name:
                    raise ValueError(f"StreamServer: want a stream whose name no family has; got {name!r}")
                self.streams[name] = self._new_stream(name, name)
            stream = self.streams[name]
            stream.title = title if title is not None else stream.title
            stream.label = name
        if len(self.streams) > MAX_STREAMS:  # those that the program names go before those that viewers asked for
            self.call_in_loop(self._make_room)
        return stream

    def find(self, name: str) -> Stream | None:
        """The stream of a name, declared if there is none; members of a family only while viewers want them."""
        return self.streams.get(name) or (None if self.families.find(name) else self.declare(name))

    def declare_family(self, name: str, count: int, title: str | None = None) -> None:
        """Names streams that are made when viewers ask for them; see `StreamServer.declare_family`."""
        if name in self.streams:
            raise ValueError(f"StreamServer.declare_family: want a name that no stream has; got {name!r}")
        self.families.declare(name, count, title)

    def wanted(self, name: str) -> bool:
        stream = self.find(name)
        return stream is not None and stream.is_due(time.monotonic())

    def wanted_streams(self) -> list[str]:
        now = time.monotonic()
        return [stream.name for stream in list(self.streams.values()) if stream.is_due(now)]

    def watchers(self, name: str | None) -> int:
        return sum(len(each.subscriptions) for each in list(self.streams.values()) if name in (None, each.name))

    def publish(self, frame: Frame, name: str, meta: Meta, *, bgr: bool, depth_range: Range = None) -> None:
        """Counts a frame, and copies it if one is due, in place of one that the encoder has not come to."""
        stream = self.find(name)
        if stream is None:
            return
        frame = stream.layout.update(frame, depth_range)
        clean = clean_meta(meta)
        stream.published += 1
        now = time.monotonic()
        if not stream.is_due(now):
            return
        stream.schedule.advance(now)
        buffer = None if getattr(frame, "is_cuda", False) else stream.mailbox.buffer()
        pixels, depth = picture_of(frame, stream.layout.format, depth_range, buffer)
        bgr = bgr and depth is None
        if depth is not None and not isinstance(depth, tuple):
            depth = depth.to("cpu", non_blocking=True)  # to be read behind the event
        captured = CapturedFrame(pixels, bgr, stream_time(), self.next_seq(), clean, record_event(pixels), depth)
        if stream.mailbox.put(captured):
            self.metrics.frames_overwritten.labels(stream.label).inc()
        self.pending.add(stream)

    def end_episode(self, name: str, meta: Meta) -> None:
        stream, clean = self.find(name), clean_meta(meta)
        if stream is not None and stream.subscriptions:
            self.call_in_loop(stream.replay.mark, stream_time(), clean)

    def set_state(self, values: Mapping[str, Any]) -> None:
        state = {**self.state, **check_state(values)}
        if state != self.state:
            self.state = state
            self.call_in_loop(self._announce_state)

    def take_commands(self) -> list[Command]:
        commands = []
        while self._commands:
            commands.append(self._commands.popleft())
        return commands

    # What the encoder calls, in its thread.

    def next_seq(self) -> int:
        return next(self._seq)

    def call_in_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls a function in the event loop's thread; does nothing once the loop has ended."""
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # it has been closed
                loop.call_soon_threadsafe(function, *arguments)

    # What the event loop calls.

    def attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Names the event loop that viewers live in; None when it ends, which closes all subscriptions."""
        self._loop = loop
        if loop is None:
            for stream in list(self.streams.values()):
                for subscription in stream.subscriptions:
                    subscription.close("the server stops")

    def subscribe(self, name: str, codec: Codec = STILLS, fps: float | None = None) -> Subscription:
        """Pictures for one viewer, at most at a rate; UnknownStream for no stream, no room, or a server that stops."""
        if self._loop is None:
            raise UnknownStream("watch: the server stops")
        stream = self.streams.get(name) or self._open(name)
        return Subscription(stream, codec, min(fps or self.fps, self.fps))

    def stream_for(self, name: str | None) -> str:
        """A stream that is asked for; where none is named, "main", or the first if there is no such stream."""
        if name is not None:
            return name
        return "main" if "main" in self.streams else next(iter(list(self.streams)), "main")

    def offers(self, name: str) -> bool:
        """True if there is a stream of this name, or a family of which it would be a member."""
        return name in self.streams or self.families.find(name) is not None

    def deliver(self, stream: Stream, encoded: EncodedPicture) -> None:
        """Hands a picture to the viewers of its codec, and a still to instant replay too."""
        now = time.monotonic()
        if encoded.codec == STILLS:
            stream.replay.add(encoded)
        for subscription in stream.subscriptions:
            if subscription.codec == encoded.codec:
                subscription.offer(encoded, now)
        stream.refresh()

    def end_codec(self, stream: Stream, codec: Codec, why: str) -> None:
        for subscription in stream.subscriptions:
            if subscription.codec == codec:
                subscription.close(f"{codec}: {why}")

    def add_command(self, command: Command) -> None:
        self.metrics.commands.inc()
        self._commands.append(command)

    def describe_streams(self) -> list[dict[str, Any]]:
        """Name, title, size, viewers and published frames of each stream, and what it is an overlay of; then families,
        with the number of their members as `count`."""
        streams = list(self.streams.values())
        listed = [self._described(each.name, each.title, each.layout.shape, [each], each.published) for each in streams]
        for family in self.families.by_name.values():
            members = [each for each in streams if each.label == family.label]
            published = self._num_published(family.label, members)
            about = self._described(family.name, family.title, (0, 0, 3), members, published)
            listed.append(about | {"count": family.count})
        return listed

    def _described(
        self, name: str, title: str, shape: tuple[int, int, int], members: Sequence[Stream], published: int
    ) -> dict[str, Any]:
        watchers = sum(len(stream.subscriptions) for stream in members)
        about = {"name": name, "title": title, "width": shape[1], "height": shape[0], "watchers": watchers}
        about |= {"published": published, "base": name}
        base, overlay = split_name(name)
        if overlay is not None and (self.offers(base) or base in self.families.by_name):
            about |= {"base": base, "overlay": overlay}
        return about

    def broadcast(self, message: str) -> None:
        for listener in list(self.listeners):
            listener(message)

    async def tick_until(self, end: asyncio.Event) -> None:
        while not end.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STILL):
                    await end.wait()
            self.tick()

    def tick(self) -> None:
        """Re-encodes the last frame of still sources for viewers that lack it; drops idle members, sends changes."""
        now = time.monotonic()
        for stream in list(self.streams.values()):
            if stream.is_still(now):
                stream.again_asked = stream.key_asked = True
                self.pending.add(stream)
            if stream.is_on_demand and not stream.subscriptions and now - stream.idle_since >= MEMBER_LINGER_S:
                self._drop(stream)
        self._announce_state()
        if self.curves.serial != self._announced_point:
            self._announced_point = self.curves.serial
            for listener in list(self.curve_listeners):
                listener()
        listed = [{**facts, "published": 0} for facts in self.describe_streams()]
        if listed != self._announced:
            self._announced = listed
            self.broadcast(protocol.text_message("streams", streams=self.describe_streams()))

    def _announce_state(self) -> None:
        """Sends a changed state to the viewers, at most ten times a second; the tick catches up."""
        now = time.monotonic()
        if self.state is not self._announced_state and now - self._state_at >= _STATE_SPACING:
            self._announced_state, self._state_at = self.state, now
            self.broadcast(protocol.text_message("state", state=self.state))

    def _new_stream(self, name: str, title: str) -> Stream:
        return Stream(name, title, self.fps, InstantReplay(self._instant_replay_s), self.pending)

    def _open(self, name: str) -> Stream:
        """Makes the member of a family, in place of one without viewers where there are too many streams."""
        family = self.families.find(name)
        if family is None:
            names = [*self.streams, *(f"{each.name} and a number" for each in self.families.by_name.values())]
            raise UnknownStream(f"watch: want one of the streams {', '.join(names) or '(none yet)'}")
        unwatched = [each for each in self.streams.values() if each.is_on_demand and not each.subscriptions]
        if len(self.streams) >= MAX_STREAMS and not unwatched:
            raise UnknownStream(f"watch: want at most {MAX_STREAMS} streams at a time; all of them are watched")
        if len(self.streams) >= MAX_STREAMS:
            self._drop(min(unwatched, key=lambda each: each.idle_since))
        stream = self._new_stream(name, family.title_of(name))
        stream.label = family.label
        with self._lock:  # the program may have declared it meanwhile
            return self.streams.setdefault(name, stream)

    def _make_room(self) -> None:
        """Drops members of families until there are no more streams than there may be: first those without viewers."""
        members = [stream for stream in list(self.streams.values()) if stream.is_on_demand]
        members.sort(key=lambda each: (len(each.subscriptions), each.idle_since))
        for stream in members[: max(0, len(self.streams) - MAX_STREAMS)]:
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        with self._lock:
            if not stream.is_on_demand or self.streams.get(stream.name) is not stream:
                return  # the program has declared it meanwhile
            del self.streams[stream.name]
            self._dropped_published[stream.label] = self._dropped_published.get(stream.label, 0) + stream.published
        for subscription in stream.subscriptions:
            subscription.close("it gave way to another stream")
        stream.is_dropped = True
        self.pending.add(stream)

    def collect(self) -> Iterator[Metric]:
        """Metrics of the streams for Prometheus, members of a family under one label."""
        published = CounterMetricFamily(
            f"{PREFIX}frames_published", "Frames that the program published.", labels=["stream"]
        )
        watchers = GaugeMetricFamily(f"{PREFIX}watchers", "Viewers of a stream.", labels=["stream", "codec"])
        streams = list(self.streams.values())
        for label in {stream.label for stream in streams} | self._dropped_published.keys():
            members = [stream for stream in streams if stream.label == label]
            published.add_metric([label], self._num_published(label, members))
            for codec in CODECS:
                number = sum(each.codec == codec for stream in members for each in stream.subscriptions)
                watchers.add_metric([label, codec], number)
        yield published
        yield watchers

    def _num_published(self, label: str, members: Sequence[Stream]) -> int:
        return self._dropped_published.get(label, 0) + sum(stream.published for stream in members)
