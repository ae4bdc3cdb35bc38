"""One named stream with its viewers, its instant replay, and families of streams."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import re
import time
from collections import deque
from collections.abc import Mapping

from torchrl_gpu.streaming.broadcast.frames import EncodedPicture, FrameLayout, Scalar, check_title
from torchrl_gpu.streaming.broadcast.mailboxes import EncoderQueue, FrameMailbox, GopQueue, NewestPicture
from torchrl_gpu.streaming.broadcast.protocol import MAX_NAME
from torchrl_gpu.streaming.broadcast.rate_limits import FrameSchedule
from torchrl_gpu.streaming.codecs.encoder import CODECS, Codec

# Seconds between two key frames that joining viewers get.
JOIN_SPACING = 0.25
# Seconds between two key frames for viewers that were too slow. All viewers of the stream pay for these key frames.
GAP_SPACING = 1.0
# Seconds without a frame, after which a source counts as standing still.
STILL = 0.25
# Seconds between two frames that are kept for newcomers while no viewer waits for one.
KEEP_SPACING = 1.0

MAX_STREAMS = 64
MAX_FAMILIES = 64
MAX_MEMBERS = 10**9

_FAMILY = re.compile(r"([A-Za-z][A-Za-z_]{0,31})(:[a-z][a-z_]{0,15})?")
_MEMBER = re.compile(r"([A-Za-z][A-Za-z_]{0,31})(0|[1-9][0-9]{0,8})(:[a-z][a-z_]{0,15})?")
_OVERLAY = re.compile(r"(.+):([a-z][a-z_]{0,15})")


def check_name(name: object, number: int) -> None:
    """Check the name of a new stream.

    Args:
        name: Of the stream.
        number: How many other streams there are.

    Raises:
        ValueError: It is no name, or there are too many streams.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise ValueError(f"StreamServer: stream must be 1 to {MAX_NAME} printable characters, not {name!r}")
    if number >= MAX_STREAMS:
        raise ValueError(f"StreamServer: stream {name!r} is one too many; there may be {MAX_STREAMS}")


class InstantReplay:
    """The newest JPEGs of a stream, and those that came before the last mark.

    Args:
        seconds: How far it reaches back; 0 keeps nothing.
        max_bytes: Bounds the running part. The part before the mark shares its pictures, or is no larger.
    """

    def __init__(self, seconds: float = 10.0, max_bytes: int = 15_000_000) -> None:
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ring: deque[EncodedPicture] = deque()
        self._clip: list[EncodedPicture] = []
        self._mark = -math.inf
        self._meta: Mapping[str, Scalar] = {}

    @property
    def is_on(self) -> bool:
        return self._seconds > 0

    @property
    def newest(self) -> float:
        """When the newest picture was captured, seconds by `stream_time`.

        It is −inf if there is none.
        """
        return self._ring[-1].captured if self._ring else -math.inf

    def add(self, encoded: EncodedPicture) -> None:
        # A still source has its last frame encoded again for each newcomer: that picture is here already.
        if not self.is_on or encoded.captured <= self.newest:
            return
        self._ring.append(encoded)
        self._bytes += len(encoded.data)
        # The picture was still being encoded when the episode ended.
        if encoded.captured <= self._mark:
            self._clip.append(encoded)
        while self._ring and self._is_too_much():
            oldest = self._ring.popleft()
            self._bytes -= len(oldest.data)

    def mark(self, captured: float, meta: Mapping[str, Scalar]) -> None:
        """Mark the end of an episode, whose last pictures `clip` gives.

        Args:
            captured: When it ended, seconds by `stream_time`.
            meta: Joins the metadata of the last picture.
        """
        self._mark = captured
        self._meta = meta
        self._clip = [encoded for encoded in self._ring if encoded.captured <= captured]

    def clip(self) -> list[EncodedPicture]:
        """Return the pictures before the last mark, oldest first, marked as replay.

        Without a mark they are the newest ones.
        """
        shown = self._clip or self._ring
        pictures = [dataclasses.replace(encoded, replay=True) for encoded in shown]
        if self._clip and self._meta:
            last = pictures[-1]
            meta = {**last.meta, **self._meta}
            pictures[-1] = dataclasses.replace(last, meta=meta)
        return pictures

    def _is_too_much(self) -> bool:
        return self._bytes > self._max_bytes or self._ring[0].captured < self.newest - self._seconds


class SubscriptionClosed(Exception):
    """There are no more pictures.

    The message says why.
    """


