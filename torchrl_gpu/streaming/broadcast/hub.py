"""All streams of a server: frames come in here, pictures go out to viewers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NotRequired, TypedDict

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from torchrl_gpu.streaming.broadcast import protocol
from torchrl_gpu.streaming.broadcast.curves import Curves
from torchrl_gpu.streaming.broadcast.frames import (
    CapturedFrame,
    EncodedPicture,
    Meta,
    State,
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
# Seconds for which a member of a family stays without viewers.
MEMBER_LINGER_S = 10.0
# Seconds between two messages of the state.
_STATE_SPACING = 0.1
_NO_PICTURE_YET = (0, 0, 3)


class StreamFacts(TypedDict):
    """A stream or a family as the page lists it.

    Attributes:
        watchers: Number of viewers.
        published: Number of frames that the program has published.
        base: What an overlay lies over; else its own name.
        overlay: Name of the overlay, if it is one.
        count: Members of a family.
    """

    name: str
    title: str
    width: int
    height: int
    watchers: int
    published: int
    base: str
    overlay: NotRequired[str]
    count: NotRequired[int]


class Hub:
    """Streams with their viewers, the state of the page, and viewers' commands.

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
        self.state: State = {}
        self.curves = Curves()
        self.listeners: set[Callable[[str], None]] = set()
        self.curve_listeners: set[Callable[[], None]] = set()
        self._instant_replay_s = instant_replay_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._seq = itertools.count(1)
        self._commands: deque[Command] = deque(maxlen=MAX_COMMANDS)
        self._announced: list[StreamFacts] = []
        # Frames of streams that have gone, by their label: a counter of Prometheus never falls.
        self._dropped_published: dict[str, int] = {}
        self._announced_state = self.state
        self._announced_point = 0
        self.state_at = -math.inf
        self.metrics.registry.register(self)

    # -- what the producer calls, in any thread ------------------------------------------------------------------------

    def declare(self, name: str, title: str | None = None) -> Stream:
        """Return the stream of a name, which exists from now on.

        See `StreamServer.declare`.
        """
        check_title("StreamServer", title)
        # The event loop makes and drops members of families meanwhile.
        with self._lock:
            if name not in self.streams:
                num_declared = sum(not stream.is_on_demand for stream in self.streams.values())
                check_name(name, num_declared)
                if name in self.families.by_name:
                    raise ValueError(f"StreamServer: stream {name!r} has the name of a family")
                self.streams[name] = self._new_stream(name, name)
            stream = self.streams[name]
            stream.title = title if title is not None else stream.title
            stream.label = name
        # Streams that the program names go before those that viewers asked for.
        if len(self.streams) > MAX_STREAMS:
            self.call_in_loop(self._make_room)
        return stream

    def find(self, name: str) -> Stream | None:
        """Return the stream of a name, and declare it if there is none.

        Members of a family are not declared: they exist only while viewers want them.
        """
        stream = self.streams.get(name)
        if stream is not None:
            return stream
        return None if self.families.find(name) else self.declare(name)

    def declare_family(self, name: str, count: int, title: str | None = None) -> None:
        """Name streams that are made when viewers ask for them.

        See `StreamServer.declare_family`.
        """
        if name in self.streams:
            raise ValueError(f"StreamServer.declare_family: name {name!r} is that of a stream")
        self.families.declare(name, count, title)

    def wanted(self, name: str) -> bool:
        stream = self.find(name)
        return stream is not None and stream.is_due(time.monotonic())

    def wanted_streams(self) -> list[str]:
        now = time.monotonic()
        streams = list(self.streams.values())
        return [stream.name for stream in streams if stream.is_due(now)]

    def watchers(self, name: str | None) -> int:
        return sum(len(each.subscriptions) for each in list(self.streams.values()) if name in (None, each.name))

    def publish(self, frame: Frame, name: str, meta: Meta, *, bgr: bool, depth_range: Range = None) -> None:
        """Count a frame, and copy it if one is due.

        It takes the place of one that the encoder has not come to.
        """
        stream = self.find(name)
        if stream is None:
            return
        # Mistakes are reported though nobody watches: else they would show only when the first viewer comes.
        frame = stream.layout.update(frame, depth_range)
        clean = clean_meta(meta)
        stream.published += 1
        now = time.monotonic()
        if not stream.is_due(now):
            return
        stream.schedule.advance(now)
        # Frames on a GPU need no buffer of ours: torch's allocator keeps their memory for the next one.
        buffer = None if getattr(frame, "is_cuda", False) else stream.mailbox.buffer()
        pixels, depth = picture_of(frame, stream.layout.format, depth_range, buffer)
        # Pictures of depth are made here, in RGB.
        bgr = bgr and depth is None
        if depth is not None and not isinstance(depth, tuple):
            # Without waiting: the encoder reads it behind the event.
            depth = depth.to("cpu", non_blocking=True)
        at = stream_time()
        seq = self.next_seq()
        # Behind the copies of pixels and depth: the encoder waits for this event before it reads either.
        copied = record_event(pixels)
        captured = CapturedFrame(pixels, bgr, at, seq, clean, copied, depth)
        if stream.mailbox.put(captured):
            self.metrics.frames_overwritten.labels(stream.label).inc()
        self.pending.add(stream)

    def end_episode(self, name: str, meta: Meta) -> None:
        stream = self.find(name)
        clean = clean_meta(meta)
        if stream is not None and stream.subscriptions:
            self.call_in_loop(stream.replay.mark, stream_time(), clean)

    def set_state(self, values: Mapping[str, object]) -> None:
        """Add values to the state, and send it to the viewers if it has changed."""
        state = {**self.state, **check_state(values)}
        # A new dict each time: the event loop may be writing the old one.
        if state != self.state:
            self.state = state
            self.call_in_loop(self._announce_state)

    def take_commands(self) -> list[Command]:
        """Return the commands since the last call, oldest first."""
        # The event loop may add some meanwhile, so the deque is emptied and not copied.
        commands = []
        while self._commands:
            commands.append(self._commands.popleft())
        return commands

    # -- what the encoder calls, in its thread -------------------------------------------------------------------------

    def next_seq(self) -> int:
        return next(self._seq)

    def call_in_loop(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the event loop's thread.

        Once the loop has ended, nothing happens.
        """
        loop = self._loop
        if loop is not None:
            # The loop may be closed between the two lines.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *arguments)

    # -- what the event loop calls -------------------------------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Name the event loop that viewers live in.

        None means that it ends, which closes all subscriptions.
        """
        self._loop = loop
        if loop is not None:
            return
        for stream in list(self.streams.values()):
            for subscription in stream.subscriptions:
                subscription.close("the server stops")

    def subscribe(self, name: str, codec: Codec = STILLS, fps: float | None = None) -> Subscription:
        """Begin to give pictures to one viewer.

        Args:
            name: Of the stream.
            codec: Of the pictures.
            fps: Most pictures a second; None for the server's own rate, which is also the limit.

        Raises:
            UnknownStream: There is no such stream, no room for it, or the server stops.
        """
        if self._loop is None:
            raise UnknownStream("watch: the server stops")
        stream = self.streams.get(name) or self._open(name)
        return Subscription(stream, codec, min(fps or self.fps, self.fps))

    def stream_for(self, name: str | None) -> str:
        """Return the stream that is asked for.

        Without a name it is "main", or the first if there is no such stream.
        """
        if name is not None:
            return name
        return "main" if "main" in self.streams else next(iter(list(self.streams)), "main")

    def offers(self, name: str) -> bool:
        """Return whether there is a stream of this name, or a family with such a member."""
        return name in self.streams or self.families.find(name) is not None

    def deliver(self, stream: Stream, encoded: EncodedPicture) -> None:
        """Hand a picture to the viewers of its codec, and a still to instant replay too."""
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

    def describe_streams(self) -> list[StreamFacts]:
        """Return the facts of each stream, then those of each family."""
        streams = list(self.streams.values())
        listed = [
            self._facts(each.name, each.title, shape=each.layout.shape, members=[each], published=each.published)
            for each in streams
        ]
        for family in self.families.by_name.values():
            title = family.title
            members = [each for each in streams if each.label == family.label]
            published = self._num_published(family.label, members)
            facts = self._facts(family.name, title, shape=_NO_PICTURE_YET, members=members, published=published)
            facts["count"] = family.count
            listed.append(facts)
        return listed

    def _facts(
        self, name: str, title: str, *, shape: tuple[int, int, int], members: Sequence[Stream], published: int
    ) -> StreamFacts:
        height, width, _ = shape
        facts: StreamFacts = {
            "name": name,
            "title": title,
            "width": width,
            "height": height,
            "watchers": sum(len(stream.subscriptions) for stream in members),
            "published": published,
            "base": name,
        }
        base, overlay = split_name(name)
        if overlay is not None and (self.offers(base) or base in self.families.by_name):
            facts["base"] = base
            facts["overlay"] = overlay
        return facts

    def broadcast(self, message: str) -> None:
        """Give a text message to all viewers."""
        for listener in list(self.listeners):
            listener(message)

    async def tick_until(self, end: asyncio.Event) -> None:
        """Tick at intervals until an event is set, and once more."""
        while not end.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STILL):
                    await end.wait()
            self.tick()

    def tick(self) -> None:
        """Do what nobody asks for at a given moment.

        Encode the last frame of still sources again for viewers that lack it, drop members without viewers, and send
        what has changed.
        """
        now = time.monotonic()
        for stream in list(self.streams.values()):
            # A viewer that was too slow for the last frame of a still source would else never see it.
            if stream.is_still(now):
                stream.again_asked = stream.key_asked = True
                self.pending.add(stream)
            is_unwatched = stream.is_on_demand and not stream.subscriptions
            if is_unwatched and now - stream.idle_since >= MEMBER_LINGER_S:
                self._drop(stream)
        self._announce_state()
        if self.curves.serial != self._announced_point:
            self._announced_point = self.curves.serial
            for listener in list(self.curve_listeners):
                listener()
        self._announce_streams()

    def _announce_streams(self) -> None:
        """Send the list of streams if anything but the number of frames has changed."""
        # The number of frames rises all the time: with it in the comparison, every tick would send the whole list.
        compared = self.describe_streams()
        for facts in compared:
            facts["published"] = 0
        if compared != self._announced:
            self._announced = compared
            self.broadcast(protocol.text_message("streams", streams=self.describe_streams()))

    def _announce_state(self) -> None:
        """Send a changed state to the viewers, at most ten times a second.

        What is held back goes with the next tick.
        """
        now = time.monotonic()
        # `set_state` makes a new dict for a change and only then, so that nothing need be compared.
        has_changed = self.state is not self._announced_state
        if has_changed and now - self.state_at >= _STATE_SPACING:
            self._announced_state = self.state
            self.state_at = now
            self.broadcast(protocol.text_message("state", state=self.state))

    def _new_stream(self, name: str, title: str) -> Stream:
        return Stream(name, title, self.fps, InstantReplay(self._instant_replay_s), self.pending)

    def _open(self, name: str) -> Stream:
        """Open a family's stream.

        At the limit an unwatched one gives way.
        """
        family = self.families.find(name)
        if family is None:
            raise UnknownStream(f"watch: stream must be one of {self._names() or '(none yet)'}")
        unwatched = [each for each in self.streams.values() if each.is_on_demand and not each.subscriptions]
        if len(self.streams) >= MAX_STREAMS and not unwatched:
            raise UnknownStream(f"watch: all {MAX_STREAMS} streams that there may be at a time are watched")
        if len(self.streams) >= MAX_STREAMS:
            self._drop(min(unwatched, key=lambda each: each.idle_since))
        stream = self._new_stream(name, family.title_of(name))
        stream.label = family.label
        # The program may have declared it meanwhile.
        with self._lock:
            return self.streams.setdefault(name, stream)

    def _names(self) -> str:
        """Return what a viewer may ask for, in words."""
        members = [f"{family.name} and a number" for family in self.families.by_name.values()]
        return ", ".join([*self.streams, *members])

    def _make_room(self) -> None:
        """Drop members of families until the streams are as few as they must be.

        Those without viewers go first.
        """
        members = [stream for stream in list(self.streams.values()) if stream.is_on_demand]
        members.sort(key=lambda each: (len(each.subscriptions), each.idle_since))
        excess = max(0, len(self.streams) - MAX_STREAMS)
        for stream in members[:excess]:
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        with self._lock:
            # The program may have declared it meanwhile.
            if not stream.is_on_demand or self.streams.get(stream.name) is not stream:
                return
            del self.streams[stream.name]
            published = self._dropped_published.get(stream.label, 0)
            self._dropped_published[stream.label] = published + stream.published
        for subscription in stream.subscriptions:
            subscription.close("it gave way to another stream")
        stream.is_dropped = True
        # Its encoders are closed by the thread that encodes, which may be in the middle of a frame of this stream.
        self.pending.add(stream)

    # -- what Prometheus calls -----------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the streams, members of a family under one label."""
        published = CounterMetricFamily(
            f"{PREFIX}frames_published", "Frames that the program published.", labels=["stream"]
        )
        watchers = GaugeMetricFamily(f"{PREFIX}watchers", "Viewers of a stream.", labels=["stream", "codec"])
        streams = list(self.streams.values())
        for label in {stream.label for stream in streams} | self._dropped_published.keys():
            members = [stream for stream in streams if stream.label == label]
            published.add_metric([label], self._num_published(label, members))
            for codec in CODECS:
                num_viewers = sum(stream.count_viewers(codec) for stream in members)
                watchers.add_metric([label, codec], num_viewers)
        yield published
        yield watchers

    def _num_published(self, label: str, members: Sequence[Stream]) -> int:
        by_dropped = self._dropped_published.get(label, 0)
        return by_dropped + sum(stream.published for stream in members)
