"""One named stream: what its producer, the encoder and its viewers know of each other; instant replay; families."""

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

JOIN_SPACING = 0.25  # seconds between two key frames that joining viewers get
GAP_SPACING = 1.0  # the same for viewers that were too slow: the others pay for these key frames
STILL = 0.25  # seconds without a frame, after which a source counts as standing still
KEEP_SPACING = 1.0  # seconds between two frames that are kept for newcomers while no viewer waits for one

MAX_STREAMS = 64
MAX_FAMILIES = 64
MAX_MEMBERS = 10**9
_NAME = re.compile(r"([A-Za-z][A-Za-z_]{0,31})(:[a-z][a-z_]{0,15})?")
_MEMBER = re.compile(r"([A-Za-z][A-Za-z_]{0,31})(0|[1-9][0-9]{0,8})(:[a-z][a-z_]{0,15})?")
_OVERLAY = re.compile(r"(.+):([a-z][a-z_]{0,15})")


def check_name(name: object, number: int) -> None:
    """Raises ValueError where a new stream beside a number of others has no name, or is one too many."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise ValueError(f"StreamServer: want 1 to {MAX_NAME} printable characters as a stream; got {name!r}")
    if number >= MAX_STREAMS:
        raise ValueError(f"StreamServer: want at most {MAX_STREAMS} streams; got {name!r} beside them")


class InstantReplay:
    """The newest JPEGs of a stream, of so many seconds, and those that came before the last mark.

    `max_bytes` bounds the running part; the part before the mark shares its pictures, or is no larger.
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
        """Time of capture of the newest picture, seconds by `stream_time`; −inf where there is none."""
        return self._ring[-1].captured if self._ring else -math.inf

    def add(self, encoded: EncodedPicture) -> None:
        if not self.is_on or encoded.captured <= self.newest:  # the latter is the last frame, encoded for a newcomer
            return
        self._ring.append(encoded)
        self._bytes += len(encoded.data)
        if encoded.captured <= self._mark:  # it was still being encoded when the episode ended
            self._clip.append(encoded)
        while self._ring and (self._bytes > self._max_bytes or self._ring[0].captured < self.newest - self._seconds):
            self._bytes -= len(self._ring.popleft().data)

    def mark(self, captured: float, meta: Mapping[str, Scalar]) -> None:
        """Marks the end of an episode, whose last pictures `clip` gives; `meta` joins that of the last one."""
        self._mark, self._meta = captured, meta
        self._clip = [encoded for encoded in self._ring if encoded.captured <= captured]

    def clip(self) -> list[EncodedPicture]:
        """Pictures before the last mark, or else the newest ones, oldest first, marked as replay."""
        pictures = [dataclasses.replace(encoded, replay=True) for encoded in self._clip or self._ring]
        if self._clip and self._meta:
            pictures[-1] = dataclasses.replace(pictures[-1], meta={**pictures[-1].meta, **self._meta})
        return pictures


class SubscriptionClosed(Exception):
    """There are no more pictures; the message says why."""


class Stream:
    """A stream of pictures, at most `fps` a second.

    The producer's thread, the encoder's and the event loop share it. Each attribute has one writer, named below.
    """

    def __init__(self, name: str, title: str, fps: float, replay: InstantReplay, pending: EncoderQueue[Stream]) -> None:
        self.name = name
        self.title = title
        self.label = name  # what it is counted under
        self.mailbox = FrameMailbox()
        # written by the producer, but for the schedule's interval
        self.published = 0
        self.layout = FrameLayout()
        self.schedule = FrameSchedule(1 / fps)
        # written by the event loop
        self.subscriptions: tuple[Subscription, ...] = ()
        self.demand_at = math.inf
        self.idle_since = time.monotonic()
        self.is_dropped = False
        self.replay = replay
        self._pending = pending
        self._min_interval = 1 / fps
        # asked for by the event loop, granted by the encoder
        self.key_asked = False
        self.again_asked = False
        # written by the encoder
        self.key_at = -math.inf

    @property
    def is_on_demand(self) -> bool:
        """True for a member of a family, made on request of a viewer."""
        return self.label != self.name

    def is_due(self, now: float) -> bool:
        """True if a viewer waits for a frame, or the one that is kept for newcomers, of no family member, is old."""
        kept_is_old = not self.is_on_demand and now >= self.schedule.taken_at + KEEP_SPACING
        return now >= self.schedule.next_at and (now >= self.demand_at or kept_is_old)

    def add(self, subscription: Subscription) -> None:
        self.subscriptions = (*self.subscriptions, subscription)
        self._set_rate()

    def remove(self, subscription: Subscription) -> None:
        self.subscriptions = tuple(each for each in self.subscriptions if each is not subscription)
        self.idle_since = time.monotonic()
        self._set_rate()

    def refresh(self) -> None:
        self.demand_at = min(
            (each.schedule.next_at for each in self.subscriptions if each.is_waiting), default=math.inf
        )

    def ask_key(self, spacing: float, now: float) -> None:
        """Asks for a key frame, unless there was one a moment ago."""
        if now - self.key_at >= spacing:
            self.key_asked = True

    def codecs_due(self, now: float) -> set[Codec]:
        return {each.codec for each in self.subscriptions if each.is_waiting and now >= each.schedule.next_at}

    def show_newest(self) -> None:
        """Has the newest frame encoded again, for a viewer that has just come."""
        if self.mailbox.current is not None:
            self.again_asked = True
            self._pending.add(self)

    def is_still(self, now: float) -> bool:
        """True if a viewer has waited in vain while there is a frame that it has not seen."""
        newest = self.mailbox.current
        return newest is not None and any(each.misses(newest.seq, now) for each in self.subscriptions)

    def _set_rate(self) -> None:
        """Follows the fastest viewer, or the server's own rate while there is none."""
        self.schedule.interval = min(
            (each.schedule.interval for each in self.subscriptions), default=self._min_interval
        )
        self.refresh()