class Stream:
    """A stream of pictures, at most `fps` a second.

    The producer's thread, the encoder's and the event loop share it. One lock for all would let a viewer hold up the
    producer. So each attribute has one writer, which the groups below name, and readers take what they find.

    Attributes:
        label: What it is counted under in metrics.
        published: Frames that the program has published.
        layout: Format of its frames.
        schedule: When a frame is due.
        subscriptions: Its viewers.
        demand_at: From when on a viewer waits for a frame; infinite while none does.
        idle_since: When the last viewer left, by the monotonic clock.
        is_dropped: Whether it has given way to another stream.
        key_asked: Whether the next picture must be a key frame.
        again_asked: Whether the newest frame must be encoded again.
        key_at: When the last key frame was encoded, by the monotonic clock.
    """

    def __init__(self, name: str, title: str, fps: float, replay: InstantReplay, pending: EncoderQueue[Stream]) -> None:
        self.name = name
        self.title = title
        self.label = name
        self.mailbox = FrameMailbox()
        # Written by the producer, except for the interval of the schedule, which the event loop sets.
        self.published = 0
        self.layout = FrameLayout()
        self.schedule = FrameSchedule(1 / fps)
        # Written by the event loop.
        self.subscriptions: tuple[Subscription, ...] = ()
        self.demand_at = math.inf
        self.idle_since = time.monotonic()
        self.is_dropped = False
        self.replay = replay
        self._pending = pending
        self._min_interval = 1 / fps
        # Set by the event loop, cleared by the encoder.
        self.key_asked = False
        self.again_asked = False
        # Written by the encoder.
        self.key_at = -math.inf

    @property
    def is_on_demand(self) -> bool:
        """True for a member of a family, made on request of a viewer."""
        return self.label != self.name

    def is_due(self, now: float) -> bool:
        """Return whether a frame is wanted now.

        That is so if a viewer waits for one, or if the frame that is kept for newcomers is old. Members of families
        keep none.
        """
        schedule = self.schedule
        kept_is_old = not self.is_on_demand and now >= schedule.taken_at + KEEP_SPACING
        is_asked = now >= self.demand_at or kept_is_old
        return now >= schedule.next_at and is_asked

    def add(self, subscription: Subscription) -> None:
        # A new tuple each time: the encoder's thread may be going through the old one.
        self.subscriptions = (*self.subscriptions, subscription)
        self._set_rate()

    def remove(self, subscription: Subscription) -> None:
        self.subscriptions = tuple(each for each in self.subscriptions if each is not subscription)
        self.idle_since = time.monotonic()
        self._set_rate()

    def refresh(self) -> None:
        """Find out again when the next viewer waits for a frame."""
        waiting = (each.schedule.next_at for each in self.subscriptions if each.is_waiting)
        self.demand_at = min(waiting, default=math.inf)

    def ask_key(self, spacing: float, now: float) -> None:
        """Ask for a key frame, unless there was one a moment ago."""
        if now - self.key_at >= spacing:
            self.key_asked = True

    def codecs_due(self, now: float) -> set[Codec]:
        """Return the codecs of those viewers that wait for a picture now."""
        waiting = [each for each in self.subscriptions if each.is_waiting]
        return {each.codec for each in waiting if now >= each.schedule.next_at}

    def count_viewers(self, codec: Codec) -> int:
        return sum(each.codec == codec for each in self.subscriptions)

    def show_newest(self) -> None:
        """Have the newest frame encoded again, for a viewer that has just come."""
        if self.mailbox.current is not None:
            self.again_asked = True
            self._pending.add(self)

    def is_still(self, now: float) -> bool:
        """Return whether a viewer waits in vain for a frame that is there."""
        newest = self.mailbox.current
        return newest is not None and any(each.misses(newest.seq, now) for each in self.subscriptions)

    def _set_rate(self) -> None:
        """Follow the fastest viewer, or the server's own rate while there is none."""
        intervals = (each.schedule.interval for each in self.subscriptions)
        self.schedule.interval = min(intervals, default=self._min_interval)
        self.refresh()


class Subscription:
    """The pictures of one stream for one viewer, for the event loop's thread.

    Pictures of a codec with deltas follow each other without a gap, or begin again at a key frame, at the rate of the
    stream's fastest viewer. Of other codecs the newest picture is given, at most `fps` times a second.
    """

    def __init__(self, stream: Stream, codec: Codec, fps: float) -> None:
        self.stream = stream
        self.codec = codec
        self.schedule = FrameSchedule(1 / fps)
        self._has_deltas = CODECS[codec].has_deltas
        self.queue: GopQueue | NewestPicture = GopQueue() if self._has_deltas else NewestPicture()
        self._seen = -1
        self._waits_since = math.inf
        self._waiter: asyncio.Future[None] | None = None
        self._why_closed: str | None = None
        stream.add(self)
        if self._has_deltas:
            self.request_key()

    @property
    def dropped(self) -> int:
        return self.queue.dropped

    @property
    def is_waiting(self) -> bool:
        waiter = self._waiter
        return waiter is not None and not waiter.done()

    async def get(self) -> EncodedPicture:
        """Wait for the next picture. One call at a time.

        Raises:
            SubscriptionClosed: There will be no more pictures.
        """
        while True:
            if self._why_closed is not None:
                raise SubscriptionClosed(self._why_closed)
            encoded = self.queue.take()
            if encoded is not None:
                self.schedule.advance(time.monotonic())
                self._seen = encoded.seq
                return encoded
            await self._wait()

    def offer(self, encoded: EncodedPicture, now: float) -> None:
        """Take a picture that has just been encoded, if the viewer needs it."""
        if not self._has_deltas and now < self.schedule.next_at:
            return
        self.queue.offer(encoded)
        if not self.queue.needs_key:
            self._wake()
        elif self.is_waiting:
            # A viewer that does not wait could not take a key frame anyway.
            self.stream.ask_key(JOIN_SPACING if self._seen < 0 else GAP_SPACING, now)

    def request_key(self) -> None:
        self.stream.ask_key(JOIN_SPACING, time.monotonic())

    def misses(self, seq: int, now: float) -> bool:
        """Return whether the viewer has waited for a while, and not seen this frame."""
        waited = now - max(self._waits_since, self.schedule.next_at)
        return self.is_waiting and self._seen < seq and waited >= STILL

    def close(self, why: str = "closed") -> None:
        if self._why_closed is None:
            self._why_closed = why
            self.stream.remove(self)
            self._wake()

    async def _wait(self) -> None:
        """Wait until a picture is offered or the subscription is closed."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._waits_since = time.monotonic()
        self.stream.demand_at = min(self.stream.demand_at, self.schedule.next_at)
        is_new = self._seen < 0
        if is_new and (not self._has_deltas or self.stream.key_asked):
            self.stream.show_newest()
        try:
            await self._waiter
        finally:
            # Also when the viewer's task is cancelled: the stream would else count it as waiting for ever.
            self._waiter = None
            self.stream.refresh()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


# -- families: streams that are too many to be listed ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Family:
    """Numbered streams, each made when a viewer asks for it.

    They are named `env0`, `env1`, …, or with an overlay `env0:q`, `env1:q`, ….

    Attributes:
        name: "env", or "env:q".
        title: What viewers read.
        count: Number of members.
    """

    name: str
    title: str
    count: int

    @property
    def label(self) -> str:
        """The name of all members in metrics, which a name for each would fill."""
        base, overlay = split_name(self.name)
        return f"{base}*" if overlay is None else f"{base}*:{overlay}"

    def title_of(self, name: str) -> str:
        """Return the title of a member: the family's, with its number before a colon."""
        member = _MEMBER.fullmatch(name)
        assert member is not None
        title, mark, overlay = self.title.partition(": ")
        return f"{title} {member[2]}{mark}{overlay}"


class Families:
    """Families by name. One thread declares, any may ask."""

    def __init__(self) -> None:
        self.by_name: dict[str, Family] = {}

    def declare(self, name: object, count: object, title: str | None) -> Family:
        """Declare a family, or change one.

        Raises:
            ValueError: An argument is invalid, or there are too many families.
        """
        where = "StreamServer.declare_family"
        if not isinstance(name, str) or not _FAMILY.fullmatch(name):
            raise ValueError(
                f"{where}: name must be at most 32 letters and underscores, or NAME:OVERLAY with an overlay of at most"
                f" 16, not {name!r}"
            )
        check_title(where, title)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_MEMBERS:
            raise ValueError(f"{where}: count must be an integer from 1 to {MAX_MEMBERS:,}, not {count!r}")
        if len(self.by_name) >= MAX_FAMILIES and name not in self.by_name:
            raise ValueError(f"{where}: family {name!r} is one too many; there may be {MAX_FAMILIES}")
        # A new dict each time: other threads go through the old one.
        family = Family(name, title or name, count)
        self.by_name = {**self.by_name, name: family}
        return family

    def find(self, name: object) -> Family | None:
        """Return the family that a stream of this name belongs to.

        It is None if no family has such a member.
        """
        if not isinstance(name, str) or not self.by_name:
            return None
        member = _MEMBER.fullmatch(name)
        if member is None:
            return None
        base, number, overlay = member.groups()
        family = self.by_name.get(base + (overlay or ""))
        return family if family is not None and int(number) < family.count else None


def split_name(name: str) -> tuple[str, str | None]:
    """Return the parts of `base`, or of `base:overlay`."""
    found = _OVERLAY.fullmatch(name)
    return (name, None) if found is None else (found[1], found[2])