class Subscription:
    """The pictures of one stream for one viewer, as it takes them. For the event loop's thread.

    Of a codec with deltas, pictures follow each other without a gap, or begin again at a key frame, and come at the
    rate of the stream's fastest viewer. Of others the newest is given, at most `fps` times a second.
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
        """The next picture, as soon as there is one; SubscriptionClosed if there will be none. One call at a time."""
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
        if not self._has_deltas and now < self.schedule.next_at:
            return
        self.queue.offer(encoded)
        if not self.queue.needs_key:
            self._wake()
        elif self.is_waiting:  # not for one that cannot take it anyway
            self.stream.ask_key(JOIN_SPACING if self._seen < 0 else GAP_SPACING, now)

    def request_key(self) -> None:
        self.stream.ask_key(JOIN_SPACING, time.monotonic())

    def misses(self, seq: int, now: float) -> bool:
        """True if the viewer has waited for a while, and not seen this frame."""
        return self.is_waiting and self._seen < seq and now - max(self._waits_since, self.schedule.next_at) >= STILL

    def close(self, why: str = "closed") -> None:
        if self._why_closed is None:
            self._why_closed = why
            self.stream.remove(self)
            self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        self._waits_since = time.monotonic()
        self.stream.demand_at = min(self.stream.demand_at, self.schedule.next_at)
        if self._seen < 0 and (not self._has_deltas or self.stream.key_asked):
            self.stream.show_newest()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self.stream.refresh()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


# -- families: streams that are too many to be listed ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Family:
    """Streams `env0`, `env1`, …, or with an overlay `env0:q`, `env1:q`, …, made when a viewer asks for one."""

    name: str  # "env", or "env:q"
    title: str  # what viewers read
    count: int

    @property
    def label(self) -> str:
        """Of all members in metrics, which a name for each would fill."""
        base, overlay = split_name(self.name)
        return f"{base}*" if overlay is None else f"{base}*:{overlay}"

    def title_of(self, name: str) -> str:
        member = _MEMBER.fullmatch(name)
        assert member is not None
        title, mark, overlay = self.title.partition(": ")
        return f"{title} {member[2]}{mark}{overlay}"


class Families:
    """Families by name. One thread declares, any may ask."""

    def __init__(self) -> None:
        self.by_name: dict[str, Family] = {}

    def declare(self, name: object, count: object, title: str | None) -> Family:
        where = "StreamServer.declare_family"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{where}: want a name of at most 32 letters and underscores, or NAME:OVERLAY of which the second has"
                f" at most 16; got {name!r}"
            )
        check_title(where, title)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_MEMBERS:
            raise ValueError(f"{where}: want a count of 1 to {MAX_MEMBERS:,}; got {count!r}")
        if len(self.by_name) >= MAX_FAMILIES and name not in self.by_name:
            raise ValueError(f"{where}: want at most {MAX_FAMILIES} families; got {name!r} beside them")
        self.by_name = {**self.by_name, name: Family(name, title or name, count)}
        return self.by_name[name]

    def find(self, name: object) -> Family | None:
        """The family that a stream of this name would belong to; None if there is none, or it has too few members."""
        member = _MEMBER.fullmatch(name) if isinstance(name, str) and self.by_name else None
        if member is None:
            return None
        family = self.by_name.get(member[1] + (member[3] or ""))
        return family if family is not None and int(member[2]) < family.count else None


def split_name(name: str) -> tuple[str, str | None]:
    """The parts of `base`, or of `base:overlay`."""
    found = _OVERLAY.fullmatch(name)
    return (name, None) if found is None else (found[1], found[2])
